package enforce

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/takt-dev/takt/kubernetes/internal/sched"
	"github.com/takt-dev/takt/kubernetes/internal/topology"
)

// PartitionName is the backend of SCHED_DEADLINE with a root domain for every core.
const PartitionName = "deadline-partition"

// Names of the cpusets that a partitioned machine has: one for the offered cores, with one below it for
// each, and one for everything else.
const (
	offeredCpuset = "takt"
	restCpuset    = "takt-rest"
)

// Partition is Deadline on a machine whose offered cores are cut out of everybody's cpusets (cgroup v1).
// Each core is a root domain: the kernel admits per core, as the scheduler of the cluster does, and threads
// stay on their core. It changes where every process of the machine may run.
//
// It is not for cgroup v2: there, threads of several containers cannot share a cpuset, because a thread
// stays below the cgroup of its process' memory.
type Partition struct {
	root  string
	cores []int
	// saved is the file that remembers the cpusets as they were: an agent that is killed cannot restore.
	saved string
}

// NewPartition checks that a machine can be partitioned, and changes nothing.
func NewPartition(root string, cores []int, saved string) (*Partition, error) {
	dir, err := cgroupRoot(root, "cpuset")
	if err != nil {
		return nil, fmt.Errorf("backend %s: %w: use backend deadline", PartitionName, err)
	}
	p := &Partition{root: dir, cores: cores, saved: saved}
	all, err := readCPUs(dir)
	if err != nil {
		return nil, err
	}
	if rest := without(all, cores); len(cores) == 0 || len(rest) == 0 {
		return nil, fmt.Errorf("backend %s cannot give cores %s of %s away: some must be offered, and some must be left for everything else",
			PartitionName, topology.FormatCPUList(cores), topology.FormatCPUList(all))
	}
	return p, nil
}

// Name implements Backend.
func (p *Partition) Name() string { return PartitionName }

// Shared implements Backend.
func (p *Partition) Shared(int) int { return 1 }

// Roams implements Backend.
func (p *Partition) Roams() bool { return false }

// Accepts implements Backend.
func (p *Partition) Accepts(grants []Grant) error { return acceptDeadline(PartitionName, grants) }

// Adjust implements Backend: threads are put on their cores one by one.
func (p *Partition) Adjust([]Grant) Adjustment { return Adjustment{} }

// Enforce implements Backend.
func (p *Partition) Enforce(c Container, grants []Grant) (Enforcement, error) {
	home, err := c.cgroupOf("cpuset")
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(home, "/"+offeredCpuset+"/") {
		// After a restart of the agent, the first thread may be on its core: another hierarchy knows better.
		if home, err = c.cgroupOf("pids"); err != nil || !exists(filepath.Join(p.root, home)) {
			return nil, fmt.Errorf("cannot find the cpuset of container %s, whose first thread is on its core: restart the container", c.ID)
		}
	}
	members, err := findMembers(c)
	if err != nil {
		return nil, err
	}
	return (&threads{
		members: members, all: newSeats(grants), attr: deadlineAttr,
		place:   p.place,
		unplace: func(thread sched.Thread) error { return p.move(thread, filepath.Join(p.root, home)) },
		where:   p.where,
	}).start(c.Runs)
}

func (p *Partition) place(s seat, thread sched.Thread) error {
	if err := p.move(thread, p.cpuset(s.core)); err != nil {
		return err
	}
	return sched.Nudge(thread.TID)
}

func (p *Partition) cpuset(core int) string {
	return filepath.Join(p.root, offeredCpuset, "cpu"+strconv.Itoa(core))
}

func (p *Partition) move(thread sched.Thread, cpuset string) error {
	if err := writeText(filepath.Join(cpuset, "tasks"), strconv.Itoa(thread.TID)); err != nil {
		return fmt.Errorf("cannot move thread %d to cpuset %s: %w", thread.TID, cpuset, err)
	}
	return nil
}

// where is the core that a thread is on; false if it is on none.
func (p *Partition) where(thread sched.Thread) (core int, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/cpuset", thread.Process, thread.TID))
	if err != nil {
		return 0, false
	}
	name, ok := strings.CutPrefix(strings.TrimSpace(string(text)), "/"+offeredCpuset+"/cpu")
	if !ok {
		return 0, false
	}
	core, err = strconv.Atoi(name)
	return core, err == nil
}

// Open partitions the machine. What cannot be done is undone.
func (p *Partition) Open() error {
	if err := p.open(); err != nil {
		return errors.Join(fmt.Errorf("cannot partition the machine: %w", err), p.restore())
	}
	return nil
}

func (p *Partition) open() error {
	all, err := readCPUs(p.root)
	if err != nil {
		return err
	}
	mems, err := os.ReadFile(filepath.Join(p.root, "cpuset.mems"))
	if err != nil {
		return err
	}
	rest := without(all, p.cores)
	if err := p.save(); err != nil {
		return err
	}
	// From the leaves up: a cpuset has at most what its parent has.
	others, err := p.others()
	if err != nil {
		return err
	}
	for _, dir := range slices.Backward(others) {
		cpus, err := readCPUs(dir)
		if err != nil || len(cpus) == 0 {
			continue
		}
		left := without(cpus, p.cores)
		if len(left) == len(cpus) {
			continue
		}
		if len(left) == 0 {
			return fmt.Errorf("cpuset %s has only cores that are offered (%s): offer others", dir, topology.FormatCPUList(cpus))
		}
		if err := writeText(filepath.Join(dir, "cpuset.cpus"), topology.FormatCPUList(left)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := p.make(filepath.Join(p.root, restCpuset), rest, string(mems)); err != nil {
		return err
	}
	offered := filepath.Join(p.root, offeredCpuset)
	if err := p.make(offered, p.cores, string(mems)); err != nil {
		return err
	}
	for file, value := range map[string]string{"cpuset.cpu_exclusive": "1", "cpuset.sched_load_balance": "0"} {
		if err := writeText(filepath.Join(offered, file), value); err != nil {
			return err
		}
	}
	for _, core := range p.cores {
		if err := p.make(p.cpuset(core), []int{core}, string(mems)); err != nil {
			return err
		}
		if err := writeText(filepath.Join(p.cpuset(core), "cpuset.cpu_exclusive"), "1"); err != nil {
			return err
		}
	}
	if err := moveTasks(p.root, filepath.Join(p.root, restCpuset)); err != nil {
		return err
	}
	return writeText(filepath.Join(p.root, "cpuset.sched_load_balance"), "0")
}

func (p *Partition) make(dir string, cpus []int, mems string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := writeText(filepath.Join(dir, "cpuset.cpus"), topology.FormatCPUList(cpus)); err != nil {
		return err
	}
	return writeText(filepath.Join(dir, "cpuset.mems"), strings.TrimSpace(mems))
}

// others are all cpusets below the root but this backend's, parents first.
func (p *Partition) others() ([]string, error) {
	var dirs []string
	err := filepath.WalkDir(p.root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case !entry.IsDir() || path == p.root:
			return nil
		case path == filepath.Join(p.root, offeredCpuset) || path == filepath.Join(p.root, restCpuset):
			return fs.SkipDir
		}
		dirs = append(dirs, path)
		return nil
	})
	return dirs, err
}

// save writes down what will be changed, unless an earlier agent has: the first one saw the machine as it
// was.
func (p *Partition) save() error {
	if exists(p.saved) {
		return nil
	}
	others, err := p.others()
	if err != nil {
		return err
	}
	was := map[string]string{}
	for _, dir := range others {
		if cpus, err := readCPUs(dir); err == nil {
			was[dir] = topology.FormatCPUList(cpus)
		}
	}
	text, err := json.Marshal(was)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(p.saved), 0o711); err != nil {
		return err
	}
	return os.WriteFile(p.saved, text, 0o600)
}

// Broken implements Backend. Somebody may have changed a cpuset, and a CPU that goes offline leaves all of them.
func (p *Partition) Broken() map[int]error {
	var broken map[int]error
	for _, core := range p.cores {
		if err := p.apart(core); err != nil {
			if broken == nil {
				broken = map[int]error{}
			}
			broken[core] = fmt.Errorf("CPU %d is not set apart any more: %w; start the agent again", core, err)
		}
	}
	return broken
}

// apart says what keeps a core from being a root domain of its own; nil if nothing does.
func (p *Partition) apart(core int) error {
	offered := filepath.Join(p.root, offeredCpuset)
	for _, setting := range []struct{ file, value string }{
		{filepath.Join(p.cpuset(core), "cpuset.cpus"), strconv.Itoa(core)},
		{filepath.Join(p.cpuset(core), "cpuset.cpu_exclusive"), "1"},
		{filepath.Join(offered, "cpuset.sched_load_balance"), "0"},
		{filepath.Join(p.root, "cpuset.sched_load_balance"), "0"},
	} {
		text, err := os.ReadFile(setting.file)
		if err != nil {
			return err
		}
		if is := strings.TrimSpace(string(text)); is != setting.value {
			return fmt.Errorf("%s is %q and not %q", setting.file, is, setting.value)
		}
	}
	return nil
}

// Close restores the machine, unless containers still have threads on their cores: then the next agent
// finds everything as it needs it.
func (p *Partition) Close() error {
	for _, core := range p.cores {
		tasks, err := os.ReadFile(filepath.Join(p.cpuset(core), "tasks"))
		if err == nil && len(tasks) > 0 {
			return nil
		}
	}
	return p.restore()
}

// restore gives everybody the cores back.
func (p *Partition) restore() error {
	if !exists(p.saved) {
		return nil
	}
	text, err := os.ReadFile(p.saved)
	if err != nil {
		return err
	}
	was := map[string]string{}
	if err := json.Unmarshal(text, &was); err != nil {
		return fmt.Errorf("cannot restore cpusets from %s: %w", p.saved, err)
	}
	failed := []error{notGone(writeText(filepath.Join(p.root, "cpuset.sched_load_balance"), "1"))}
	for _, core := range p.cores {
		failed = append(failed, p.remove(p.cpuset(core)))
	}
	failed = append(failed, p.remove(filepath.Join(p.root, offeredCpuset)), p.remove(filepath.Join(p.root, restCpuset)))
	// Parents first, and cpusets that are new since then as their parents are.
	others, err := p.others()
	failed = append(failed, err)
	for _, dir := range others {
		cpus, ok := was[dir]
		if !ok {
			above, err := readCPUs(filepath.Dir(dir))
			if err != nil {
				continue
			}
			cpus = topology.FormatCPUList(above)
		}
		if cpus != "" {
			failed = append(failed, notGone(writeText(filepath.Join(dir, "cpuset.cpus"), cpus)))
		}
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("cannot restore the machine's cpusets: %w", err)
	}
	return os.Remove(p.saved)
}

// remove moves a cpuset's threads to the root and removes it. Threads are born there meanwhile, and those that
// have ended leave a moment later.
func (p *Partition) remove(dir string) error {
	var err error
	for range 100 {
		if err = moveTasks(dir, p.root); err == nil {
			err = os.Remove(dir)
		}
		if !errors.Is(err, syscall.EBUSY) {
			return notGone(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}

// moveTasks moves all threads that may be moved: some of the kernel's are bound to their CPUs.
func moveTasks(from, to string) error {
	for range 10 { // what is born meanwhile is found next time
		text, err := os.ReadFile(filepath.Join(from, "tasks"))
		if err != nil {
			return err
		}
		moved := false
		for tid := range strings.FieldsSeq(string(text)) {
			moved = writeText(filepath.Join(to, "tasks"), tid) == nil || moved
		}
		if !moved {
			break
		}
	}
	return nil
}

func readCPUs(cpuset string) ([]int, error) {
	text, err := os.ReadFile(filepath.Join(cpuset, "cpuset.cpus"))
	if err != nil {
		return nil, err
	}
	return topology.ParseCPUList(string(text))
}

func without(cpus, taken []int) []int {
	return slices.DeleteFunc(slices.Clone(cpus), func(cpu int) bool { return slices.Contains(taken, cpu) })
}
