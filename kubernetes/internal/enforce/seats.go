package enforce

import (
	"path"
	"slices"
	"time"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

// seats are the m reservations of one grant and who holds them.
type seats struct {
	grant Grant
	held  []seat
	// rest is how long a reservation is left alone when a thread has had it: its period. The next thread would have the
	// runtime anew at once, and a pool of threads that pass it on would have it many times in a period.
	rest     time.Duration
	restored int
	// restless is the last thread that had changed its policy.
	restless sched.Thread
	revived  int
	leftOut  int
	// starting says that the container has not run for long enough to have its reservations.
	starting bool
	// unpinned counts threads that had pinned themselves to some CPUs and were unpinned, lastUnpinned is one.
	unpinned     int
	lastUnpinned sched.Thread
}

type seat struct {
	thread sched.Thread
	taken  bool
	// notBefore is when another thread may have it.
	notBefore time.Time
	// busy is since when the kernel has had no room for the reservation; zero while it has.
	busy time.Time
	// missing are the CPUs that the thread may not run on any more, and should.
	missing []int
	// core is the CPU of this reservation, for backends that pin.
	core int
	// ran is what the thread had run when it was last looked at, still since when it has wanted to run
	// and has not; zero while it does.
	ran   uint64
	still time.Time
}

// vacant says that nobody has the reservation or waits for it.
func (s *seat) vacant() bool { return !s.taken && s.busy.IsZero() }

// rests says that a reservation which is vacant may not be given yet.
func (s *seat) rests() bool { return s.vacant() && time.Now().Before(s.notBefore) }

// leave takes note that a thread has a reservation no more, however that came. The kernel may have given it the runtime
// a moment ago, so that it counts from now.
func (s *seats) leave(at int) {
	if s.held[at].taken {
		s.held[at].taken, s.held[at].notBefore = false, time.Now().Add(s.rest)
	}
}

func newSeats(grants []Grant) []*seats {
	all := make([]*seats, 0, len(grants))
	for _, grant := range grants {
		s := &seats{grant: grant, restored: grant.Restored, rest: time.Duration(grant.Parameters.Period)}
		for _, core := range grant.Cores {
			s.held = append(s.held, seat{core: core})
		}
		all = append(all, s)
	}
	return all
}

// same says whether two threads are one.
func same(a, b sched.Thread) bool { return a.TID == b.TID && a.Start == b.Start }

// matches says whether the rule of the grant chooses the thread, if a reservation is left. index is its
// place among the threads of the container, oldest first.
func (s *seats) matches(thread sched.Thread, index int) bool {
	switch s.grant.Parameters.Selection() {
	case reservation.SelectFirst:
		return index == 0
	case reservation.SelectFirstM:
		return true
	case reservation.SelectName:
		ok, err := path.Match(s.grant.Parameters.Threads.Name, thread.Name)
		return ok && err == nil
	}
	return false // those that ask are seated when they do
}

// leave says who loses a reservation, so that the rules hold for the threads that are there: dead threads are dropped
// without a word.
func leave(all []*seats, threads []sched.Thread) (stand []move) {
	for _, s := range all {
		for i := range s.held {
			if !s.held[i].taken {
				continue
			}
			index := -1
			for at, thread := range threads {
				if same(thread, s.held[i].thread) {
					index = at
				}
			}
			switch {
			case index < 0 && !s.held[i].thread.Alive():
				s.leave(i)
			case index < 0: // it has left the container and not ended
				stand = append(stand, move{s, i, s.held[i].thread})
			case s.grant.Parameters.Selection() == reservation.SelectName && !s.matches(threads[index], index):
				stand = append(stand, move{s, i, threads[index]})
			default:
				s.held[i].thread = threads[index]
			}
		}
	}
	return stand
}

// choose says who gets a reservation that nobody has. A thread holds at most one.
func choose(all []*seats, threads []sched.Thread) (sit []move) {
	seated := map[int]bool{}
	for _, s := range all {
		for i := range s.held {
			if s.held[i].taken {
				seated[s.held[i].thread.TID] = true
			}
		}
	}
	// Who waits for room keeps the place, also who has asked for it and does not ask again.
	for _, s := range all {
		for i := range s.held {
			seat := &s.held[i]
			if seat.taken || seat.busy.IsZero() {
				continue
			}
			index := slices.IndexFunc(threads, func(thread sched.Thread) bool { return same(thread, seat.thread) })
			asked := s.grant.Parameters.Selection() == reservation.SelectAsk
			if index < 0 || s.starting || seated[seat.thread.TID] || (!asked && !s.matches(threads[index], index)) {
				seat.busy = time.Time{}
				continue
			}
			sit = append(sit, move{s, i, threads[index]})
			seated[seat.thread.TID] = true
		}
	}
	for _, s := range all {
		s.leftOut = 0
		next, rest := 0, 0
		for index, thread := range threads {
			if s.starting || seated[thread.TID] || !s.matches(thread, index) {
				continue
			}
			for ; next < len(s.held) && (!s.held[next].vacant() || s.held[next].rests()); next++ {
				if s.held[next].rests() {
					rest++
				}
			}
			if next == len(s.held) && rest > 0 {
				rest-- // it is the next one's of those that rest
				continue
			}
			if next == len(s.held) {
				// That a program has more than m threads is no sign of anything but with a name.
				if s.grant.Parameters.Selection() == reservation.SelectName {
					s.leftOut++
				}
				continue
			}
			sit = append(sit, move{s, next, thread})
			seated[thread.TID] = true
			next++
		}
	}
	return sit
}

// move is one thread and the reservation it gets or loses.
type move struct {
	seats  *seats
	at     int
	thread sched.Thread
}

func (s *seats) state(number func(sched.Thread) int) State {
	state := State{Grant: s.grant, LeftOut: s.leftOut, Restored: s.restored, Revived: s.revived, Unpinned: s.unpinned, LastUnpinned: s.lastUnpinned, Starting: s.starting}
	for _, held := range s.held {
		if !held.taken {
			state.Free++
			switch {
			case !held.busy.IsZero():
				state.Waiting++
			case held.rests():
				state.Resting++
			}
			continue
		}
		if len(held.missing) > 0 {
			state.Narrowed, state.Missing = state.Narrowed+1, held.missing
		}
		// A thread that has just ended has used nothing more.
		usage, _ := held.thread.Usage()
		state.Threads = append(state.Threads, ThreadState{Thread: held.thread, Usage: usage, Inner: number(held.thread)})
	}
	return state
}
