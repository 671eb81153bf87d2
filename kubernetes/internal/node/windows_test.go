package node

import (
	"testing"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
)

const gigabit = 1_000_000_000

// gatesOf is a link with a schedule of entries of gates and nanoseconds.
func gatesOf(rate uint64, cycle uint64, entries ...uint32) *adminv1.LinkSchedule {
	schedule := &adminv1.GateSchedule{CycleTimeNs: cycle}
	for at := 0; at < len(entries); at += 2 {
		schedule.Entries = append(schedule.Entries, &adminv1.GateEntry{Gates: entries[at], IntervalNs: entries[at+1]})
	}
	return &adminv1.LinkSchedule{LinkRateBps: rate, Operational: schedule}
}

func TestWhatSchedulesGiveToClassesIsTheLeastOfAll(t *testing.T) {
	quarter := gatesOf(gigabit, 1_000_000, 0x20, 250_000, 0x01, 750_000)
	first := gatesOf(gigabit, 1_000_000, 0x20, 250_000, 0x01, 750_000)
	first.Operational.Selection = []*adminv1.ClassSelection{{Class: 5, Algorithm: "credit-based"}, {Class: 0, Algorithm: "launch-time"}}
	mapped := gatesOf(gigabit, 1_000_000, 0x02, 250_000, 0x01, 750_000)
	mapped.Priorities = []uint32{0, 0, 0, 0, 1, 1, 1, 1}
	changing := gatesOf(gigabit, 1_000_000, 0x20, 250_000, 0x01, 750_000)
	changing.Pending = gatesOf(0, 1_000_000, 0x20, 100_000, 0x01, 900_000).Operational
	coming := &adminv1.LinkSchedule{LinkRateBps: gigabit, Pending: quarter.Operational}
	// A frame of a thousand bits.
	of := func(class int, bits uint64) stream { return stream{class, 1, 97, 1_000_000_000_000 / bits} }
	rare := stream{5, 1, 1514, 60_000_000_000}
	for name, tc := range map[string]struct {
		links   []*adminv1.LinkSchedule
		streams []stream
		any     bool
		want    map[int]int64
	}{
		"no link":                      {nil, nil, false, nil},
		"a link without a schedule":    {[]*adminv1.LinkSchedule{{LinkRateBps: gigabit}}, nil, false, nil},
		"a quarter":                    {[]*adminv1.LinkSchedule{quarter}, nil, true, map[int]int64{5: 250_000_000, 0: 750_000_000}},
		"beside others of its class":   {[]*adminv1.LinkSchedule{quarter}, []stream{of(5, 50_000_000), of(0, 1_000_000)}, true, map[int]int64{5: 200_000_000, 0: 749_000_000}},
		"beside more than there is":    {[]*adminv1.LinkSchedule{quarter}, []stream{of(5, 250_000_000), of(5, 1_000_000)}, true, map[int]int64{0: 750_000_000}},
		"the slower link":              {[]*adminv1.LinkSchedule{quarter, gatesOf(gigabit/10, 1_000_000, 0x21, 1_000_000)}, nil, true, map[int]int64{5: 100_000_000, 0: 100_000_000}},
		"a class that one never opens": {[]*adminv1.LinkSchedule{quarter, gatesOf(gigabit, 1_000_000, 0x20, 1_000_000)}, nil, true, map[int]int64{5: 250_000_000}},
		"the schedule that will run":   {[]*adminv1.LinkSchedule{changing}, nil, true, map[int]int64{5: 100_000_000, 0: 750_000_000}},
		"one that runs only later":     {[]*adminv1.LinkSchedule{coming}, nil, true, nil},
		"beside one that runs":         {[]*adminv1.LinkSchedule{quarter, coming, quarter}, nil, true, nil},
		"no rate":                      {[]*adminv1.LinkSchedule{gatesOf(0, 1_000_000, 0xff, 1_000_000)}, nil, true, nil},
		"no launch times":              {[]*adminv1.LinkSchedule{first}, nil, true, map[int]int64{0: 750_000_000}},
		"the last entry holds":         {[]*adminv1.LinkSchedule{gatesOf(gigabit, 1_000_000, 0x20, 250_000, 0x01, 1)}, nil, true, map[int]int64{5: 250_000_000, 0: 750_000_000}},
		"what the cycle cuts":          {[]*adminv1.LinkSchedule{gatesOf(gigabit, 1_000_000, 0x20, 4_000_000_000, 0x01, 750_000)}, nil, true, map[int]int64{5: gigabit}},
		// Once in 40 cycles; what comes round in them no more often than it launches; and in a class that never closes.
		"one that launches rarely":      {[]*adminv1.LinkSchedule{quarter}, []stream{rare}, true, map[int]int64{5: 250_000_000 - 1542*8*25, 0: 750_000_000}},
		"one that is a multiple":        {[]*adminv1.LinkSchedule{quarter}, []stream{{5, 1, 97, 20_000_000}}, true, map[int]int64{5: 249_950_000, 0: 750_000_000}},
		"one that is none":              {[]*adminv1.LinkSchedule{quarter}, []stream{{5, 1, 97, 61_000_000}}, true, map[int]int64{5: 249_000_000, 0: 750_000_000}},
		"rarely where nothing closes":   {[]*adminv1.LinkSchedule{gatesOf(gigabit, 1_000_000, 0x3f, 1_000_000)}, []stream{rare}, true, map[int]int64{0: gigabit, 1: gigabit, 2: gigabit, 3: gigabit, 4: gigabit, 5: gigabit - 206}},
		"priorities that share a class": {[]*adminv1.LinkSchedule{mapped}, []stream{of(6, 100_000_000)}, true, map[int]int64{0: 750_000_000, 1: 750_000_000, 2: 750_000_000, 3: 750_000_000, 4: 150_000_000, 5: 150_000_000, 6: 150_000_000, 7: 150_000_000}},
	} {
		got, any := left(tc.links, tc.streams)
		var want classes
		for class, bits := range tc.want {
			want[class] = bits
		}
		if got != want || any != tc.any {
			t.Errorf("%s: %v, %v and not %v", name, got, any, want)
		}
	}
}

func TestAStreamIsCountedAsOftenAsAdmissionDoes(t *testing.T) {
	for _, tc := range []struct{ period, cycle, counted uint64 }{
		{1_000_000, 1_000_000, 1_000_000}, {500_000, 1_000_000, 500_000}, {40_000_000, 1_000_000, 40_000_000}, {60_000_000_000, 1_000_000, 40_000_000},
		{50_000_000, 1_000_000, 10_000_000}, {3_000_000, 1_000_000, 1_000_000}, {1_500_000, 1_000_000, 500_000}, {67_000_000, 1_000_000, 1_000_000},
		{1_001_000, 1_000_000, 1_001_000}, {1_000_000, 0, 1_000_000},
	} {
		if got := reservation.CountedPeriod(tc.period, tc.cycle); got != tc.counted {
			t.Errorf("%d in cycles of %d is counted every %d, and not %d", tc.period, tc.cycle, got, tc.counted)
		}
	}
}
