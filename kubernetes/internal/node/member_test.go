package node

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/apitest"
	"github.com/takt-dev/takt/kubernetes/internal/objects"
)

// cluster is a real API server with a node whose taktd is real, too; the controller's part is the test's.
type cluster struct {
	*site
	client *objects.Client
	admin  adminv1.AdminClient
	agent  *Node
	leave  func()
}

var background = context.Background()

func newCluster(t *testing.T) *cluster {
	t.Helper()
	s := newSite(t)
	s.stop()
	config := apitest.Start(t, "../../../deploy/helm/takt-node/crds")
	client, err := objects.New(config)
	if err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err == nil {
		_, err = kube.CoreV1().Nodes().Create(background, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	s.config.Network = &NetworkConfig{Sockets: filepath.Join(s.dir, "cni"), AdminSocket: filepath.Join(s.dir, "admin.sock"), Preload: "/l.so", Objects: true, Peers: true}
	if err := s.config.Network.validate(); err != nil {
		t.Fatal(err)
	}
	connection, err := grpc.NewClient("unix:"+s.config.Network.AdminSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	c := &cluster{site: s, client: client, admin: adminv1.NewAdminClient(connection)}
	agent, err := New(nodeName, s.config, kube, s.events, s.backend)
	if err != nil {
		t.Fatal(err)
	}
	c.agent = agent
	c.join()
	t.Cleanup(func() { c.leave() })
	return c
}

// join has an agent take part; the one before has ended.
func (c *cluster) join() {
	c.t.Helper()
	if c.leave != nil {
		c.leave()
	}
	disconnect, err := c.agent.Join(c.client)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(background)
	var running sync.WaitGroup
	running.Go(func() { c.agent.cluster.run(ctx) })
	c.leave = func() { cancel(); running.Wait(); disconnect() }
}

// is waits for what the node says of itself.
func (c *cluster) is(what string, holds func(*network.TaktNodeStatus) bool) {
	c.t.Helper()
	var last string
	defer func() {
		if c.t.Failed() {
			c.t.Log(last)
		}
	}()
	apitest.Until(c.t, what, func() bool {
		found, err := c.client.Nodes.Get(background, nodeName, metav1.GetOptions{})
		last = fmt.Sprintf("%+v %v", found, err)
		return err == nil && holds(&found.Status)
	})
}

// told has a node's spec say something, as the controller does.
func (c *cluster) told(name string, change func(*network.TaktNodeSpec)) {
	c.t.Helper()
	if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now, err := c.client.Nodes.Get(background, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		now.Spec.Planned = true
		change(&now.Spec)
		_, err = c.client.Nodes.Update(background, now, metav1.UpdateOptions{})
		return err
	}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) network(name string, spec network.TaktNetworkSpec) {
	c.t.Helper()
	if _, err := c.client.Networks.Create(background, &network.TaktNetwork{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// stations are those that taktd has: MAC address, tunnel endpoint.
func (c *cluster) stations() (found []string) {
	list := func() (*adminv1.ListNetworksResponse, error) {
		return c.admin.ListNetworks(background, &adminv1.ListNetworksRequest{}, grpc.WaitForReady(true))
	}
	all, err := list()
	for status.Code(err) == codes.Unavailable {
		// It was asked over the connection to one that has been ended.
		all, err = list()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	for _, one := range all.GetNetworks() {
		for _, station := range one.GetStations() {
			found = append(found, one.GetName()+" "+station.GetMac()+" "+station.GetVtep())
		}
	}
	slices.Sort(found)
	return found
}

func (c *cluster) stationsAre(wanted ...string) {
	c.t.Helper()
	slices.Sort(wanted)
	apitest.Until(c.t, fmt.Sprintf("taktd has stations %q", wanted), func() bool { return slices.Equal(c.stations(), wanted) })
}

func reasonOf(s *network.TaktNodeStatus, name string) (reason, message string) {
	for _, one := range s.Networks {
		if one.Name == name {
			return one.Reason, one.Message
		}
	}
	return "", ""
}

func TestANodeSaysWhatItHasAndWhatIsMissing(t *testing.T) {
	c := newCluster(t)
	ready := func(status metav1.ConditionStatus, reason string) {
		t.Helper()
		c.is(fmt.Sprintf("ready is %s because of %s", status, reason), func(s *network.TaktNodeStatus) bool {
			found := meta.FindStatusCondition(s.Conditions, network.Ready)
			return found != nil && found.Status == status && found.Reason == reason
		})
	}
	ready(metav1.ConditionFalse, "RuntimeAbsent")
	vni, other, large, port := int32(42), int32(43), int32(1450), int32(8472)
	c.network("tsn", network.TaktNetworkSpec{VNI: &vni})
	c.network("differs", network.TaktNetworkSpec{VNI: &other})
	c.network("away", network.TaktNetworkSpec{})
	c.network("away-too", network.TaktNetworkSpec{VNI: &vni, Port: &port})
	c.network("no-uplink", network.TaktNetworkSpec{VLAN: &vni, Uplink: "nonesuch"})
	names := []string{"away", "away-too", "differs", "no-uplink", "tsn"}
	// An interface of this machine that has an address, if there is one: a VXLAN's frames are longer than its pods'.
	links, _ := net.Interfaces()
	at := slices.IndexFunc(links, func(link net.Interface) bool {
		return link.Flags&net.FlagUp != 0 && len(addressesOf(&link)) > 0 && link.MTU <= 65535
	})
	config := "[[network]]\nname = \"tsn\"\ncarrier = \"vxlan:42\"\n[[network]]\nname = \"differs\"\ncarrier = \"vxlan:44\"\n" +
		"[[network]]\nname = \"no-uplink\"\ncarrier = \"vlan:42\"\n[[network]]\nname = \"own\"\ncarrier = \"vxlan:45\"\n[[network]]\nname = \"large\"\ncarrier = \"vxlan:46\"\n"
	if at >= 0 {
		large = int32(links[at].MTU)
		vni46 := int32(46)
		c.network("large", network.TaktNetworkSpec{VNI: &vni46, Uplink: links[at].Name, MTU: &large})
		names = append(names, "large")
	}
	c.told(nodeName, func(s *network.TaktNodeSpec) { s.Networks = names })
	kill := c.taktd(config)
	ready(metav1.ConditionTrue, "Serving")
	for name, want := range map[string][2]string{
		"tsn": {network.Serving, ""}, "differs": {network.Differs, "vxlan:44"}, "away": {network.NotConfigured, "add one with carrier = \"native\" to"},
		"away-too":  {network.NotConfigured, "add one with carrier = \"vxlan:42\" and port = 8472 to"},
		"no-uplink": {network.NoUplink, "nonesuch"}, "own": {network.UnknownNetwork, "Create one with vxlan:45"}, "large": {network.MTUTooLarge, fmt.Sprintf("mtu: %d at most", large-50)},
	} {
		if name == "large" && (at < 0 || addressesOf(&links[at])[0].Is6()) {
			continue
		}
		c.is(name+" is "+want[0], func(s *network.TaktNodeStatus) bool {
			reason, message := reasonOf(s, name)
			return reason == want[0] && strings.Contains(message, want[1])
		})
	}
	c.is("key, clock and datapaths are told", func(s *network.TaktNodeStatus) bool {
		return s.Runtime.Key != "" && s.Runtime.Port == 7400 && s.Clock != nil && slices.ContainsFunc(s.Datapaths, func(d network.Datapath) bool { return d.Name == "udp" && d.Available })
	})
	kill()
	ready(metav1.ConditionFalse, "RuntimeAbsent")
	c.is("what was told last stays", func(s *network.TaktNodeStatus) bool { return s.Runtime != nil && s.Runtime.Key != "" })
}

func TestTheMTUOfANativeNetworkFitsTheInterfaceThatTaktdHasForIt(t *testing.T) {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		device string
		mtu    int
		reason string
	}{{"lo", lo.MTU, network.Serving}, {"lo", lo.MTU + 1, network.MTUTooLarge}, {"", lo.MTU + 1, network.Serving}, {"gone", lo.MTU + 1, network.Serving}} {
		mtu := int32(tc.mtu)
		wanted := &network.TaktNetwork{Spec: network.TaktNetworkSpec{MTU: &mtu}}
		reason, message, _ := (&member{}).fits(wanted, &adminv1.Network{Interface: tc.device})
		if reason != tc.reason || reason != network.Serving && !strings.Contains(message, fmt.Sprintf("write mtu: %d at most", lo.MTU)) {
			t.Errorf("mtu %d at %q: %s, %s", mtu, tc.device, reason, message)
		}
	}
}

func TestANodeKnowsThePodsAndRuntimesOfOthersAndForgetsNoOperatorsEntry(t *testing.T) {
	c := newCluster(t)
	config := "[node]\naddress = \"127.0.0.1\"\n[[network]]\nname = \"tsn\"\ncarrier = \"vxlan:42\"\nstations = [{ mac = \"02:00:00:00:00:09\", vtep = \"192.0.2.9\" }]\n"
	kill := c.taktd(config)
	const operators = "tsn 02:00:00:00:00:09 192.0.2.9"
	c.stationsAre(operators)
	c.is("the node has made its object", func(*network.TaktNodeStatus) bool { return true })
	c.told(nodeName, func(*network.TaktNodeSpec) {})
	// What says how things are on the other node is the spec alone: its status is not believed.
	if _, err := c.client.Nodes.Create(background, &network.TaktNode{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}, Spec: network.TaktNodeSpec{
		Planned: true, VTEPs: []network.VTEP{{Network: "tsn", Address: "192.0.2.2"}},
		Stations: []network.Station{{Network: "tsn", Place: network.Place{MAC: "02:00:00:00:00:02", VTEP: "192.0.2.2", Addresses: []string{"10.50.0.2"}}}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const flood = "tsn 00:00:00:00:00:00 192.0.2.2"
	c.stationsAre(operators, flood, "tsn 02:00:00:00:00:02 192.0.2.2")
	// It has moved to where another tunnel ends.
	c.told("node-2", func(s *network.TaktNodeSpec) { s.Stations[0].VTEP = "192.0.2.3" })
	c.stationsAre(operators, flood, "tsn 02:00:00:00:00:02 192.0.2.3")
	// A runtime that starts anew is told again; one that the agent has told before it ended is taken back by the next one.
	kill()
	c.taktd(config)
	c.stationsAre(operators, flood, "tsn 02:00:00:00:00:02 192.0.2.3")
	c.leave()
	c.leave = nil
	c.told("node-2", func(s *network.TaktNodeSpec) { s.Stations, s.VTEPs = nil, nil })
	c.join()
	c.stationsAre(operators)

	peers := func() (found []string) {
		all, err := c.admin.ListPeers(background, &adminv1.ListPeersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range all.GetPeers() {
			found = append(found, one.GetAddress()+" "+one.GetKey())
		}
		slices.Sort(found)
		return found
	}
	if _, err := c.admin.AddPeer(background, &adminv1.AddPeerRequest{Address: "127.0.0.9:7400", Key: key9}); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{key1, key2} {
		c.told("node-2", func(s *network.TaktNodeSpec) { s.Peer = &network.Peer{Address: "127.0.0.2:7400", Key: key} })
		apitest.Until(t, "the other node's key is known", func() bool { return slices.Equal(peers(), []string{"127.0.0.2:7400 " + key, "127.0.0.9:7400 " + key9}) })
	}
	if err := c.client.Nodes.Delete(background, "node-2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	apitest.Until(t, "the operator's peer alone is left", func() bool { return slices.Equal(peers(), []string{"127.0.0.9:7400 " + key9}) })
}

func TestANodeEntersWhatOthersHaveAsSoonAsItsRuntimeIsBack(t *testing.T) {
	was := lookAtTaktd
	lookAtTaktd = time.Hour
	t.Cleanup(func() { lookAtTaktd = was })
	c := newCluster(t)
	if _, err := c.client.Nodes.Create(background, nodeOf("node-2"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config := "[node]\naddress = \"127.0.0.1\"\n[[network]]\nname = \"tsn\"\ncarrier = \"vxlan:42\"\n"
	for range 3 {
		kill := c.taktd(config)
		c.stationsAre("tsn 02:00:00:00:00:02 192.0.2.2")
		kill()
	}
}

// Public keys of nobody.
const (
	key1 = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
	key2 = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI="
	key9 = "CQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQk="
)

func TestALinkHasTheClustersScheduleOrItsOperators(t *testing.T) {
	c := newCluster(t)
	c.taktd("")
	c.is("the node is ready", func(s *network.TaktNodeStatus) bool { return meta.IsStatusConditionTrue(s.Conditions, network.Ready) })
	far := objects.TAI() + 3_600_000_000_000
	revision := func(generation, begins int64, entries int) network.Revision {
		r := network.Revision{Name: "line", UID: "uid", Generation: generation, BeginsNanoseconds: begins}
		r.CycleTime = network.Duration(entries) * 1_000_000
		for range entries {
			r.Entries = append(r.Entries, network.GateEntry{Gates: []int32{0, 7}, Interval: 1_000_000})
		}
		return r
	}
	assign := func(r *network.Revision) {
		t.Helper()
		c.told(nodeName, func(s *network.TaktNodeSpec) {
			s.Schedules = nil
			if r != nil {
				s.Schedules = []network.Assignment{{Datapath: "udp", Revision: *r, Committed: r.BeginsNanoseconds < far}}
			}
		})
	}
	answered := func(of network.Revision, state, message string) {
		t.Helper()
		c.is(fmt.Sprintf("generation %d is %s", of.Generation, state), func(s *network.TaktNodeStatus) bool {
			return len(s.Schedules) == 1 && s.Schedules[0].Of(&of) && s.Schedules[0].State == state && strings.Contains(s.Schedules[0].Message, message)
		})
	}
	// has are the base times of what runs and what will.
	has := func() string {
		all, err := c.admin.ListSchedules(background, &adminv1.ListSchedulesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(present(linkOf(all, "udp")))
	}
	first, second, refused := revision(1, 1_000_000_001, 2), revision(2, far, 3), revision(3, far+1, 2)
	within := network.Duration(1)
	refused.RequireSync = &within
	assign(&first)
	answered(first, network.Running, "")
	assign(&second)
	answered(second, network.Pending, "")
	if got, want := has(), fmt.Sprint([]int64{1_000_000_001, far}); got != want {
		t.Errorf("the link has %s and not %s", got, want)
	}
	// The way back, also for an agent that has not come this far itself.
	c.join()
	assign(&first)
	answered(first, network.Running, "")
	assign(&refused)
	answered(refused, network.Refused, "clock")
	if got := has(); got != "[1000000001]" {
		t.Errorf("a refused schedule has left %s", got)
	}
	// Taken away with the refused one still assigned: what runs is the cluster's all the same.
	assign(nil)
	apitest.Until(t, "the link has none", func() bool { return has() == "[]" })

	own := &adminv1.InstallScheduleRequest{Datapath: "udp", Schedule: &adminv1.GateSchedule{BaseTimeNs: 5, CycleTimeNs: 1_000_000, Entries: []*adminv1.GateEntry{{Gates: 255, IntervalNs: 1_000_000}}}}
	if _, err := c.admin.InstallSchedule(background, own); err != nil {
		t.Fatal(err)
	}
	assign(&first)
	answered(first, network.Refused, "not the cluster's")
	assign(nil)
	c.is("nothing is assigned", func(s *network.TaktNodeStatus) bool { return len(s.Schedules) == 0 })
	if got := has(); got != "[5]" {
		t.Errorf("the operator's schedule has become %s", got)
	}
	c.told(nodeName, func(s *network.TaktNodeSpec) {
		s.Schedules = []network.Assignment{{Datapath: "nonesuch", Revision: first, Committed: true}}
	})
	answered(first, network.Refused, "taktd has no datapath nonesuch")
}

func TestANetworkIsForThoseWhoMayUseIt(t *testing.T) {
	c := newCluster(t)
	c.taktd(fmt.Sprintf("[node]\nstate = %q\n[[network]]\nname = \"tsn\"\ncarrier = \"vxlan:42\"\n", c.dir))
	for at, namespace := range []string{"plant", "office", "guests"} {
		directory := filepath.Join(c.config.Network.Sockets, namespace, "net1")
		if err := os.MkdirAll(directory, 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := c.admin.SetListener(background, &adminv1.SetListenerRequest{Listener: &adminv1.Listener{
			Path: filepath.Join(directory, "takt.sock"), Identity: namespace + "/pod/net1", Classes: []uint32{0, 5},
			Endpoint: &adminv1.Endpoint{Network: "tsn", Mac: fmt.Sprintf("02:00:00:00:00:%02d", at+1), Addresses: []string{fmt.Sprintf("10.50.0.%d/24", at+1)}},
		}}, grpc.WaitForReady(true)); err != nil {
			t.Fatal(err)
		}
	}
	c.is("the pods' endpoints are told", func(s *network.TaktNodeStatus) bool {
		return len(s.Endpoints) == 3 && s.Endpoints[0].Namespace == "guests"
	})
	allowed := func(namespace string) error {
		return c.agent.allowed(background, &api.PodSandbox{Id: namespace, Namespace: namespace, Name: "pod"}, []string{"net1"})
	}
	if err := allowed("guests"); err == nil || !strings.Contains(err.Error(), "there is no TaktNetwork tsn") {
		t.Errorf("a network that the cluster says nothing of: %v", err)
	}
	vni := int32(42)
	c.network("tsn", network.TaktNetworkSpec{VNI: &vni, Access: []network.Access{{Namespaces: []string{"plant"}, Classes: []int32{5}}, {Namespaces: []string{"plant", "office"}, Classes: []int32{0}}}})
	apitest.Until(t, "guests may not use it", func() bool {
		err := allowed("guests")
		return err != nil && strings.HasPrefix(err.Error(), codeNotAllowed+": ") && strings.Contains(err.Error(), "add it to access")
	})
	if err := allowed("plant"); err != nil {
		t.Errorf("plant may not use it: %v", err)
	}
	if err := allowed("office"); err != nil {
		t.Errorf("office may not use it: %v", err)
	}
	office := filepath.Join(c.config.Network.Sockets, "office", "net1", "takt.sock")
	if all, err := c.admin.ListListeners(background, &adminv1.ListListenersRequest{}); err != nil || !slices.ContainsFunc(all.GetListeners(), func(l *adminv1.ListenerStatus) bool {
		return l.GetListener().GetPath() == office && slices.Equal(l.GetListener().GetClasses(), []uint32{0})
	}) {
		t.Errorf("office has more than class 0: %v, %v", all, err)
	}
	if err := allowed("nowhere"); err == nil {
		t.Error("a pod that taktd does not know may use it")
	}
}
