package enforce

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/takt-dev/takt/kubernetes/internal/sched"
	"github.com/takt-dev/takt/kubernetes/internal/topology"
)

// WholeName is the backend of containers that have cores to themselves.
const WholeName = "whole-core"

// Whole gives a container all of its cores, a runtime as long as the period: its cgroup becomes a partition of them
// (cpuset.cpus.partition of cgroup v2) where the container runtime has made it, so that nothing else of the machine runs
// there but the kernel's threads of these CPUs. Its threads are SCHED_FIFO or SCHED_RR, as with the backends for groups.
// docs/decisions/0032-whole-cores.md has what was tried.
type Whole struct {
	root  string
	cores []int
	mu    sync.Mutex
}

// Files of cgroup v2's cpusets.
const (
	exclusiveFile = "cpuset.cpus.exclusive"
	effectiveFile = "cpuset.cpus.effective"
	partitionFile = "cpuset.cpus.partition"
)

// NewWhole checks that a machine can give cores away, and changes nothing.
func NewWhole(root string, cores []int) (*Whole, error) {
	dir, err := cpusetsOf(root, WholeName, cores)
	if err != nil {
		return nil, err
	}
	// Partitions below cgroups that are none are there from Linux 6.7 on. Up to 6.11 the kernel stops real-time threads for
	// what sched_rt_runtime_us leaves of a period, whether anybody else wants to run or not.
	if remote, err := sched.AtLeast(root, 6, 7); err != nil || !remote {
		return nil, errors.Join(err, fmt.Errorf("backend %s needs Linux 6.7 or later (%s): use backend %s", WholeName, exclusiveFile, DeadlineName))
	}
	served, err := sched.AtLeast(root, 6, 12)
	if err != nil {
		return nil, err
	}
	if limited, err := sched.Throttles(root); err != nil || (!served && limited) {
		return nil, errors.Join(err, fmt.Errorf("backend %s needs Linux 6.12 or later, or kernel.sched_rt_runtime_us -1: this kernel keeps real-time threads off their cores for a part of each second", WholeName))
	}
	return &Whole{root: dir, cores: cores}, nil
}

// Name implements Backend.
func (w *Whole) Name() string { return WholeName }

// Shared implements Backend.
func (w *Whole) Shared(int) int { return 1 }

// Roams implements Backend.
func (w *Whole) Roams() bool { return false }

// Accepts implements Backend.
func (w *Whole) Accepts(grants []Grant) error {
	for _, grant := range grants {
		if p := grant.Parameters; p.Runtime != p.Period {
			return fmt.Errorf("runtime %s every %s is not available: the backend %s of this node gives whole cores; make the runtime as long as the period, or select devices of another backend",
				p.Runtime, p.Period, WholeName)
		}
		for _, core := range grant.Cores {
			if !slices.Contains(w.cores, core) {
				return fmt.Errorf("CPU %d is not given away on this node: delete the pod to have its claim allocated again", core)
			}
		}
	}
	return acceptTogether(WholeName, grants)
}

// Adjust implements Backend: the partition decides where the container runs, and it is made before the program begins.
func (w *Whole) Adjust([]Grant) Adjustment { return Adjustment{} }

// Enforce implements Backend.
func (w *Whole) Enforce(c Container, grants []Grant) (Enforcement, error) {
	path, err := c.cgroupOf("")
	if err != nil {
		return nil, err
	}
	if path == "/" {
		return nil, fmt.Errorf("%w: the container is in the root of cgroup v2: its runtime must give it one of its own", ErrRefused)
	}
	members, err := findMembers(c)
	if err != nil {
		return nil, err
	}
	var cores []int
	for _, grant := range grants { // at most one
		cores = append(cores, grant.Cores...)
	}
	slices.Sort(cores)
	if _, err := w.take(path, cores); err != nil {
		return nil, errors.Join(err, w.give(path))
	}
	if err := letPrioritise(c.Init); err != nil {
		return nil, errors.Join(err, w.give(path))
	}
	return (&threads{
		members: members, all: togetherSeats(grants), attr: groupAttr(grants), free: true,
		keep:    func() (bool, error) { return w.take(path, cores) },
		release: func() error { return w.give(path) },
	}).start(c.Runs)
}

// take makes the cgroup at path (below root) a partition of the cores, if it is none: then made is true. A cgroup that has
// gone has nothing to keep.
func (w *Whole) take(path string, cores []int) (made bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	leaf := filepath.Join(w.root, path)
	if is, err := w.holds(leaf, cores); is || !exists(leaf) {
		return false, err
	}
	// A cgroup may have as its own what the one above it has.
	above := w.above(leaf)
	for _, dir := range append(above, leaf) {
		have, err := exclusive(dir)
		if err != nil {
			return false, fmt.Errorf("%w for cgroup %s: %w: the kubelet or the container runtime must have the cpuset controller on there", ErrRefused, dir, err)
		}
		want := union(have, cores)
		if dir == leaf {
			want = cores
		}
		if slices.Equal(have, want) {
			continue
		}
		if err := writeText(filepath.Join(dir, exclusiveFile), topology.FormatCPUList(want)); err != nil {
			return false, fmt.Errorf("%w for cgroup %s: %w: another cgroup beside it has CPUs %s for itself; give it others, such as by the kubelet's reservedSystemCPUs",
				ErrRefused, dir, err, topology.FormatCPUList(cores))
		}
	}
	if err := writeText(filepath.Join(leaf, partitionFile), "root"); err != nil {
		return false, fmt.Errorf("%w for cgroup %s: %w: see dmesg of the node", ErrRefused, leaf, err)
	}
	is, err := w.holds(leaf, cores)
	if err == nil && !is {
		state, _ := os.ReadFile(filepath.Join(leaf, partitionFile))
		err = fmt.Errorf("%w: the kernel says of cgroup %s, which is to have CPUs %s for itself: %q: another cgroup has one of them, or it is offline",
			ErrRefused, leaf, topology.FormatCPUList(cores), strings.TrimSpace(string(state)))
	}
	return true, err
}

// holds says whether a cgroup is a partition of the cores, and of no others. One that is offline comes back to it; the node
// tells of that, and nobody is ended for it.
func (w *Whole) holds(leaf string, cores []int) (bool, error) {
	state, err := os.ReadFile(filepath.Join(leaf, partitionFile))
	if err != nil || strings.TrimSpace(string(state)) != "root" {
		return false, nil
	}
	text, err := os.ReadFile(filepath.Join(leaf, effectiveFile))
	if err != nil {
		return false, nil
	}
	runs, err := topology.ParseCPUList(string(text))
	if err != nil {
		return false, err
	}
	has, err := exclusive(leaf)
	return slices.Equal(has, cores) && len(without(runs, cores)) == 0, err
}

// above are the cgroups that a cgroup is in, the outermost first, without the root.
func (w *Whole) above(leaf string) (dirs []string) {
	for dir := filepath.Dir(leaf); dir != w.root && strings.HasPrefix(dir, w.root); dir = filepath.Dir(dir) {
		dirs = append(dirs, dir)
	}
	slices.Reverse(dirs)
	return dirs
}

// give ends the partition at path, which may have gone already, and leaves the cgroups above it what is below them.
func (w *Whole) give(path string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	leaf := filepath.Join(w.root, path)
	failed := []error{
		whileThere(leaf, writeText(filepath.Join(leaf, partitionFile), "member")),
		whileThere(leaf, writeText(filepath.Join(leaf, exclusiveFile), "\n")),
	}
	for _, dir := range slices.Backward(w.above(leaf)) {
		have, err := exclusive(dir)
		if err != nil {
			failed = append(failed, whileThere(dir, err))
			continue
		}
		below, err := w.below(dir)
		failed = append(failed, err)
		if err == nil && !slices.Equal(have, below) {
			failed = append(failed, whileThere(dir, writeText(filepath.Join(dir, exclusiveFile), topology.FormatCPUList(below)+"\n")))
		}
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("cannot give cores back: %w", err)
	}
	return nil
}

// below are the CPUs that the children of a cgroup have as their own.
func (w *Whole) below(dir string) (cpus []int, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, whileThere(dir, err)
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		has, err := exclusive(filepath.Join(dir, entry.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // without the controller it has none
			return nil, whileThere(filepath.Join(dir, entry.Name()), err)
		}
		cpus = union(cpus, has)
	}
	return cpus, nil
}

// whileThere forgives what failed because the cgroup has gone meanwhile.
func whileThere(dir string, err error) error {
	if err != nil && (errors.Is(err, syscall.ENODEV) || !exists(dir)) {
		return nil
	}
	return err
}

func exclusive(dir string) ([]int, error) {
	text, err := os.ReadFile(filepath.Join(dir, exclusiveFile))
	if err != nil || strings.TrimSpace(string(text)) == "" {
		return nil, err
	}
	return topology.ParseCPUList(string(text))
}

// union is both, ascending, each once.
func union(a, b []int) []int {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// Broken implements Backend.
func (w *Whole) Broken() map[int]error { return nil }

// Open implements Backend.
func (w *Whole) Open() error { return nil }

// Close implements Backend: containers keep their cores, and the next agent finds them as it needs them.
func (w *Whole) Close() error { return nil }
