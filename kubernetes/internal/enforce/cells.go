package enforce

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/takt-dev/takt/kubernetes/internal/sched"
	"github.com/takt-dev/takt/kubernetes/internal/topology"
)

// cellPrefix begins the names of the cgroups that have a core each.
const cellPrefix = "takt-cpu"

// Cells is Deadline on a machine with cgroup v2 whose offered cores are cpuset partitions, one each, below the root
// of the hierarchy (cpuset.cpus.partition, Documentation/admin-guide/cgroup-v2.rst). Each is a root domain: the kernel
// admits per core, as the scheduler of the cluster does, and threads stay. A thread cannot be in a cpuset outside of
// its process' cgroup, so that a whole container is in the cell of the one core that it reserves; its ordinary threads run
// there as well, beside the reservations. docs/decisions/0011-reservations-on-cgroup-v2.md has what was tried.
type Cells struct {
	root  string
	cores []int
	// former is what containers with whole cores may have left, where the node had that backend before.
	former *Whole
}

// NewCells checks that a machine can be partitioned, and changes nothing.
func NewCells(root string, cores []int) (*Cells, error) {
	dir, err := cpusetsOf(root, PartitionName, cores)
	if err != nil {
		return nil, err
	}
	return &Cells{root: dir, cores: cores, former: &Whole{root: dir, tree: ownTree(root)}}, nil
}

// cpusetsOf is the hierarchy of cgroup v2 below root, if a backend can give these cores away by its cpusets.
func cpusetsOf(root, backend string, cores []int) (string, error) {
	dir, err := cgroupRoot(root, "")
	if err != nil {
		return "", fmt.Errorf("backend %s: %w: use backend deadline", backend, err)
	}
	has, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil || !slices.Contains(strings.Fields(string(has)), "cpuset") {
		return "", fmt.Errorf("backend %s needs the cpuset controller of %s, which has %q: use backend deadline", backend, dir, strings.TrimSpace(string(has)))
	}
	all, err := topology.Read(root)
	if err != nil {
		return "", err
	}
	var online []int
	for _, cpu := range all {
		online = append(online, cpu.ID)
	}
	if len(cores) == 0 || len(without(online, cores)) == 0 {
		return "", fmt.Errorf("backend %s cannot give cores %s of %s away: some must be offered, and some must be left for everything else",
			backend, topology.FormatCPUList(cores), topology.FormatCPUList(online))
	}
	return dir, nil
}

// Name implements Backend.
func (c *Cells) Name() string { return PartitionName }

// Shared implements Backend.
func (c *Cells) Shared(int) int { return 1 }

// Roams implements Backend.
func (c *Cells) Roams() bool { return false }

// Accepts implements Backend.
func (c *Cells) Accepts(grants []Grant) error {
	core, err := oneCore(grants)
	if err != nil {
		return err
	}
	if core >= 0 && !slices.Contains(c.cores, core) {
		return fmt.Errorf("CPU %d is not set apart on this node: delete the pod to have its claim allocated again", core)
	}
	return acceptDeadline(PartitionName, grants)
}

// oneCore is the core of all grants of a container, -1 without grants.
func oneCore(grants []Grant) (int, error) {
	core := -1
	for _, grant := range grants {
		for _, cpu := range grant.Cores {
			if core >= 0 && cpu != core {
				return 0, fmt.Errorf("reservations on CPUs %d and %d are not available for one container: with cgroup v2 the backend %s has one core for a container; claim one core for each container, or use the backend %s",
					core, cpu, PartitionName, DeadlineName)
			}
			core = cpu
		}
	}
	return core, nil
}

// Adjust implements Backend: the container is created in its core's cell.
func (c *Cells) Adjust(grants []Grant) Adjustment {
	core, err := oneCore(grants)
	if err != nil || core < 0 {
		return Adjustment{}
	}
	return Adjustment{Cgroup: "/" + cell(core)}
}

func cell(core int) string { return cellPrefix + strconv.Itoa(core) }

// Enforce implements Backend.
func (c *Cells) Enforce(container Container, grants []Grant) (Enforcement, error) {
	core, err := oneCore(grants)
	if err != nil {
		return nil, err
	}
	home, err := container.cgroupOf("")
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(home, "/"+cell(core)+"/") {
		return nil, fmt.Errorf("%w: the container is in cgroup %s, not below %s: another NRI plugin or the container runtime has changed where it is", ErrRefused, home, cell(core))
	}
	members, err := findMembers(container)
	if err != nil {
		return nil, err
	}
	return (&threads{members: members, all: newSeats(grants), attr: deadlineAttr, place: arrive}).start(container.Runs)
}

// arrive has a sleeping thread come to the core: the kernel counts it where it last ran.
func arrive(_ seat, thread sched.Thread) error { return sched.Nudge(thread.TID) }

// Open sets the offered cores apart, and gives back those that an earlier agent has set apart and that are no longer
// offered or needed. What cannot be done is undone.
func (c *Cells) Open() error {
	if err := c.open(); err != nil {
		return errors.Join(fmt.Errorf("cannot set cores apart: %w", err), c.Close())
	}
	return nil
}

func (c *Cells) open() error {
	// The controllers of containers: what is missing in the kernel is missing for everybody.
	for _, controller := range []string{"cpuset", "cpu", "memory", "pids", "io", "hugetlb"} {
		err := writeText(filepath.Join(c.root, "cgroup.subtree_control"), "+"+controller)
		if err != nil && controller == "cpuset" {
			return err
		}
	}
	if err := c.former.Open(); err != nil {
		return err
	}
	for _, core := range c.present() {
		if !slices.Contains(c.cores, core) {
			if err := c.give(core); err != nil {
				return err
			}
		}
	}
	for _, core := range c.cores {
		if err := c.take(core); err != nil {
			return err
		}
	}
	return nil
}

// take makes a core's cell, if it is not there.
func (c *Cells) take(core int) error {
	dir := filepath.Join(c.root, cell(core))
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	state, err := c.state(core)
	if err != nil {
		return err
	}
	if state != "root" {
		err := errors.Join(
			writeText(filepath.Join(dir, "cpuset.cpus"), strconv.Itoa(core)),
			writeText(filepath.Join(dir, "cpuset.cpus.partition"), "root"))
		if err != nil {
			return fmt.Errorf("CPU %d: %w", core, err)
		}
		if state, err = c.state(core); err != nil {
			return err
		}
		if state != "root" {
			return fmt.Errorf("the kernel says of the partition of CPU %d: %q: another cgroup has it in its cpuset.cpus, or it is the last one", core, state)
		}
	}
	for _, controller := range []string{"cpu", "memory", "pids", "io", "hugetlb"} {
		// A container without one of them is one without such limits, as below any other cgroup of the machine.
		_ = writeText(filepath.Join(dir, "cgroup.subtree_control"), "+"+controller)
	}
	return nil
}

// state is what the kernel says of a core's partition: "root", "member", or "root invalid (why)".
func (c *Cells) state(core int) (string, error) {
	text, err := os.ReadFile(filepath.Join(c.root, cell(core), "cpuset.cpus.partition"))
	if err != nil {
		return "", fmt.Errorf("cannot read the partition of CPU %d: %w", core, err)
	}
	return strings.TrimSpace(string(text)), nil
}

// Broken implements Backend. A partition becomes invalid when another cgroup takes its core, or its core goes offline;
// then its threads are scheduled with everybody else's.
func (c *Cells) Broken() map[int]error {
	var broken map[int]error
	for _, core := range c.cores {
		state, err := c.state(core)
		if err == nil && state == "root" {
			continue
		}
		if c.take(core) == nil {
			continue
		}
		if err == nil {
			err = fmt.Errorf("the kernel says of the partition of CPU %d: %q: another cgroup has the core in its cpuset.cpus, or it is offline; take it away there", core, state)
		}
		if broken == nil {
			broken = map[int]error{}
		}
		broken[core] = err
	}
	return broken
}

// present are the cores that have a cell.
func (c *Cells) present() []int {
	found, _ := filepath.Glob(filepath.Join(c.root, cellPrefix+"*")) // the pattern is well-formed
	var cores []int
	for _, dir := range found {
		if core, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), cellPrefix)); err == nil && cell(core) == filepath.Base(dir) {
			cores = append(cores, core)
		}
	}
	return cores
}

// give removes a core's cell, unless a container is in it: then the next agent finds it as it was.
func (c *Cells) give(core int) error {
	dir := filepath.Join(c.root, cell(core))
	events, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if strings.Contains(string(events), "populated 1") {
		return nil
	}
	// Containers of which nothing runs may have left their cgroups.
	if left, err := os.ReadDir(dir); err == nil {
		for _, entry := range left {
			if entry.IsDir() {
				if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil && !errors.Is(err, syscall.EBUSY) {
					return notGone(err)
				}
			}
		}
	}
	if err := writeText(filepath.Join(dir, "cpuset.cpus.partition"), "member"); err != nil {
		return notGone(err)
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, syscall.EBUSY) {
		return notGone(err)
	}
	return nil
}

// Close gives everybody the cores back that no container is on.
func (c *Cells) Close() error {
	var failed []error
	for _, core := range c.present() {
		failed = append(failed, c.give(core))
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("cannot give cores back: %w", err)
	}
	return nil
}
