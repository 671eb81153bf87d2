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

// capacities are what the offered cores can give below root at this moment: less than is published when CPUs
// went offline or the kernel's limit was lowered. Call with n.mu held.
func (n *Node) capacities(root string) (map[int]int64, error) {
	bound, err := sched.Bound(root)
	if err != nil {
		return nil, err
	}
	bound /= int64(n.backend.Shared(len(n.offer.CPUs)))
	domain, err := topology.RootDomain(root)
	if err != nil {
		return nil, err
	}
	now := map[int]int64{}
	for _, cpu := range n.offer.CPUs {
		now[cpu.ID] = bound
	}
	if n.offer.Roams && (len(domain) < n.offer.RootDomain || n.drift.lost+n.drift.strangers > 0) {
		for i, capacity := range n.remaining(min(len(domain), n.offer.RootDomain), bound) {
			now[n.offer.CPUs[i].ID] = capacity
		}
	}
	return now, nil
}

// health is how the cores below root are that are offered, or that claims hold.
func (n *Node) health(root string) []*health.DeviceHealth {
	var online []int
	cpus, err := topology.Read(root)
	for _, cpu := range cpus {
		online = append(online, cpu.ID)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	now, boundErr := n.capacities(root)
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
		case consumed[cpu] > now[cpu]:
			is, message = health.HealthStatus_UNHEALTHY, fmt.Sprintf("CPU %d has %d parts per million reserved, and only %d can be kept now: raise kernel.sched_rt_runtime_us, bring the node's CPUs online, or delete pods",
				cpu, consumed[cpu], now[cpu])
		}
		all = append(all, &health.DeviceHealth{
			Device: &health.DeviceIdentifier{PoolName: n.name, DeviceName: inventory.DeviceName(cpu)},
			Health: is, Message: message, LastUpdatedTime: time.Now().Unix(), HealthCheckTimeoutSeconds: int64(healthTimeout / time.Second),
		})
	}
	return all
}
