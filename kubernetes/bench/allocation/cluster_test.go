package main

import (
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/inventory"
)

func TestTheSchedulerLooksForAsManyNodesAsItsDefaultsSay(t *testing.T) {
	for nodes, want := range map[int]int{1: 1, 100: 100, 101: 100, 250: 120, 1000: 420, 2000: 680, 5000: 500, 15000: 750} {
		if got := feasible(nodes); got != want {
			t.Errorf("of %d nodes %d, not %d", nodes, got, want)
		}
	}
}

func TestAClaimFindsTheCoresThatAreNotFull(t *testing.T) {
	for _, full := range []int{0, 50, 100} {
		c := newCluster(3, 8, full)
		if want := 3 * (8 * full / 100) * bound / share; c.claims != want || len(c.state.AllocatedSharedDeviceIDs) != want {
			t.Errorf("%d %% full: %d claims, not %d", full, c.claims, want)
		}
		for m := 1; m <= 4; m++ {
			spent, err := c.allocate(claimOf(m), 1)
			if err != nil {
				t.Fatal(err)
			}
			want := 3
			if full == 100 {
				want = 0
			}
			if spent.asked != 3 || spent.found != want {
				t.Errorf("%d %% full, %d cores: %+v", full, m, spent)
			}
		}
		allocator, err := structured.NewAllocator(t.Context(), features, c.state, c, c.slices, c.cel)
		if err != nil {
			t.Fatal(err)
		}
		results, err := allocator.Allocate(t.Context(), c.nodes[2], []*resourceapi.ResourceClaim{claimOf(2)})
		if err != nil {
			t.Fatal(err)
		}
		for _, result := range results {
			for _, device := range result.Devices.Results {
				cpu, err := inventory.ParseDeviceName(device.Device)
				taken := device.ConsumedCapacity[reservation.Bandwidth]
				if err != nil || cpu < 8*full/100 || taken.Value() != share || device.Pool != "node-0002" {
					t.Errorf("%d %% full: %+v", full, device)
				}
			}
		}
	}
}

func TestSpreadsAreOfTheValuesGiven(t *testing.T) {
	if got := spread([]time.Duration{5, 1, 3, 2, 4}); got != (Spread{Min: 1, P50: 3, P90: 5, Max: 5, Mean: 3}) {
		t.Errorf("%+v", got)
	}
}
