package enforce

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
	"github.com/takt-dev/takt/kubernetes/internal/topology"
)

const ms = 1_000_000

func grant(key string, runtime, period reservation.Duration, cores int, threads reservation.Threads) Grant {
	g := Grant{Key: key, Parameters: reservation.Parameters{
		APIVersion: reservation.APIVersion, Kind: reservation.Kind, Runtime: runtime, Period: period, Threads: threads,
	}}
	for core := range cores {
		g.Cores = append(g.Cores, core)
	}
	return g
}

func named(pattern string) reservation.Threads {
	return reservation.Threads{Select: reservation.SelectName, Name: pattern}
}

func enforce(t *testing.T, backend Backend, p *program, grants ...Grant) Enforcement {
	t.Helper()
	e, err := backend.Enforce(p.container(), grants)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Release() })
	return e
}

func refresh(t *testing.T, e Enforcement) []State {
	t.Helper()
	states, err := e.Refresh()
	if err != nil {
		t.Fatal(err)
	}
	return states
}

func policy(t *testing.T, tid int) sched.Attr {
	t.Helper()
	attr, err := sched.Get(tid)
	if err != nil {
		t.Fatal(err)
	}
	return attr
}

func holders(state State) []int {
	var tids []int
	for _, thread := range state.Threads {
		tids = append(tids, thread.TID)
	}
	return tids
}

func TestTheFirstThreadIsReservedAndItsChildrenAreNot(t *testing.T) {
	p := begin(t)
	g := grant("a", 2*ms, 20*ms, 1, reservation.Threads{Select: reservation.SelectFirst})
	deadline := reservation.Duration(15 * ms)
	g.Parameters.Deadline = &deadline
	e := enforce(t, Deadline{}, p, g)
	want := sched.Attr{Policy: sched.Deadline, Flags: sched.ResetOnFork, Runtime: 2 * ms, Deadline: 15 * ms, Period: 20 * ms}
	if got := policy(t, p.cmd.Process.Pid); got != want {
		t.Errorf("first thread has %+v", got)
	}
	later := p.outer(p.do("thread later"))
	child, err := strconv.Atoi(p.do("fork"))
	if err != nil {
		t.Fatal("fork:", err)
	}
	states := refresh(t, e)
	if got := holders(states[0]); len(got) != 1 || got[0] != p.cmd.Process.Pid {
		t.Errorf("reserved are %v", got)
	}
	if states[0].LeftOut != 0 {
		t.Errorf("%d threads are left out of a rule that means one", states[0].LeftOut)
	}
	for _, tid := range []int{later, p.outer(strconv.Itoa(child))} {
		if got := policy(t, tid); got.Policy != sched.Other {
			t.Errorf("thread %d has %+v", tid, got)
		}
	}
	if err := e.Release(); err != nil {
		t.Fatal(err)
	}
	if got := policy(t, p.cmd.Process.Pid); got.Policy != sched.Other {
		t.Errorf("after release the first thread has %+v", got)
	}
}

func TestNamedThreadsAreReservedWhenTheyComeAndFreeTheirPlaceWhenTheyGo(t *testing.T) {
	p := begin(t)
	e := enforce(t, Deadline{}, p, grant("a", 2*ms, 20*ms, 2, named("control-*")))
	if states := refresh(t, e); states[0].Free != 2 {
		t.Fatalf("before any thread: %+v", states[0])
	}
	other := p.do("thread logger")
	for _, name := range []string{"control-1", "control-2", "control-3"} {
		p.do("thread %s", name)
	}
	// The program's threads are not born in the order of its orders.
	var byAge []string
	for _, thread := range mustList(t, p) {
		if strings.HasPrefix(thread.Name, "control-") {
			byAge = append(byAge, strconv.Itoa(innerID(thread)))
		}
	}
	one, two, three := byAge[0], byAge[1], byAge[2]
	state := refresh(t, e)[0]
	if got := holders(state); len(got) != 2 || got[0] != p.outer(one) || got[1] != p.outer(two) || state.LeftOut != 1 {
		t.Errorf("reserved are %v, left out %d", got, state.LeftOut)
	}
	if state.Threads[0].Inner != atoi(t, one) {
		t.Errorf("inner number is %d, not %s", state.Threads[0].Inner, one)
	}
	if policy(t, p.outer(other)).Policy != sched.Other || policy(t, p.outer(three)).Policy != sched.Other {
		t.Error("threads without a place are reserved")
	}
	p.do("rename %s idle", one)
	if state = refresh(t, e)[0]; len(state.Threads) == 1 && (state.Resting != 1 || state.LeftOut != 0) {
		t.Errorf("after a rename: %+v", state)
	}
	for len(state.Threads) < 2 {
		state = refresh(t, e)[0] // the next one has it a period later
	}
	if got := holders(state); len(got) != 2 || got[0] != p.outer(three) && got[1] != p.outer(three) || state.LeftOut != 0 {
		t.Errorf("after a rename: %v, left out %d", got, state.LeftOut)
	}
	if policy(t, p.outer(one)).Policy != sched.Other {
		t.Error("the renamed thread kept its reservation")
	}
	p.do("end %s", two)
	for gone := false; !gone; {
		state = refresh(t, e)[0]
		gone = len(state.Threads) == 1 // the thread ends shortly after it has said so
	}
	if state.Free != 1 {
		t.Errorf("after an end: %+v", state)
	}
}

func atoi(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAReservationThatIsChangedFromInsideIsRestored(t *testing.T) {
	p := begin(t)
	id := p.do("thread control")
	e := enforce(t, Deadline{}, p, grant("a", 2*ms, 20*ms, 1, named("control")))
	if got := p.do("fifo %s", id); got != "<nil>" {
		t.Skipf("this kernel lets no thread outside the root group be SCHED_FIFO: %s", got)
	}
	if got := policy(t, p.outer(id)).Policy; got != sched.FIFO {
		t.Fatalf("policy %d", got)
	}
	state := refresh(t, e)[0]
	if state.Restored != 1 || policy(t, p.outer(id)).Policy != sched.Deadline {
		t.Errorf("restored %d, policy %+v", state.Restored, policy(t, p.outer(id)))
	}
}

func TestAThreadThatTheKernelForgetsToRunGetsItsReservationAnew(t *testing.T) {
	p := begin(t)
	id := p.do("thread control")
	e := enforce(t, Deadline{}, p, grant("a", 2*ms, 20*ms, 1, named("control")))
	p.do("spin %s", id)
	tid := p.outer(id)
	ran := func() uint64 {
		usage, err := sched.Thread{Process: p.cmd.Process.Pid, TID: tid}.Usage()
		if err != nil {
			t.Fatal(err)
		}
		return usage.CPU
	}
	for range 3 {
		// It leaves while it is stopped, runs as an ordinary thread, and comes back.
		if err := sched.Drop(tid); err != nil {
			t.Fatal(err)
		}
		for before := ran(); ran() < before+50*ms; {
			time.Sleep(ms)
		}
		restored := refresh(t, e)[0].Restored
		for before := ran(); ran() < before+10*ms; time.Sleep(ms) {
			if state := refresh(t, e)[0]; state.Restored != restored || len(state.Threads) != 1 {
				t.Fatalf("%+v", state)
			}
		}
		if got := policy(t, tid); got.Policy != sched.Deadline {
			t.Fatalf("it has %+v", got)
		}
	}
	t.Logf("revived %d times", refresh(t, e)[0].Revived)
}

func TestAContainerThatKeepsChangingItsReservationsIsRefused(t *testing.T) {
	p := begin(t)
	id := p.do("thread control")
	e := enforce(t, Deadline{}, p, grant("a", 2*ms, 20*ms, 1, named("control")))
	for range MostRestored {
		if err := sched.Drop(p.outer(id)); err != nil {
			t.Fatal(err)
		}
		refresh(t, e)
	}
	if err := sched.Drop(p.outer(id)); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Refresh(); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "control") {
		t.Errorf("error is %v", err)
	}
}

// Whatever the thread does behind it, and of whichever reservation: returning it, losing its name.
func TestAChangeIsCountedBeforeTheThreadIsLetGo(t *testing.T) {
	p := begin(t)
	e := enforce(t, Deadline{}, p,
		grant("asked", 2*ms, 20*ms, 1, reservation.Threads{Select: reservation.SelectAsk}), grant("named", 2*ms, 20*ms, 1, named("control")))
	asking, control := p.do("thread idle"), p.do("thread control")
	drop := func(id string) {
		if err := sched.Drop(p.outer(id)); err != nil {
			t.Fatal(err)
		}
	}
	for times := 0; times < MostRestored; times += 2 {
		for {
			if _, err := e.Ask(p.cmd.Process.Pid, atoi(t, asking)); err == nil {
				break
			}
		}
		drop(asking)
		if err := e.Return(p.cmd.Process.Pid, atoi(t, asking)); err != nil {
			t.Fatal(err)
		}
		p.do("rename %s control", control)
		for len(refresh(t, e)[1].Threads) == 0 {
		}
		drop(control)
		p.do("rename %s idle", control)
		if states := refresh(t, e); states[0].Restored+states[1].Restored != times+2 {
			t.Fatalf("after %d changes: %+v", times+2, states)
		}
	}
	p.do("rename %s control", control)
	for len(refresh(t, e)[1].Threads) == 0 {
	}
	drop(control)
	if _, err := e.Refresh(); !errors.Is(err, ErrRestless) || !strings.Contains(err.Error(), "9 times so far") {
		t.Errorf("after one more: %v", err)
	}
}

// A thread for which there is no room any more when it is to have its reservation back has changed it all the same, and only once.
func TestAChangeIsCountedWhereTheKernelHasNoRoom(t *testing.T) {
	p := begin(t)
	control := p.outer(p.do("thread control"))
	e := enforce(t, Deadline{}, p, grant("a", 2*ms, 20*ms, 1, named("control")))
	if err := sched.Drop(control); err != nil {
		t.Fatal(err)
	}
	e.(*threads).place = func(seat, sched.Thread) error { return syscall.EBUSY }
	for range 3 {
		if state := refresh(t, e)[0]; state.Restored != 1 || state.Waiting != 1 {
			t.Errorf("%+v", state)
		}
	}
}

func TestNothingOfTheKernelsBandwidthIsLostByReleasingThreadsThatSleep(t *testing.T) {
	p := begin(t)
	for range 40 { // of 10 % each: far more than there is
		e := enforce(t, Deadline{}, p, grant("a", 2*ms, 20*ms, 1, reservation.Threads{}))
		if err := e.Release(); err != nil {
			t.Fatal(err)
		}
		for range 3 { // wait past the end of the period, so that the thread sleeps without a server
			p.outer("1")
			time.Sleep(10 * time.Millisecond)
		}
	}
}

func TestAfterARestartOfTheAgentTheSameThreadsHoldTheReservations(t *testing.T) {
	p := begin(t)
	for range 4 {
		p.do("thread worker")
	}
	ask := grant("asked", 1*ms, 50*ms, 1, reservation.Threads{Select: reservation.SelectAsk})
	before := enforce(t, Deadline{}, p, grant("a", 2*ms, 20*ms, 2, named("worker")), ask)
	oldest := holders(refresh(t, before)[0])
	asking := atoi(t, p.do("thread asking"))
	if _, err := before.Ask(p.cmd.Process.Pid, asking); err != nil {
		t.Fatal(err)
	}
	// The oldest gives up its name, and with it its reservation to a younger one.
	m, err := findMembers(p.container())
	if err != nil {
		t.Fatal(err)
	}
	first, err := sched.ReadThread(p.cmd.Process.Pid, oldest[0])
	if err != nil {
		t.Fatal(err)
	}
	p.do("rename %d idle", innerID(first))
	var younger []int
	for len(younger) < 2 {
		younger = holders(refresh(t, before)[0])
	}
	p.do("rename %d worker", innerID(first))
	all, err := m.list()
	if err != nil {
		t.Fatal(err)
	}
	// A reservation that no grant covers: an earlier agent died between two steps.
	stray := all[len(all)-1]
	for _, thread := range all {
		if thread.Name == "worker" && thread.TID != younger[0] && thread.TID != younger[1] {
			stray = thread
		}
	}
	if err := sched.Set(stray.TID, deadlineAttr(ask)); err != nil {
		t.Fatal(err)
	}

	after := enforce(t, Deadline{}, p, grant("a", 2*ms, 20*ms, 2, named("worker")), ask)
	states := refresh(t, after)
	now := holders(states[0])
	slices.Sort(now)
	slices.Sort(younger)
	if !slices.Equal(now, younger) {
		t.Errorf("reserved were %v, are %v", younger, now)
	}
	reserved := 0
	for _, thread := range mustList(t, p) {
		if policy(t, thread.TID).Policy == sched.Deadline {
			reserved++
		}
	}
	if reserved != 3 || len(states[1].Threads) != 1 {
		t.Errorf("%d threads have reservations, %d of them asked", reserved, len(states[1].Threads))
	}
}

func TestAProcessThatExecPutsThereGetsNoReservation(t *testing.T) {
	p := begin(t)
	e := enforce(t, Deadline{}, p, grant("a", 2*ms, 20*ms, 2, reservation.Threads{}))
	probe := &program{t: t, cgroup: p.cgroup}
	probe.start(nil, 0)
	t.Cleanup(probe.end)
	id := atoi(t, probe.do("thread control"))
	for _, held := range holders(refresh(t, e)[0]) {
		if held == id || held == probe.cmd.Process.Pid {
			t.Errorf("thread %d of the probe is reserved", held)
		}
	}
	if policy(t, id).Policy != sched.Other {
		t.Errorf("the probe's thread has %+v", policy(t, id))
	}
}

func TestTwoReservationsOfOneContainerTakeDifferentThreads(t *testing.T) {
	p := begin(t)
	control, camera := p.do("thread control"), p.do("thread camera")
	e := enforce(t, Deadline{}, p, grant("a", 2*ms, 20*ms, 1, named("co*")), grant("b", 5*ms, 50*ms, 1, named("c*")))
	states := refresh(t, e)
	if got := holders(states[0]); len(got) != 1 || got[0] != p.outer(control) {
		t.Errorf("first grant: %v", got)
	}
	if got := policy(t, p.outer(camera)); got.Period != 50*ms {
		t.Errorf("camera has %+v", got)
	}
}

func TestWhatTheKernelHasNoRoomForIsRefusedAndLeavesNothing(t *testing.T) {
	p := begin(t)
	for i := range 8 {
		p.do("thread greedy-%d", i)
	}
	g := grant("hog", 19*ms, 20*ms, 8, named("greedy-*"))
	_, err := Deadline{}.Enforce(p.container(), []Grant{g})
	if !errors.Is(err, ErrRefused) || !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "admission test has no room") {
		t.Fatalf("error is %v", err)
	}
	for _, thread := range mustList(t, p) {
		if policy(t, thread.TID).Policy != sched.Other {
			t.Errorf("thread %d kept a reservation", thread.TID)
		}
	}
}

func mustList(t *testing.T, p *program) []sched.Thread {
	t.Helper()
	m, err := findMembers(p.container())
	if err != nil {
		t.Fatal(err)
	}
	threads, err := m.list()
	if err != nil {
		t.Fatal(err)
	}
	return threads
}

func TestAThreadThatHasPinnedItselfIsLetGoForItsReservation(t *testing.T) {
	p := begin(t)
	tid := p.outer(p.do("thread control"))
	if err := sched.Unpin(tid, []int{0}); err != nil {
		t.Fatal(err)
	}
	if missing, err := sched.Missing(tid, online(t)); err != nil || len(missing) == 0 {
		t.Skipf("a machine of one CPU, or %v", err)
	}
	e := enforce(t, Deadline{}, p, grant("a", 2*ms, 20*ms, 1, named("control")))
	state := refresh(t, e)[0]
	if got := policy(t, tid).Policy; got != sched.Deadline || state.Unpinned != 1 || state.LastUnpinned.Name != "control" || state.Narrowed != 0 {
		t.Errorf("policy %d, %+v", got, state)
	}
	if missing, err := sched.Missing(tid, online(t)); err != nil || len(missing) > 0 {
		t.Errorf("it still may not run on %v, %v", missing, err)
	}
}

func online(t *testing.T) []int {
	t.Helper()
	cpus, err := rootDomain()
	if err != nil {
		t.Fatal(err)
	}
	return cpus
}

// cpuset is a cgroup v1 cpuset of all CPUs.
func cpuset(t *testing.T) string {
	t.Helper()
	needRoot(t)
	root, err := cgroupRoot("/", "cpuset")
	if err != nil {
		t.Skip(err)
	}
	dir := filepath.Join(root, fmt.Sprintf("takt-test-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(dir) })
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), text, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func confine(t *testing.T, cpuset string, cpus []int) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(cpuset, "cpuset.cpus"), []byte(topology.FormatCPUList(cpus)), 0); err != nil {
		t.Fatal(err)
	}
}

func TestAContainerConfinedToFewerCPUsIsRefusedWithTheReason(t *testing.T) {
	dir := cpuset(t)
	p := begin(t, dir)
	if len(online(t)) < 2 {
		t.Skip("needs two CPUs")
	}
	confine(t, dir, []int{0})
	_, err := Deadline{}.Enforce(p.container(), []Grant{grant("a", 2*ms, 20*ms, 1, reservation.Threads{})})
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "deadline-partition") || !strings.Contains(err.Error(), "keeps it off CPUs 1") {
		t.Errorf("error is %v", err)
	}
	p.end()
}

func TestACpusetThatIsMadeSmallerUnderAReservationIsSeen(t *testing.T) {
	dir := cpuset(t)
	p := begin(t, dir)
	if len(online(t)) < 2 {
		t.Skip("needs two CPUs")
	}
	e := enforce(t, Deadline{}, p, grant("a", 2*ms, 20*ms, 1, reservation.Threads{}))
	if state := refresh(t, e)[0]; state.Narrowed != 0 {
		t.Fatalf("before: %+v", state)
	}
	confine(t, dir, []int{0})
	if state := refresh(t, e)[0]; state.Narrowed != 1 || !slices.Equal(state.Missing, online(t)[1:]) || len(state.Threads) != 1 {
		t.Errorf("confined: %+v", state)
	}
	confine(t, dir, online(t))
	if state := refresh(t, e)[0]; state.Narrowed != 0 {
		t.Errorf("set free: %+v", state)
	}
	p.end()
}

func TestAThreadThatACpusetHasNarrowedGivesItsReservationBack(t *testing.T) {
	dir := cpuset(t)
	p := begin(t, dir)
	if len(online(t)) < 2 {
		t.Skip("needs two CPUs")
	}
	e := enforce(t, Deadline{}, p, grant("a", 2*ms, 20*ms, 1, reservation.Threads{}))
	confine(t, dir, []int{0})
	if err := e.Release(); err != nil {
		t.Error(err)
	}
	if got := policy(t, p.cmd.Process.Pid).Policy; got != sched.Other {
		t.Errorf("it has %s", sched.PolicyName(got))
	}
	p.end()
}

func TestAThreadWhoseReservationCannotBeTakenAwayKeepsItsPlace(t *testing.T) {
	t.Cleanup(func() { drop = sched.Drop })
	p := begin(t)
	e := enforce(t, Deadline{}, p, grant("a", 2*ms, 20*ms, 1, reservation.Threads{Select: reservation.SelectAsk}))
	thread := atoi(t, p.do("thread asking"))
	if _, err := e.Ask(p.cmd.Process.Pid, thread); err != nil {
		t.Fatal(err)
	}
	drop = func(int) error { return syscall.EAGAIN }
	if err := e.Return(p.cmd.Process.Pid, thread); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("it returns: %v", err)
	}
	if state := refresh(t, e)[0]; len(state.Threads) != 1 {
		t.Errorf("its place is free: %+v", state)
	}
	drop = sched.Drop
	if err := e.Return(p.cmd.Process.Pid, thread); err != nil {
		t.Error(err)
	}
	if state := refresh(t, e)[0]; len(state.Threads) != 0 || policy(t, p.outer(strconv.Itoa(thread))).Policy != sched.Other {
		t.Errorf("it has %+v", state)
	}
}

// The thread that was to have a reservation has ended meanwhile, and so has the one that got its number.
func TestAThreadThatEndsWhileItGetsItsReservationIsNoError(t *testing.T) {
	t.Cleanup(func() { drop = sched.Drop })
	p := begin(t)
	e := enforce(t, Deadline{}, p, grant("a", 2*ms, 20*ms, 1, named("control"))).(*threads)
	thread, err := sched.ReadThread(p.cmd.Process.Pid, p.outer(p.do("thread idle")))
	if err != nil {
		t.Fatal(err)
	}
	thread.Start--
	for is, forgiven := range map[error]bool{syscall.ESRCH: true, syscall.EAGAIN: false} {
		drop = func(int) error { return is }
		if err := e.sit(move{e.all[0], 0, thread}); (err == nil) != forgiven {
			t.Errorf("%v: %v", is, err)
		}
		if err := sched.Drop(thread.TID); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAContainerThatHasEndedIsGone(t *testing.T) {
	p := begin(t)
	e := enforce(t, Deadline{}, p, grant("a", 2*ms, 20*ms, 1, reservation.Threads{}))
	p.end()
	if _, err := e.Refresh(); !errors.Is(err, ErrGone) {
		t.Errorf("refresh says %v", err)
	}
	if err := e.Release(); err != nil {
		t.Errorf("release says %v", err)
	}
	if _, err := (Deadline{}).Enforce(p.container(), nil); !errors.Is(err, ErrGone) {
		t.Errorf("enforce says %v", err)
	}
}

func TestThreadsAskThroughTheSocket(t *testing.T) {
	p := begin(t)
	ask := reservation.Threads{Select: reservation.SelectAsk}
	e := enforce(t, Deadline{}, p, grant("a", 2*ms, 20*ms, 1, ask))
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: p.socket})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var served sync.WaitGroup
	served.Go(func() { ServeAsks(ctx, listener, 1, func() (Asker, error) { return e, nil }) })
	t.Cleanup(func() { cancel(); served.Wait() })

	first, second := p.do("thread first"), p.do("thread second")
	if got := p.do("reserve %s", first); got != "ok 2000000 20000000 20000000" {
		t.Fatalf("answer %q", got)
	}
	if got := policy(t, p.outer(first)); got.Policy != sched.Deadline || got.Runtime != 2*ms {
		t.Errorf("first has %+v", got)
	}
	if got := p.do("reserve %s", first); !strings.HasPrefix(got, "ok ") {
		t.Errorf("asking twice: %q", got)
	}
	if got := p.do("reserve %s", second); !strings.Contains(got, "error all 1 reservations") {
		t.Errorf("second is told %q", got)
	}
	if got := p.do("return %s", second); !strings.Contains(got, "holds no reservation") {
		t.Errorf("second returns: %q", got)
	}
	if got := p.do("return %s", first); got != "ok" {
		t.Errorf("first returns: %q", got)
	}
	if got := policy(t, p.outer(first)); got.Policy != sched.Other {
		t.Errorf("first has %+v", got)
	}
	got := p.do("reserve %s", second)
	for strings.Contains(got, "error the reservation that is left was another thread's less than a period ago: ask again in ") {
		got = p.do("reserve %s", second)
	}
	if !strings.HasPrefix(got, "ok ") {
		t.Errorf("second is told %q", got)
	}

	// This process is none of the container's.
	for request, want := range map[string]string{
		fmt.Sprintf("reserve %d\n", os.Getpid()): "not of the container's program",
		"reserve 1\n":                            "not of the container's program",
		"reserve\n":                              "is not a request",
		"reserve -1\n":                           "is not a request",
		"grant 1\n":                              "is not a request",
		strings.Repeat("x", 100) + "\n":          "at most 64 bytes",
	} {
		conn, err := net.Dial("unix", p.socket)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(conn, request)
		got, err := bufio.NewReader(conn).ReadString('\n')
		conn.Close()
		if err != nil || !strings.HasPrefix(got, "error ") || !strings.Contains(got, want) {
			t.Errorf("%q is answered %q, %v", request, got, err)
		}
	}
}

// Threads that pass a reservation on have its runtime once in a period, all together: each of them would begin with all
// of it.
func TestAReservationThatIsPassedOnIsGivenOnceInAPeriod(t *testing.T) {
	const period = 100 * ms
	p := begin(t)
	e := enforce(t, Deadline{}, p,
		grant("asked", 2*ms, period, 1, reservation.Threads{Select: reservation.SelectAsk}), grant("named", 2*ms, period, 1, named("control")))
	first, second := atoi(t, p.do("thread idle")), atoi(t, p.do("thread idle"))
	began, given := time.Now(), 0
	for time.Since(began) < 5*period {
		for _, thread := range []int{first, second} {
			if _, err := e.Ask(p.cmd.Process.Pid, thread); err == nil {
				given++
				if err := e.Return(p.cmd.Process.Pid, thread); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if most := int(time.Since(began)/period) + 1; given == 0 || given > most {
		t.Errorf("asked for, it was given %d times in %d periods", given, most)
	}
	// The same by names, and by threads that end.
	began, given = time.Now(), 0
	for time.Since(began) < 5*period {
		thread := p.do("thread control")
		if len(refresh(t, e)[1].Threads) == 1 {
			given++
		}
		if given%2 == 0 {
			p.do("rename %s idle", thread)
			refresh(t, e)
		}
		p.do("end %s", thread)
		refresh(t, e)
	}
	if most := int(time.Since(began)/period) + 1; given == 0 || given > most {
		t.Errorf("by name, it was given %d times in %d periods", given, most)
	}
}

// A thread that has left SCHED_DEADLINE and gets it back has no more of the period for it.
func TestAThreadWhoseReservationIsRestoredHasNoMoreOfItsPeriod(t *testing.T) {
	const runtime, period = 20 * ms, 2000 * ms
	p := begin(t)
	id := p.do("thread control")
	tid := p.outer(id)
	e := enforce(t, Deadline{}, p, grant("a", runtime, period, 1, named("control")))
	p.do("spin %s", id)
	usage := func() sched.Usage {
		usage, err := sched.Thread{Process: p.cmd.Process.Pid, TID: tid}.Usage()
		if err != nil {
			t.Fatal(err)
		}
		return usage
	}
	for !usage().Exhausted {
		time.Sleep(ms)
	}
	began := time.Now()
	if err := sched.Set(tid, sched.Attr{Policy: sched.Other}); err != nil {
		t.Fatal(err)
	}
	refresh(t, e)
	before := usage().CPU
	time.Sleep(200 * ms)
	ran := usage().CPU - before
	if within := time.Since(began); within > period/2 {
		t.Skipf("too slow a machine: the next period may have begun in %s", within)
	}
	if ran > runtime/2 {
		t.Errorf("it had used its runtime up, and ran for %s more when it had it back", time.Duration(ran))
	}
}

func TestPoliciesForGroupsAreNotAccepted(t *testing.T) {
	g := grant("a", 2*ms, 20*ms, 1, reservation.Threads{})
	g.Parameters.Policy = reservation.PolicyFIFO
	if err := (Deadline{}).Accepts([]Grant{g}); err == nil || !strings.Contains(err.Error(), `"fifo"`) {
		t.Errorf("error is %v", err)
	}
	g.Parameters.Policy = reservation.PolicyDeadline
	if err := (Deadline{}).Accepts([]Grant{g}); err != nil {
		t.Error(err)
	}
}

func TestOverrunRulesBecomeFlags(t *testing.T) {
	p := begin(t)
	for rule, flag := range map[reservation.Overrun]uint64{
		reservation.OverrunThrottle: 0, reservation.OverrunSignal: sched.Overrun, reservation.OverrunReclaim: sched.Reclaim,
	} {
		g := grant("a", 2*ms, 20*ms, 1, reservation.Threads{})
		g.Parameters.Overrun = rule
		e := enforce(t, Deadline{}, p, g)
		if got := policy(t, p.cmd.Process.Pid).Flags; got != sched.ResetOnFork|flag {
			t.Errorf("%s has flags %#x", rule, got)
		}
		if err := e.Release(); err != nil {
			t.Fatal(err)
		}
	}
}

// Who had what nobody has now, an agent that has been restarted does not know.
func TestWhatNobodyHasRestsWhenAnotherAgentTakesItBack(t *testing.T) {
	p := begin(t)
	ask := reservation.Threads{Select: reservation.SelectAsk}
	grants := []Grant{grant("a", 2*ms, 4000*ms, 2, ask)}
	before := enforce(t, Deadline{}, p, grants...)
	first, second, third := p.do("thread first"), p.do("thread second"), p.do("thread third")
	for _, thread := range []string{first, second} {
		if _, err := before.Ask(p.cmd.Process.Pid, atoi(t, thread)); err != nil {
			t.Fatal(err)
		}
	}
	if err := before.Return(p.cmd.Process.Pid, atoi(t, second)); err != nil {
		t.Fatal(err)
	}
	container := p.container()
	container.Runs = true
	after, err := Deadline{}.Enforce(container, grants)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { after.Release() })
	if got := policy(t, p.outer(first)); got.Policy != sched.Deadline {
		t.Errorf("first has %+v", got)
	}
	if _, err := after.Ask(p.cmd.Process.Pid, atoi(t, third)); err == nil || !strings.Contains(err.Error(), "another thread's less than a period ago") {
		t.Errorf("third is told %v", err)
	}
}

// The rules, over every history of births, deaths and names.
func TestSeatsFollowTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules := []reservation.Threads{
			{Select: reservation.SelectFirst}, {Select: reservation.SelectFirstM}, named("a*"), named("b*"), {Select: reservation.SelectAsk},
		}
		var grants []Grant
		for i := range rapid.IntRange(1, 3).Draw(t, "grants") {
			rule := rapid.SampledFrom(rules).Draw(t, "rule")
			m := rapid.IntRange(1, 3).Draw(t, "m")
			if rule.Select == reservation.SelectFirst {
				m = 1
			}
			grants = append(grants, grant(strconv.Itoa(i), 2*ms, 20*ms, m, rule))
		}
		all := newSeats(grants)
		for _, s := range all {
			s.rest = 0 // who follows whom
		}
		threads := []sched.Thread{{TID: 1, Start: 1, Name: "a"}}
		born := uint64(1)
		for range rapid.IntRange(1, 10).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				born++
				// Numbers are used again.
				tid := 2 + int(born)%4
				for i := 1; i < len(threads); i++ {
					if threads[i].TID == tid {
						threads = append(threads[:i:i], threads[i+1:]...)
						break
					}
				}
				threads = append(threads, sched.Thread{TID: tid, Start: born, Name: rapid.SampledFrom([]string{"a1", "b1", "c"}).Draw(t, "name")})
			case 1:
				if len(threads) > 1 {
					i := rapid.IntRange(1, len(threads)-1).Draw(t, "dies")
					threads = append(threads[:i:i], threads[i+1:]...)
				}
			case 2:
				i := rapid.IntRange(0, len(threads)-1).Draw(t, "renamed")
				threads[i].Name = rapid.SampledFrom([]string{"a2", "b2", "c"}).Draw(t, "name")
			}
			for _, m := range leave(all, threads) {
				m.seats.leave(m.at)
			}
			sit := choose(all, threads)
			for _, m := range sit {
				if m.seats.held[m.at].taken {
					t.Fatalf("place %d of %s is given twice", m.at, m.seats.grant.Key)
				}
				m.seats.held[m.at].taken, m.seats.held[m.at].thread = true, m.thread
			}
			holders := map[int]string{}
			for _, s := range all {
				free := 0
				for _, held := range s.held {
					if !held.taken {
						free++
						continue
					}
					if other, ok := holders[held.thread.TID]; ok {
						t.Fatalf("thread %d holds places of %s and %s", held.thread.TID, other, s.grant.Key)
					}
					holders[held.thread.TID] = s.grant.Key
					index := -1
					for i, thread := range threads {
						if same(thread, held.thread) {
							index = i
						}
					}
					if index < 0 {
						t.Fatalf("thread %+v holds a place and is dead", held.thread)
					}
					if s.grant.Parameters.Selection() == reservation.SelectName && !s.matches(threads[index], index) {
						t.Fatalf("thread %q holds a place for %q", threads[index].Name, s.grant.Parameters.Threads.Name)
					}
				}
				if free > 0 && s.leftOut > 0 {
					t.Fatalf("%d places of %s are free and %d threads left out", free, s.grant.Key, s.leftOut)
				}
			}
			for i, thread := range threads {
				if _, ok := holders[thread.TID]; ok {
					continue
				}
				for _, s := range all {
					for _, held := range s.held {
						if !held.taken && s.matches(thread, i) {
							t.Fatalf("thread %+v has no place, %s has one free", thread, s.grant.Key)
						}
					}
				}
			}
		}
	})
}

func TestProbingLeavesNoThreadUnderAReservation(t *testing.T) {
	needRoot(t)
	if err := probeDeadline(); err != nil {
		t.Skip(err)
	}
	for _, thread := range sched.Threads(os.Getpid()) {
		if attr, err := sched.Get(thread.TID); err == nil && attr.Policy != sched.Other {
			t.Errorf("thread %d has %+v", thread.TID, attr)
		}
	}
}

func TestAFullMachineIsNotTakenForOneWithoutSCHEDDEADLINE(t *testing.T) {
	needRoot(t)
	var fillers []*exec.Cmd
	defer func() {
		for _, filler := range fillers {
			filler.Process.Kill()
			filler.Wait()
		}
	}()
	// Ever smaller shares, until there is no room for any: what sleeps does not run. With a short period the room
	// is there again when they have ended.
	for share := uint64(10 * ms); share >= 1024; {
		filler := exec.Command("sleep", "1000")
		if err := filler.Start(); err != nil {
			t.Fatal(err)
		}
		fillers = append(fillers, filler)
		for ; share >= 1024; share /= 2 {
			err := sched.Set(filler.Process.Pid, sched.Attr{Policy: sched.Deadline, Runtime: share, Deadline: 20 * ms, Period: 20 * ms})
			if err == nil {
				break
			}
			if !errors.Is(err, syscall.EBUSY) {
				t.Fatal(err)
			}
		}
	}
	if err := probeDeadline(); err != nil {
		t.Errorf("on a full machine: %v", err)
	}
}

func TestARuntimeWithinWhatTheClaimAllowsIsKept(t *testing.T) {
	p := begin(t)
	g := grant("a", 2*ms, 20*ms, 1, reservation.Threads{})
	least, most := reservation.Duration(ms), reservation.Duration(3*ms)
	g.Parameters.MinRuntime, g.Parameters.MaxRuntime = &least, &most
	e := enforce(t, Deadline{}, p, g)
	tune := func(runtime uint64) {
		attr := policy(t, p.cmd.Process.Pid)
		attr.Runtime = runtime
		if err := sched.Set(p.cmd.Process.Pid, attr); err != nil {
			t.Fatal(err)
		}
	}
	for _, runtime := range []uint64{3_000_000, 1_000_000} {
		tune(runtime)
		if state := refresh(t, e)[0]; state.Restored != 0 {
			t.Errorf("restored from %d", runtime)
		}
		if got := policy(t, p.cmd.Process.Pid).Runtime; got != runtime {
			t.Errorf("set to %d, it has %d", runtime, got)
		}
	}
	// Another agent finds it so.
	again := enforce(t, Deadline{}, p, g)
	if state := refresh(t, again)[0]; state.Restored != 0 || len(state.Threads) != 1 || policy(t, p.cmd.Process.Pid).Runtime != 1_000_000 {
		t.Errorf("after a restart it is %+v", state)
	}
	for _, runtime := range []uint64{3_000_001, 999_999} {
		tune(runtime)
		refresh(t, again)
		if got := policy(t, p.cmd.Process.Pid).Runtime; got != 2_000_000 {
			t.Errorf("set to %d, it has %d and not its own", runtime, got)
		}
	}
}

func TestAContainerBeginsAsOrdinaryThreadsForItsStartup(t *testing.T) {
	p := begin(t)
	g := grant("a", 2*ms, 20*ms, 1, reservation.Threads{})
	startup := reservation.Duration(time.Second)
	g.Parameters.Startup = &startup
	e := enforce(t, Deadline{}, p, g)
	init := e.(*threads).members.init
	for {
		state := refresh(t, e)[0]
		age := init.Age()
		reserved := policy(t, p.cmd.Process.Pid).Policy == sched.Deadline
		if reserved != (len(state.Threads) == 1) || reserved == state.Starting {
			t.Fatalf("reserved %t, %+v", reserved, state)
		}
		if reserved {
			if age < time.Duration(startup) {
				t.Errorf("reserved after %s", age)
			}
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}
