package cluster

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
)

// leftOn is what is left of Takt on a node: files, cgroups, programs at devices, processes.
func leftOn(t *testing.T, node string) (left []string) {
	t.Helper()
	for _, pattern := range []string{
		"/opt/cni/bin/takt-*", "/var/lib/takt-node", "/run/takt-node", "/run/takt/cni", "/run/cdi/*takt*", "/etc/cdi/*takt*", "/run/cdi/.*takt*",
		"/var/lib/kubelet/plugins/*takt*", "/var/lib/kubelet/plugins_registry/*takt*", "/sys/fs/bpf/*takt*", "/sys/fs/cgroup/takt*", "/sys/fs/cgroup/*/takt-veth",
	} {
		found, _ := filepath.Glob(of(t, node, pattern))
		for _, path := range found {
			// Empty directories that Kubernetes made for the chart, and the group that the cluster itself is in.
			if entries, err := os.ReadDir(path); err == nil && len(entries) == 0 && strings.HasSuffix(pattern, "takt-node") || filepath.Base(path) == "takt-cluster" {
				continue
			}
			left = append(left, strings.TrimPrefix(path, of(t, node, "")))
		}
	}
	links := in(t, node, "ip", "-o", "-d", "link", "show", "type", "veth")
	for line := range strings.Lines(links) {
		name := strings.TrimSuffix(strings.SplitN(strings.Fields(line)[1], "@", 2)[0], ":")
		if queues := in(t, node, "tc", "filter", "show", "dev", name, "ingress"); queues != "" {
			left = append(left, "a program at "+name+": "+queues)
		}
	}
	// taktd's own program at the node's interface stays with it.
	for _, found := range regexp.MustCompile(`(veth\S+): .*prog/xdp`).FindAllStringSubmatch(links, -1) {
		left = append(left, "a program at "+found[1])
	}
	process := processWhich(func(_ string, words []string) bool {
		return slices.Contains([]string{"takt-node", "takt-controller"}, filepath.Base(words[0])) || filepath.Base(words[0]) == "takt" && slices.Contains(words, "attach")
	})
	if process > 0 {
		left = append(left, "process "+strings.Join(commandLine(process), " "))
	}
	return left
}

func commandLine(pid int) []string {
	text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
}

// leftInTaktd is what a node's taktd has that was not in its configuration.
func leftInTaktd(t *testing.T, node string) (left []string) {
	t.Helper()
	of := admin(t, node)
	listeners, err := of.ListListeners(ctx, &adminv1.ListListenersRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range listeners.GetListeners() {
		if path := one.GetListener().GetPath(); strings.HasPrefix(path, "/run/takt/cni/") {
			left = append(left, "listener "+path)
		}
	}
	schedules, err := of.ListSchedules(ctx, &adminv1.ListSchedulesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range schedules.GetLinks() {
		if link.GetOperational() != nil || link.GetPending() != nil {
			left = append(left, "a schedule of "+link.GetDatapath())
		}
	}
	networks, err := of.ListNetworks(ctx, &adminv1.ListNetworksRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range networks.GetNetworks() {
		for _, station := range one.GetStations() {
			if !station.GetFollowed() {
				left = append(left, "station "+station.GetMac()+" of "+one.GetName())
			}
		}
	}
	peers, err := of.ListPeers(ctx, &adminv1.ListPeersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, peer := range peers.GetPeers() {
		left = append(left, "peer "+peer.GetAddress())
	}
	return left
}

// nothingInTheCluster waits until no object of Takt is left: pods whose owner has gone end by and by.
func nothingInTheCluster(t *testing.T) {
	t.Helper()
	kinds := "crd,clusterrole,clusterrolebinding,deviceclass,validatingadmissionpolicy,validatingadmissionpolicybinding,priorityclass,resourceslice,resourceclaim,lease,configmap,serviceaccount,role,rolebinding,daemonset,deployment,pod,secret,service"
	var left []string
	defer func() {
		for _, line := range left {
			t.Log("the cluster still has " + line)
		}
	}()
	until(t, "no object of Takt is left", func() bool {
		left = nil
		for line := range strings.Lines(kubectl(t, "get", kinds, "-A", "-o", "custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name", "--no-headers")) {
			if strings.Contains(line, "takt") {
				left = append(left, line)
			}
		}
		return len(left) == 0
	})
}

// The steps of the manual, in a cluster where pods have used all of it: ordinary pods reach each other all the while.
func TestFlannelNodesHaveNothingLeftOfTaktWhenItIsUninstalled(t *testing.T) {
	if !flannel {
		t.Skip("a cluster of its own: make test-cluster-nodes")
	}
	cluster := taktObjects(t)
	served(t, cluster)
	made := &network.GateSchedule{ObjectMeta: metav1.ObjectMeta{Name: "all"}}
	made.Spec.Datapath, made.Spec.Rate, made.Spec.CycleTime = "udp", 1_000_000_000, 1_000_000
	made.Spec.Entries = []network.GateEntry{{Gates: []int32{0, 1, 2, 3, 4, 5, 6, 7}, Interval: 1_000_000}}
	if _, err := cluster.Schedules.Create(ctx, made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ordinary := connected(t, "ordinary", nil)
	create(t, onNetwork("used", "pods"), on("node-2", claiming("used", python("talker", timeSensitive, steady, addressOf(t, ordinary.answers)))))
	says(t, "talker", "begins")
	create(t, on("node-1", unprivileged("static", "takt.test/guest:1", map[string]string{"takt.dev/time-sensitive": "true", "takt.dev/path": "veth", "takt.dev/class": "5"}, "/guest", "talk", addressOf(t, ordinary.asks))))
	says(t, "static", "sent by")
	until(t, "the schedule is in force", func() bool {
		now, err := cluster.Schedules.Get(ctx, "all", metav1.GetOptions{})
		return err == nil && conditionIs(now.Status.Conditions, network.InForce, true, network.Installed, "on 2 nodes")
	})
	nodes := []string{"node-1", "node-2"}
	for _, node := range nodes {
		has, entered := leftOn(t, node), leftInTaktd(t, node)
		t.Logf("%s has %v, and in taktd %v", node, has, entered)
		if len(has) == 0 || len(entered) == 0 {
			t.Error("nothing is there that could be left")
		}
	}

	// One is forgotten: the agents wait for it, by name.
	remove(t, "static", "")
	for _, node := range nodes {
		list := of(t, node, "/etc/cni/net.d/10-pods.conflist")
		text, err := os.ReadFile(list)
		if err != nil {
			t.Fatal(err)
		}
		plain := regexp.MustCompile(`(?s), \{"type": "takt-cni".*\}\}\]\}`).ReplaceAllString(string(text), "]}")
		if plain == string(text) {
			t.Fatalf("takt-cni is not in %s", text)
		}
		if err := os.WriteFile(list, []byte(plain), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kubectl(t, "delete", "gateschedules,taktnetworks", "--all")
	kubectl(t, "apply", "-f", os.Getenv("TAKT_LEAVING_CHART"))
	until(t, "the agent says which pod it waits for", func() bool {
		pods, err := client.CoreV1().Pods("kube-system").List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=takt-node", FieldSelector: "spec.nodeName=node-2"})
		if err != nil || len(pods.Items) != 1 {
			return false
		}
		answer, err := client.CoreV1().RESTClient().Get().Namespace("kube-system").Resource("pods").Name(pods.Items[0].Name).SubResource("log").DoRaw(ctx)
		return err == nil && strings.Contains(string(answer), "delete default/talker")
	})
	remove(t, "talker", "used")
	kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/takt-node", "--timeout=3m")
	kubectl(t, "delete", "-f", os.Getenv("TAKT_CHART"), "--timeout=2m")
	kubectl(t, "-n", "kube-system", "delete", "lease", "takt-controller")

	for _, node := range nodes {
		until(t, "nothing of Takt is left on "+node, func() bool { return len(leftOn(t, node)) == 0 })
		if left := leftInTaktd(t, node); len(left) > 0 {
			t.Errorf("taktd of %s still has %v", node, left)
		}
	}
	nothingInTheCluster(t)
	ordinary.goesOn(t, "ordinary pods have reached each other all the while")
	// A pod may start, annotated or not: the node is as one without Takt.
	create(t, on("node-2", python("later", timeSensitive, listening)))
	says(t, "later", "listening")
}
