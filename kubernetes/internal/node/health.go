package node

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"github.com/takt-dev/takt/kubernetes/internal/inventory"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
	"github.com/takt-dev/takt/kubernetes/internal/topology"
)

// healthPace is how often the kubelet is told of the cores' health: it takes a core for unknown that it has
// heard nothing of for healthTimeout.
const (
	healthPace    = 5 * time.Second
	healthTimeout = 30 * time.Second
)

// NodeWatchResources implements the kubelet's service DRAResourceHealth: what it is told stands in
// status.containerStatuses[].allocatedResourcesStatus of the pods that have the core.
func (n *Node) NodeWatchResources(_ *health.NodeWatchResourcesRequest, to grpc.ServerStreamingServer[health.NodeWatchResourcesResponse]) error {
	ticker := time.NewTicker(healthPace)
	defer ticker.Stop()
	for {
		if err := to.Send(&health.NodeWatchResourcesResponse{Devices: n.health("/")}); err != nil {
			return err
		}
		select {
		case <-to.Context().Done():
			return nil
		case <-ticker.C:
		}
	}
}

// health is how the cores below root are that are offered, or that claims hold.
func (n *Node) health(root string) []*health.DeviceHealth {
	var online []int
	cpus, err := topology.Read(root)
	for _, cpu := range cpus {
		online = append(online, cpu.ID)
	}
	bound, boundErr := sched.Bound(root)
	bound /= int64(n.backend.Shared(len(n.offer.CPUs)))

	n.mu.Lock()
	defer n.mu.Unlock()
	consumed := n.consumed()
	var known []int
	for _, cpu := range n.offer.CPUs {
		known = append(known, cpu.ID)
	}
	for cpu := range consumed {
		known = append(known, cpu)
	}
	slices.Sort(known)
	var all []*health.DeviceHealth
	for _, cpu := range slices.Compact(known) {
		is, message := health.HealthStatus_HEALTHY, ""
		switch {
		case err != nil:
			is, message = health.HealthStatus_UNKNOWN, err.Error()
		case boundErr != nil:
			is, message = health.HealthStatus_UNKNOWN, boundErr.Error()
		case !slices.Contains(online, cpu):
			is, message = health.HealthStatus_UNHEALTHY, fmt.Sprintf("CPU %d is not online any more: its reservations are kept by the others, if at all", cpu)
		case consumed[cpu] > bound:
			is, message = health.HealthStatus_UNHEALTHY, fmt.Sprintf("CPU %d has %d parts per million reserved, and the kernel admits only %d now: raise kernel.sched_rt_runtime_us",
				cpu, consumed[cpu], bound)
		}
		all = append(all, &health.DeviceHealth{
			Device: &health.DeviceIdentifier{PoolName: n.name, DeviceName: inventory.DeviceName(cpu)},
			Health: is, Message: message, LastUpdatedTime: time.Now().Unix(), HealthCheckTimeoutSeconds: int64(healthTimeout / time.Second),
		})
	}
	return all
}
