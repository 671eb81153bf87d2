package enforce

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

// whole is a grant of all of these cores.
func whole(key string, cores ...int) Grant {
	g := grant(key, 10*ms, 10*ms, 0, reservation.Threads{})
	g.Cores = cores
	return g
}

func TestCoresAreGivenAwayOnlyWhereTheKernelKeepsThemSo(t *testing.T) {
	fine := map[string]string{
		"sys/fs/cgroup/cgroup.controllers":    "cpuset cpu memory",
		"sys/devices/system/cpu/online":       "0-1",
		"proc/sys/kernel/osrelease":           "6.12.117",
		"proc/sys/kernel/sched_rt_runtime_us": "950000", "proc/sys/kernel/sched_rt_period_us": "1000000",
	}
	for _, cpu := range []string{"0", "1"} {
		dir := "sys/devices/system/cpu/cpu" + cpu + "/topology/"
		fine[dir+"core_id"], fine[dir+"physical_package_id"], fine[dir+"thread_siblings_list"] = cpu, "0", cpu
	}
	for name, tc := range map[string]struct {
		files map[string]string
		cores []int
		want  string
	}{
		"all is there":                {nil, []int{1}, ""},
		"no core is left for others":  {nil, []int{0, 1}, "some must be left for everything else"},
		"no cpusets of cgroup v2":     {map[string]string{"sys/fs/cgroup/cgroup.controllers": "cpu memory"}, []int{1}, "needs the cpuset controller"},
		"no partitions in slices":     {map[string]string{"proc/sys/kernel/osrelease": "6.6.9"}, []int{1}, "needs Linux 6.7 or later"},
		"real time is stopped":        {map[string]string{"proc/sys/kernel/osrelease": "6.11.2"}, []int{1}, "needs Linux 6.12 or later, or kernel.sched_rt_runtime_us -1"},
		"real time is not stopped":    {map[string]string{"proc/sys/kernel/osrelease": "6.11.2", "proc/sys/kernel/sched_rt_runtime_us": "-1"}, []int{1}, ""},
		"nor by all of the period":    {map[string]string{"proc/sys/kernel/osrelease": "6.11.2", "proc/sys/kernel/sched_rt_runtime_us": "1000000"}, []int{1}, ""},
		"nobody says which kernel is": {map[string]string{"proc/sys/kernel/osrelease": "?"}, []int{1}, "cannot read the kernel's version"},
	} {
		root := t.TempDir()
		files := maps.Clone(fine)
		maps.Copy(files, tc.files)
		write(t, root, files)
		if _, err := NewWhole(root, tc.cores); tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOnlyARuntimeAsLongAsThePeriodIsAWholeCore(t *testing.T) {
	w := &Whole{cores: []int{1, 2}}
	if err := w.Accepts([]Grant{whole("a", 1, 2)}); err != nil {
		t.Error(err)
	}
	for want, edit := range map[string]func(*Grant){
		"make the runtime as long as the period": func(g *Grant) { g.Parameters.Runtime-- },
		"CPU 3 is not given away":                func(g *Grant) { g.Cores = []int{1, 3} },
		`policy "deadline"`:                      func(g *Grant) { g.Parameters.Policy = reservation.PolicyDeadline },
		`overrun "signal"`:                       func(g *Grant) { g.Parameters.Overrun = reservation.OverrunSignal },
		`changes "deny"`:                         func(g *Grant) { g.Parameters.Changes = reservation.ChangesDeny },
	} {
		g := whole("a", 1, 2)
		edit(&g)
		if err := w.Accepts([]Grant{g}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if err := w.Accepts([]Grant{whole("a", 1), whole("b", 2)}); err == nil || !strings.Contains(err.Error(), "use one request") {
		t.Errorf("two requests: %v", err)
	}
}

// The kernel's rule: a cgroup has as its own no CPU that the one above it has not.
func TestCoresAreTakenFromTheTopAndGivenBackFromBelow(t *testing.T) {
	root := t.TempDir()
	w := &Whole{root: root, cores: []int{1, 2, 3}}
	for _, dir := range []string{"k", "k/p1", "k/p1/a", "k/p2", "k/p2/b"} {
		write(t, root, map[string]string{dir + "/" + exclusiveFile: "\n", dir + "/" + partitionFile: "member\n", dir + "/" + effectiveFile: "0-3\n"})
	}
	expect := func(when string, want map[string]string) {
		t.Helper()
		for dir, cpus := range want {
			if got := read(t, filepath.Join(root, dir, exclusiveFile)); got != cpus {
				t.Errorf("%s, %s has %q, not %q", when, dir, got, cpus)
			}
		}
	}
	// The files do not answer as the kernel does: it has refused.
	if _, err := w.take("/k/p1/a", []int{1, 2}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "CPUs 1-2") {
		t.Errorf("error is %v", err)
	}
	write(t, root, map[string]string{"k/p1/a/" + effectiveFile: "1-2\n", "k/p2/b/" + effectiveFile: "3\n"})
	if made, err := w.take("/k/p2/b", []int{3}); !made || err != nil {
		t.Errorf("made is %t, %v", made, err)
	}
	expect("with both", map[string]string{"k": "1-3", "k/p1": "1-2", "k/p1/a": "1-2", "k/p2": "3", "k/p2/b": "3"})
	for _, path := range []string{"/k/p1/a", "/k/p2/b", "/k/p3/c"} {
		if made, err := w.take(path, map[bool][]int{true: {1, 2}, false: {3}}[path == "/k/p1/a"]); made || err != nil {
			t.Errorf("%s is as it is to be, or gone, and made anew: %t, %v", path, made, err)
		}
	}
	if err := os.RemoveAll(filepath.Join(root, "k/p1/a")); err != nil {
		t.Fatal(err)
	}
	if err := w.give("/k/p1/a"); err != nil {
		t.Fatal(err)
	}
	expect("after a's end", map[string]string{"k": "3", "k/p1": "", "k/p2": "3", "k/p2/b": "3"})
	if err := w.give("/k/p2/b"); err != nil {
		t.Fatal(err)
	}
	expect("after both", map[string]string{"k": "", "k/p2": "", "k/p2/b": ""})
	if got := read(t, filepath.Join(root, "k/p2/b", partitionFile)); got != "member" {
		t.Errorf("b is %q", got)
	}
}

// The kernel makes a partition of no CPU that is online invalid, and says "root" to nobody who asks for it again.
func TestAContainerOfOneCoreThatGoesOfflineIsKept(t *testing.T) {
	root := t.TempDir()
	w := &Whole{machine: root, root: filepath.Join(root, "cgroup"), cores: []int{1}}
	const leaf = "cgroup/kubepods/pod/a/"
	for _, dir := range []string{"cgroup/kubepods/", "cgroup/kubepods/pod/", leaf} {
		write(t, root, map[string]string{dir + exclusiveFile: "1\n", dir + partitionFile: "member\n"})
	}
	is := func(online, state, effective string) {
		write(t, root, map[string]string{"sys/devices/system/cpu/online": online, leaf + partitionFile: state, leaf + effectiveFile: effective})
	}
	of := &threads{keep: w.keeper("/kubepods/pod/a", []int{1})}
	is("0-1\n", "root\n", "1\n")
	look := func(when string, rewritten int) {
		t.Helper()
		// Without patience: a failure would end the container here that goes on for longer than latePatience.
		if err := of.surround(0); err != nil || of.rewritten != rewritten || !of.unkept.IsZero() {
			t.Errorf("%s: %v, put back %d times, not kept since %v", when, err, of.rewritten, of.unkept)
		}
	}
	look("online", 0)
	for range 10 {
		is("0\n", "root invalid (Invalid cpu list in cpuset.cpus.exclusive)\n", "0\n")
		look("offline", 0)
		if got := read(t, filepath.Join(root, leaf, partitionFile)); !strings.HasPrefix(got, "root invalid") {
			t.Fatalf("offline, it was written again: %q", got)
		}
	}
	// Back again it has to be made one anew, which is nobody's fault.
	is("0-1\n", "root invalid (Invalid cpu list in cpuset.cpus.exclusive)\n", "1\n")
	look("online again", 0)
	if got := read(t, filepath.Join(root, leaf, partitionFile)); got != "root" {
		t.Errorf("it is %q", got)
	}
	// That one is somebody's.
	is("0-1\n", "member\n", "1\n")
	look("ended by hand", 1)
	// What fails is no restoring, and has an end.
	is("0-1\n", "member\n", "0\n")
	if err := of.surround(0); !errors.Is(err, ErrRefused) || of.rewritten != 1 {
		t.Errorf("on the CPUs of others: %v, put back %d times", err, of.rewritten)
	}
}

// pods are two containers in cgroups as the kubelet makes them, on a machine of cgroup v2 with three CPUs.
func pods(t *testing.T) (backend *Whole, a, b *program) {
	t.Helper()
	if os.Getenv("TAKT_TEST_CELLS") == "" {
		t.Skip("it takes cores away from the whole machine, which has cgroup v2: make test-partitions boots one")
	}
	backend, err := NewWhole("/", []int{1, 2})
	if remote, _ := sched.AtLeast("/", 6, 7); !remote {
		if err == nil || !strings.Contains(err.Error(), "needs Linux 6.7") {
			t.Errorf("a kernel without partitions below slices: %v", err)
		}
		t.Skip("this kernel has no partitions below cgroups that are none")
	}
	if err != nil {
		t.Fatal(err)
	}
	write(t, backend.root, map[string]string{"cgroup.subtree_control": "+cpuset"})
	for _, dir := range []string{"kubepods", "kubepods/one", "kubepods/two"} {
		dir = filepath.Join(backend.root, dir)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(dir) })
		write(t, dir, map[string]string{"cgroup.subtree_control": "+cpuset"})
	}
	return backend, beginIn(t, filepath.Join(backend.root, "kubepods/one/a")), beginIn(t, filepath.Join(backend.root, "kubepods/two/b"))
}

func TestAContainerWithWholeCoresIsAloneOnThemWithFixedPrioritiesInside(t *testing.T) {
	backend, a, b := pods(t)
	outside := begin(t)
	g := whole("a", 1, 2)
	e := enforce(t, backend, a, g)
	state := refresh(t, e)[0]
	if len(state.Threads) != 1 || state.Free != 0 || state.Rewritten != 0 {
		t.Errorf("state is %+v", state)
	}
	first := a.cmd.Process.Pid
	later := a.outer(a.do("thread later"))
	for _, tid := range []int{first, later} {
		if got := allowed(t, tid); !slices.Equal(got, []int{1, 2}) {
			t.Errorf("thread %d may run on %v", tid, got)
		}
	}
	// The children of the container's first thread have inherited what it was given.
	if got := policy(t, first); got.Policy != sched.FIFO || got.Priority != 1 {
		t.Errorf("the first thread has %+v", got)
	}
	if got := a.do("fifo %s", a.do("thread control")); got != "<nil>" {
		t.Errorf("a thread sets its priority: %s", got)
	}
	for _, other := range []*program{b, outside} {
		if got := allowed(t, other.cmd.Process.Pid); !slices.Equal(got, []int{0}) {
			t.Errorf("somebody else may run on %v", got)
		}
	}
	// The agent was replaced, and the partition broken by hand.
	again, err := backend.Enforce(Container{ID: "test", Init: first, Root: "/", Runs: true}, []Grant{g})
	if err != nil {
		t.Fatal(err)
	}
	write(t, a.cgroup, map[string]string{partitionFile: "member"})
	if got := allowed(t, b.cmd.Process.Pid); slices.Equal(got, []int{0}) {
		t.Fatal("the partition is still there")
	}
	if state := refresh(t, again)[0]; state.Rewritten != 1 {
		t.Errorf("state is %+v", state)
	}
	if got := allowed(t, b.cmd.Process.Pid); !slices.Equal(got, []int{0}) {
		t.Errorf("after that somebody else may run on %v", got)
	}
	// A core that goes offline is told by the node; the container goes on where it can.
	const second = "/sys/devices/system/cpu/cpu2/online"
	if err := os.WriteFile(second, []byte("0"), 0); err == nil {
		if state := refresh(t, again)[0]; state.Rewritten != 1 || !slices.Equal(allowed(t, first), []int{1}) {
			t.Errorf("with a core offline it may run on %v: %+v", allowed(t, first), state)
		}
		if err := os.WriteFile(second, []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
		if state := refresh(t, again)[0]; state.Rewritten != 1 || !slices.Equal(allowed(t, first), []int{1, 2}) {
			t.Errorf("online again it may run on %v: %+v", allowed(t, first), state)
		}
	}
	// A core is one container's.
	if _, err := backend.Enforce(b.container(), []Grant{whole("b", 2)}); !errors.Is(err, ErrRefused) {
		t.Errorf("the same core for another container: %v", err)
	}
	if got := allowed(t, first); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("after that the first one may run on %v", got)
	}
	a.end()
	if err := again.Release(); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"kubepods", "kubepods/one", "kubepods/two"} {
		if got := read(t, filepath.Join(backend.root, dir, exclusiveFile)); got != "" {
			t.Errorf("%s still has CPUs %s for itself", dir, got)
		}
	}
	if got := allowed(t, b.cmd.Process.Pid); !slices.Equal(got, []int{0, 1, 2}) {
		t.Errorf("at last somebody else may run on %v", got)
	}
}

func TestAnotherPodHasTheCoresOfOneThatEndedWithoutTheAgent(t *testing.T) {
	backend, a, b := pods(t)
	enforce(t, backend, a, whole("a", 1, 2))
	a.end()
	if err := os.Remove(a.cgroup); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); read(t, filepath.Join(backend.root, effectiveFile)) != "0-2"; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("all have CPUs %s", read(t, filepath.Join(backend.root, effectiveFile)))
		}
	}
	if got := read(t, filepath.Join(backend.root, "kubepods/one", exclusiveFile)); got != "1-2" {
		t.Errorf("its pod has %q left", got)
	}
	e := enforce(t, backend, b, whole("b", 2))
	if got := allowed(t, b.cmd.Process.Pid); !slices.Equal(got, []int{2}) {
		t.Errorf("the one that has a core next may run on %v", got)
	}
	if got := read(t, filepath.Join(backend.root, "kubepods/one", exclusiveFile)); got != "" {
		t.Errorf("the other pod still has %q", got)
	}
	b.end()
	if err := e.Release(); err != nil {
		t.Fatal(err)
	}
}

func TestContainersHaveWholeCoresBesideEachOther(t *testing.T) {
	backend, a, b := pods(t)
	// The static CPU manager has given one of these cores to a container that is none of ours.
	static := beginIn(t, filepath.Join(backend.root, "kubepods/two/static"))
	write(t, static.cgroup, map[string]string{"cpuset.cpus": "1"})
	ea := enforce(t, backend, a, whole("a", 1))
	eb := enforce(t, backend, b, whole("b", 2))
	write(t, static.cgroup, map[string]string{"cpuset.cpus": "2"})
	for core, p := range map[int]*program{1: a, 2: b} {
		if got := allowed(t, p.cmd.Process.Pid); !slices.Equal(got, []int{core}) {
			t.Errorf("the container of core %d may run on %v", core, got)
		}
	}
	if got := allowed(t, static.cmd.Process.Pid); slices.Contains(got, 1) || slices.Contains(got, 2) {
		t.Errorf("the container of the static CPU manager may run on %v", got)
	}
	// The only core of one goes offline, for as long as it may.
	const second = "/sys/devices/system/cpu/cpu2/online"
	if err := os.WriteFile(second, []byte("0"), 0); err == nil {
		for range 3 {
			if states, err := eb.(*threads).refresh(0); err != nil || states[0].Rewritten != 0 || states[0].Waiting != 0 {
				t.Errorf("with its only core offline: %+v, %v", states, err)
			}
		}
		if err := os.WriteFile(second, []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
		if states, err := eb.(*threads).refresh(0); err != nil || states[0].Rewritten != 0 || !slices.Equal(allowed(t, b.cmd.Process.Pid), []int{2}) {
			t.Errorf("online again it may run on %v: %+v, %v", allowed(t, b.cmd.Process.Pid), states, err)
		}
	}
	a.end()
	if err := ea.Release(); err != nil {
		t.Fatal(err)
	}
	if got := allowed(t, b.cmd.Process.Pid); !slices.Equal(got, []int{2}) {
		t.Errorf("when the other has gone it may run on %v", got)
	}
	// The cgroup is gone before the agent hears of it.
	b.end()
	if err := os.Remove(b.cgroup); err != nil {
		t.Fatal(err)
	}
	if err := eb.Release(); err != nil {
		t.Error(err)
	}
	if got := read(t, filepath.Join(backend.root, "kubepods", exclusiveFile)); got != "" {
		t.Errorf("CPUs %s are left to nobody", strconv.Quote(got))
	}
}

// kernel has the fake tree below root refuse exclusive CPUs as the kernel does: none that the cgroup above has not, or
// that one beside has.
func kernel(t *testing.T, root string) {
	t.Helper()
	plain := writeExclusive
	t.Cleanup(func() { writeExclusive = plain })
	writeExclusive = func(dir string, cpus []int) error {
		above, err := exclusive(filepath.Dir(dir))
		if filepath.Dir(dir) != root && (err != nil || len(without(cpus, above)) > 0) {
			return syscall.EINVAL
		}
		beside, _ := childrenOf(filepath.Dir(dir))
		for _, other := range beside {
			if has, _ := exclusive(other); other != dir && len(without(cpus, has)) < len(cpus) {
				return syscall.EINVAL
			}
		}
		return plain(dir, cpus)
	}
}

func TestCoresOfContainersThatEndedWithoutTheAgentAreGivenBack(t *testing.T) {
	const burstable, ours = "kubepods.slice/kubepods-burstable.slice", "kubepods.slice/kubepods-pod2.slice/b.scope"
	for name, open := range map[string]bool{"when the agent begins": true, "when another container needs them": false} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for dir, cpus := range map[string]string{
				// Container a of a pod that has gone, and c of a pod whose container has; d still runs.
				"kubepods.slice": "1-4", burstable: "1-4", burstable + "/kubepods-burstable-pod1.slice": "3-4",
				burstable + "/kubepods-burstable-pod1.slice/d.scope": "4", burstable + "/kubepods-burstable-pod1.slice/d.scope/inner": "",
				filepath.Dir(ours): "", ours: "",
				// Somebody else's: beside the kubelet's tree, within a container, and a partition in place of a pod.
				"mine.slice": "5", "mine.slice/kubepods": "5", "kubepods.slice/kubepods-pod3.slice": "", "kubepods.slice/kubepods-pod3.slice/e.scope": "", "other": "6-7",
			} {
				write(t, root, map[string]string{dir + "/" + exclusiveFile: cpus + "\n", dir + "/" + partitionFile: "member\n", dir + "/" + effectiveFile: "0-7\n"})
			}
			write(t, root, map[string]string{
				burstable + "/kubepods-burstable-pod1.slice/d.scope/" + partitionFile: "root\n",
				"other/" + partitionFile: "root\n", ours + "/" + effectiveFile: "1-2\n",
			})
			kernel(t, root)
			w := &Whole{root: root, cores: []int{1, 2, 3, 4}, tree: "/kubepods.slice"}
			want := map[string]string{
				"kubepods.slice": "4", burstable: "4", burstable + "/kubepods-burstable-pod1.slice": "4", burstable + "/kubepods-burstable-pod1.slice/d.scope": "4",
				"mine.slice": "5", "mine.slice/kubepods": "5", "other": "6-7",
			}
			if open {
				if err := w.Open(); err != nil {
					t.Fatal(err)
				}
			} else {
				if made, err := w.take("/"+ours, []int{1, 2}); !made || err != nil {
					t.Fatalf("made is %t, %v", made, err)
				}
				want["kubepods.slice"], want[filepath.Dir(ours)], want[ours] = "1-2,4", "1-2", "1-2"
			}
			for dir, cpus := range want {
				if got := read(t, filepath.Join(root, dir, exclusiveFile)); got != cpus {
					t.Errorf("%s has %q, not %q", dir, got, cpus)
				}
			}
			// Who has a core that is refused is named.
			if _, err := w.take("/"+ours, []int{4}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), burstable+" beside it has CPUs 4 for itself") {
				t.Errorf("error is %v", err)
			}
		})
	}
}

func TestNoCoresAreTakenFromPartitionsThatAreSomebodyElses(t *testing.T) {
	root := t.TempDir()
	for dir, cpus := range map[string]string{"kubepods": "1-3", "kubepods/burstable": "1", "kubepods/burstable/pod1": "1", "kubepods/pod2": "2", "kubepods/pod2/a": "", "kubepods/pod2/b": ""} {
		write(t, root, map[string]string{dir + "/" + exclusiveFile: cpus + "\n", dir + "/" + partitionFile: "member\n"})
	}
	write(t, root, map[string]string{"kubepods/burstable/" + partitionFile: "isolated\n"})
	w := &Whole{root: root, tree: "/kubepods"}
	if err := w.Open(); err != nil {
		t.Fatal(err)
	}
	for dir, cpus := range map[string]string{"kubepods": "1", "kubepods/burstable": "1", "kubepods/burstable/pod1": "", "kubepods/pod2": ""} {
		if got := read(t, filepath.Join(root, dir, exclusiveFile)); got != cpus {
			t.Errorf("%s has %q, not %q", dir, got, cpus)
		}
	}
	// An agent that is in no pod does not know which tree is its kubelet's.
	write(t, root, map[string]string{"kubepods/" + exclusiveFile: "1-3\n"})
	if err := (&Whole{root: root}).Open(); err != nil || read(t, filepath.Join(root, "kubepods", exclusiveFile)) != "1-3" {
		t.Errorf("it has taken some: %v", err)
	}
}

func TestTheKubeletsTreeIsKnownByItsNames(t *testing.T) {
	for path, want := range map[string]string{
		"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-a.scope": "/kubepods.slice",
		"/kubepods/besteffort/pod1/a":                      "/kubepods",
		"/kubelet.slice/kubelet-kubepods.slice/x-p1.slice": "/kubelet.slice/kubelet-kubepods.slice",
		"/docker/1/kubelet/kubepods/pod1/a":                "/docker/1/kubelet/kubepods",
		"/kubepods":                                        "/kubepods",
		"/system.slice/containerd.service":                 "",
		"/mykubepods/pod1":                                 "",
		"/":                                                "",
	} {
		if got := kubeletTree(path); got != want {
			t.Errorf("of %s it is %q, not %q", path, got, want)
		}
	}
}
