package enforce

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

func write(t interface{ Fatal(...any) }, root string, files map[string]string) {
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t interface{ Fatal(...any) }, path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// rtTree makes real cgroups kubepods/pod/NAME with real-time budgets below the machine's root.
func rtTree(t *testing.T, names ...string) (*Group, string, []string) {
	t.Helper()
	needRoot(t)
	group, err := NewRTGroup("/")
	if err != nil {
		t.Skipf("needs real-time groups of cgroup v1: %v", err)
	}
	top := fmt.Sprintf("/takt-test-%d", os.Getpid())
	var paths []string
	for _, name := range names {
		path := filepath.Join(top, "pod", name)
		if err := os.MkdirAll(filepath.Join(group.budgets.root, path), 0o755); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	t.Cleanup(func() {
		for _, path := range append(paths, top+"/pod", top) {
			if err := os.Remove(filepath.Join(group.budgets.root, path)); err != nil {
				t.Error(err)
			}
		}
	})
	return group, top, paths
}

func TestRealTimeGroupsGetTheirBudgetFromTheTopAndGiveItBack(t *testing.T) {
	group, top, paths := rtTree(t, "a", "b")
	root := group.budgets.root
	a, b := grant("a", 3*ms, 10*ms, 1, reservation.Threads{}), grant("b", 20*ms, 100*ms, 1, reservation.Threads{})
	if err := group.budgets.grant(paths[0], a); err != nil {
		t.Fatal(err)
	}
	if err := group.budgets.grant(paths[1], b); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"/pod/a/cpu.rt_runtime_us": "3000", "/pod/a/cpu.rt_period_us": "10000",
		"/pod/b/cpu.rt_runtime_us": "20000", "/pod/b/cpu.rt_period_us": "100000",
		"/pod/cpu.rt_runtime_us": "500000", "/cpu.rt_runtime_us": "500000",
	} {
		if got := read(t, root+top+file); got != want {
			t.Errorf("%s is %s, not %s", file, got, want)
		}
	}
	if err := group.budgets.grant(paths[0], a); err != nil {
		t.Errorf("the same grant again, as after a restart: %v", err)
	}
	err := group.budgets.grant(paths[0], grant("a", 90*ms, 100*ms, 1, reservation.Threads{}))
	if !errors.Is(err, ErrRefused) || !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), top) {
		t.Errorf("more than there is: %v", err)
	}
	if err := group.budgets.revoke(paths[0]); err != nil {
		t.Fatal(err)
	}
	if got := read(t, root+top+"/cpu.rt_runtime_us"); got != "200000" {
		t.Errorf("after one has gone the group above has %s", got)
	}
	if err := group.budgets.revoke(paths[1]); err != nil {
		t.Fatal(err)
	}
	if got := read(t, root+top+"/cpu.rt_runtime_us"); got != "0" {
		t.Errorf("after both have gone the group above has %s", got)
	}
}

func TestAContainerInARealTimeGroupRunsFIFOWithAllItsThreads(t *testing.T) {
	group, _, paths := rtTree(t, "a")
	cgroup := filepath.Join(group.budgets.root, paths[0])
	p := begin(t, cgroup)
	g := grant("a", 3*ms, 10*ms, 1, reservation.Threads{})
	if err := group.Accepts([]Grant{g}); err != nil {
		t.Fatal(err)
	}
	// Without a budget the kernel lets nobody in there be real-time.
	if err := sched.Set(p.cmd.Process.Pid, sched.Attr{Policy: sched.FIFO, Priority: 1}); !errors.Is(err, syscall.EPERM) {
		t.Fatalf("FIFO without a budget: %v", err)
	}
	e := enforce(t, group, p, g)
	if got := policy(t, p.cmd.Process.Pid); got != (sched.Attr{Policy: sched.FIFO, Priority: 1}) {
		t.Errorf("first thread has %+v", got)
	}
	var limit unix.Rlimit
	if err := unix.Prlimit(p.cmd.Process.Pid, unix.RLIMIT_RTPRIO, nil, &limit); err != nil || (limit.Max != 99 && mayRaiseLimits()) {
		t.Errorf("its priorities go up to %d, %v", limit.Max, err)
	}
	child := p.do("fork")
	if got := policy(t, p.outer(child)); got.Policy != sched.FIFO {
		t.Errorf("its child has %+v", got)
	}
	p.end()
	if err := e.Release(); err != nil {
		t.Fatal(err)
	}
	if got := read(t, filepath.Join(cgroup, "cpu.rt_runtime_us")); got != "0" {
		t.Errorf("budget after release is %s", got)
	}
}

// Whoever may write cgroups can write another budget while the container runs: it is compared at each scan.
func TestABudgetThatSomethingElseHasWrittenIsRestored(t *testing.T) {
	group, top, paths := rtTree(t, "a", "b")
	root := group.budgets.root
	cgroup := filepath.Join(root, paths[0])
	p := begin(t, cgroup)
	e := enforce(t, group, p, grant("a", 30*ms, 100*ms, 1, reservation.Threads{}))
	if got := refresh(t, e)[0].Rewritten; got != 0 {
		t.Errorf("restored %d times before anything was written", got)
	}
	has := func(file, want string) {
		t.Helper()
		if got := read(t, root+top+file); got != want {
			t.Errorf("%s is %s, not %s", file, got, want)
		}
	}
	for i, changes := range [][][2]string{
		{{"/pod/a/cpu.rt_runtime_us", "1000"}},  // less of the time
		{{"/pod/a/cpu.rt_period_us", "200000"}}, // later
		{{"/cpu.rt_runtime_us", "900000"}, {"/pod/cpu.rt_runtime_us", "900000"}, {"/pod/a/cpu.rt_runtime_us", "80000"}}, // more than is its own
	} {
		for _, change := range changes {
			write(t, root+top, map[string]string{change[0]: change[1]})
		}
		if got := refresh(t, e)[0].Rewritten; got != i+1 {
			t.Errorf("%v: restored %d times", changes, got)
		}
		has("/pod/a/cpu.rt_runtime_us", "30000")
		has("/pod/a/cpu.rt_period_us", "100000")
		has("/pod/cpu.rt_runtime_us", "300000")
		has("/cpu.rt_runtime_us", "300000")
	}
	if got := policy(t, p.cmd.Process.Pid); got.Policy != sched.FIFO {
		t.Errorf("first thread has %+v", got)
	}
	// A later agent finds another budget under threads that run.
	write(t, root+top, map[string]string{"/pod/a/cpu.rt_runtime_us": "1000"})
	write(t, root+top, map[string]string{"/pod/a/cpu.rt_period_us": "50000"})
	again := enforce(t, group, p, grant("a", 30*ms, 100*ms, 1, reservation.Threads{}))
	has("/pod/a/cpu.rt_runtime_us", "30000")
	has("/pod/a/cpu.rt_period_us", "100000")
	p.end()
	if _, err := again.Refresh(); !errors.Is(err, ErrGone) {
		t.Errorf("after its end: %v", err)
	}
}

// Where the room is another's by now, the container waits for it, and is not left without its reservation for long.
func TestABudgetThatCannotBeRestoredIsWaitedForAndThenLost(t *testing.T) {
	group, top, paths := rtTree(t, "a", "b")
	root := group.budgets.root
	p := begin(t, filepath.Join(root, paths[0]))
	e := enforce(t, group, p, grant("a", 600*ms, 1000*ms, 1, reservation.Threads{})).(*threads)
	write(t, root+top, map[string]string{"/pod/a/cpu.rt_runtime_us": "1000"})
	if err := group.budgets.grant(paths[1], grant("b", 500*ms, 1000*ms, 1, reservation.Threads{})); err != nil {
		t.Fatal(err)
	}
	look := func(patience time.Duration) ([]State, error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.refresh(patience)
	}
	states, err := look(time.Hour)
	if err != nil || states[0].Waiting != 1 || states[0].Rewritten != 0 {
		t.Errorf("while it waits: %+v, %v", states, err)
	}
	if _, err := look(0); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "no room") {
		t.Errorf("after that: %v", err)
	}
	if err := group.budgets.revoke(paths[1]); err != nil {
		t.Fatal(err)
	}
	if states, err := look(0); err != nil || states[0].Waiting != 0 || states[0].Rewritten != 1 {
		t.Errorf("with room again: %+v, %v", states, err)
	}
	p.end()
}

// mayRaiseLimits says whether this process has CAP_SYS_RESOURCE.
func mayRaiseLimits() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

func TestNamedThreadsOfARealTimeGroupDoNotPassTheirPolicyOn(t *testing.T) {
	group, _, paths := rtTree(t, "a")
	p := begin(t, filepath.Join(group.budgets.root, paths[0]))
	g := grant("a", 3*ms, 10*ms, 1, named("control"))
	g.Parameters.Policy = reservation.PolicyRR
	e := enforce(t, group, p, g)
	id := p.do("thread control")
	refresh(t, e)
	if got := policy(t, p.outer(id)); got != (sched.Attr{Policy: sched.RR, Priority: 1, Flags: sched.ResetOnFork}) {
		t.Errorf("thread has %+v", got)
	}
	if got := policy(t, p.cmd.Process.Pid); got.Policy != sched.Other {
		t.Errorf("first thread has %+v", got)
	}
	p.end()
}

// The interfaces of kernels that are not here, by the files they have.
func TestHCBSBudgetsAreWrittenTopDown(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{
		"sys/fs/cgroup/cgroup.controllers":                "cpu",
		"sys/fs/cgroup/kubepods/cpu.rt.max":               "max 1000000",
		"sys/fs/cgroup/kubepods/burstable/cpu.rt.max":     "100000 1000000",
		"sys/fs/cgroup/kubepods/burstable/p/cpu.rt.max":   "0 1000000",
		"sys/fs/cgroup/kubepods/burstable/p/a/cpu.rt.max": "0 1000000",
		"sys/fs/cgroup/kubepods/burstable/q/cpu.rt.max":   "100000 1000000",
	})
	group, err := NewHCBS(root)
	if err != nil {
		t.Fatal(err)
	}
	base := root + "/sys/fs/cgroup/kubepods"
	if err := group.budgets.grant("/kubepods/burstable/p/a", grant("a", 2*ms, 10*ms, 2, reservation.Threads{})); err != nil {
		t.Fatal(err)
	}
	check := func(want map[string]string) {
		t.Helper()
		for file, want := range want {
			if got := read(t, base+file); got != want {
				t.Errorf("%s is %q, not %q", file, got, want)
			}
		}
	}
	check(map[string]string{
		"/cpu.rt.max": "max 1000000", "/burstable/cpu.rt.max": "300000 1000000",
		"/burstable/p/cpu.rt.max": "200000 1000000", "/burstable/p/a/cpu.rt.max": "2000 10000",
		"/burstable/q/cpu.rt.max": "100000 1000000",
	})
	leaf, a := "/kubepods/burstable/p/a", grant("a", 2*ms, 10*ms, 2, reservation.Threads{})
	if rewritten, err := group.budgets.keep(leaf, a); rewritten || err != nil {
		t.Errorf("what nobody has written is restored: %t, %v", rewritten, err)
	}
	write(t, base, map[string]string{"/burstable/p/a/cpu.rt.max": "max 10000"})
	if rewritten, err := group.budgets.keep(leaf, a); !rewritten || err != nil {
		t.Errorf("what somebody has written is not restored: %v", err)
	}
	check(map[string]string{"/burstable/cpu.rt.max": "300000 1000000", "/burstable/p/a/cpu.rt.max": "2000 10000"})
	if group.Shared(4) != 4 {
		t.Error("a budget on every core does not count on every core")
	}
	if err := os.RemoveAll(base + "/burstable/p/a"); err != nil {
		t.Fatal(err)
	}
	if err := group.budgets.revoke("/kubepods/burstable/p/a"); err != nil {
		t.Fatal(err)
	}
	check(map[string]string{"/burstable/cpu.rt.max": "100000 1000000", "/burstable/p/cpu.rt.max": "0 1000000"})
}

func TestThePapersKernelHasABudgetForEveryCore(t *testing.T) {
	root := t.TempDir()
	files := map[string]string{"sys/fs/cgroup/cpu/cgroup.procs": ""}
	for _, dir := range []string{"", "kubepods/", "kubepods/a/", "kubepods/b/"} {
		files["sys/fs/cgroup/cpu/"+dir+multiRuntime] = "0 0 0 0"
		files["sys/fs/cgroup/cpu/"+dir+"cpu.rt_period_us"] = "1000000"
	}
	write(t, root, files)
	group, err := NewHCBS(root)
	if err != nil {
		t.Fatal(err)
	}
	a, b := grant("a", 200_000, 1*ms, 1, reservation.Threads{}), grant("b", 100_000, 1*ms, 1, reservation.Threads{})
	a.Cores, b.Cores = []int{0, 2}, []int{2, 3}
	for path, g := range map[string]Grant{"/kubepods/a": a, "/kubepods/b": b} {
		if err := group.budgets.grant(path, g); err != nil {
			t.Fatal(err)
		}
	}
	base := root + "/sys/fs/cgroup/cpu/kubepods/"
	for file, want := range map[string]string{
		"a/" + multiRuntime: "200 0 200 0", "a/cpu.rt_period_us": "1000", "b/" + multiRuntime: "0 0 100 100",
	} {
		if got := read(t, base+file); got != want {
			t.Errorf("%s is %q, not %q", file, got, want)
		}
	}
	write(t, base, map[string]string{"b/" + multiRuntime: "0 0 100 0"})
	if rewritten, err := group.budgets.keep("/kubepods/b", b); !rewritten || err != nil {
		t.Errorf("what somebody has written is not restored: %v", err)
	}
	if got := read(t, base+"b/"+multiRuntime); got != "0 0 100 100" {
		t.Errorf("restored is %q", got)
	}
	if rewritten, err := group.budgets.keep("/kubepods/b", b); rewritten || err != nil {
		t.Errorf("what nobody has written is restored: %t, %v", rewritten, err)
	}
	above, err := multiKnob{}.read(base)
	if err != nil {
		t.Fatal(err)
	}
	sum := multiKnob{}.share(a).add(multiKnob{}.share(b))
	if !above.covers(sum) {
		t.Errorf("the group above has %v, its children %v", above, sum)
	}
	if group.Shared(4) != 1 {
		t.Error("cores with budgets of their own share")
	}
	for _, path := range []string{"/kubepods/a", "/kubepods/b"} {
		if err := group.budgets.revoke(path); err != nil {
			t.Fatal(err)
		}
	}
	if got := read(t, base+multiRuntime); got != "0 0 0 0" {
		t.Errorf("after both have gone the group above has %q", got)
	}
}

func TestAKernelWithoutTheFilesHasNoSuchBackend(t *testing.T) {
	root := t.TempDir()
	if _, err := NewHCBS(root); err == nil {
		t.Error("HCBS without any cgroup")
	}
	write(t, root, map[string]string{"sys/fs/cgroup/cgroup.controllers": "", "sys/fs/cgroup/cpu,cpuacct/cgroup.procs": ""})
	if _, err := NewHCBS(root); err == nil || !strings.Contains(err.Error(), rtMax) {
		t.Errorf("error is %v", err)
	}
	if _, err := NewRTGroup(root); err == nil || !strings.Contains(err.Error(), "CONFIG_RT_GROUP_SCHED") {
		t.Errorf("error is %v", err)
	}
}

func TestWhatGroupsCannotDoIsNotAccepted(t *testing.T) {
	group := &Group{name: RTGroupName, budgets: &budgets{knob: rtKnob{}}}
	base := func() Grant { return grant("a", 2*ms, 10*ms, 1, reservation.Threads{}) }
	deadline := reservation.Duration(5 * ms)
	for want, edit := range map[string]func(*reservation.Parameters){
		`policy "deadline"`: func(p *reservation.Parameters) { p.Policy = reservation.PolicyDeadline },
		`overrun "signal"`:  func(p *reservation.Parameters) { p.Overrun = reservation.OverrunSignal },
		"deadline 5ms":      func(p *reservation.Parameters) { p.Deadline = &deadline },
		"a runtime from 2ms to 5ms is not available": func(p *reservation.Parameters) { p.MaxRuntime = &deadline },
		"is nothing": func(p *reservation.Parameters) { p.Runtime, p.Period = 1024, 4_194_304_000 },
	} {
		g := base()
		edit(&g.Parameters)
		if err := group.Accepts([]Grant{g}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if err := group.Accepts([]Grant{base(), base()}); err == nil || !strings.Contains(err.Error(), "2 reservations") {
		t.Errorf("two: %v", err)
	}
	if err := group.Accepts([]Grant{base()}); err != nil {
		t.Error(err)
	}
}

// The kernel's rule: the children of a group have together no more than it.
func TestNoGroupEverHasLessThanItsChildren(t *testing.T) {
	base := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		root, err := os.MkdirTemp(base, "")
		if err != nil {
			t.Fatal(err)
		}
		paths := []string{"/k/q/p1/a", "/k/q/p1/b", "/k/q/p2/c", "/k/d"}
		files := map[string]string{"cpu.rt_runtime_us": "950000", "cpu.rt_period_us": "1000000"}
		for _, path := range append([]string{"/k", "/k/q", "/k/q/p1", "/k/q/p2"}, paths...) {
			files[path+"/cpu.rt_runtime_us"], files[path+"/cpu.rt_period_us"] = "0", "1000000"
		}
		write(t, root, files)
		b := &budgets{root: root, knob: rtKnob{}}
		granted := map[string]share{}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			path := rapid.SampledFrom(paths).Draw(t, "container")
			if _, ok := granted[path]; ok {
				if err := b.revoke(path); err != nil {
					t.Fatal(err)
				}
				delete(granted, path)
			} else {
				period := rapid.Int64Range(100_000, 1_000_000_000).Draw(t, "period")
				runtime := rapid.Int64Range(1024, max(1024, period/5)).Draw(t, "runtime")
				g := grant(path, reservation.Duration(runtime), reservation.Duration(period), 1, reservation.Threads{})
				if err := b.grant(path, g); err != nil {
					t.Fatal(err)
				}
				granted[path] = rtKnob{}.share(g)
			}
			var all share
			for _, s := range granted {
				all = all.add(s)
			}
			top, err := rtKnob{}.read(root + "/k")
			if err != nil || !top.covers(all) {
				t.Fatalf("the top has %v, all containers %v, %v", top, all, err)
			}
			// Each of three levels rounds up to a microsecond of its second, which is about a unit.
			if all != nil && top[0] > all[0]+3*3 || all == nil && top[0] != 0 {
				t.Fatalf("the top has %v for %v", top, all)
			}
			for _, dir := range []string{"/k", "/k/q", "/k/q/p1", "/k/q/p2"} {
				have, _ := rtKnob{}.read(root + dir)
				if sum, _ := b.below(root+dir, "", nil); !have.covers(sum) {
					t.Fatalf("%s has %v, its children %v", dir, have, sum)
				}
			}
		}
	})
}
