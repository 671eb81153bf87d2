// Package inventory turns the cores that a node offers into the devices that the scheduler allocates: one
// device per CPU, with its bandwidth as a capacity that many claims consume (DRAConsumableCapacity, on by
// default from Kubernetes 1.36). The scheduler's allocator is the admission test of the KubeDeadline paper
// (equation 1); this package only has to say the truth and to put the cores in the order they should be
// tried in.
package inventory

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

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
	// Bound is how many parts per million of each may be reserved.
	Bound int64
	// Consumed are the parts per million that claims already hold, by CPU.
	Consumed map[int]int64
	Order    Order
	// Backend enforces the reservations; claims may select by it.
	Backend string
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
		byLoad := cmp.Compare(offer.Consumed[b.ID], offer.Consumed[a.ID])
		if offer.Order == WorstFit {
			byLoad = -byLoad
		}
		return cmp.Or(byLoad, cmp.Compare(a.ID, b.ID))
	})
	devices := make([]resourceapi.Device, 0, len(cpus))
	for _, cpu := range cpus {
		devices = append(devices, device(cpu, offer))
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

func device(cpu topology.CPU, offer Offer) resourceapi.Device {
	attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"cpu":     number(cpu.ID),
		"core":    number(cpu.Core),
		"package": number(cpu.Package),
		"backend": {StringValue: &offer.Backend},
	}
	if cpu.NUMANode >= 0 {
		attributes[deviceattribute.StandardDeviceAttributePrefix+"numaNode"] = number(cpu.NUMANode)
	}
	if cpu.L3 >= 0 {
		attributes["l3"] = number(cpu.L3)
	}
	if len(cpu.Siblings) > 0 {
		attributes["sibling"] = number(cpu.Siblings[0])
	}
	shared := true
	bound := resource.NewQuantity(offer.Bound, resource.DecimalSI)
	one := resource.NewQuantity(1, resource.DecimalSI)
	return resourceapi.Device{
		Name:                     DeviceName(cpu.ID),
		Attributes:               attributes,
		AllowMultipleAllocations: &shared,
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			reservation.Bandwidth: {
				Value: *bound,
				// A claim that requests nothing gets the least there is, and is then refused by the
				// node; without a default it would take the whole core.
				RequestPolicy: &resourceapi.CapacityRequestPolicy{
					Default:    one,
					ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: one, Max: bound, Step: one},
				},
			},
		},
	}
}

func number(n int) resourceapi.DeviceAttribute {
	value := int64(n)
	return resourceapi.DeviceAttribute{IntValue: &value}
}
