// Package sched speaks with the kernel's scheduler: the policy of a thread, its reservation, what it has
// used of it, and how much of a core may be reserved at all (Documentation/scheduler/sched-deadline.rst).
package sched

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
)

// Policies of sched(7).
const (
	Other    uint32 = unix.SCHED_NORMAL
	FIFO     uint32 = unix.SCHED_FIFO
	RR       uint32 = unix.SCHED_RR
	Deadline uint32 = unix.SCHED_DEADLINE
)

// Flags of sched_setattr(2).
const (
	ResetOnFork uint64 = unix.SCHED_FLAG_RESET_ON_FORK
	Reclaim     uint64 = unix.SCHED_FLAG_RECLAIM
	Overrun     uint64 = unix.SCHED_FLAG_DL_OVERRUN
)

// ErrChanged says that the kernel did not keep what it was told.
var ErrChanged = errors.New("the kernel reports another policy than the one set")

// PolicyName is the name of a policy as sched(7) has it.
func PolicyName(policy uint32) string {
	switch policy {
	case Other:
		return "SCHED_OTHER"
	case FIFO:
		return "SCHED_FIFO"
	case RR:
		return "SCHED_RR"
	case Deadline:
		return "SCHED_DEADLINE"
	}
	return fmt.Sprintf("policy %d", policy)
}

// Attr is the policy of one thread.
type Attr struct {
	Policy   uint32
	Flags    uint64
	Priority uint32
	// Runtime, Deadline and Period are in nanoseconds and only of SCHED_DEADLINE.
	Runtime, Deadline, Period uint64
}

// Set gives a thread a policy and reads it back, because a policy that is silently not there is the worst
// of all outcomes. One that has begun to exit is none any more (ESRCH): up to Linux 6.18 at least, the kernel has taken
// it off the SCHED_DEADLINE threads of its cpuset already and counts one too few, or too many, for ever. Where that
// number is nought, it forgets what the cpuset's threads have the next time that it builds its scheduling domains.
func Set(tid int, attr Attr) error {
	if _, at, err := readStat(tid, tid); err == nil && at != running {
		return fmt.Errorf("cannot set thread %d to %s: it exits: %w", tid, PolicyName(attr.Policy), unix.ESRCH)
	}
	err := unix.SchedSetAttr(tid, &unix.SchedAttr{
		Policy: attr.Policy, Flags: attr.Flags, Priority: attr.Priority,
		Runtime: attr.Runtime, Deadline: attr.Deadline, Period: attr.Period,
	}, 0)
	if err != nil {
		return fmt.Errorf("cannot set thread %d to %s: %w", tid, PolicyName(attr.Policy), err)
	}
	got, err := Get(tid)
	if err != nil {
		return err
	}
	if got != attr {
		return fmt.Errorf("thread %d has %s: %w", tid, PolicyName(got.Policy), ErrChanged)
	}
	return nil
}

// Get reads the policy of a thread.
func Get(tid int) (Attr, error) {
	got, err := unix.SchedGetAttr(tid, 0)
	if err != nil {
		return Attr{}, fmt.Errorf("cannot read the policy of thread %d: %w", tid, err)
	}
	attr := Attr{Policy: got.Policy, Flags: got.Flags}
	switch got.Policy {
	case Deadline:
		attr.Runtime, attr.Deadline, attr.Period = got.Runtime, got.Deadline, got.Period
	case FIFO, RR:
		attr.Priority = got.Priority
	}
	return attr, nil
}

// Limits reads which periods the kernel below root takes; those of an unconfigured kernel where it does not
// say (before 5.10, or without the right to look).
func Limits(root string) reservation.Limits {
	limits := reservation.DefaultLimits
	if us, err := readInt(filepath.Join(root, "proc/sys/kernel/sched_deadline_period_min_us")); err == nil && us > 0 {
		limits.PeriodMin = reservation.Duration(us * 1000)
	}
	if us, err := readInt(filepath.Join(root, "proc/sys/kernel/sched_deadline_period_max_us")); err == nil && us > 0 {
		limits.PeriodMax = reservation.Duration(us * 1000)
	}
	return limits
}

// serverShare is the share of a core that each of the kernel's own servers has: 50 ms of every second, unless
// debugfs says otherwise.
const serverShare = 50_000

// servers keep a share of each core for threads of other classes: since which kernel, and of which feature if
// it may be absent.
var servers = []struct {
	name         string
	major, minor int
	feature      string
}{
	{"fair_server", 6, 12, ""},
	{"ext_server", 7, 0, "sys/kernel/sched_ext"},
}

// Bound is how many parts per million of each core the kernel below root admits: the real-time share
// (sched_rt_runtime_us of sched_rt_period_us) less those of the fair server and of the one for sched_ext. Without a limit it is the
// kernel's default of 95 %, because then nothing but this bound keeps the node alive.
func Bound(root string) (int64, error) {
	runtime, err := readInt(filepath.Join(root, "proc/sys/kernel/sched_rt_runtime_us"))
	if err != nil {
		return 0, err
	}
	period, err := readInt(filepath.Join(root, "proc/sys/kernel/sched_rt_period_us"))
	if err != nil {
		return 0, err
	}
	if period <= 0 || runtime > period {
		return 0, fmt.Errorf("kernel.sched_rt_runtime_us is %d of a period of %d: no share of a core", runtime, period)
	}
	bound := int64(950_000)
	if runtime >= 0 {
		bound = runtime * reservation.WholeCore / period
	}
	taken, err := ServersShare(root)
	if err != nil {
		return 0, err
	}
	if bound -= taken; bound <= 0 {
		return 0, fmt.Errorf("the kernel admits no reservation: kernel.sched_rt_runtime_us is %d of %d, its own servers take %d ppm: raise the former",
			runtime, period, taken)
	}
	return bound, nil
}

// Throttles says whether the kernel below root leaves real-time threads less than all of a core (sched_rt_runtime_us).
func Throttles(root string) (bool, error) {
	runtime, err := readInt(filepath.Join(root, "proc/sys/kernel/sched_rt_runtime_us"))
	if err != nil {
		return false, err
	}
	period, err := readInt(filepath.Join(root, "proc/sys/kernel/sched_rt_period_us"))
	return runtime >= 0 && runtime < period, err
}

// shareOf is the greatest share that one of the kernel's servers has of a core; false if debugfs does not say.
func shareOf(root, server string) (share int64, readable bool) {
	dir := filepath.Join(root, "sys/kernel/debug/sched", server)
	cpus, err := os.ReadDir(dir)
	if err != nil {
		return 0, false
	}
	for _, cpu := range cpus {
		runtime, err := readInt(filepath.Join(dir, cpu.Name(), "runtime"))
		if err != nil {
			return 0, false // locked down
		}
		period, err := readInt(filepath.Join(dir, cpu.Name(), "period"))
		if err != nil || period <= 0 {
			return 0, false
		}
		share = max(share, (runtime*reservation.WholeCore+period-1)/period)
	}
	return share, true
}

// AtLeast says whether the kernel below root is of this version or a later one.
func AtLeast(root string, major, minor int) (bool, error) {
	text, err := os.ReadFile(filepath.Join(root, "proc/sys/kernel/osrelease"))
	if err != nil {
		return false, fmt.Errorf("cannot read the kernel's version: %w", err)
	}
	var has [2]int
	if _, err := fmt.Sscanf(string(text), "%d.%d", &has[0], &has[1]); err != nil {
		return false, fmt.Errorf("cannot read the kernel's version %q: %w", strings.TrimSpace(string(text)), err)
	}
	return has[0] > major || (has[0] == major && has[1] >= minor), nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func readInt(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("cannot read the kernel's settings: %w", err)
	}
	number, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("cannot read %s: %q is not a number", path, text)
	}
	return number, nil
}

// Drop takes a thread's policy away. Up to Linux 6.18 at least, a thread that leaves SCHED_DEADLINE while
// it sleeps, later than the end of its last period, takes its bandwidth with it for ever: nobody subtracts
// it from what the root domain has admitted. So the reservation is first made so small that its bandwidth,
// which the kernel keeps in 2^-20 of a core, is nothing.
func Drop(tid int) error {
	now, err := Get(tid)
	if err != nil {
		return err
	}
	if now.Policy == Deadline {
		period := Limits("/").PeriodMax.Nanoseconds()
		if err := Set(tid, Attr{
			Policy: Deadline, Flags: ResetOnFork, Runtime: reservation.MinRuntime.Nanoseconds(), Deadline: period, Period: period,
		}); err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EPERM) {
			// On a machine that has admitted more than it may, as one that has lost bandwidth, the kernel
			// refuses even less, and to a thread that a cpuset keeps off some CPUs anything: then what is lost
			// is found by comparing (see Admitted).
			return err
		}
	}
	return Set(tid, Attr{Policy: Other})
}
