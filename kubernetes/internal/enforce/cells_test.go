package enforce

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
	"github.com/takt-dev/takt/kubernetes/internal/topology"
)

// newCells is the backend on a machine of cgroup v2 with three CPUs that nobody else uses: test/partitions/run.sh boots one.
func newCells(t *testing.T, cores ...int) *Cells {
	t.Helper()
	if os.Getenv("TAKT_TEST_CELLS") == "" {
		t.Skip("it takes cores away from the whole machine, which has cgroup v2: make test-partitions boots one")
	}
	backend, err := NewCells("/", cores)
	if err != nil {
		t.Fatal(err)
	}
	return backend
}

func (c *Cells) mustOpen(t *testing.T) {
	t.Helper()
	if err := c.Open(); err != nil {
		t.Fatal(err)
	}
}

// inside starts a program where the backend wants its container.
func inside(t *testing.T, c *Cells, name string, grants ...Grant) *program {
	t.Helper()
	return beginIn(t, filepath.Join(c.root, c.Adjust(grants).Cgroup, name))
}

func on(core int, g Grant) Grant {
	g.Cores = []int{core}
	return g
}

// allowed are the CPUs that a thread may run on.
func allowed(t *testing.T, tid int) (cpus []int) {
	t.Helper()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(tid, &set); err != nil {
		t.Fatal(err)
	}
	for cpu := range 8 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// counted is what the kernel counts of a CPU's root domain.
func counted(t *testing.T, cpu int) int64 {
	t.Helper()
	admitted, err := sched.Admitted("/", cpu)
	if err != nil {
		t.Fatal(err)
	}
	return admitted
}

// lose has the kernel count what no thread has: see sched.Drop.
func lose(t *testing.T, tid int) {
	t.Helper()
	before := counted(t, allowed(t, tid)[0])
	if err := sched.Nudge(tid); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := sched.Set(tid, deadlineAttr(grant("", 4*ms, 20*ms, 1, reservation.Threads{}))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) // longer than its period
		if err := sched.Set(tid, sched.Attr{Policy: sched.Other}); err != nil {
			t.Fatal(err)
		}
	}
	if counted(t, allowed(t, tid)[0]) < before+190_000 {
		t.Skip("this kernel loses no bandwidth")
	}
}

// untilCounted waits until the kernel counts no more than this beyond its own servers.
func untilCounted(t *testing.T, cpu int, most int64) {
	t.Helper()
	servers, err := sched.ServersShare("/")
	if err != nil {
		t.Fatal(err)
	}
	domain, err := topology.RootDomain("/")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(domain, cpu) {
		domain = []int{cpu}
	}
	for most += servers * int64(len(domain)); counted(t, cpu) > most; time.Sleep(time.Millisecond) {
		// A thread that has just ended is counted to the end of its period.
	}
}

func TestACellsBandwidthIsCountedAnewUnderItsThreads(t *testing.T) {
	backend := newCells(t, 1, 2)
	backend.mustOpen(t)
	t.Cleanup(func() { backend.Close() })
	g := on(1, grant("a", 4*ms, 20*ms, 1, reservation.Threads{Select: reservation.SelectFirst}))
	p, q := inside(t, backend, "a", g), inside(t, backend, "b", g)
	held := refresh(t, enforce(t, backend, p, g))[0].Threads
	lose(t, q.cmd.Process.Pid)
	if err := backend.Recount(1); err != nil {
		t.Fatal(err)
	}
	untilCounted(t, 1, 200_000)
	if got := counted(t, 1); got < 199_000 {
		t.Errorf("the kernel counts %d, and a thread has 200000", got)
	}
	if got := policy(t, held[0].TID); got != deadlineAttr(g) || !slices.Equal(allowed(t, held[0].TID), []int{1}) {
		t.Errorf("the thread has %+v on CPUs %v", got, allowed(t, held[0].TID))
	}
	if broken := backend.Broken(); len(broken) > 0 {
		t.Errorf("broken is %v", broken)
	}
	p.end()
	q.end()
	untilCounted(t, 1, 0)
	if err := backend.give(2); err != nil {
		t.Fatal(err)
	}
	if err := backend.Recount(2); err == nil || !strings.Contains(err.Error(), "CPU 2") {
		t.Errorf("of a core without a cell: %v", err)
	}
}

func TestCoresThatNobodyReservesAreCountedAnew(t *testing.T) {
	newCells(t, 1)
	all, err := topology.RootDomain("/")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := cgroupRoot("/", "")
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, map[string]string{"cgroup.subtree_control": "+cpuset"})
	p, pinned := begin(t), beginIn(t, filepath.Join(dir, "takt-test-pinned"))
	last := all[len(all)-1]
	if err := unix.SchedSetaffinity(pinned.cmd.Process.Pid, func() *unix.CPUSet { var set unix.CPUSet; set.Set(last); return &set }()); err != nil {
		t.Fatal(err)
	}
	// A container has that CPU for itself, as the static CPU manager gives it.
	slice := filepath.Join(dir, "takt-test-slice")
	if err := os.Mkdir(slice, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(slice) })
	write(t, slice, map[string]string{"cgroup.subtree_control": "+cpuset"})
	static := beginIn(t, filepath.Join(slice, "static"))
	write(t, static.cgroup, map[string]string{"cpuset.cpus": strconv.Itoa(last)})
	lose(t, p.cmd.Process.Pid)
	before := counted(t, 0)
	err = RecountIdle("/", all)
	if keeps, _ := sched.AtLeast("/", 6, 2); !keeps {
		if !errors.Is(err, sched.ErrNoRebuild) || counted(t, 0) != before {
			t.Errorf("where threads come back unpinned: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	untilCounted(t, 0, 0)
	for tid, want := range map[int][]int{p.cmd.Process.Pid: all, pinned.cmd.Process.Pid: {last}, static.cmd.Process.Pid: {last}} {
		if got := allowed(t, tid); !slices.Equal(got, want) {
			t.Errorf("thread %d may run on CPUs %v, not %v", tid, got, want)
		}
	}
	left := filepath.Join(dir, recountCgroup)
	if exists(left) {
		t.Error("the partition is left")
	}
	// Where another cgroup at the top has the CPU alone, the kernel decides; nothing may be left in any case.
	write(t, slice, map[string]string{"cpuset.cpus": strconv.Itoa(last)})
	t.Logf("beside a cgroup that has the CPU alone: %v", RecountIdle("/", all))
	if got, err := topology.RootDomain("/"); exists(left) || err != nil || !slices.Equal(got, all) || !slices.Equal(allowed(t, static.cmd.Process.Pid), []int{last}) {
		t.Errorf("after that the root domain has CPUs %v, %v, the container %v", got, err, allowed(t, static.cmd.Process.Pid))
	}
	// An agent was killed half-way.
	if err := os.Mkdir(left, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, left, map[string]string{"cpuset.cpus": strconv.Itoa(last)})
	write(t, left, map[string]string{"cpuset.cpus.partition": "root"})
	if err := EndRecount("/"); err != nil || exists(left) {
		t.Errorf("what is left of an earlier agent: %v", err)
	}
	if got, err := topology.RootDomain("/"); err != nil || !slices.Equal(got, all) {
		t.Errorf("everybody has CPUs %v, %v", got, err)
	}
}

// What package sched reads of a kernel, and what that kernel does.
func TestACoreAdmitsItsBound(t *testing.T) {
	backend := newCells(t, 1)
	backend.mustOpen(t)
	t.Cleanup(func() { backend.Close() })
	bound, err := sched.Bound("/")
	if err != nil {
		t.Fatal(err)
	}
	servers, err := sched.ServersShare("/")
	if err != nil {
		t.Fatal(err)
	}
	p := inside(t, backend, "a", on(1, grant("a", ms, 20*ms, 1, reservation.Threads{})))
	if err := sched.Nudge(p.cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	admits, refuses := int64(0), int64(1_000_001)
	for refuses-admits > 1 {
		ppm := (admits + refuses) / 2
		one := reservation.Duration(1_000_000_000)
		err := sched.Set(p.cmd.Process.Pid, deadlineAttr(grant("", reservation.Duration(ppm*1000), one, 1, reservation.Threads{})))
		if err != nil && !errors.Is(err, syscall.EBUSY) {
			t.Fatal(ppm, err)
		}
		if err == nil {
			admits = ppm
		} else {
			refuses = ppm
		}
	}
	t.Logf("the bound is %d, the kernel's own servers may have %d, the kernel admits %d", bound, servers, admits)
	if admits < bound || admits > bound+servers+2 {
		t.Errorf("the bound is %d, the kernel's own servers may have %d, the kernel admits %d", bound, servers, admits)
	}
	// What the kernel subtracts after the core is given back it subtracts in vain.
	if err := sched.Drop(p.cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	p.end()
	untilCounted(t, 1, 0)
}

func TestCellsAdmitPerCoreKeepThreadsThereAndAreGivenBack(t *testing.T) {
	backend := newCells(t, 1, 2)
	before := read(t, backend.root+"/cpuset.cpus.effective")
	backend.mustOpen(t)
	t.Cleanup(func() {
		if err := backend.Close(); err != nil {
			t.Error(err)
		}
	})
	if got := read(t, backend.root+"/cpuset.cpus.effective"); got != "0" {
		t.Errorf("everybody else may run on %s", got)
	}
	control := on(1, grant("a", 10*ms, 20*ms, 1, named("control")))
	p := inside(t, backend, "a", control)
	for _, name := range []string{"control", "other"} {
		p.do("thread %s", name)
	}
	e := enforce(t, backend, p, control)
	state := refresh(t, e)[0]
	if len(state.Threads) != 1 {
		t.Fatalf("state %+v", state)
	}
	held := state.Threads[0].Thread
	if got := policy(t, held.TID); got.Policy != sched.Deadline || got.Runtime != 10*ms {
		t.Errorf("the thread has %+v", got)
	}
	for _, thread := range mustList(t, p) {
		if got := allowed(t, thread.TID); !slices.Equal(got, []int{1}) {
			t.Errorf("thread %q may run on CPUs %v", thread.Name, got)
		}
	}
	// A second container on that core has what is left, and no more, though the other core is empty.
	second := on(1, grant("b", 6*ms, 20*ms, 1, named("control")))
	q := inside(t, backend, "b", second)
	q.do("thread control")
	if state := refresh(t, enforce(t, backend, q, second))[0]; len(state.Threads) != 1 {
		t.Errorf("the second container's state is %+v", state)
	}
	third := on(1, grant("c", 4*ms, 20*ms, 1, named("control")))
	r := inside(t, backend, "c", third)
	r.do("thread control")
	if _, err := backend.Enforce(r.container(), []Grant{third}); !errors.Is(err, ErrRefused) || !errors.Is(err, syscall.EBUSY) {
		t.Errorf("more than the core has: %v", err)
	}
	r.end()
	elsewhere := on(2, grant("c", 17*ms, 20*ms, 1, named("control")))
	r = inside(t, backend, "d", elsewhere)
	r.do("thread control")
	if state := refresh(t, enforce(t, backend, r, elsewhere))[0]; len(state.Threads) != 1 || !slices.Equal(allowed(t, state.Threads[0].TID), []int{2}) {
		t.Errorf("on the other core: %+v", state)
	}
	// An agent that is started again finds all as it was, and one that ends leaves it to the containers.
	again := newCells(t, 1, 2)
	again.mustOpen(t)
	if state := refresh(t, enforce(t, again, p, control))[0]; len(state.Threads) != 1 || state.Threads[0].TID != held.TID {
		t.Errorf("after a restart %+v", state)
	}
	if err := again.Close(); err != nil || !exists(filepath.Join(backend.root, cell(1))) {
		t.Errorf("closed under containers: %v", err)
	}
	for _, program := range []*program{p, q, r} {
		program.end()
	}
	if err := backend.Close(); err != nil {
		t.Fatal(err)
	}
	if got := read(t, backend.root+"/cpuset.cpus.effective"); got != before || len(backend.present()) > 0 {
		t.Errorf("after the end everybody may run on %s, cells are left for %v", got, backend.present())
	}
}

func TestACoreThatIsNoLongerOfferedIsGivenBack(t *testing.T) {
	former := newCells(t, 1, 2)
	former.mustOpen(t)
	backend := newCells(t, 2)
	backend.mustOpen(t)
	if got := read(t, backend.root+"/cpuset.cpus.effective"); got != "0-1" {
		t.Errorf("everybody else may run on %s", got)
	}
	if err := backend.Close(); err != nil {
		t.Error(err)
	}
}

func TestACoreThatAnotherPartitionHasIsToldAndNothingIsLeftBehind(t *testing.T) {
	backend := newCells(t, 1, 2)
	if err := writeText(filepath.Join(backend.root, "cgroup.subtree_control"), "+cpuset"); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(backend.root, "another")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		writeText(filepath.Join(other, "cpuset.cpus.partition"), "member")
		os.Remove(other)
	})
	if err := errors.Join(writeText(filepath.Join(other, "cpuset.cpus"), "2"), writeText(filepath.Join(other, "cpuset.cpus.partition"), "root")); err != nil {
		t.Fatal(err)
	}
	if err := backend.Open(); err == nil || !strings.Contains(err.Error(), "CPU 2") {
		t.Errorf("error is %v", err)
	}
	if left := backend.present(); len(left) > 0 {
		t.Errorf("cells are left for %v", left)
	}
}

func TestAContainerOutsideOfItsCellIsRefused(t *testing.T) {
	backend := newCells(t, 1)
	backend.mustOpen(t)
	defer backend.Close()
	p := begin(t)
	if _, err := backend.Enforce(p.container(), []Grant{on(1, grant("a", 2*ms, 20*ms, 1, named("x")))}); !errors.Is(err, ErrRefused) {
		t.Errorf("error is %v", err)
	}
}

func TestCellsHaveOneCoreForAContainer(t *testing.T) {
	c := &Cells{cores: []int{1, 2}}
	one, two := on(1, grant("a", 2*ms, 20*ms, 1, named("x"))), on(2, grant("b", 2*ms, 20*ms, 1, named("y")))
	if err := c.Accepts([]Grant{one, one}); err != nil {
		t.Errorf("two reservations of one core: %v", err)
	}
	if got := c.Adjust([]Grant{one}).Cgroup; got != "/takt-cpu1" {
		t.Errorf("the container is put below %q", got)
	}
	for name, grants := range map[string][]Grant{"two grants": {one, two}, "two cores": {grant("c", 2*ms, 20*ms, 2, named("x"))}} {
		if err := c.Accepts(grants); err == nil || !strings.Contains(err.Error(), "one core for a container") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.Accepts([]Grant{on(3, one)}); err == nil || !strings.Contains(err.Error(), "CPU 3 is not set apart") {
		t.Errorf("a core that is not there: %v", err)
	}
}

func TestCellsNeedTheCpusetControllerAndACoreForEverybodyElse(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{
		"sys/fs/cgroup/cgroup.controllers":  "cpu memory",
		"sys/devices/system/cpu/online":     "0-1",
		"sys/devices/system/cpu/possible":   "0-1",
		"sys/devices/system/cpu/cpu0/other": "", "sys/devices/system/cpu/cpu1/other": "",
	})
	if _, err := NewCells(root, []int{1}); err == nil || !strings.Contains(err.Error(), "use backend deadline") {
		t.Errorf("without cpusets: %v", err)
	}
	if _, err := NewCells(t.TempDir(), []int{1}); err == nil || !strings.Contains(err.Error(), "use backend deadline") {
		t.Errorf("without cgroup v2: %v", err)
	}
}

func TestACellThatIsGoneOrInvalidIsMadeAnewOrTold(t *testing.T) {
	root := t.TempDir()
	c := &Cells{root: root, cores: []int{1, 2}}
	write(t, root, map[string]string{"takt-cpu1/cpuset.cpus.partition": "root", "takt-cpu1/cpuset.cpus": "1", "takt-cpu1/cgroup.subtree_control": ""})
	broken := c.Broken()
	if len(broken) != 1 || broken[2] == nil || !strings.Contains(broken[2].Error(), "CPU 2") {
		t.Errorf("without a partition: %v", broken)
	}
	write(t, root, map[string]string{"takt-cpu1/cpuset.cpus.partition": "root invalid (Cpu list in cpuset.cpus not exclusive)"})
	c.cores = []int{1}
	if broken := c.Broken(); len(broken) > 0 {
		t.Errorf("what could be put right: %v", broken)
	}
	if state, err := c.state(1); err != nil || state != "root" {
		t.Errorf("the partition is %q, %v", state, err)
	}
}

func TestAPartitionWhoseCPUIsOfflineIsToldAndComesBack(t *testing.T) {
	backend := newCells(t, 1, 2)
	backend.mustOpen(t)
	defer backend.Close()
	const file = "/sys/devices/system/cpu/cpu2/online"
	if err := os.WriteFile(file, []byte("0"), 0); err != nil {
		t.Skipf("its CPUs stay: %v", err)
	}
	if broken := backend.Broken(); len(broken) != 1 || broken[2] == nil {
		t.Errorf("offline: %v", broken)
	}
	if err := os.WriteFile(file, []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	if broken := backend.Broken(); len(broken) > 0 {
		t.Errorf("online again: %v", broken)
	}
}
