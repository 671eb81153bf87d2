package node

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"github.com/takt-dev/takt/kubernetes/internal/inventory"
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
	m, err := n.measure(root)
	n.mu.Lock()
	defer n.mu.Unlock()
	trouble := n.troubles(m, err)
	known := slices.Collect(maps.Keys(n.consumed()))
	for _, cpu := range n.offer.CPUs {
		known = append(known, cpu.ID)
	}
	slices.Sort(known)
	var all []*health.DeviceHealth
	for _, cpu := range slices.Compact(known) {
		is, message := health.HealthStatus_HEALTHY, trouble[cpu]
		switch {
		case err != nil:
			is, message = health.HealthStatus_UNKNOWN, err.Error()
		case message != "":
			is = health.HealthStatus_UNHEALTHY
		}
		all = append(all, &health.DeviceHealth{
			Device: &health.DeviceIdentifier{PoolName: n.name, DeviceName: inventory.DeviceName(cpu)},
			Health: is, Message: message, LastUpdatedTime: time.Now().Unix(), HealthCheckTimeoutSeconds: int64(healthTimeout / time.Second),
		})
	}
	return all
}
