package node

import (
	"testing"

	"github.com/takt-dev/takt/kubernetes/internal/enforce"
	"github.com/takt-dev/takt/kubernetes/internal/misses"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

// A grant has what its threads have missed since they were first seen with its reservation, and no more: not what a number's former
// holder had, and nothing again because the kernel's table has forgotten.
func TestMissedDeadlinesAreThoseOfTheGrant(t *testing.T) {
	counted := misses.Count{Missed: 7, Latest: 900}
	of := func(tid int) misses.Count {
		if tid != 5 {
			t.Errorf("asked for thread %d", tid)
		}
		return counted
	}
	var tally tally
	look := func(start uint64, want, latest uint64) {
		t.Helper()
		tally.add(enforce.State{Threads: []enforce.ThreadState{{Thread: sched.Thread{TID: 5, Start: start}}}}, of)
		if tally.missed != want || tally.latest != latest {
			t.Errorf("%d missed, the latest by %d; %d by %d were expected", tally.missed, tally.latest, want, latest)
		}
	}
	look(1, 0, 0)
	counted = misses.Count{Missed: 9, Latest: 1200}
	look(1, 2, 1200)
	look(1, 2, 1200)
	counted = misses.Count{}
	look(1, 2, 1200)
	counted = misses.Count{Missed: 10, Latest: 1300}
	look(1, 3, 1300)
	counted = misses.Count{Missed: 12, Latest: 1400}
	look(2, 3, 1300)
	tally.add(enforce.State{}, of)
	counted = misses.Count{Missed: 20, Latest: 1500}
	look(2, 3, 1300)
}
