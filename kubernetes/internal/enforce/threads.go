package enforce

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
	"github.com/takt-dev/takt/kubernetes/internal/topology"
)

// threads is the enforcement that gives policies to single threads. Backends differ in what a thread gets
// (attr), in where it runs (place) and in what surrounds it (release).
type threads struct {
	mu      sync.Mutex
	members *members
	all     []*seats
	attr    func(Grant) sched.Attr
	// free says that threads may change their policy within what surrounds them.
	free bool
	// place puts a thread where its reservation is, before it gets the policy; nil leaves it.
	place func(seat seat, thread sched.Thread) error
	// unplace puts it back, and where says which core it is on; nil where place is.
	unplace func(thread sched.Thread) error
	where   func(thread sched.Thread) (core int, ok bool)
	release func() error
	// keep gives what surrounds the threads back what something else on the node has written there; nil where nothing does.
	// rewritten counts that, and unkept is since when it has failed; zero while it does not.
	keep      func() (rewritten bool, err error)
	rewritten int
	unkept    time.Time
	// span reads which CPUs a thread must be allowed on to have a reservation; nil if it need not be all.
	span func() ([]int, error)
	// looks counts how often the container was looked at.
	looks int
}

// The kernel gives bandwidth back at the end of the period of a thread that ended or gave it up (its
// 0-lag time), so that a successor may have to wait for as long as a period can be.
const (
	// startPatience is how long the start of a container waits: less than a container runtime does.
	startPatience = 1500 * time.Millisecond
	// latePatience is how long a thread may wait that comes later: more than the longest period.
	latePatience = 5 * time.Second
	// MostRestored is how often the containers that have a grant may change its reservations behind the agent's back.
	// Every change can cost the node bandwidth for ever (see sched.Drop), so there must be an end.
	MostRestored = 8
	// stillPeriods and stillLeast are how long a thread may want to run without being run: the longer of
	// the two.
	stillPeriods = 4
	stillLeast   = 300 * time.Millisecond
	// retryBusy is how often a start tries again.
	retryBusy = 20 * time.Millisecond
)

// Refresh implements Enforcement.
func (t *threads) Refresh() ([]State, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.refresh(latePatience)
}

func (t *threads) refresh(patience time.Duration) ([]State, error) {
	present, err := t.members.look(t.fresh())
	if err != nil {
		return nil, err
	}
	if err := t.surround(patience); err != nil {
		return nil, err
	}
	for _, s := range t.all {
		startup := s.grant.Parameters.Startup
		s.starting = startup != nil && t.members.init.Age() < time.Duration(*startup)
	}
	for _, move := range leave(t.all, present) {
		if err := t.stand(move); err != nil {
			return nil, err
		}
	}
	if err := t.restless(); err != nil {
		return nil, err
	}
	for _, s := range t.all {
		for i := range s.held {
			if !s.held[i].taken {
				continue
			}
			if err := t.restore(s, i); err != nil {
				return nil, err
			}
			if err := t.widen(s, i); err != nil {
				return nil, err
			}
			if err := t.revive(s, i); err != nil {
				return nil, err
			}
		}
	}
	for _, move := range choose(t.all, present) {
		if err := t.sit(move); err != nil {
			if !t.waits(move, err, patience) {
				return nil, err
			}
		}
	}
	if err := t.returnStrays(present); err != nil {
		return nil, err
	}
	states := make([]State, 0, len(t.all))
	for _, s := range t.all {
		state := s.state(t.members.number)
		state.Rewritten = t.rewritten
		if !t.unkept.IsZero() {
			state.Waiting = max(len(state.Threads), 1)
		}
		states = append(states, state)
	}
	return states, nil
}

// surround puts right what surrounds the threads. Where that fails it is tried again, for as long as patience.
func (t *threads) surround(patience time.Duration) error {
	if t.keep == nil {
		return nil
	}
	rewritten, err := t.keep()
	if rewritten {
		t.rewritten++
	}
	if err == nil {
		t.unkept = time.Time{}
		return nil
	}
	if t.unkept.IsZero() {
		t.unkept = time.Now()
	}
	if time.Since(t.unkept) < patience {
		return nil
	}
	if !errors.Is(err, ErrRefused) {
		err = fmt.Errorf("%w: %w", ErrRefused, err) // what cannot be seen is not kept
	}
	return err
}

// entirely is how often all threads are read, not only those that matter: every so many looks.
const entirely = 10

// fresh says which threads have to be read anew: those that hold a reservation, and all while there is one for
// somebody of a certain name.
func (t *threads) fresh() func(sched.Thread) bool {
	all := t.looks%entirely == 0
	t.looks++
	seated := map[int]bool{}
	for _, s := range t.all {
		for _, held := range s.held {
			if held.taken {
				seated[held.thread.TID] = true
			} else if s.grant.Parameters.Selection() == reservation.SelectName {
				all = true
			}
		}
	}
	return func(thread sched.Thread) bool { return all || seated[thread.TID] }
}

// returnStrays puts threads back that are on a core without a reservation: children inherit the place of the
// thread that made them, though not its policy.
func (t *threads) returnStrays(present []sched.Thread) error {
	if t.where == nil {
		return nil
	}
	seated := map[int]bool{}
	for _, s := range t.all {
		for _, held := range s.held {
			if held.taken {
				seated[held.thread.TID] = true
			}
		}
	}
	for _, thread := range present {
		if _, ok := t.where(thread); !ok || seated[thread.TID] {
			continue
		}
		if err := ended(thread, t.unplace(thread)); err != nil {
			return err
		}
	}
	return nil
}

// restore gives a thread back what it, or someone in its name, has changed. It gets it at once: the kernel goes on with
// the runtime and the deadline that this very thread had, as long as the deadline has not passed.
func (t *threads) restore(s *seats, at int) error {
	if !t.changed(s, at) {
		return nil
	}
	if err := t.restless(); err != nil {
		return err
	}
	again := move{s, at, s.held[at].thread}
	if err := t.sit(again); err != nil && !t.waits(again, err, latePatience) {
		return err
	}
	return nil
}

// changed says whether a thread that holds a reservation has another policy, and counts it. It is asked before a
// reservation is restored, and before it is taken away: a thread that returns it, or loses its name, has changed it all the same.
func (t *threads) changed(s *seats, at int) bool {
	if t.free {
		return false
	}
	got, err := sched.Get(s.held[at].thread.TID)
	if err != nil || t.granted(s.grant, got) || !s.held[at].thread.Alive() {
		return false
	}
	s.restored++
	s.restless = s.held[at].thread
	return true
}

// restless says that threads have changed their policies too often, whichever reservations they had.
func (t *threads) restless() error {
	times, last := 0, 0
	for i, s := range t.all {
		if times += s.restored; s.restless.TID != 0 {
			last = i
		}
	}
	if times <= MostRestored {
		return nil
	}
	s := t.all[last]
	return fmt.Errorf("%w of %s: %w, %d times so far, thread %d (%q) the last one: let only the agent set policies, or have the calls fail (changes: deny)",
		ErrRefused, s.grant, ErrRestless, times, s.restless.TID, s.restless.Name)
}

// granted says whether a thread has what a grant gives: its own runtime, or another one that its claim allows.
func (t *threads) granted(grant Grant, has sched.Attr) bool {
	attr := t.attr(grant)
	if least, most := grant.Parameters.RuntimeRange(); has.Runtime >= least.Nanoseconds() && has.Runtime <= most.Nanoseconds() {
		has.Runtime = attr.Runtime
	}
	return has == attr
}

// widen notes whether a thread may still run on all CPUs that its reservation counts on: a cpuset can take some
// away later, as the static CPU manager does for a pod with CPUs of its own. The kernel lets that happen.
func (t *threads) widen(s *seats, at int) error {
	seat := &s.held[at]
	seat.missing = nil
	if t.span == nil || !seat.taken {
		return nil
	}
	cpus, err := t.span()
	if err != nil {
		return err
	}
	missing, err := sched.Missing(seat.thread.TID, cpus)
	if err == nil && len(missing) > 0 {
		// The cpuset may have been given back since.
		if sched.Unpin(seat.thread.TID, cpus) == nil {
			missing, err = sched.Missing(seat.thread.TID, cpus)
		}
	}
	seat.missing = missing
	return ended(seat.thread, err)
}

// set gives a thread its policy. One that has pinned itself is unpinned first: the kernel gives SCHED_DEADLINE to
// none that may not run on all CPUs.
func (t *threads) set(m move) error {
	err := sched.Set(m.thread.TID, t.attr(m.seats.grant))
	if t.span == nil || !errors.Is(err, syscall.EPERM) {
		return err
	}
	cpus, spanErr := t.span()
	if spanErr != nil {
		return errors.Join(err, spanErr)
	}
	missing, missingErr := sched.Missing(m.thread.TID, cpus)
	if missingErr != nil || len(missing) == 0 {
		return err
	}
	if unpinErr := sched.Unpin(m.thread.TID, cpus); unpinErr != nil {
		return errors.Join(err, unpinErr)
	}
	left, missingErr := sched.Missing(m.thread.TID, cpus)
	if missingErr != nil {
		return errors.Join(err, missingErr)
	}
	if len(left) > 0 {
		return fmt.Errorf("%w: its cpuset keeps it off CPUs %s", err, topology.FormatCPUList(left))
	}
	if err := sched.Set(m.thread.TID, t.attr(m.seats.grant)); err != nil {
		return err
	}
	m.seats.unpinned++
	m.seats.lastUnpinned = m.thread
	return nil
}

// revive gives a thread its reservation anew that wants to run and is not run. Linux up to 6.18 at least
// forgets to wake a thread that has left SCHED_DEADLINE while it was stopped for having used its runtime up
// and gets it again: it would never run. A second time works. A thread that waits for its period to begin,
// or repays what it overran, is let wait.
func (t *threads) revive(s *seats, at int) error {
	seat := &s.held[at]
	usage, err := seat.thread.Usage()
	if !seat.taken || err != nil || !seat.thread.Runnable || usage.CPU != seat.ran || t.attr(s.grant).Policy != sched.Deadline {
		seat.ran, seat.still = usage.CPU, time.Time{}
		return nil
	}
	if seat.still.IsZero() {
		seat.still = time.Now()
	}
	if time.Since(seat.still) <= max(stillLeast, stillPeriods*time.Duration(s.grant.Parameters.Period)) {
		return nil
	}
	seat.still = time.Time{}
	s.revived++
	if err := sched.Set(seat.thread.TID, sched.Attr{Policy: sched.Other}); err != nil {
		return ended(seat.thread, err)
	}
	again := move{s, at, seat.thread}
	if err := t.sit(again); err != nil && !t.waits(again, err, latePatience) {
		return err
	}
	return nil
}

// waits says whether to try again later.
func (t *threads) waits(m move, err error, patience time.Duration) bool {
	if !errors.Is(err, syscall.EBUSY) {
		return false
	}
	seat := &m.seats.held[m.at]
	if seat.busy.IsZero() {
		seat.busy = time.Now()
	}
	seat.thread = m.thread
	return time.Since(seat.busy) < patience
}

// sit gives a thread its reservation. A thread that has ended meanwhile is no error.
func (t *threads) sit(m move) error {
	m.seats.leave(m.at)
	if t.place != nil {
		if err := t.place(m.seats.held[m.at], m.thread); err != nil {
			return ended(m.thread, err)
		}
	}
	if err := t.set(m); err != nil {
		if t.unplace != nil {
			err = errors.Join(err, t.unplace(m.thread))
		}
		return ended(m.thread, explain(m, t.attr(m.seats.grant).Policy, err))
	}
	if !m.thread.Alive() {
		// The number now belongs to another thread, which must not keep what it was not meant to get.
		t.members.forget(m.thread)
		if err := drop(m.thread.TID); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
		return nil
	}
	m.seats.held[m.at].thread = m.thread
	m.seats.held[m.at].taken = true
	m.seats.held[m.at].busy = time.Time{}
	return nil
}

// drop is sched.Drop but in tests.
var drop = sched.Drop

// stand takes a thread's reservation away. Where that fails the thread keeps its place, and it is tried again.
func (t *threads) stand(m move) error {
	t.changed(m.seats, m.at)
	if err := ended(m.thread, drop(m.thread.TID)); err != nil {
		return err
	}
	m.seats.leave(m.at)
	if t.unplace == nil {
		return nil
	}
	return ended(m.thread, t.unplace(m.thread))
}

// ended forgives what failed because the thread is no more, or about to be.
func ended(thread sched.Thread, err error) error {
	if err != nil && (errors.Is(err, syscall.ESRCH) || !thread.Alive()) {
		return nil
	}
	return err
}

// explain says what the kernel's refusal means and what helps.
func explain(m move, policy uint32, err error) error {
	parameters := m.seats.grant.Parameters
	reason := "see dmesg of the node"
	switch {
	case errors.Is(err, syscall.EBUSY):
		reason = "its admission test has no room: threads outside of all claims have SCHED_DEADLINE, or the bound in the node's configuration is above the kernel's; end the former or lower the latter"
	case errors.Is(err, syscall.EPERM) && policy != sched.Deadline:
		reason = "the kernel has real-time groups (CONFIG_RT_GROUP_SCHED), which give this container none of their time, or this agent lacks CAP_SYS_NICE; boot the node with rt_group_sched=0 in the first case, where its kernel knows that"
	case errors.Is(err, syscall.EPERM):
		reason = "the container may not run on all CPUs (a cpuset, as the static CPU manager or exclusive CPUs set it), or this agent lacks CAP_SYS_NICE; free the container, or use the backend deadline-partition"
	case errors.Is(err, syscall.EINVAL):
		reason = "it does not take these times: compare the node's kernel.sched_deadline_period_min_us and _max_us"
	case errors.Is(err, sched.ErrChanged):
		reason = "something else sets policies on this node"
	}
	return fmt.Errorf("%w of %s every %s for thread %d (%q) of %s: %w: %s",
		ErrRefused, parameters.Runtime, parameters.Period, m.thread.TID, m.thread.Name, m.seats.grant, err, reason)
}

// Ask implements Enforcement.
func (t *threads) Ask(process, inner int) (Grant, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	thread, err := t.members.find(process, inner)
	if err != nil {
		return Grant{}, err
	}
	present, err := t.members.list()
	if err != nil {
		return Grant{}, err
	}
	for _, move := range leave(t.all, present) {
		if err := t.stand(move); err != nil {
			return Grant{}, err
		}
	}
	taken, soonest := 0, time.Time{}
	for _, s := range t.all {
		for i := range s.held {
			if s.held[i].taken && same(s.held[i].thread, thread) {
				return s.grant, nil
			}
		}
	}
	for _, s := range t.all {
		if s.grant.Parameters.Selection() != reservation.SelectAsk {
			continue
		}
		for i := range s.held {
			if !s.held[i].vacant() {
				taken++
				continue
			}
			if s.held[i].rests() {
				if soonest.IsZero() || s.held[i].notBefore.Before(soonest) {
					soonest = s.held[i].notBefore
				}
				continue
			}
			if err := t.sit(move{s, i, thread}); err != nil {
				return Grant{}, err
			}
			if !s.held[i].taken {
				return Grant{}, fmt.Errorf("thread %d ended while it asked", inner)
			}
			return s.grant, nil
		}
	}
	if !soonest.IsZero() {
		return Grant{}, fmt.Errorf("the reservation that is left was another thread's less than a period ago: ask again in %s",
			max(time.Until(soonest), 0).Round(time.Millisecond)+time.Millisecond)
	}
	return Grant{}, fmt.Errorf("all %d reservations for threads that ask are taken: let one return its own, or claim more cores", taken)
}

// Return implements Enforcement.
func (t *threads) Return(process, inner int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.all {
		if s.grant.Parameters.Selection() != reservation.SelectAsk {
			continue
		}
		for i := range s.held {
			if s.held[i].taken && s.held[i].thread.Process == process && innerID(s.held[i].thread) == inner {
				return t.stand(move{s, i, s.held[i].thread})
			}
		}
	}
	return fmt.Errorf("thread %d holds no reservation that it asked for", inner)
}

// Release implements Enforcement.
func (t *threads) Release() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var failed []error
	for _, s := range t.all {
		for i := range s.held {
			if s.held[i].taken {
				failed = append(failed, t.stand(move{s, i, s.held[i].thread}))
			}
		}
	}
	if t.release != nil {
		failed = append(failed, t.release())
	}
	return errors.Join(failed...)
}

// start seats whom the rules choose, where the program does not run yet before it does; what fails is undone.
func (t *threads) start(runs bool) (Enforcement, error) {
	t.mu.Lock()
	if err := t.adopt(); err != nil {
		t.mu.Unlock()
		return nil, err
	}
	if runs {
		t.restAll()
	}
	for {
		_, err := t.refresh(startPatience)
		if err != nil {
			t.mu.Unlock()
			return nil, errors.Join(err, t.Release())
		}
		if !t.busy() {
			t.mu.Unlock()
			return t, nil
		}
		time.Sleep(retryBusy)
	}
}

// adopt finds the reservations that an earlier agent has given to a container that still runs: the kernel
// has kept them meanwhile.
func (t *threads) adopt() error {
	present, err := t.members.list()
	if err != nil {
		return err
	}
	for index, thread := range present {
		attr, err := sched.Get(thread.TID)
		if err != nil || attr.Policy == sched.Other {
			continue
		}
		if !t.adoptOne(thread, index, attr) && attr.Policy == sched.Deadline && !t.free {
			// More than the grants allow, or of other grants: it would take the room of those that are.
			if err := ended(thread, sched.Drop(thread.TID)); err != nil {
				return err
			}
		}
	}
	return nil
}

// restAll leaves alone for its period what nobody has: a thread may have had it until a moment ago.
func (t *threads) restAll() {
	for _, s := range t.all {
		for i := range s.held {
			s.held[i].notBefore = time.Now().Add(s.rest)
		}
	}
}

func (t *threads) adoptOne(thread sched.Thread, index int, attr sched.Attr) bool {
	for _, s := range t.all {
		asked := s.grant.Parameters.Selection() == reservation.SelectAsk
		if !t.granted(s.grant, attr) || (!asked && !s.matches(thread, index)) {
			continue
		}
		for i := range s.held {
			if s.held[i].taken {
				continue
			}
			if t.where != nil {
				if core, ok := t.where(thread); !ok || core != s.held[i].core {
					continue
				}
			}
			s.held[i].taken, s.held[i].thread = true, thread
			return true
		}
	}
	return false
}

func (t *threads) busy() bool {
	for _, s := range t.all {
		for i := range s.held {
			if !s.held[i].busy.IsZero() {
				return true
			}
		}
	}
	return false
}
