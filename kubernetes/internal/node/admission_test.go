package node

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/admission"
	"github.com/takt-dev/takt/kubernetes/internal/inventory"
	"github.com/takt-dev/takt/kubernetes/internal/topology"
)

func claimOf(uid types.UID, cpu int, ppm int64) *Record {
	return &Record{Claim: uid, Namespace: "default", Name: string(uid), Requests: []Request{{Name: "cpu", Devices: []Device{{CPU: cpu, PPM: ppm}}}}}
}

func TestPreparingChecksTheWholeNodeAgain(t *testing.T) {
	n := &Node{claims: map[types.UID]*prepared{}}
	n.config.Admission = admission.Guaranteed
	n.offer = inventory.Offer{
		CPUs: []topology.CPU{{ID: 0}, {ID: 1}}, Capacities: []int64{666_667, 666_667}, Most: 666_666, RootDomain: 2, Roams: true,
	}
	for _, record := range []*Record{claimOf("a", 0, 450_000), claimOf("b", 1, 450_000)} {
		if err := n.fits(record); err != nil {
			t.Fatal(err)
		}
		n.claims[record.Claim] = &prepared{Record: record}
	}
	for uid, tc := range map[types.UID]struct {
		ppm  int64
		want string
	}{
		"wide": {899_911, "one reservation at most 666666"},
		"full": {300_000, "above its capacity of 666667"},
	} {
		if err := n.fits(claimOf(uid, 0, tc.ppm)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", uid, err)
		}
	}
	// One that was admitted by an earlier configuration, with a greater density, is still there.
	n.claims["old"] = &prepared{Record: claimOf("old", 7, 900_000)}
	if err := n.fits(claimOf("new", 0, 100_000)); err == nil || !strings.Contains(err.Error(), "may miss deadlines on 2 cores") {
		t.Errorf("beside a wide one: %v", err)
	}
	n.config.Admission = admission.Soft
	if err := n.fits(claimOf("new", 0, 100_000)); err != nil {
		t.Errorf("soft: %v", err)
	}
}

func TestSoftAdmissionPublishesItsTardiness(t *testing.T) {
	n := &Node{claims: map[types.UID]*prepared{}, offer: inventory.Offer{RootDomain: 2, Roams: true}}
	n.config.Admission = admission.Soft
	if got := n.tardiness(); got != 0 {
		t.Errorf("of nothing: %g s", got)
	}
	const ms = 1_000_000
	record := claimOf("a", 0, 450_000)
	record.Requests[0].Parameters = reservation.Parameters{Runtime: 4.5 * ms, Period: 10 * ms}
	record.Requests[0].Devices = append(record.Requests[0].Devices, Device{CPU: 1})
	wide := claimOf("b", 0, 899_911)
	wide.Requests[0].Parameters = reservation.Parameters{Runtime: 9 * ms, Period: 10.001 * ms}
	n.claims["a"], n.claims["b"] = &prepared{Record: record}, &prepared{Record: wide}
	if got := n.tardiness(); got != 0.01125 {
		t.Errorf("%g s", got)
	}
	n.config.Admission = admission.Guaranteed
	if got := n.tardiness(); got != 0 {
		t.Errorf("guaranteed: %g s", got)
	}
}
