package inventory

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"pgregory.net/rapid"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/admission"
	"github.com/takt-dev/takt/kubernetes/internal/apitest"
	"github.com/takt-dev/takt/kubernetes/internal/topology"
)

const node = "node-1"

// scheduler is the scheduler's own allocator and what it remembers between claims.
type scheduler struct {
	offer    Offer
	consumed map[int]int64
	claims   map[int][]resourceapi.DeviceRequestAllocationResult
	next     int
	// stale keeps the first published order: a slow publisher must not change what is admitted.
	stale bool
}

type fataler interface {
	Fatal(...any)
	Fatalf(string, ...any)
}

type classes struct{}

func (classes) List() ([]*resourceapi.DeviceClass, error) {
	return []*resourceapi.DeviceClass{class()}, nil
}

func (classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if name != reservation.Driver {
		return nil, fmt.Errorf("no class %q", name)
	}
	return class(), nil
}

func class() *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: reservation.Driver},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
			CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "` + reservation.Driver + `"`},
		}}},
	}
}

func newScheduler(cpus int, order Order) *scheduler {
	s := &scheduler{consumed: map[int]int64{}, claims: map[int][]resourceapi.DeviceRequestAllocationResult{}}
	s.offer = Offer{Bound: 900_000, Most: 900_000, Order: order, Backend: "deadline-partition"}
	for id := range cpus {
		s.offer.CPUs = append(s.offer.CPUs, topology.CPU{ID: id, NUMANode: id % 2, L3: -1})
		s.offer.Capacities = append(s.offer.Capacities, 900_000)
	}
	return s
}

func (s *scheduler) published() []*resourceapi.ResourceSlice {
	offer := s.offer
	if !s.stale {
		offer.Consumed = s.consumed
	}
	pool := Pool(offer)
	name := node
	var published []*resourceapi.ResourceSlice
	for i, slice := range pool.Slices {
		published = append(published, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%04x-slice", i)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: reservation.Driver, NodeName: &name, Devices: slice.Devices,
				Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
			},
		})
	}
	return published
}

// allocate is a claim for m cores with so much bandwidth on each, nil for none stated.
func (s *scheduler) allocate(t fataler, m int64, bandwidth *int64) (cpus []int, id int) {
	return s.allocateAll(t, resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{request("cpu", m, bandwidth)}})
}

// request is one for m cores with so much bandwidth on each, nil for none stated.
func request(name string, m int64, bandwidth *int64) resourceapi.DeviceRequest {
	exactly := &resourceapi.ExactDeviceRequest{
		DeviceClassName: reservation.Driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: m,
	}
	if bandwidth != nil {
		exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			reservation.Bandwidth: *resource.NewQuantity(*bandwidth, resource.DecimalSI),
		}}
	}
	return resourceapi.DeviceRequest{Name: name, Exactly: exactly}
}

// allocateAll is a claim of several requests.
func (s *scheduler) allocateAll(t fataler, devices resourceapi.DeviceClaim) (cpus []int, id int) {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, results := range s.claims {
		for _, r := range results {
			device := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(device, r.ShareID))
			state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(device, r.ConsumedCapacity))
		}
	}
	features := structured.Features{ConsumableCapacity: true, PrioritizedList: true}
	allocator, err := structured.NewAllocator(context.Background(), features, state, classes{}, s.published(), cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}))
	if err != nil {
		t.Fatal(err)
	}
	id = s.next
	s.next++
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("claim-", id), Namespace: "default", UID: types.UID(fmt.Sprint(id))},
		Spec:       resourceapi.ResourceClaimSpec{Devices: devices},
	}
	named := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{"kubernetes.io/hostname": node}}}
	results, err := allocator.Allocate(context.Background(), named, []*resourceapi.ResourceClaim{claim})
	if err != nil {
		t.Fatal(err)
	}
	if len(results) == 0 {
		return nil, id
	}
	s.claims[id] = results[0].Devices.Results
	for _, r := range results[0].Devices.Results {
		cpu, err := ParseDeviceName(r.Device)
		if err != nil {
			t.Fatal(err)
		}
		consumed := r.ConsumedCapacity[reservation.Bandwidth]
		s.consumed[cpu] += consumed.Value()
		cpus = append(cpus, cpu)
	}
	return cpus, id
}

func (s *scheduler) release(id int) {
	for _, r := range s.claims[id] {
		cpu, _ := ParseDeviceName(r.Device)
		consumed := r.ConsumedCapacity[reservation.Bandwidth]
		s.consumed[cpu] -= consumed.Value()
	}
	delete(s.claims, id)
}

func share(parts int64) *int64 { return &parts }

func TestNoMixOfClaimsExceedsACoresBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cpus := rapid.IntRange(1, 5).Draw(t, "cpus")
		s := newScheduler(cpus, rapid.SampledFrom([]Order{BestFit, WorstFit}).Draw(t, "order"))
		s.stale = rapid.Bool().Draw(t, "stale order")
		var live []int
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			if len(live) > 0 && rapid.IntRange(0, 3).Draw(t, "release?") == 0 {
				at := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				s.release(live[at])
				live = append(live[:at], live[at+1:]...)
				continue
			}
			m := rapid.IntRange(1, cpus).Draw(t, "m")
			runtime := rapid.Uint64Range(1024, 10_000_000).Draw(t, "runtime")
			parameters := reservation.Parameters{Runtime: reservation.Duration(runtime), Period: 10_000_000}
			need := parameters.PartsPerMillion()
			fitting := 0
			for cpu := range cpus {
				if s.consumed[cpu]+need <= s.offer.Bound {
					fitting++
				}
			}
			got, id := s.allocate(t, int64(m), &need)
			if (len(got) > 0) != (fitting >= m) {
				t.Fatalf("%d cores at %d ppm: allocated %v where %d cores have room", m, need, got, fitting)
			}
			if len(got) == 0 {
				continue
			}
			live = append(live, id)
			distinct := sets.New(got...)
			if len(got) != m || distinct.Len() != m {
				t.Fatalf("%d cores asked for, got %v", m, got)
			}
			for _, r := range s.claims[id] {
				if consumed := r.ConsumedCapacity[reservation.Bandwidth]; consumed.Value() != need || parameters.FitsCapacity(consumed.Value()) != nil {
					t.Fatalf("asked for %d ppm, %s consumed", need, consumed.String())
				}
			}
			for cpu, consumed := range s.consumed {
				if consumed > s.offer.Bound {
					t.Fatalf("CPU %d holds %d ppm of %d", cpu, consumed, s.offer.Bound)
				}
			}
		}
	})
}

func TestTheNamedOrderDecidesWhereAClaimGoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		order := rapid.SampledFrom([]Order{BestFit, WorstFit}).Draw(t, "order")
		s := newScheduler(4, order)
		for range rapid.IntRange(1, 8).Draw(t, "claims") {
			need := rapid.Int64Range(1, 400_000).Draw(t, "bandwidth")
			before := map[int]int64{}
			chosen := -1
			for cpu := range 4 {
				load := s.consumed[cpu]
				before[cpu] = load
				if load+need > s.offer.Bound {
					continue
				}
				if chosen < 0 || (order == BestFit && load > before[chosen]) || (order == WorstFit && load < before[chosen]) {
					chosen = cpu
				}
			}
			got, _ := s.allocate(t, 1, &need)
			if chosen < 0 {
				if got != nil {
					t.Fatalf("%d ppm fit nowhere in %v but went to %v", need, before, got)
				}
				continue
			}
			if len(got) != 1 || got[0] != chosen {
				t.Fatalf("%s puts %d ppm on CPU %d of %v, allocated %v", order, need, chosen, before, got)
			}
		}
	})
}

func TestThePapersAdmissionTest(t *testing.T) {
	s := newScheduler(2, BestFit)
	s.offer.Bound, s.offer.Most, s.offer.Capacities = 950_000, 950_000, []int64{950_000, 950_000}
	if got, _ := s.allocate(t, 1, share(600_000)); len(got) != 1 || got[0] != 0 {
		t.Fatalf("600000 went to %v", got)
	}
	if got, _ := s.allocate(t, 1, share(400_000)); len(got) != 1 || got[0] != 1 {
		t.Fatalf("400000 went to %v", got)
	}
	if got, _ := s.allocate(t, 2, share(500_000)); got != nil {
		t.Fatalf("2 x 500000 went to %v", got)
	}
	s.release(0)
	if got, _ := s.allocate(t, 2, share(500_000)); len(got) != 2 {
		t.Fatalf("2 x 500000 went to %v after room appeared", got)
	}
}

func TestWhateverTheSchedulerAdmitsIsSchedulableUnderGlobalEDF(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cpus := rapid.IntRange(1, 5).Draw(t, "cpus")
		s := newScheduler(cpus, rapid.SampledFrom([]Order{BestFit, WorstFit}).Draw(t, "order"))
		s.stale = rapid.Bool().Draw(t, "stale order")
		s.offer.RootDomain = rapid.IntRange(cpus, 8).Draw(t, "root domain")
		s.offer.Roams = true
		s.offer.Most = rapid.Int64Range(1, s.offer.Bound).Draw(t, "most")
		s.offer.Capacities = admission.Capacities(s.offer.RootDomain, cpus, s.offer.Most, s.offer.Bound)
		var densities []int64
		for range rapid.IntRange(1, 12).Draw(t, "claims") {
			m := rapid.IntRange(1, cpus).Draw(t, "m")
			need := rapid.Int64Range(1, min(s.offer.Bound, 2*s.offer.Most)).Draw(t, "density")
			got, _ := s.allocate(t, int64(m), &need)
			if len(got) > 0 && need > s.offer.Most {
				t.Fatalf("%d ppm were admitted, above the %d that one may have", need, s.offer.Most)
			}
			for range got {
				densities = append(densities, need)
			}
		}
		if !admission.Schedulable(s.offer.RootDomain, densities) {
			t.Fatalf("%v were admitted on %d cores", densities, s.offer.RootDomain)
		}
	})
}

func TestWhereADeviceLiesIsNotSaidOfOneWhoseThreadsRoam(t *testing.T) {
	s := newScheduler(1, BestFit)
	s.offer.CPUs[0] = topology.CPU{Core: 1, L3: 1, Siblings: []int{1}}
	if got := len(s.published()[0].Spec.Devices[0].Attributes); got != 7 {
		t.Errorf("%d attributes of a core", got)
	}
	s.offer.Roams = true
	if got := s.published()[0].Spec.Devices[0].Attributes; len(got) != 2 || got["cpu"].IntValue == nil || got["backend"].StringValue == nil {
		t.Errorf("attributes of a share are %v", got)
	}
}

func TestAClaimWithoutACapacityTakesNoWholeCore(t *testing.T) {
	s := newScheduler(1, BestFit)
	if got, _ := s.allocate(t, 1, nil); len(got) != 1 || s.consumed[0] != 1 {
		t.Fatalf("got %v, consumed %v", got, s.consumed)
	}
	if got, _ := s.allocate(t, 1, share(900_001)); got != nil {
		t.Fatalf("more than the bound went to %v", got)
	}
}

func TestAWholeCoreGoesToOneClaimWhateverItAsksFor(t *testing.T) {
	s := newScheduler(3, BestFit)
	s.offer.Whole, s.offer.Bound, s.offer.Most = true, reservation.WholeCore, reservation.WholeCore
	s.offer.Capacities = []int64{reservation.WholeCore, reservation.WholeCore, reservation.WholeCore}
	two, id := s.allocate(t, 2, share(reservation.WholeCore))
	if len(two) != 2 || two[0] == two[1] {
		t.Fatalf("two cores are %v", two)
	}
	if got, _ := s.allocate(t, 2, share(reservation.WholeCore)); got != nil {
		t.Fatalf("two more of three are %v", got)
	}
	// One that asks for less, or does not say, has all of a core: nobody else comes beside it.
	for _, less := range []*int64{share(1), nil} {
		got, less := s.allocate(t, 1, less)
		if len(got) != 1 || s.consumed[got[0]] != reservation.WholeCore {
			t.Fatalf("got %v, consumed %v", got, s.consumed)
		}
		if another, _ := s.allocate(t, 1, share(1)); another != nil {
			t.Fatalf("%v has two claims", another)
		}
		s.release(less)
	}
	s.release(id)
	if got, _ := s.allocate(t, 3, share(reservation.WholeCore)); len(got) != 3 {
		t.Fatalf("all three are %v", got)
	}
}

func TestTheAPIServerTakesWhatIsPublished(t *testing.T) {
	client, err := kubernetes.NewForConfig(apitest.Start(t, "../../../deploy/helm/takt-node/crds"))
	if err != nil {
		t.Fatal(err)
	}
	parts, whole := newScheduler(2, BestFit), newScheduler(2, BestFit)
	parts.offer.Troubled, parts.offer.Drifting = map[int]string{0: "offline"}, DriftLost
	whole.offer.Whole, whole.offer.Most, whole.offer.Backend = true, reservation.WholeCore, "whole-core"
	whole.offer.Capacities = []int64{reservation.WholeCore, reservation.WholeCore}
	for name, s := range map[string]*scheduler{"parts": parts, "whole": whole} {
		for _, slice := range s.published() {
			wanted := slice.Spec.Devices
			slice.Name, slice.Spec.Pool.Name = name, name
			got, err := client.ResourceV1().ResourceSlices().Create(context.Background(), slice, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(name, err)
			}
			for i, device := range got.Spec.Devices {
				if policy := device.Capacity[reservation.Bandwidth].RequestPolicy; policy == nil || policy.ValidRange == nil ||
					policy.ValidRange.Max.Cmp(*wanted[i].Capacity[reservation.Bandwidth].RequestPolicy.ValidRange.Max) != 0 {
					t.Errorf("%s: it has %+v", name, device)
				}
			}
		}
	}
}

func TestRequestsOfOneClaimShareACoreUnlessItSaysOtherwise(t *testing.T) {
	both := []resourceapi.DeviceRequest{request("control", 1, share(300_000)), request("camera", 1, share(300_000))}
	s := newScheduler(2, BestFit)
	if cpus, _ := s.allocateAll(t, resourceapi.DeviceClaim{Requests: both}); len(cpus) != 2 || cpus[0] != cpus[1] {
		t.Errorf("they have cores %v", cpus)
	}
	cpu := resourceapi.FullyQualifiedName(reservation.Driver + "/cpu")
	apart := resourceapi.DeviceClaim{Requests: both, Constraints: []resourceapi.DeviceConstraint{{DistinctAttribute: &cpu}}}
	if cpus, _ := s.allocateAll(t, apart); len(cpus) != 2 || cpus[0] == cpus[1] {
		t.Errorf("apart they have cores %v", cpus)
	}
	// On one core they cannot be apart: the pod waits.
	if cpus, _ := newScheduler(1, BestFit).allocateAll(t, apart); cpus != nil {
		t.Errorf("on one core they have %v", cpus)
	}
}

func TestLargeNodesAreSplitIntoSlices(t *testing.T) {
	s := newScheduler(300, WorstFit)
	published := s.published()
	if len(published) != 3 || len(published[0].Spec.Devices) != MaxDevices || len(published[2].Spec.Devices) != 300-2*MaxDevices {
		t.Fatalf("%d slices", len(published))
	}
	s.consumed[299] = -1 // the emptiest
	if first := s.published()[0].Spec.Devices[0].Name; first != "cpu-299" {
		t.Errorf("first is %s", first)
	}
}

func TestANodeThatOffersNothingPublishesAnEmptySlice(t *testing.T) {
	if pool := Pool(Offer{}); len(pool.Slices) != 1 || len(pool.Slices[0].Devices) != 0 {
		t.Errorf("%+v", pool)
	}
}

func TestDeviceNamesAreReadBack(t *testing.T) {
	for _, cpu := range []int{0, 7, topology.MaxCPU} {
		if got, err := ParseDeviceName(DeviceName(cpu)); err != nil || got != cpu {
			t.Errorf("%d is %d, %v", cpu, got, err)
		}
	}
	for _, name := range []string{"", "cpu", "cpu-", "cpu--1", "cpu-01", "cpu-8192", "gpu-1", "cpu-1x"} {
		if got, err := ParseDeviceName(name); err == nil {
			t.Errorf("%q is CPU %d", name, got)
		}
	}
}
