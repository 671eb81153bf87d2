package enforce

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

// recountCgroup is the cgroup of RecountIdle.
const recountCgroup = "takt-recount"

// RecountIdle has the kernel below root count anew what is reserved, where cpusets are cgroup v2's: a partition of the last of
// the root domain's CPUs is made and given up at once. Meanwhile all threads of the machine are kept off that CPU, so that
// nobody may count on it: no claim may be prepared. sched.ErrNoRebuild says that this machine has no such way.
func RecountIdle(root string, cpus []int) (err error) {
	dir, err := cgroupRoot(root, "")
	if err != nil {
		return sched.ErrNoRebuild
	}
	enabled, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil || !slices.Contains(strings.Fields(string(enabled)), "cpuset") || len(cpus) < 2 {
		return sched.ErrNoRebuild
	}
	// Before 6.2, threads that have pinned themselves come back unpinned (user_cpus_ptr).
	if keeps, err := sched.AtLeast(root, 6, 2); err != nil || !keeps {
		return sched.ErrNoRebuild
	}
	cgroup := filepath.Join(dir, recountCgroup)
	if err := os.Mkdir(cgroup, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("cannot have the kernel count anew: %w", err)
	}
	defer func() {
		if failed := errors.Join(err, EndRecount(root)); failed != nil {
			err = fmt.Errorf("cannot have the kernel count anew: %w", failed)
		}
	}()
	partition := filepath.Join(cgroup, "cpuset.cpus.partition")
	if err := writeText(filepath.Join(cgroup, "cpuset.cpus"), strconv.Itoa(cpus[len(cpus)-1])); err != nil {
		return err
	}
	if err := writeText(partition, "root"); err != nil {
		return err
	}
	state, err := os.ReadFile(partition)
	if is := strings.TrimSpace(string(state)); err == nil && is != "root" {
		return fmt.Errorf("the kernel says of a partition of CPU %d: %q", cpus[len(cpus)-1], is)
	}
	return err
}

// EndRecount gives everybody the CPU back that RecountIdle has taken, also where an agent was killed half-way: before anybody asks
// which CPUs there are.
func EndRecount(root string) error {
	dir, err := cgroupRoot(root, "")
	if err != nil || !exists(filepath.Join(dir, recountCgroup)) {
		return nil
	}
	return errors.Join(
		writeText(filepath.Join(dir, recountCgroup, "cpuset.cpus.partition"), "member"),
		os.Remove(filepath.Join(dir, recountCgroup)))
}

// Recount has the kernel count anew what is reserved of a core. Its cell becomes an isolated partition and a root again: another
// root domain of the same CPU, on which all of its threads stay.
func (c *Cells) Recount(core int) error {
	state, err := c.state(core)
	if err == nil && state != "root" {
		err = fmt.Errorf("the kernel says of the partition of CPU %d: %q", core, state)
	}
	if err == nil {
		partition := filepath.Join(c.root, cell(core), "cpuset.cpus.partition")
		err = errors.Join(writeText(partition, "isolated"), writeText(partition, "root"))
	}
	if err == nil {
		if state, err = c.state(core); err == nil && state != "root" {
			err = fmt.Errorf("the kernel says of the partition of CPU %d: %q", core, state)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot have the kernel count anew: %w", err)
	}
	return nil
}
