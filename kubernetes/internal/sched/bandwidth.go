package sched

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
)

// bandwidthUnit is a whole core in the kernel's own unit (BW_UNIT, kernel/sched/sched.h).
const bandwidthUnit = 1 << 20

// Admitted is what the kernel below root has admitted of a CPU's root domain, its own servers included, in parts
// per million of a core: what debugfs says (sched/debug, dl_bw->total_bw).
func Admitted(root string, cpu int) (int64, error) {
	text, err := os.ReadFile(filepath.Join(root, "sys/kernel/debug/sched/debug"))
	if err != nil {
		return 0, fmt.Errorf("cannot read what the kernel has admitted: %w", err)
	}
	_, of, found := strings.Cut(string(text), fmt.Sprintf("dl_rq[%d]:", cpu))
	if found {
		of, _, _ = strings.Cut(of, "dl_rq[")
		for line := range strings.Lines(of) {
			name, value, _ := strings.Cut(line, ":")
			if strings.TrimSpace(name) != ".dl_bw->total_bw" {
				continue
			}
			total, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("cannot read what the kernel has admitted: %q", line)
			}
			return total * reservation.WholeCore / bandwidthUnit, nil
		}
	}
	return 0, fmt.Errorf("cannot read what the kernel has admitted: %w of CPU %d in sched/debug", fs.ErrNotExist, cpu)
}

// ServersShare is what the kernel's own servers have of a core below root, in parts per million.
func ServersShare(root string) (int64, error) {
	var taken int64
	for _, server := range servers {
		share, readable := shareOf(root, server.name)
		if !readable {
			since, err := AtLeast(root, server.major, server.minor)
			if err != nil {
				return 0, err
			}
			if since && (server.feature == "" || exists(filepath.Join(root, server.feature))) {
				share = serverShare
			}
		}
		taken += share
	}
	return taken, nil
}

// Share is what the attribute takes of a core, in parts per million, as the kernel counts it: Q/P, rounded down.
func (a Attr) Share() int64 {
	if a.Policy != Deadline || a.Period == 0 {
		return 0
	}
	return int64(a.Runtime * bandwidthUnit / a.Period * reservation.WholeCore / bandwidthUnit)
}

// Density is Q/D in parts per million of a core, rounded up: what decides whether deadlines are met.
func (a Attr) Density() int64 {
	within := cmp.Or(a.Deadline, a.Period)
	if a.Policy != Deadline || within == 0 {
		return 0
	}
	high, low := bits.Mul64(a.Runtime, reservation.WholeCore)
	if high >= within {
		return math.MaxInt64 // the kernel takes no runtime above the deadline
	}
	density, rest := bits.Div64(high, low, within)
	if rest > 0 {
		density++
	}
	return int64(density)
}

// governor says whether a thread is the kernel's that sets the clock frequency (schedutil): it has SCHED_DEADLINE
// without a reservation, and what the kernel says that it has is made up (kernel/sched/cpufreq_schedutil.c).
func governor(process, tid int) bool {
	thread, err := ReadThread(process, tid)
	return err == nil && thread.Kernel && strings.HasPrefix(thread.Name, "sugov:")
}

// DeadlineThreads are all threads of the machine with a reservation of SCHED_DEADLINE, and what they have.
func DeadlineThreads() (map[int]Attr, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("cannot list processes: %w", err)
	}
	all := map[int]Attr{}
	for _, entry := range entries {
		process, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		for _, tid := range ThreadIDs(process) {
			if attr, err := Get(tid); err == nil && attr.Policy == Deadline && !governor(process, tid) {
				all[tid] = attr
			}
		}
	}
	return all, nil
}

// ErrNoRebuild says that this machine has no way to have the kernel count anew.
var ErrNoRebuild = errors.New("the kernel cannot be made to count its reservations anew: that takes cpusets, of cgroup v2 from Linux 6.2 on")

// Rebuild has the kernel below root count anew what its threads have reserved, as it does when it builds its
// scheduling domains. The one setting that does nothing else is the relaxation level of cgroup v1's root cpuset,
// which is changed and put back.
func Rebuild(root string) error {
	file := filepath.Join(root, "sys/fs/cgroup/cpuset/cpuset.sched_relax_domain_level")
	was, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNoRebuild
	}
	if err != nil {
		return fmt.Errorf("cannot have the kernel count anew: %w", err)
	}
	level, other := strings.TrimSpace(string(was)), "0"
	if level == other {
		other = "1"
	}
	if err := errors.Join(os.WriteFile(file, []byte(other), 0), os.WriteFile(file, []byte(level), 0)); err != nil {
		return fmt.Errorf("cannot have the kernel count anew: %w", err)
	}
	return nil
}
