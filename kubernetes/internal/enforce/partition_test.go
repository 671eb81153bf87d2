package enforce

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

// The real thing takes cores away from every process of the machine for a moment.
func TestAPartitionedMachineAdmitsPerCoreAndIsRestored(t *testing.T) {
	needRoot(t)
	if os.Getenv("TAKT_TEST_PARTITION") == "" {
		t.Skip("it changes where all processes of this machine may run: set TAKT_TEST_PARTITION=1 to allow that")
	}
	saved := filepath.Join(t.TempDir(), "partition.json")
	backend, err := NewPartition("/", []int{1}, saved)
	if err != nil {
		t.Skip(err)
	}
	root := backend.root
	guest := filepath.Join(root, "takt-test-guest")
	if err := backend.make(guest, []int{0, 1}, read(t, root+"/cpuset.mems")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(guest) })
	p := begin(t, guest)
	for _, name := range []string{"control", "control", "other"} {
		p.do("thread %s", name)
	}
	if err := backend.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := backend.restore(); err != nil {
			t.Error(err)
		}
	})
	if got := read(t, guest+"/cpuset.cpus"); got != "0" {
		t.Errorf("everybody else may run on %s", got)
	}
	g := grant("a", 14*ms, 20*ms, 1, named("control"))
	g.Cores = []int{1}
	// The machine has room, but this core has not: the kernel's admission is per core now.
	more := grant("b", 14*ms, 20*ms, 1, named("other"))
	more.Cores = []int{1}
	if _, err := backend.Enforce(p.container(), []Grant{g, more}); !errors.Is(err, ErrRefused) || !errors.Is(err, syscall.EBUSY) {
		t.Errorf("more than the core has: %v", err)
	}
	e := enforce(t, backend, p, g)
	state := refresh(t, e)[0]
	if len(state.Threads) != 1 || state.LeftOut != 1 {
		t.Fatalf("state %+v", state)
	}
	held := state.Threads[0].Thread
	if core, ok := backend.where(held); !ok || core != 1 || policy(t, held.TID).Policy != sched.Deadline {
		t.Errorf("thread is on core %d, %v, with %+v", core, ok, policy(t, held.TID))
	}
	for _, thread := range mustList(t, p) {
		if _, ok := backend.where(thread); ok && thread.TID != held.TID {
			t.Errorf("thread %q without a reservation is on the core", thread.Name)
		}
	}
	e = enforce(t, backend, p, g) // as after a restart of the agent
	if again := refresh(t, e)[0]; len(again.Threads) != 1 || again.Threads[0].TID != held.TID {
		t.Errorf("after a restart %+v", again)
	}
	if err := backend.Close(); err != nil || !exists(saved) {
		t.Errorf("closed with threads on cores: %v", err)
	}
	p.end()
	if err := backend.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{offeredCpuset, restCpuset} {
		if exists(filepath.Join(root, name)) {
			t.Errorf("%s is still there", name)
		}
	}
	if got := read(t, guest+"/cpuset.cpus"); got != "0-1" {
		t.Errorf("after the end everybody else may run on %s", got)
	}
	if got := read(t, root+"/cpuset.sched_load_balance"); got != "1" || exists(saved) {
		t.Errorf("load balance is %s", got)
	}
}

func TestAMachineIsNotGivenAwayEntirely(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{
		"sys/fs/cgroup/cpuset/cgroup.procs": "", "sys/fs/cgroup/cpuset/cpuset.cpus": "0-3", "sys/fs/cgroup/cpuset/cpuset.mems": "0",
	})
	for _, cores := range [][]int{{0, 1, 2, 3}, nil} {
		if _, err := NewPartition(root, cores, root+"/saved"); err == nil || !strings.Contains(err.Error(), "0-3") {
			t.Errorf("%v: %v", cores, err)
		}
	}
	if _, err := NewPartition(t.TempDir(), []int{1}, ""); err == nil || !strings.Contains(err.Error(), "use backend deadline") {
		t.Errorf("without cpusets of version 1: %v", err)
	}
}

func TestACoreThatIsNotSetApartAnyMoreIsTold(t *testing.T) {
	root := t.TempDir()
	p := &Partition{root: root, cores: []int{1}}
	write(t, root, map[string]string{
		"cpuset.sched_load_balance": "0", "takt/cpuset.sched_load_balance": "0", "takt/cpu1/cpuset.cpus": "1\n", "takt/cpu1/cpuset.cpu_exclusive": "1\n",
	})
	if broken := p.Broken(); len(broken) > 0 {
		t.Errorf("as it was made: %v", broken)
	}
	for file, text := range map[string]string{"takt/cpu1/cpuset.cpus": "0-1", "takt/cpu1/cpuset.cpu_exclusive": "0", "cpuset.sched_load_balance": "1"} {
		was, _ := os.ReadFile(filepath.Join(root, file))
		write(t, root, map[string]string{file: text})
		if broken := p.Broken(); broken[1] == nil || !strings.Contains(broken[1].Error(), file) {
			t.Errorf("%s is %s: %v", file, text, broken)
		}
		write(t, root, map[string]string{file: string(was)})
	}
}
