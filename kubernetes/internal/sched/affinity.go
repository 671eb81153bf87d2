package sched

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/takt-dev/takt/kubernetes/internal/topology"
)

// mostCPUs is how many CPUs an affinity is read for (CPU_SETSIZE).
const mostCPUs = 1024

// Missing are those of cpus that a thread may not run on: its affinity, as the thread and its cpuset have
// it together.
func Missing(tid int, cpus []int) ([]int, error) {
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(tid, &may); err != nil {
		return nil, fmt.Errorf("cannot read where thread %d may run: %w", tid, err)
	}
	var missing []int
	for _, cpu := range cpus {
		if cpu < mostCPUs && !may.IsSet(cpu) {
			missing = append(missing, cpu)
		}
	}
	return missing, nil
}

// Unpin lets a thread run on cpus, as far as its cpuset allows.
func Unpin(tid int, cpus []int) error {
	var may unix.CPUSet
	for _, cpu := range cpus {
		may.Set(cpu)
	}
	if err := unix.SchedSetaffinity(tid, &may); err != nil {
		return fmt.Errorf("cannot let thread %d run on CPUs %s: %w", tid, topology.FormatCPUList(cpus), err)
	}
	return nil
}

// MayRunOn says whether a thread may run on one of cpus. One that cannot be read may.
func MayRunOn(tid int, cpus []int) bool {
	missing, err := Missing(tid, cpus)
	return err != nil || len(missing) < len(cpus)
}
