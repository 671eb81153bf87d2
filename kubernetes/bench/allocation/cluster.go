package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/inventory"
	"github.com/takt-dev/takt/kubernetes/internal/topology"
)

const (
	// bound is what a core may give, share what every claim takes of a core: three fill one.
	bound = 900_000
	share = 300_000
)

// features are those that the scheduler of Kubernetes 1.36 has by default.
var features = structured.Features{
	AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, DeviceBindingAndStatus: true, ConsumableCapacity: true,
}

// cluster is what the scheduler knows of one.
type cluster struct {
	nodes  []*corev1.Node
	slices []*resourceapi.ResourceSlice
	state  structured.AllocatedState
	// claims is how many have been allocated.
	claims int
	cel    *cel.Cache
}

// newCluster fills the first cores of every node, as best fit does, with claims of one core.
func newCluster(nodes, cores, full int) *cluster {
	c := &cluster{cel: cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}), state: structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}}
	offer := inventory.Offer{Bound: bound, Most: bound, Order: inventory.BestFit, Backend: "deadline-partition", Consumed: map[int]int64{}}
	for cpu := range cores {
		offer.CPUs = append(offer.CPUs, topology.CPU{ID: cpu, Core: cpu, NUMANode: cpu / 32, L3: cpu / 8})
		offer.Capacities = append(offer.Capacities, bound)
		if cpu < cores*full/100 {
			offer.Consumed[cpu] = bound
		}
	}
	pool := inventory.Pool(offer)
	consumed := map[resourceapi.QualifiedName]resource.Quantity{reservation.Bandwidth: *resource.NewQuantity(bound, resource.DecimalSI)}
	for i := range nodes {
		name := fmt.Sprintf("node-%04d", i)
		c.nodes = append(c.nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		for at, slice := range pool.Slices {
			c.slices = append(c.slices, &resourceapi.ResourceSlice{
				ObjectMeta: metav1.ObjectMeta{Name: name + "-" + strconv.Itoa(at)},
				Spec: resourceapi.ResourceSliceSpec{
					Driver: reservation.Driver, NodeName: &name, Devices: slice.Devices,
					Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
				},
			})
		}
		for _, cpu := range slices.Sorted(maps.Keys(offer.Consumed)) {
			device := structured.MakeDeviceID(reservation.Driver, name, inventory.DeviceName(cpu))
			c.state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(device, consumed))
			for range bound / share {
				id := types.UID(fmt.Sprintf("%08x-0000-4000-8000-000000000000", c.claims))
				c.state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(device, &id))
				c.claims++
			}
		}
	}
	return c
}

// List and Get are the device classes that the allocator asks for.
func (c *cluster) List() ([]*resourceapi.DeviceClass, error) {
	return []*resourceapi.DeviceClass{class}, nil
}

func (c *cluster) Get(name string) (*resourceapi.DeviceClass, error) {
	if name != class.Name {
		return nil, fmt.Errorf("no class %q", name)
	}
	return class, nil
}

var class = &resourceapi.DeviceClass{
	ObjectMeta: metav1.ObjectMeta{Name: reservation.Driver},
	Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
		CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "` + reservation.Driver + `"`},
	}}},
}

func claimOf(cores int) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claim", UID: "claim"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "cpu", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: reservation.Driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(cores),
				Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
					reservation.Bandwidth: *resource.NewQuantity(share, resource.DecimalSI),
				}},
			},
		}}}},
	}
}

// feasible is how many nodes with room the scheduler looks for before it chooses among them
// (percentageOfNodesToScore not set: 50 % less one for every 125 nodes, at least 5 % and at least 100 nodes).
func feasible(nodes int) int {
	return min(nodes, max(100, nodes*max(50-nodes/125, 5)/100))
}

// cost is where the time for one claim went.
type cost struct {
	state, nodes time.Duration
	asked, found int
}

// allocate does for one claim what the scheduler's plugin DynamicResources does in PreFilter and Filter, the
// first node being another one each time.
func (c *cluster) allocate(claim *resourceapi.ResourceClaim, first int) (cost, error) {
	var spent cost
	began := time.Now()
	state := structured.AllocatedState{
		AllocatedDevices: c.state.AllocatedDevices.Clone(), AllocatedSharedDeviceIDs: c.state.AllocatedSharedDeviceIDs.Clone(),
		AggregatedCapacity: c.state.AggregatedCapacity.Clone(),
	}
	allocator, err := structured.NewAllocator(context.Background(), features, state, c, c.slices, c.cel)
	if err != nil {
		return spent, err
	}
	spent.state = time.Since(began)
	began = time.Now()
	for i := range c.nodes {
		node := c.nodes[(first+i)%len(c.nodes)]
		results, err := allocator.Allocate(context.Background(), node, []*resourceapi.ResourceClaim{claim})
		if err != nil {
			return spent, err
		}
		spent.asked++
		if len(results) > 0 {
			if spent.found++; spent.found == feasible(len(c.nodes)) {
				break
			}
		}
	}
	spent.nodes = time.Since(began)
	return spent, nil
}

// Spread is a set of durations in nanoseconds.
type Spread struct {
	Min, P50, P90, Max, Mean time.Duration
}

func spread(all []time.Duration) Spread {
	slices.Sort(all)
	var sum time.Duration
	for _, d := range all {
		sum += d
	}
	return Spread{all[0], all[len(all)/2], all[len(all)*9/10], all[len(all)-1], sum / time.Duration(len(all))}
}

// Point is one cluster.
type Point struct {
	Nodes int `json:"nodes"`
	// Full is how many percent of the cores are, Existing how many claims that makes.
	Full     int `json:"full_percent"`
	Existing int `json:"existing_claims"`
	// Asked and Found are the medians of how many nodes were asked and had room.
	Asked int `json:"nodes_asked"`
	Found int `json:"nodes_found"`
	// State is what had to be done before any node was asked, Node the mean cost of a node in each claim,
	// Nodewise all nodes together, Total everything.
	State    Spread `json:"state_ns"`
	Node     Spread `json:"node_ns"`
	Nodewise Spread `json:"nodes_ns"`
	Total    Spread `json:"total_ns"`
}

func measure(nodes, cores, full, claims int) (Point, error) {
	c := newCluster(nodes, cores, full)
	var state, node, nodewise, total []time.Duration
	var asked, found []int
	// The first claim compiles the class's expression, which the scheduler remembers.
	for i := range claims + 1 {
		spent, err := c.allocate(claimOf(i%4+1), i*nodes/(claims+1))
		if err != nil {
			return Point{}, err
		}
		if i == 0 {
			continue
		}
		state, nodewise = append(state, spent.state), append(nodewise, spent.nodes)
		node, total = append(node, spent.nodes/time.Duration(spent.asked)), append(total, spent.state+spent.nodes)
		asked, found = append(asked, spent.asked), append(found, spent.found)
	}
	slices.Sort(asked)
	slices.Sort(found)
	return Point{
		Nodes: nodes, Full: full, Existing: c.claims, Asked: asked[len(asked)/2], Found: found[len(found)/2],
		State: spread(state), Node: spread(node), Nodewise: spread(nodewise), Total: spread(total),
	}, nil
}
