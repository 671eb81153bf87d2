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
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

func TestAProgramThatEndsItsMainThreadKeepsItsReservations(t *testing.T) {
	p := begin(t)
	control := p.outer(p.do("thread control"))
	e := enforce(t, Deadline{}, p, grant("a", 2*ms, 20*ms, 1, named("control")))
	p.do("leave")
	leader := fmt.Sprintf("/proc/%d/task/%d/stat", p.cmd.Process.Pid, p.cmd.Process.Pid)
	for text, _ := os.ReadFile(leader); !strings.Contains(string(text), ") Z "); text, _ = os.ReadFile(leader) {
		time.Sleep(time.Millisecond) // the thread ends shortly after it has said so
	}
	for range 2 * entirely {
		if got := holders(refresh(t, e)[0]); !slices.Equal(got, []int{control}) {
			t.Fatalf("reserved are %v, not %d", got, control)
		}
	}
	if got := policy(t, control).Policy; got != sched.Deadline {
		t.Errorf("the worker has %s", sched.PolicyName(got))
	}
	later := p.do("thread control-2")
	if p.outer(later) == 0 {
		t.Error("a later thread is not found")
	}
	// After a restart of the agent, it is taken back under its reservation.
	again := enforce(t, Deadline{}, p, grant("a", 2*ms, 20*ms, 1, named("control")))
	if got := holders(refresh(t, again)[0]); !slices.Equal(got, []int{control}) {
		t.Errorf("after a restart reserved are %v", got)
	}
	p.end()
	if _, err := e.Refresh(); !errors.Is(err, ErrGone) {
		t.Errorf("after its end: %v", err)
	}
}

func TestWhatExecLeavesBehindGetsNoReservation(t *testing.T) {
	p := begin(t)
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		t.Skip("needs nsenter")
	}
	e := enforce(t, Deadline{}, p, grant("a", 2*ms, 20*ms, 4, reservation.Threads{}))
	dir, err := os.Open(p.cgroup)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	// As a container runtime does it: a session of its own, in the container's namespaces and cgroup.
	probe := exec.Command(nsenter, "-t", strconv.Itoa(p.cmd.Process.Pid), "-p", "sh", "-c", "sleep 1000 & echo $!")
	probe.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd()), Setsid: true}
	out, err := probe.StdoutPipe()
	if err == nil {
		err = probe.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var number int
	if _, err := fmt.Fscan(out, &number); err != nil {
		t.Fatal(err)
	}
	// It closes what is read above.
	go probe.Wait()
	orphan := func() sched.Thread {
		text, err := os.ReadFile(filepath.Join(p.cgroup, "cgroup.procs"))
		if err != nil {
			t.Fatal(err)
		}
		for field := range strings.FieldsSeq(string(text)) {
			if thread, err := sched.ReadProcess(atoi(t, field)); err == nil && thread.Name == "sleep" {
				return thread
			}
		}
		return sched.Thread{}
	}
	for orphan().Parent != p.cmd.Process.Pid {
		time.Sleep(time.Millisecond)
	}
	for range 2 * entirely {
		for _, held := range holders(refresh(t, e)[0]) {
			if held == orphan().TID {
				t.Fatal("the orphan of an exec is reserved")
			}
		}
	}
	// A child of the program is its own, in whatever session.
	child := atoi(t, p.do("fork"))
	own := p.outer(strconv.Itoa(child))
	for !slices.Contains(holders(refresh(t, e)[0]), p.cmd.Process.Pid) {
		t.Fatal("the program lost its own reservation")
	}
	if own == 0 {
		t.Error("the child of the program is not found")
	}
}

// The bound of what TestWhatExecLeavesBehindGetsNoReservation shows, as docs/concepts/reservations.md says it: a process of exec
// that begins a session of its own and loses its parent before it is seen is for all that can be read a daemon of the program. It
// takes what is left, and nothing from anybody.
func TestWhatExecLeavesInASessionOfItsOwnTakesNoMoreThanWhatIsLeft(t *testing.T) {
	process := func(number, parent, session int) sched.Thread {
		return sched.Thread{TID: number, Process: number, Parent: parent, Session: session, Start: uint64(number)}
	}
	init := process(10, 1, 10)
	unseen := &members{init: init}
	unseen.relate(map[int]sched.Thread{10: init, 31: process(31, 10, 31)})
	if !unseen.known[31].own {
		t.Error("it can be told from a daemon: say so in docs/concepts/reservations.md")
	}
	// Seen once with its parent, or a child of it in its session, it is nobody's.
	seen := &members{init: init}
	seen.relate(map[int]sched.Thread{10: init, 30: process(30, 1, 30), 31: process(31, 30, 31)})
	seen.relate(map[int]sched.Thread{10: init, 31: process(31, 10, 31), 32: process(32, 31, 31)})
	if seen.known[31].own || seen.known[32].own {
		t.Errorf("what was seen is forgotten: %t, %t", seen.known[31].own, seen.known[32].own)
	}
	g := Grant{Key: "a", Cores: []int{0, 1}, Parameters: reservation.Parameters{}}
	all := newSeats([]Grant{g})
	own, stray := sched.Thread{TID: 10, Process: 10, Start: 10}, process(31, 10, 31)
	later := sched.Thread{TID: 12, Process: 10, Start: 12}
	for _, tc := range []struct {
		present []sched.Thread
		want    []sched.Thread
	}{{[]sched.Thread{own, later}, []sched.Thread{own, later}}, {[]sched.Thread{own, later, stray}, nil}} {
		var got []sched.Thread
		for _, m := range append(leave(all, tc.present), choose(all, tc.present)...) {
			got = append(got, m.thread)
			m.seats.held[m.at].thread, m.seats.held[m.at].taken = m.thread, true
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("with %v, %v move", tc.present, got)
		}
	}
}

// In PID namespaces of its own a container has several threads of one number; the container's first process knows all by others.
func TestThreadsOfFurtherPIDNamespacesHaveTheContainersNumbers(t *testing.T) {
	p := begin(t)
	children := []int{atoi(t, p.do("fork apart")), atoi(t, p.do("fork apart"))}
	e := enforce(t, Deadline{}, p, grant("a", ms/50, 20*ms, 64, reservation.Threads{}))
	leaders, seen := 0, map[int]bool{}
	for _, thread := range refresh(t, e)[0].Threads {
		if thread.Inner == 0 || seen[thread.Inner] {
			t.Errorf("thread %d (%q) has number %d", thread.TID, thread.Name, thread.Inner)
		}
		seen[thread.Inner] = true
		if slices.Contains(children, thread.Inner) && thread.TID == thread.Process {
			leaders++
		}
	}
	if leaders != len(children) {
		t.Errorf("of processes %v, %d have their numbers", children, leaders)
	}
}

func TestAThousandThreadsAreNotReadEveryTime(t *testing.T) {
	p := begin(t)
	e := enforce(t, Deadline{}, p, grant("a", 2*ms, 20*ms, 1, reservation.Threads{Select: reservation.SelectFirst}))
	for i := range 200 {
		p.do("thread worker-%d", i)
	}
	members := e.(*threads).members
	for len(members.threads) < 200 {
		refresh(t, e)
	}
	read := 0
	e.(*threads).looks = 1
	fresh := e.(*threads).fresh()
	if _, err := members.look(func(thread sched.Thread) bool {
		is := fresh(thread)
		if is {
			read++
		}
		return is
	}); err != nil {
		t.Fatal(err)
	}
	if read != 1 {
		t.Errorf("%d of %d threads were read anew, one holds a reservation", read, len(members.threads))
	}
}

// What a scan costs of a container with a thousand threads, one of which holds a reservation.
func BenchmarkAScanOfAThousandThreads(b *testing.B) {
	p := begin(b)
	e, err := Deadline{}.Enforce(p.container(), []Grant{grant("a", 2*ms, 20*ms, 1, reservation.Threads{Select: reservation.SelectFirst})})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { e.Release() })
	for i := range 1000 {
		p.do("thread worker-%d", i)
	}
	for b.Loop() {
		if _, err := e.Refresh(); err != nil {
			b.Fatal(err)
		}
	}
}

// counting is an Asker that has nothing to give.
type counting struct{ asked, at, together atomic.Int32 }

func (c *counting) Ask(int, int) (Grant, error) {
	defer c.at.Add(-1)
	if c.at.Add(1) > 1 {
		c.together.Add(1)
	}
	c.asked.Add(1)
	return Grant{}, errors.New("nothing is left")
}

func (c *counting) Return(int, int) error { return nil }

func TestAContainerThatAsksInALoopIsAnsweredNowAndThen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ask.sock")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var served, asking sync.WaitGroup
	asker := &counting{}
	began := time.Now()
	const reservations = 5
	served.Go(func() { ServeAsks(ctx, listener, reservations, func() (Asker, error) { return asker, nil }) })
	for range askConnections {
		asking.Go(func() {
			conn, err := net.Dial("unix", path)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			answers := bufio.NewReader(conn)
			for {
				if _, err := fmt.Fprintln(conn, "reserve 1"); err != nil {
					return
				}
				if _, err := answers.ReadString('\n'); err != nil {
					return
				}
			}
		})
	}
	for asker.asked.Load() < reservations+3 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	served.Wait()
	asking.Wait()
	most := reservations + 1 + int32(askRate*time.Since(began).Seconds())
	if got := asker.asked.Load(); got > most || asker.together.Load() > 0 {
		t.Errorf("%d requests were answered in %s, %d of them beside another one", got, time.Since(began), asker.together.Load())
	}
}

func TestAThreadThatAskedAndWaitsForRoomKeepsItsPlace(t *testing.T) {
	thread := sched.Thread{TID: 7, Process: 7, Start: 1}
	g := Grant{Key: "a", Cores: []int{0}, Parameters: reservation.Parameters{Threads: reservation.Threads{Select: reservation.SelectAsk}}}
	all := newSeats([]Grant{g})
	all[0].held[0] = seat{thread: thread, busy: time.Now()}
	if all[0].state(innerID).Waiting != 1 {
		t.Errorf("state is %+v", all[0].state(innerID))
	}
	if sit := choose(all, []sched.Thread{thread}); len(sit) != 1 || sit[0].thread != thread {
		t.Errorf("seated are %v", sit)
	}
	// One that has ended waits no more.
	if sit := choose(all, nil); len(sit) != 0 || !all[0].held[0].vacant() {
		t.Errorf("seated are %v", sit)
	}
}

// Whose a process is whose parent has ended, only an agent knows that has seen the parent.
func TestALaterAgentKnowsWhoseProcessesAre(t *testing.T) {
	file := filepath.Join(t.TempDir(), "members.json")
	process := func(number, parent, session int) sched.Thread {
		return sched.Thread{TID: number, Process: number, Parent: parent, Session: session, Start: uint64(number)}
	}
	init := process(10, 1, 10)
	first := &members{init: init, memory: file}
	// 20 is the program's and makes 21 by way of a session that ends; 30 is of an exec and begins a session for 31.
	first.relate(map[int]sched.Thread{10: init, 20: process(20, 10, 10), 21: process(21, 20, 20), 30: process(30, 1, 30), 31: process(31, 30, 31)})
	if _, err := os.Stat(file); err == nil {
		t.Error("what anybody can tell is written down")
	}
	orphans := map[int]sched.Thread{10: init, 21: process(21, 10, 20), 31: process(31, 10, 31)}
	first.relate(orphans)
	for name, m := range map[string]*members{"the same agent": first, "a later one": {init: init, memory: file}} {
		if name == "a later one" {
			m.recall()
			m.relate(orphans)
		}
		if !m.known[21].own || m.known[31].own {
			t.Errorf("%s: the daemon of the program is its own: %t, and the orphan of the exec: %t", name, m.known[21].own, m.known[31].own)
		}
	}
	// Numbers are used again.
	later := &members{init: init, memory: file}
	later.recall()
	again := process(31, 10, 10)
	again.Start = 99
	later.relate(map[int]sched.Thread{10: init, 31: again})
	if !later.known[31].own {
		t.Error("another process is taken for an orphan that has ended")
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "[]" {
		t.Errorf("remembered is %s, %v", text, err)
	}
}
