package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
)

// of is a path as a node has it.
func of(t *testing.T, node, path string) string {
	t.Helper()
	until(t, "a kubelet runs on "+node, func() bool { return kubeletOf(node) > 0 })
	return fmt.Sprintf("/proc/%d/root%s", kubeletOf(node), path)
}

// madeForPods are the devices, addresses and sockets that a node has for pods.
func madeForPods(t *testing.T, node string) (all []string) {
	t.Helper()
	for line := range strings.Lines(in(t, node, "ip", "-o", "link", "show", "type", "veth")) {
		all = append(all, strings.Fields(line)[1])
	}
	for _, pattern := range []string{"/var/lib/cni/networks/*/10.*", "/run/takt/cni/[^.]*"} {
		found, _ := filepath.Glob(of(t, node, pattern))
		for _, path := range found {
			all = append(all, strings.TrimPrefix(path, of(t, node, "")))
		}
	}
	slices.Sort(all)
	return all
}

func TestTwoNodesPlaceNothingWhereTheRuntimeIsAbsent(t *testing.T) {
	cluster := taktObjects(t)
	served(t, cluster)
	// The controller is a pod, too, and comes later than the agents.
	kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/takt-node-controller", "--timeout=3m")
	before := madeForPods(t, "node-2")
	// It is started again and again, and ends at once.
	config := filepath.Join(dir, "node-2", "taktd.toml")
	away := func(from, to string) {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	away(config, config+".away")
	t.Cleanup(func() { _ = os.Rename(config+".away", config) })
	if err := syscall.Kill(taktdOf("node-2"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "the node says so", func() bool {
		found, err := cluster.Nodes.Get(ctx, "node-2", metav1.GetOptions{})
		return err == nil && conditionIs(found.Status.Conditions, network.Ready, false, "RuntimeAbsent", "")
	})
	networkIs(t, cluster, network.Served, false, "RuntimeAbsent", "1 of 2 nodes: node node-2: ")
	until(t, "it offers no network", func() bool {
		slices, err := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false
		}
		for _, slice := range slices.Items {
			if slice.Spec.Driver == reservation.NetworkDriver && slice.Spec.NodeName != nil && *slice.Spec.NodeName == "node-2" && len(slice.Spec.Devices) > 0 {
				return false
			}
		}
		return true
	})

	for i := range 3 {
		name := fmt.Sprintf("placed-%d", i)
		create(t, onNetwork(name, "pods"), pod(name, name, "idle"))
		running(t, name)
		if p, err := client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{}); err != nil || p.Spec.NodeName != "node-1" {
			t.Errorf("%s is on %s, %v", name, p.Spec.NodeName, err)
		}
		remove(t, name, name)
	}
	create(t, onNetwork("stays", "pods"), on("node-2", pod("stays", "stays", "idle")))
	until(t, "a pod that is for this node stays pending", func() bool { return unschedulable("stays") })
	if c, err := client.ResourceV1().ResourceClaims("default").Get(ctx, "stays", metav1.GetOptions{}); err != nil || c.Status.Allocation != nil {
		t.Errorf("its claim has %+v, %v", c.Status.Allocation, err)
	}
	// One without a claim is placed there all the same. It does not start, is told what to do, and leaves nothing.
	create(t, on("node-2", python("blind", timeSensitive, listening)))
	told(t, "blind", "FailedCreatePodSandBox", "taktd does not answer at /run/takt/admin.sock: start it")
	if p, err := client.CoreV1().Pods("default").Get(ctx, "blind", metav1.GetOptions{}); err != nil || p.Status.Phase != corev1.PodPending {
		t.Errorf("it is %s, %v", p.Status.Phase, err)
	}
	remove(t, "blind", "")
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("node-2 had %v for pods, and has %v", before, madeForPods(t, "node-2"))
		}
	})
	until(t, "nothing is left of it on the node", func() bool { return slices.Equal(madeForPods(t, "node-2"), before) })

	away(config+".away", config)
	running(t, "stays")
	if p, err := client.CoreV1().Pods("default").Get(ctx, "stays", metav1.GetOptions{}); err != nil || p.Spec.NodeName != "node-2" {
		t.Errorf("the pod that waited is on %s, %v", p.Spec.NodeName, err)
	}
	remove(t, "stays", "stays")
	create(t, on("node-2", python("sees", timeSensitive, listening)))
	says(t, "sees", "listening")
	remove(t, "sees", "")
	networkIs(t, cluster, network.Served, true, "Serving", "2 nodes")
}
