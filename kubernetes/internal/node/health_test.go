package node

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/admission"
	"github.com/takt-dev/takt/kubernetes/internal/enforce"
	"github.com/takt-dev/takt/kubernetes/internal/inventory"
	"github.com/takt-dev/takt/kubernetes/internal/topology"
)

func TestTheKubeletHearsOfTheCoresHealth(t *testing.T) {
	s := newSite(t)
	s.kubelet()
	registration := registerapi.NewRegistrationClient(s.dial(filepath.Join(s.config.KubeletRegistry, reservation.Driver+"-reg.sock")))
	info, err := registration.GetInfo(context.Background(), &registerapi.InfoRequest{})
	if err != nil || !slices.Contains(info.SupportedVersions, health.DRAResourceHealth_ServiceDesc.ServiceName) {
		t.Fatalf("plugin is %v, %v", info, err)
	}
	stream, err := health.NewDRAResourceHealthClient(s.dial(info.Endpoint)).NodeWatchResources(context.Background(), &health.NodeWatchResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	told, err := stream.Recv()
	if err != nil || len(told.Devices) != len(s.agent.offer.CPUs) {
		t.Fatalf("told %v, %v", told, err)
	}
	for _, device := range told.Devices {
		if device.Health != health.HealthStatus_HEALTHY || device.Device.PoolName != nodeName || device.HealthCheckTimeoutSeconds <= int64(healthPace.Seconds()) {
			t.Errorf("%v", device)
		}
	}
}

func TestACoreThatCannotKeepItsReservationsIsUnhealthy(t *testing.T) {
	root := t.TempDir()
	for file, text := range map[string]string{
		"sys/devices/system/cpu/online":                             "0,2",
		"sys/devices/system/cpu/cpu0/topology/core_id":              "0",
		"sys/devices/system/cpu/cpu0/topology/physical_package_id":  "0",
		"sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0",
		"sys/devices/system/cpu/cpu2/topology/core_id":              "2",
		"sys/devices/system/cpu/cpu2/topology/physical_package_id":  "0",
		"sys/devices/system/cpu/cpu2/topology/thread_siblings_list": "2",
		"proc/sys/kernel/sched_rt_runtime_us":                       "500000",
		"proc/sys/kernel/sched_rt_period_us":                        "1000000",
		"proc/sys/kernel/osrelease":                                 "6.1.0",
	} {
		path := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	n := &Node{name: nodeName, backend: enforce.Deadline{}}
	n.offer = inventory.Offer{CPUs: []topology.CPU{{ID: 0}, {ID: 1}, {ID: 2}}, Roams: true}
	// CPU 3 is not offered any more, and a claim still has it. The two CPUs that are left give half of their time each.
	devices := []Device{{CPU: 2, PPM: 500_001}, {CPU: 3, PPM: 1}}
	n.claims = map[types.UID]*prepared{"claim": {Record: &Record{Requests: []Request{{Devices: devices}}}}}
	check := func(what string, want map[string]health.HealthStatus) {
		t.Helper()
		got := map[string]health.HealthStatus{}
		for _, device := range n.health(root) {
			got[device.Device.DeviceName] = device.Health
			if (device.Health == health.HealthStatus_HEALTHY) != (device.Message == "") {
				t.Errorf("%v", device)
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: health is %v", what, got)
		}
	}
	const healthy, unhealthy = health.HealthStatus_HEALTHY, health.HealthStatus_UNHEALTHY
	check("offline", map[string]health.HealthStatus{"cpu-0": healthy, "cpu-1": unhealthy, "cpu-2": healthy, "cpu-3": unhealthy})
	devices[0].PPM = 1_000_000
	check("more than the kernel's bound", map[string]health.HealthStatus{"cpu-0": healthy, "cpu-1": unhealthy, "cpu-2": unhealthy, "cpu-3": unhealthy})
	n.offer.Roams, n.backend = false, &enforce.Partition{}
	devices[0].PPM = 500_001
	check("a core of its own", map[string]health.HealthStatus{"cpu-0": healthy, "cpu-1": unhealthy, "cpu-2": unhealthy, "cpu-3": unhealthy})
	n.offer.Roams, n.backend = true, enforce.Deadline{}
	// Three cores were enough for three of half a core each beside one another, two are not proven to be.
	if err := os.WriteFile(filepath.Join(root, "proc/sys/kernel/sched_rt_runtime_us"), []byte("950000"), 0o644); err != nil {
		t.Fatal(err)
	}
	n.claims["claim"].Requests[0].Devices = []Device{{CPU: 0, PPM: 510_000}, {CPU: 1, PPM: 510_000}, {CPU: 2, PPM: 510_000}}
	n.config.Admission = admission.Soft
	check("soft", map[string]health.HealthStatus{"cpu-0": healthy, "cpu-1": unhealthy, "cpu-2": healthy})
	n.config.Admission = admission.Guaranteed
	check("guaranteed", map[string]health.HealthStatus{"cpu-0": unhealthy, "cpu-1": unhealthy, "cpu-2": unhealthy})
	if err := os.Remove(filepath.Join(root, "proc/sys/kernel/sched_rt_runtime_us")); err != nil {
		t.Fatal(err)
	}
	for _, device := range n.health(root) {
		if device.Health != health.HealthStatus_UNKNOWN {
			t.Errorf("without the kernel's settings: %v", device)
		}
	}
}
