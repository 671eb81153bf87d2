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
	// machine is the root directory, root where cgroup v2 is mounted below it.
	machine string
	root    string
	cores   []int
	// tree is the kubelet's own cgroup below root, as this process knows it by its own; "" if it is in none.
	tree string
	mu   sync.Mutex
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
	return &Whole{machine: root, root: dir, cores: cores, tree: ownTree(root)}, nil
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
	keep := w.keeper(path, cores)
	first := func() (bool, error) { return w.take(path, cores) }
	if c.Runs {
		first = keep
	}
	if _, err := first(); err != nil {
		return nil, errors.Join(err, w.give(path))
	}
	if err := letPrioritise(c.Init); err != nil {
		return nil, errors.Join(err, w.give(path))
	}
	return (&threads{
		members: members, all: togetherSeats(grants), attr: groupAttr(grants), free: true,
		keep:    keep,
		release: func() error { return w.give(path) },
	}).start(c.Runs)
}

// keeper is what keeps the cgroup at path, of a container that runs, a partition of the cores. Without one of them online it
// can be none, which the node tells: the container goes on where it can, and is made one again when a core is back, which
// nobody has written over.
func (w *Whole) keeper(path string, cores []int) func() (rewritten bool, err error) {
	away := false
	return func() (bool, error) {
		if is, err := w.offline(cores); is || err != nil {
			away = away || is
			return false, err
		}
		made, err := w.take(path, cores)
		if err != nil || !away {
			return made, err
		}
		away = false
		return false, nil
	}
}

// offline says whether all of the cores are.
func (w *Whole) offline(cores []int) (bool, error) {
	text, err := os.ReadFile(filepath.Join(w.machine, "sys/devices/system/cpu/online"))
	if err != nil {
		return false, fmt.Errorf("cannot read which CPUs are online: %w", err)
	}
	online, err := topology.ParseCPUList(string(text))
	return err == nil && len(without(cores, online)) == len(cores), err
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
	if err := w.claim(leaf, cores); err != nil {
		// Slices beside it may still have what ended while no agent was there to see it.
		if tidyErr := w.tidy(kubeletTree(path)); tidyErr != nil {
			return false, errors.Join(err, tidyErr)
		}
		if err := w.claim(leaf, cores); err != nil {
			return false, err
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
	return err == nil, err
}

// claim has the cores as the leaf's own, from the top: a cgroup may have what the one above it has.
func (w *Whole) claim(leaf string, cores []int) error {
	for _, dir := range append(w.above(leaf), leaf) {
		have, err := exclusive(dir)
		if err != nil {
			return fmt.Errorf("%w for cgroup %s: %w: the kubelet or the container runtime must have the cpuset controller on there", ErrRefused, dir, err)
		}
		want := union(have, cores)
		if dir == leaf {
			want = cores
		}
		if slices.Equal(have, want) {
			continue
		}
		if err := writeExclusive(dir, want); err != nil {
			return fmt.Errorf("%w for cgroup %s: %w: %s", ErrRefused, dir, err, w.beside(dir, cores))
		}
	}
	return nil
}

// writeExclusive is what the kernel takes or refuses, but in tests.
var writeExclusive = func(dir string, cpus []int) error {
	return writeText(filepath.Join(dir, exclusiveFile), topology.FormatCPUList(cpus)+"\n")
}

// beside says who may have cores that a cgroup is refused.
func (w *Whole) beside(dir string, cores []int) string {
	entries, _ := os.ReadDir(filepath.Dir(dir)) // one that cannot be read names nobody
	for _, entry := range entries {
		other := filepath.Join(filepath.Dir(dir), entry.Name())
		has, err := exclusive(other)
		if other != dir && err == nil && len(without(has, cores)) < len(has) {
			return fmt.Sprintf("cgroup %s beside it has CPUs %s for itself (%s): end what has them there", other, topology.FormatCPUList(has), exclusiveFile)
		}
	}
	return fmt.Sprintf("another cgroup beside it has no CPUs but of %s; give it others, such as by the kubelet's reservedSystemCPUs", topology.FormatCPUList(cores))
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
		failed = append(failed, w.lessen(dir))
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("cannot give cores back: %w", err)
	}
	return nil
}

// lessen takes from a cgroup what none of its children has. One that is a partition itself is somebody else's: here only
// containers are.
func (w *Whole) lessen(dir string) error {
	have, err := exclusive(dir)
	if err != nil || len(have) == 0 {
		return unlessMissing(dir, err)
	}
	state, err := os.ReadFile(filepath.Join(dir, partitionFile))
	if err != nil || strings.TrimSpace(string(state)) != "member" {
		return unlessMissing(dir, err)
	}
	below, err := w.below(dir)
	unused := without(have, below)
	if err != nil || len(unused) == 0 {
		return err
	}
	return whileThere(dir, writeExclusive(dir, without(have, unused)))
}

// below are the CPUs that the children of a cgroup have as their own.
func (w *Whole) below(dir string) (cpus []int, err error) {
	children, err := childrenOf(dir)
	for _, child := range children {
		has, err := exclusive(child)
		if err := unlessMissing(child, err); err != nil {
			return nil, err
		}
		cpus = union(cpus, has)
	}
	return cpus, err
}

// tidy takes from the cgroups that the kubelet makes, its own at tree, those of the QoS classes and of pods, what no
// container has any more: one that ended without the agent has left it there, and no cgroup beside could have it. What is
// outside of that tree, or in a pod, is only read.
func (w *Whole) tidy(tree string) error {
	if tree == "" {
		return nil
	}
	top := filepath.Join(w.root, tree)
	pods, err := childrenOf(top)
	failed := []error{err}
	var classes []string
	for _, dir := range pods {
		if name := filepath.Base(dir); kubeletNames(name, "burstable") || kubeletNames(name, "besteffort") {
			classes = append(classes, dir)
			of, err := childrenOf(dir)
			pods, failed = append(pods, of...), append(failed, err)
		}
	}
	for _, dir := range slices.Concat(pods, classes, []string{top}) { // classes are among the pods, too, before theirs
		failed = append(failed, w.lessen(dir))
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("cannot give cores back that ended containers have left: %w", err)
	}
	return nil
}

// kubeletNames says whether the kubelet calls a cgroup so, with either cgroup driver and below any cgroup that its
// configuration names (cgroupRoot).
func kubeletNames(cgroup, name string) bool {
	return cgroup == name || cgroup == name+".slice" || strings.HasSuffix(cgroup, "-"+name+".slice")
}

// kubeletTree is the kubelet's cgroup of all pods that a cgroup is in, "" if it is in none.
func kubeletTree(path string) string {
	for dir := path; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if kubeletNames(filepath.Base(dir), "kubepods") {
			return dir
		}
	}
	return ""
}

// ownTree is the kubelet's cgroup that this process is in, as a pod is; "" if it is in none or cannot see that.
func ownTree(root string) string {
	path, err := Container{Root: root, Init: os.Getpid()}.cgroupOf("")
	if err != nil {
		return ""
	}
	return kubeletTree(path)
}

func childrenOf(dir string) (children []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		if entry.IsDir() {
			children = append(children, filepath.Join(dir, entry.Name()))
		}
	}
	return children, whileThere(dir, err)
}

// unlessMissing forgives that a cgroup has no such file, without the controller, and what whileThere does.
func unlessMissing(dir string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return whileThere(dir, err)
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

// Open gives back what containers have left that ended while no agent was there.
func (w *Whole) Open() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tidy(w.tree)
}

// Close does the same: containers that run keep their cores, and the next agent finds them as it needs them.
func (w *Whole) Close() error { return w.Open() }
