package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/enforce"
	"github.com/takt-dev/takt/kubernetes/internal/misses"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
	"github.com/takt-dev/takt/kubernetes/internal/topology"
)

// Reasons of events and conditions.
const (
	reasonRefused  = "ReservationRefused"
	reasonReserved = "Reserved"
	reasonStarting = "Starting"
	reasonLost     = "ReservationLost"
	reasonOverrun  = "ReservationOverrun"
	reasonRestored = "ReservationRestored"
	reasonUnpinned = "ReservationUnpinned"
	reasonNarrowed = "ReservationNarrowed"
	reasonUnused   = "ReservationUnused"
	reasonUnheld   = "ReservationUnheld"
	reasonWaiting  = "ReservationWaiting"
	reasonHeadless = "ContainerHeadless"
	// reasonNetwork and reasonUnattached are of containers of time-sensitive pods.
	reasonNetwork    = "NetworkRefused"
	reasonUnattached = "NetworkUnattached"
	// reasonVeth is of launch times that are taken at a pod's veth.
	reasonVeth = "NetworkVeth"
	// reasonGateRefused and reasonGateLost are of claims for gate time.
	reasonGateRefused = "GateTimeRefused"
	reasonGateLost    = "GateTimeLost"
	// Those of the node's own events.
	reasonReclaimed     = "BandwidthReclaimed"
	reasonBandwidthLost = "BandwidthLost"
	reasonStrangers     = "BandwidthOutsideClaims"
	reasonUnchecked     = "BandwidthUnchecked"
	// reasonUnkept says of pods and of the node that a core cannot keep what is reserved of it.
	reasonUnkept = "ReservationUnkept"
	// reasonUnrequested says that a pod reserves more CPU than it requests.
	reasonUnrequested = "CPUNotRequested"
)

// container is one with a claim, from its creation to its end.
type container struct {
	id     string
	name   string
	pod    Pod
	grants []enforce.Grant

	phase atomic.Int32
	// init is the first thread of the container's first process, nil before it is known. Neither needs mu, which may be held
	// while the kernel makes somebody wait, and is taken before Node.mu.
	init atomic.Pointer[sched.Thread]

	// scanning says that a scan looks at it, or waits for mu.
	scanning atomic.Bool

	mu          sync.Mutex
	enforcement enforce.Enforcement
	tallies     []tally
	// warned is when the pod was last told of an overrun, reported when its claims' statuses were written.
	warned, reported time.Time
	// unheld is why nobody held each grant's reservations when the container was last looked at, "" if somebody did;
	// warnedUnheld says that the pod was told, trouble why cores cannot keep what is reserved.
	unheld       []string
	warnedUnheld bool
	trouble      string
	// narrowed says that threads were kept off CPUs when the container was last looked at.
	narrowed bool
	// starting says that it has not run for long enough to have its reservations.
	starting bool
	// asked says that it was asked to end, which its runtime does not do.
	asked bool
	// renamed says that a thread's name is another one than reported.
	renamed bool
}

// Phases of a container.
const (
	phaseCreated int32 = iota
	phaseRunning
	phaseEnded
)

func (c *container) running() bool { return c.phase.Load() == phaseRunning }

// alive says whether the container still needs its reservation.
func (c *container) alive() bool {
	if init := c.init.Load(); init != nil && c.running() {
		return init.ProcessAlive()
	}
	return c.phase.Load() == phaseCreated
}

// tally is what has been counted of one grant since its container was taken under reservation.
type tally struct {
	state enforce.State
	// samples is how often threads were looked at, exhausted how often one had used its runtime up.
	samples, exhausted uint64
	// missed is how many deadlines threads have missed while they held a reservation, latest by how much at most, in nanoseconds.
	missed, latest uint64
	// cpu is what threads have run while they held a reservation, in nanoseconds.
	cpu uint64
	// delay is what they have waited for a core meanwhile: throttled, or behind others.
	delay uint64
	last  map[int]sampled
}

type sampled struct {
	start, cpu, delay, missed uint64
	// waited is what of delay was while the thread held the reservation.
	waited uint64
	// inner is the number that the container knows the thread by.
	inner int
	name  string
}

// news is what a new state has of it.
type news struct {
	// changed says that other threads hold the reservations than before, renamed that one has another
	// name, restored that one's policy had been changed, exhausted that one has used its runtime up.
	changed, renamed, restored, exhausted bool
	// unpinned says that a thread which had pinned itself was unpinned, rewritten that the container's budget was put back.
	unpinned, rewritten bool
}

// add counts a new state. missed says what is counted of a thread since it had a reservation first, whoever's.
func (t *tally) add(state enforce.State, missed func(tid int) misses.Count) news {
	seen := map[int]sampled{}
	is := news{changed: len(state.Threads) != len(t.state.Threads), restored: state.Restored > t.state.Restored, unpinned: state.Unpinned > t.state.Unpinned,
		rewritten: state.Rewritten > t.state.Rewritten}
	for _, thread := range state.Threads {
		t.samples++
		if thread.Exhausted {
			t.exhausted++
			is.exhausted = true
		}
		now := sampled{start: thread.Start, cpu: thread.CPU, delay: thread.Delay, inner: thread.Inner, name: thread.Name}
		if before, ok := t.last[thread.TID]; ok && before.start == thread.Start {
			// A thread that cannot be read any more has a usage of zero.
			now.cpu = max(now.cpu, before.cpu)
			now.delay = max(now.delay, before.delay)
			t.cpu += now.cpu - before.cpu
			now.waited = before.waited + now.delay - before.delay
			t.delay += now.delay - before.delay
			is.renamed = is.renamed || now.name != before.name
			count := missed(thread.TID)
			if now.missed = max(count.Missed, before.missed); now.missed > before.missed {
				t.missed += now.missed - before.missed
				t.latest = max(t.latest, count.Latest)
			}
		} else {
			is.changed = true
			now.missed = missed(thread.TID).Missed
		}
		seen[thread.TID] = now
	}
	t.state, t.last = state, seen
	return is
}

// enforce takes a container under reservation, or says why that cannot be. It is called by whoever comes
// first: gate, StartContainer or Synchronize, which finds containers whose program runs.
func (n *Node) enforce(ctx context.Context, c *container, pid int, runs bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.enforcement != nil {
		return nil
	}
	err := func() error {
		if c.phase.Load() == phaseEnded {
			return fmt.Errorf("container %s has ended: it has to be created again", c.name)
		}
		if pid <= 0 {
			return fmt.Errorf("the container runtime does not say which process container %s is: use the gate, or containerd 2", c.name)
		}
		init, err := sched.ReadProcess(pid)
		if err != nil {
			return fmt.Errorf("process %d of container %s: %w: %w", pid, c.name, enforce.ErrGone, err)
		}
		began := time.Now()
		enforcement, err := n.backend.Enforce(enforce.Container{ID: c.id, Init: pid, Root: "/", Memory: n.memory(c.id), Runs: runs}, c.grants)
		n.metrics.enforce.Observe(time.Since(began).Seconds())
		if err != nil {
			return err
		}
		c.enforcement, c.tallies = enforcement, make([]tally, len(c.grants))
		for i, grant := range c.grants {
			c.tallies[i].state.Restored = grant.Restored // which containers before this one were told of
		}
		c.init.Store(&init)
		c.warned = time.Now().Add(startUp - quiet)
		c.phase.Store(phaseRunning)
		return nil
	}()
	if err != nil {
		n.metrics.failed(atEnforce)
		if !errors.Is(err, enforce.ErrGone) {
			n.tell(c.pod, reasonRefused, "container "+c.name, err)
			n.report(c, denied(reasonRefused, err))
		}
		return err
	}
	n.refresh(ctx, c)
	// The program has yet to begin: its name is told as soon as it has one.
	c.reported = time.Time{}
	return nil
}

// watch looks at all containers again and again, until the context ends.
func (n *Node) watch(ctx context.Context) {
	ticker := time.NewTicker(time.Duration(n.config.ScanInterval))
	defer ticker.Stop()
	var scans sync.WaitGroup
	defer scans.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, c := range n.runningContainers() {
			// One that takes long, or that the kernel makes wait, does not delay the others. It waits for its turn, however
			// often the container's threads ask.
			if !c.scanning.CompareAndSwap(false, true) {
				n.metrics.skipped.Inc()
				continue
			}
			scans.Go(func() {
				defer c.scanning.Store(false)
				c.mu.Lock()
				defer c.mu.Unlock()
				n.refresh(ctx, c)
			})
		}
	}
}

func (n *Node) runningContainers() []*container {
	n.mu.Lock()
	defer n.mu.Unlock()
	var running []*container
	for _, c := range n.containers {
		if c.running() {
			running = append(running, c)
		}
	}
	return running
}

const (
	// quiet is how long a pod is not told again of overruns.
	quiet = 5 * time.Minute
	// startUp is how long a program may be busy with its own beginning before that counts as one.
	startUp = 2 * time.Second
	// namePace is how often a claim's status may follow the names of threads, which are theirs to change.
	namePace = 10 * time.Second
	// anew is how often a claim's status is compared with what is, though nothing is known to have changed.
	anew = 10 * time.Minute
)

// unheld says of a state why the kernel keeps no reservation of it, or fewer than threads want: a code and a sentence.
func unheld(state enforce.State) (code, why string) {
	switch {
	case state.Waiting > 0:
		return reasonWaiting, fmt.Sprintf("%d threads have no reservation at the moment: the kernel has no room for it, and is asked again", state.Waiting)
	case len(state.Threads) > 0 || state.Starting || state.Resting > 0:
		return "", ""
	}
	switch p := state.Grant.Parameters; p.Selection() {
	case reservation.SelectName:
		return reasonUnheld, fmt.Sprintf("no thread has the reservation: none has a name that matches %q", p.Threads.Name)
	case reservation.SelectAsk:
		return reasonUnheld, "no thread has the reservation: none has asked for it"
	}
	return reasonUnheld, "no thread has the reservation"
}

// noteUnheld tells the pod, once its program has had time to begin, that nobody has a reservation that is set aside for
// it; true if that has changed. Call with c.mu held.
func (n *Node) noteUnheld(c *container, states []enforce.State) (changed bool) {
	now := make([]string, len(states))
	for i, state := range states {
		code, why := unheld(state)
		now[i] = code
		if init := c.init.Load(); code != "" && !c.warnedUnheld && init != nil && init.Age() > startUp {
			c.warnedUnheld = true
			n.event(c.pod, corev1.EventTypeWarning, code, "container %s, %s: %s", c.name, state.Grant, why)
		}
	}
	changed = !slices.Equal(now, c.unheld)
	c.unheld = now
	return changed
}

// refresh brings one container's reservations up to date. Call with c.mu held.
func (n *Node) refresh(ctx context.Context, c *container) {
	if c.enforcement == nil {
		return
	}
	states, err := c.enforcement.Refresh()
	switch {
	case errors.Is(err, enforce.ErrGone):
		n.release(ctx, c)
		return
	case errors.Is(err, enforce.ErrRefused):
		if errors.Is(err, enforce.ErrRestless) {
			for _, grant := range c.grants {
				n.countRestored(ctx, enforce.State{Grant: grant, Restored: enforce.MostRestored + 1})
			}
		}
		n.lose(ctx, c, err)
		return
	case err != nil:
		klog.FromContext(ctx).Error(err, "Cannot look at a container, trying again", "container", c.name, "pod", klog.KRef(c.pod.Namespace, c.pod.Name))
		n.metrics.failed(atRefresh)
		return
	}
	changed, narrowed, starting, restored := false, "", false, false
	for i, state := range states {
		starting = starting || state.Starting
		is := c.tallies[i].add(state, n.missed)
		c.renamed = c.renamed || is.renamed
		changed = changed || is.changed
		if is.restored {
			n.event(c.pod, corev1.EventTypeWarning, reasonRestored, "container %s changed the policy of a thread with a reservation of %s, which is restored", c.name, state.Grant)
			n.countRestored(ctx, state)
			restored = true
		}
		if is.unpinned {
			n.event(c.pod, corev1.EventTypeWarning, reasonUnpinned, "container %s: thread %q had pinned itself to some CPUs and may run on all again: backend %s reserves for no pinned thread; leave the pinning out, or use the backend %s",
				c.name, state.LastUnpinned.Name, n.backend.Name(), enforce.PartitionName)
		}
		if is.rewritten {
			what := "written another budget into its cgroup than %s has reserved"
			if n.backend.Name() == enforce.WholeName {
				what = "ended, or changed, the cpuset partition of the cores that %s has reserved"
			}
			n.event(c.pod, corev1.EventTypeWarning, reasonRestored, "container %s: something else on the node had "+what+", which is restored: let only the agent write it",
				c.name, state.Grant)
		}
		if state.Narrowed > 0 {
			narrowed = fmt.Sprintf("%d of its threads may not run on CPUs %s any more: a cpuset was made smaller, as the static CPU manager does for pods with CPUs of their own; move one of the pods to another node",
				state.Narrowed, topology.FormatCPUList(state.Missing))
		}
		if is.exhausted && time.Since(c.warned) > quiet {
			c.warned = time.Now()
			p := state.Grant.Parameters
			n.event(c.pod, corev1.EventTypeWarning, reasonOverrun, "container %s wants more than the %s every %s that it has reserved", c.name, p.Runtime, p.Period)
		}
	}
	// The enforcement counts what this container did, and those before it.
	if times := n.restoredOf(c.pod); restored && times > enforce.MostRestored {
		n.lose(ctx, c, fmt.Errorf("%w of pod %s: %w, %d times so far: let only the agent set policies, or have the calls fail (changes: deny)",
			enforce.ErrRefused, c.pod.Name, enforce.ErrRestless, times))
		return
	}
	if narrowed != "" && !c.narrowed {
		n.event(c.pod, corev1.EventTypeWarning, reasonNarrowed, "container %s: %s", c.name, narrowed)
	}
	trouble := n.troubleOf(c)
	if trouble != "" && c.trouble == "" {
		n.event(c.pod, corev1.EventTypeWarning, reasonUnkept, "container %s: %s", c.name, trouble)
	}
	changed = n.noteUnheld(c, states) || changed || c.narrowed != (narrowed != "") || c.starting != starting || c.trouble != trouble
	c.trouble = trouble
	c.starting = starting
	c.narrowed = narrowed != ""
	if changed || (c.renamed && time.Since(c.reported) > namePace) || time.Since(c.reported) > anew {
		c.renamed, c.reported = false, time.Now()
		is := condition{ready: true, reason: reasonReserved, message: "the kernel keeps the reservation"}
		if c.starting {
			is = condition{reason: reasonStarting, message: "the container runs as ordinary threads until its startup is over"}
		}
		if c.narrowed {
			is = condition{reason: reasonNarrowed, message: narrowed}
		}
		if c.trouble != "" {
			is = condition{reason: reasonUnkept, message: c.trouble}
		}
		n.report(c, is)
	}
}

// restoredOf is how often the containers of a pod have changed their reservations, of all requests together.
func (n *Node) restoredOf(pod Pod) (times int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, claim := range n.claims {
		if len(claim.Pods) == 0 || claim.Pods[0].UID != pod.UID {
			continue
		}
		for _, request := range claim.Requests {
			times += request.Restored
		}
	}
	return times
}

// countRestored remembers how often a request's reservations were restored, for the containers that follow this one.
func (n *Node) countRestored(ctx context.Context, state enforce.State) {
	uid, request, err := parseKey(state.Grant.Key)
	if err != nil {
		return
	}
	n.mu.Lock()
	claim := n.claims[uid]
	var record *Record
	if claim != nil && !claim.newer {
		record = claim.Record.restored(request, state.Restored)
		claim.Record = record
	}
	n.mu.Unlock()
	if record == nil {
		return
	}
	if err := n.records.write(record); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot remember what was restored", "claim", klog.KRef(record.Namespace, record.Name))
	}
}

// lose ends a container that the kernel no longer gives its reservation. Call with c.mu held.
func (n *Node) lose(ctx context.Context, c *container, why error) {
	klog.FromContext(ctx).Error(why, "Ending a container without its reservation", "container", c.name, "pod", klog.KRef(c.pod.Namespace, c.pod.Name))
	n.metrics.failed(atLost)
	n.tell(c.pod, reasonLost, "container "+c.name+" is ended", why)
	n.report(c, denied(reasonLost, why))
	n.release(ctx, c)
}

// release gives a container's reservations back. One that still runs is ended first: it must not go on
// without them. Call with c.mu held.
func (n *Node) release(ctx context.Context, c *container) {
	c.phase.Store(phaseEnded)
	if c.enforcement == nil {
		return
	}
	if init := c.init.Load(); init != nil && init.ProcessAlive() {
		if err := kill(init.Process, init.Start); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot end a container", "container", c.name, "pod", klog.KRef(c.pod.Namespace, c.pod.Name))
		}
	}
	if err := c.enforcement.Release(); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot give a reservation back", "container", c.name, "pod", klog.KRef(c.pod.Namespace, c.pod.Name))
		n.metrics.failed(atRelease)
	}
	c.enforcement = nil
	if file := n.memory(c.id); file != "" {
		os.Remove(file) // it need not be there
	}
}

// memoryDir is where it is remembered whose the processes of containers are.
func (n *Node) memoryDir() string { return filepath.Join(n.config.RunDirectory, "members") }

// memory is that file of a container; none for a name that is none of a container runtime's.
func (n *Node) memory(id string) string {
	if id == "" || id != filepath.Base(id) || strings.HasPrefix(id, ".") {
		return ""
	}
	return filepath.Join(n.memoryDir(), id+".json")
}

// forgetProcesses removes what is remembered of containers that are not there any more.
func (n *Node) forgetProcesses(present map[string]bool) {
	files, _ := filepath.Glob(filepath.Join(n.memoryDir(), "*.json")) // the pattern is well-formed
	for _, file := range files {
		if !present[strings.TrimSuffix(filepath.Base(file), ".json")] {
			os.Remove(file)
		}
	}
}

// ended looks at a container that is said to stop.
func (n *Node) ended(ctx context.Context, id string) {
	n.mu.Lock()
	c := n.containers[id]
	n.mu.Unlock()
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n.refresh(ctx, c)
}

// forget releases a container for good, and ends it if it still runs.
func (n *Node) forget(ctx context.Context, c *container) {
	c.mu.Lock()
	n.release(ctx, c)
	c.mu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.drop(c)
}

// drop takes a container out of the lists. Call with n.mu held.
func (n *Node) drop(c *container) {
	if n.containers[c.id] == c {
		delete(n.containers, c.id)
	}
	for _, grant := range c.grants {
		if n.holders[grant.Key] == c {
			delete(n.holders, grant.Key)
		}
	}
}

// dying is how long a process that is killed is waited for. One that the kernel holds back for longer, because its
// reservation is used up, gives the reservation back before: it runs no more, and ends sooner without.
const dying = 200 * time.Millisecond

// kill ends a process by its own handle, so that no other one of the same number is hit, and waits for its end.
// start is when it was born, 0 if only the number is known.
func kill(pid int, start uint64) error {
	if pid <= 1 {
		return fmt.Errorf("process %d is not one to end", pid)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot end process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	// The handle is there: now the number means this process or one that has ended.
	if now, err := sched.ReadProcess(pid); err != nil || (start != 0 && now.Start != start) {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("cannot end process %d: %w", pid, err)
	}
	for end := time.Now().Add(dying); ; {
		left := time.Until(end)
		ended, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, max(int(left.Milliseconds()), 0))
		if ended > 0 || left <= 0 || (err != nil && !errors.Is(err, unix.EINTR)) {
			return nil
		}
	}
}
