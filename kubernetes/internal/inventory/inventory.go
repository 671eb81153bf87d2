// Package inventory turns the cores that a node offers into the devices that the scheduler allocates: one
// device per CPU, with its bandwidth as a capacity that many claims consume (DRAConsumableCapacity, on by
// default from Kubernetes 1.36). The scheduler's allocator is the admission test of the KubeDeadline paper
// (equation 1): what is published is what package admission finds schedulable, in the order in which the
// cores should be tried.
package inventory

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/topology"
)

// MaxDevices is how many devices the API allows in one slice.
const MaxDevices = resourceapi.ResourceSliceMaxDevices

// Order is the placement rule inside the node: the allocator takes the first core that fits.
type Order string

const (
	// BestFit tries the core with the least bandwidth left first, to keep whole cores for large claims.
	BestFit Order = "best-fit"
	// WorstFit tries the core with the most bandwidth left first, to spread the load.
	WorstFit Order = "worst-fit"
)

// Offer is what a node has to give.
type Offer struct {
	// CPUs are those offered for reservations.
	CPUs []topology.CPU
	// Bound is how many parts per million of each the kernel admits, or the operator.
	Bound int64
	// Capacities are how many may be reserved, CPU by CPU as in CPUs: no more than Bound, and less where the
	// kernel admits more than is schedulable.
	Capacities []int64
	// Most is the greatest share of a core that one reservation may have.
	Most int64
	// RootDomain is how many cores the kernel schedules together, the offered ones among them.
	RootDomain int
	// Roams says that a reservation's threads run on any core of the root domain, so that a device is a share
	// of all of them and where its CPU lies means nothing.
	Roams bool
	// Whole says that a core is given to one reservation, all of it.
	Whole bool
	// Consumed are the parts per million that claims already hold, by CPU.
	Consumed map[int]int64
	Order    Order
	// Troubled says of CPUs why they cannot keep what is reserved of them: nothing more is to be scheduled there.
	Troubled map[int]string
	// Drifting is DriftLost or DriftOutside if the kernel counts what claims do not hold; less is published then.
	Drifting string
	// Backend enforces the reservations; claims may select by it.
	Backend string
}

// Taints of devices: that of a troubled CPU keeps pods away, that of a drift only shows.
const (
	TaintUnkept = reservation.Driver + "/unkept"
	TaintDrift  = reservation.Driver + "/drift"

	DriftLost    = "BandwidthLost"
	DriftOutside = "BandwidthOutsideClaims"
)

func taints(offer Offer, cpu int) (all []resourceapi.DeviceTaint) {
	if offer.Troubled[cpu] != "" {
		all = append(all, resourceapi.DeviceTaint{Key: TaintUnkept, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
	if offer.Drifting != "" {
		all = append(all, resourceapi.DeviceTaint{Key: TaintDrift, Value: offer.Drifting, Effect: resourceapi.DeviceTaintEffectNone})
	}
	return all
}

// DeviceName is the name of a CPU as a device.
func DeviceName(cpu int) string { return "cpu-" + strconv.Itoa(cpu) }

// ParseDeviceName is the CPU that a device is.
func ParseDeviceName(name string) (int, error) {
	cpu, err := strconv.Atoi(name[min(len(name), len("cpu-")):])
	if err != nil || cpu < 0 || cpu > topology.MaxCPU || DeviceName(cpu) != name {
		return 0, fmt.Errorf("device %q is not a CPU: devices of %s are named cpu-0, cpu-1, and so on", name, reservation.Driver)
	}
	return cpu, nil
}

// Pool is the offer as the slices that kubeletplugin publishes.
func Pool(offer Offer) resourceslice.Pool {
	cpus := slices.Clone(offer.CPUs)
	slices.SortFunc(cpus, func(a, b topology.CPU) int {
		byLoad := cmp.Compare(offer.Capacity(a.ID)-offer.Consumed[a.ID], offer.Capacity(b.ID)-offer.Consumed[b.ID])
		if offer.Order == WorstFit {
			byLoad = -byLoad
		}
		return cmp.Or(byLoad, cmp.Compare(a.ID, b.ID))
	})
	devices := make([]resourceapi.Device, 0, len(cpus))
	for _, cpu := range cpus {
		// A device without capacity cannot be allocated, and the API has no capacity of zero.
		if capacity := offer.Capacity(cpu.ID); capacity > 0 {
			devices = append(devices, device(cpu, capacity, offer))
		}
	}
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{}}
	for chunk := range slices.Chunk(devices, MaxDevices) {
		pool.Slices = append(pool.Slices, resourceslice.Slice{Devices: chunk})
	}
	if len(pool.Slices) == 0 {
		// A pool without slices would leave those of an earlier configuration in place.
		pool.Slices = append(pool.Slices, resourceslice.Slice{})
	}
	return pool
}

// String says in lines what is offered.
func (o Offer) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "backend %s, %d cores, %s\n", o.Backend, len(o.CPUs), o.Order)
	for i, cpu := range o.CPUs {
		fmt.Fprintf(&text, "cpu %d: %d parts per million, at most %d in one reservation\n", cpu.ID, o.Capacities[i], min(o.Capacities[i], o.Most))
	}
	return text.String()
}

// Capacity is how many parts per million of a CPU may be reserved; 0 if it is not offered.
func (o *Offer) Capacity(cpu int) int64 {
	for i := range o.CPUs {
		if o.CPUs[i].ID == cpu && i < len(o.Capacities) {
			return o.Capacities[i]
		}
	}
	return 0
}

func device(cpu topology.CPU, capacity int64, offer Offer) resourceapi.Device {
	attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"cpu":     number(cpu.ID),
		"backend": {StringValue: &offer.Backend},
	}
	if !offer.Roams {
		attributes["core"] = number(cpu.Core)
		attributes["package"] = number(cpu.Package)
		if cpu.NUMANode >= 0 {
			attributes[deviceattribute.StandardDeviceAttributePrefix+"numaNode"] = number(cpu.NUMANode)
		}
		if cpu.L3 >= 0 {
			attributes["l3"] = number(cpu.L3)
		}
		if len(cpu.Siblings) > 0 {
			attributes["sibling"] = number(cpu.Siblings[0])
		}
	}
	shared := true
	bound := resource.NewQuantity(capacity, resource.DecimalSI)
	most := resource.NewQuantity(min(capacity, offer.Most), resource.DecimalSI)
	// A claim that requests less than the least gets that.
	least := resource.NewQuantity(1, resource.DecimalSI)
	step := least
	if offer.Whole {
		least, step = most, nil // the API has no step where there is no room for one
	}
	return resourceapi.Device{
		Name:                     DeviceName(cpu.ID),
		Attributes:               attributes,
		AllowMultipleAllocations: &shared,
		Taints:                   taints(offer, cpu.ID),
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			reservation.Bandwidth: {
				Value: *bound,
				// A claim that requests nothing gets the least there is, and is then refused by the
				// node; without a default it would take the whole core.
				RequestPolicy: &resourceapi.CapacityRequestPolicy{
					Default:    least,
					ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: least, Max: most, Step: step},
				},
			},
		},
	}
}

func number(n int) resourceapi.DeviceAttribute {
	value := int64(n)
	return resourceapi.DeviceAttribute{IntValue: &value}
}
