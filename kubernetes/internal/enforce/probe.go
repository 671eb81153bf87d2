package enforce

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

// Names are all backends.
var Names = []string{DeadlineName, PartitionName, WholeName, RTGroupName, HCBSName}

// New probes the machine for a backend and returns it. cores are those that the node offers; what a backend
// has to remember beyond its process it writes into the directory run.
func New(name string, cores []int, run string) (Backend, error) {
	switch name {
	case PartitionName:
		if err := probeDeadline(); err != nil {
			return nil, err
		}
		if _, err := cgroupRoot("/", "cpuset"); errors.Is(err, fs.ErrNotExist) {
			return NewCells("/", cores)
		}
		return NewPartition("/", cores, filepath.Join(run, "partition.json"))
	case WholeName:
		return NewWhole("/", cores)
	case HCBSName:
		return NewHCBS("/")
	case DeadlineName:
		return Deadline{}, probeDeadline()
	case RTGroupName:
		return NewRTGroup("/")
	}
	return nil, fmt.Errorf("backend %q is not known: the backends are %v", name, Names)
}

// Auto is the best backend that the machine has, isolates and leaves the machine as it is: not rt-group, which
// only caps, nor those that take cores away from everybody.
func Auto() (Backend, error) {
	hcbs, hcbsErr := NewHCBS("/")
	if hcbsErr == nil {
		return hcbs, nil
	}
	if err := probeDeadline(); err != nil {
		return nil, errors.Join(hcbsErr, err)
	}
	return Deadline{}, nil
}

// probeDeadline has a thread take a small reservation and give it back: with a runtime that would not suffice
// for that, it would be stopped in the middle, and end minutes later. On a full node there is no room for it, which
// the kernel says only to those that it would give it to.
func probeDeadline() error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		period := sched.Limits("/").PeriodMax.Nanoseconds()
		err := sched.Set(unix.Gettid(), sched.Attr{
			Policy: sched.Deadline, Flags: sched.ResetOnFork, Runtime: period / 1000, Deadline: period, Period: period,
		})
		if err == nil {
			err = sched.Set(unix.Gettid(), sched.Attr{Policy: sched.Other})
		}
		result <- err
	}()
	if err := <-result; err != nil && !errors.Is(err, syscall.EBUSY) {
		return fmt.Errorf("this kernel gives no SCHED_DEADLINE to this process (it needs CAP_SYS_NICE and all CPUs): %w", err)
	}
	return nil
}
