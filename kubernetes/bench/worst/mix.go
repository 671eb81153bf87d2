package main

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/takt-dev/takt/kubernetes/internal/admission"
)

// server is one reservation of a mix, in nanoseconds.
type server struct {
	Runtime, Deadline, Period uint64
}

// density is Q/D in parts per million, rounded up.
func (s server) density() int64 {
	return int64((s.Runtime*million + s.Deadline - 1) / s.Deadline)
}

const million = 1_000_000

// mix is a set of reservations that a node with guaranteed admission would hold.
type mix struct {
	Servers []server
	// Near is how much of what is proven it takes: its sum of densities over the bound for its largest one.
	Near float64
}

// draw is a random mix for so many cores, of which each gives at most bound: packed first fit into the capacities that a
// node publishes, as the cluster's scheduler does.
func draw(dice *rand.Rand, cores int, bound int64) mix {
	most := admission.Widest(cores, cores, bound)
	if dice.IntN(2) == 0 {
		most = 20_000 + dice.Int64N(bound-20_000)
	}
	left := admission.Capacities(cores, cores, most, bound)
	var m mix
	for range 1 + dice.IntN(10*cores) {
		period := uint64(5_000_000 + dice.IntN(45_000_000))
		deadline := period
		if dice.IntN(3) == 0 {
			deadline = period/2 + dice.Uint64N(period/2)
		}
		at := dice.IntN(len(left))
		room := min(left[at], most)
		wanted := room
		if dice.IntN(3) > 0 {
			wanted = min(room, 20_000+dice.Int64N(most))
		}
		s := server{Runtime: deadline * uint64(max(wanted, 0)) / million, Deadline: deadline, Period: period}
		if s.Runtime < leastRuntime {
			continue
		}
		left[at] -= s.density()
		m.Servers = append(m.Servers, s)
	}
	var sum, widest int64
	for _, s := range m.Servers {
		sum, widest = sum+s.density(), max(widest, s.density())
	}
	m.Near = float64(sum) / float64(admission.Total(cores, widest))
	return m
}

// leastRuntime is what a job can be of that is not all overhead.
const leastRuntime = 500_000

// nearest are the count mixes of drawn ones that take the most of what is proven, the nearest first. Those of no more
// reservations than cores are left out: nothing has to be proven of them.
func nearest(dice *rand.Rand, cores int, bound int64, drawn, count int) []mix {
	var kept []mix
	for range drawn {
		m := draw(dice, cores, bound)
		if len(m.Servers) <= cores {
			continue
		}
		at, _ := slices.BinarySearchFunc(kept, m, func(a, b mix) int { return cmp.Compare(b.Near, a.Near) })
		if at >= count {
			continue
		}
		kept = slices.Insert(kept, at, m)
		kept = kept[:min(len(kept), count)]
	}
	return kept
}
