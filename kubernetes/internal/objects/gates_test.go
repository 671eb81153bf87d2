package objects

import (
	"testing"

	"google.golang.org/protobuf/proto"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
)

// taktd gives all fields back, also those that were left out.
func TestWhatTaktdGivesBackIsWhatItWasAsked(t *testing.T) {
	r := network.Revision{BeginsNanoseconds: 5}
	r.CycleTime, r.Entries = 1000, []network.GateEntry{{Gates: []int32{7}, Interval: 1000}}
	r.MaxSDU = []network.MaxSDU{{Class: 1, Octets: 100}}
	r.Selection = []network.Selection{{Class: 3, Algorithm: "first-come"}, {Class: 2, Algorithm: "credit-based", IdleSlope: 9}, {Class: 1, Algorithm: "launch-time"}}
	asked, err := Request("udp", &r)
	if err != nil {
		t.Fatal(err)
	}
	has := &adminv1.GateSchedule{
		BaseTimeNs: 5, CycleTimeNs: 1000, InitialGates: proto.Uint32(255), Entries: []*adminv1.GateEntry{{Gates: 128, IntervalNs: 1000}},
		MaxSdu:    []uint32{0, 100, 0, 0, 0, 0, 0, 0},
		Selection: []*adminv1.ClassSelection{{Class: 2, Algorithm: "credit-based", IdleSlopeBps: 9}, {Class: 3, Algorithm: "first-come"}},
	}
	if !Same(has, asked) || !SamePriorities(&adminv1.LinkSchedule{Priorities: []uint32{0, 1, 2, 3, 4, 5, 6, 7}}, asked) {
		t.Errorf("%v is not %v", has, asked)
	}
	has.MaxSdu[1] = 101
	if Same(has, asked) || Same(nil, asked) {
		t.Error("another one is the same")
	}
}
