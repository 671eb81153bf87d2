package enforce

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/takt-dev/takt/kubernetes/pkg/sched"
)

// Names are all backends, in the order in which they are preferred.
var Names = []string{HCBSName, DeadlineName, RTGroupName}

// New probes the machine for a backend and returns it.
func New(name string) (Backend, error) {
	switch name {
	case HCBSName:
		return NewHCBS("/")
	case DeadlineName:
		return Deadline{}, probeDeadline()
	case RTGroupName:
		return NewRTGroup("/")
	}
	return nil, fmt.Errorf("backend %q is not known: the backends are %v", name, Names)
}

// Auto is the best backend that the machine has and that isolates: not rt-group, which only caps.
func Auto() (Backend, error) {
	hcbs, hcbsErr := New(HCBSName)
	if hcbsErr == nil {
		return hcbs, nil
	}
	deadline, err := New(DeadlineName)
	if err != nil {
		return nil, errors.Join(hcbsErr, err)
	}
	return deadline, nil
}

// probeDeadline has a thread take the smallest reservation.
func probeDeadline() error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		period := sched.Limits("/").PeriodMax.Nanoseconds()
		result <- sched.Set(unix.Gettid(), sched.Attr{
			Policy: sched.Deadline, Flags: sched.ResetOnFork, Runtime: 1024, Deadline: period, Period: period,
		})
	}()
	if err := <-result; err != nil {
		return fmt.Errorf("this kernel gives no SCHED_DEADLINE to this process (it needs CAP_SYS_NICE and all CPUs): %w", err)
	}
	return nil
}
