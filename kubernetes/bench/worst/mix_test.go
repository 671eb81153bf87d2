package main

import (
	"math/rand/v2"
	"testing"

	"github.com/takt-dev/takt/kubernetes/internal/admission"
)

func TestTheNearestMixesAreProvenAndNearTheirBound(t *testing.T) {
	for _, cores := range []int{2, 4} {
		mixes := nearest(rand.New(rand.NewPCG(1, 2)), cores, 900_000, 20_000, 100)
		if len(mixes) != 100 {
			t.Fatalf("%d mixes", len(mixes))
		}
		last := 2.0
		for _, m := range mixes {
			var densities []int64
			for _, s := range m.Servers {
				densities = append(densities, s.density())
			}
			if !admission.Schedulable(cores, densities) || m.Near > last || m.Near < 0.9 {
				t.Errorf("%d cores: %+v", cores, m)
			}
			last = m.Near
		}
	}
}

func TestWhatTheMachineTookExplainsNoMoreThanItIs(t *testing.T) {
	gaps := []gap{{from: 100, to: 200}, {from: 150, to: 250}, {from: 400, to: 500}}
	for _, tc := range []struct{ from, to, want uint64 }{{0, 1000, 250}, {120, 160, 40}, {250, 400, 0}} {
		if got := within(gaps, tc.from, tc.to); got != tc.want {
			t.Errorf("from %d to %d: %d were taken", tc.from, tc.to, got)
		}
	}
}
