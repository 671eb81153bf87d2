package controller

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/apitest"
	"github.com/takt-dev/takt/kubernetes/internal/objects"
)

var ctx = context.Background()

// events remembers what was told.
type events struct {
	mu  sync.Mutex
	all []string
}

func (e *events) Eventf(object runtime.Object, eventType, reason, message string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, fmt.Sprintf("%s %s %s: %s", object.(metav1.Object).GetName(), eventType, reason, fmt.Sprintf(message, args...)))
}

func (e *events) have(parts ...string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.all, func(one string) bool {
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(one, part) })
	})
}

// Each round has them anew, and an API server takes a few of an object alone.
func TestWhatHoldsForLongIsToldOnce(t *testing.T) {
	told := &events{}
	c := &Controller{events: told, told: map[string]bool{}}
	about := &network.TaktNetwork{ObjectMeta: metav1.ObjectMeta{Name: "tsn", UID: "tsn"}}
	for range 3 {
		c.tell([]Event{{About: about, Warning: true, Once: true, Reason: reasonConflict, Message: "station"}, {About: about, Reason: "Serving", Message: "2 nodes"}})
	}
	if len(told.all) != 4 {
		t.Errorf("told %q", told.all)
	}
}

// A status that is not taken has another instant in the next round, and one whose object is not seen yet is a conflict.
func TestWhatBecameOfAnObjectIsToldWhenItsStatusIsTaken(t *testing.T) {
	code := http.StatusInternalServerError
	server := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		object, _ := io.ReadAll(request.Body)
		answer.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(request.URL.Path, "/status") {
			answer.WriteHeader(code)
		}
		_, _ = answer.Write(object)
	}))
	defer server.Close()
	config := &rest.Config{Host: server.URL}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	client, err := objects.New(config)
	if err != nil {
		t.Fatal(err)
	}
	told := &events{}
	c := New(kube, client, told, time.Minute)
	w := worldOf("node-1")
	gate, tsn := scheduleOf("line", 0, "node-1"), w.serve("tsn", 42)
	tsn.UID = "tsn"
	for object, informer := range map[runtime.Object]cache.SharedIndexInformer{w.Members[0]: c.members, w.Nodes["node-1"]: c.nodes, gate: c.schedules, tsn: c.networks} {
		if err := informer.GetStore().Add(object); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		code int
		told []string
	}{
		{http.StatusInternalServerError, nil},
		{http.StatusInternalServerError, nil},
		{http.StatusOK, []string{"line Normal Accepted", "line Normal Installing", "tsn Normal Accepted", "tsn Normal Serving"}},
		{http.StatusConflict, nil},
	} {
		code, told.all = step.code, nil
		if err := c.round(ctx); (err != nil) != (code == http.StatusInternalServerError) {
			t.Errorf("%d: %v", code, err)
		}
		slices.Sort(told.all)
		if len(told.all) != len(step.told) {
			t.Fatalf("%d: told %q and not %q", code, told.all, step.told)
		}
		for at, begin := range step.told {
			if !strings.HasPrefix(told.all[at], begin+": ") {
				t.Errorf("%d: told %q and not %q", code, told.all, step.told)
			}
		}
	}
}

// site is an API server with a controller, and nodes that do nothing by themselves: the test says what they say.
type site struct {
	t      *testing.T
	kube   *kubernetes.Clientset
	client *objects.Client
	events *events
	lead   time.Duration
	stop   func()
}

func newSite(t *testing.T, nodes ...string) *site {
	t.Helper()
	config := apitest.Start(t, "../../../deploy/helm/takt-node/crds")
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	client, err := objects.New(config)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, kube: kube, client: client, events: &events{}, lead: time.Minute}
	for at, name := range nodes {
		s.node(name, fmt.Sprintf("192.0.2.%d", at+1))
	}
	s.start()
	t.Cleanup(func() { s.stop() })
	return s
}

// start has another replica lead.
func (s *site) start() {
	if s.stop != nil {
		s.stop()
	}
	running, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	c := New(s.kube, s.client, s.events, s.lead)
	group.Go(func() { _ = c.Run(running) })
	s.stop = func() { cancel(); group.Wait() }
}

// node makes a node whose runtime is ready.
func (s *site) node(name, address string) {
	s.t.Helper()
	node, err := s.kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}}, metav1.CreateOptions{})
	if err == nil {
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
		_, err = s.kube.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	}
	if err == nil {
		_, err = s.client.Nodes.Create(ctx, &network.TaktNode{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.says(name, func(status *network.TaktNodeStatus) {
		status.Runtime = &network.Runtime{Version: "test", Port: 7400, Key: "key-of-" + name}
		status.Clock = &network.Clock{State: "Synchronised", TAIOffsetSeconds: 37}
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: network.Ready, Status: metav1.ConditionTrue, Reason: "Serving"})
	})
}

// says has a node say something of itself.
func (s *site) says(name string, change func(*network.TaktNodeStatus)) {
	s.t.Helper()
	if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now := s.member(name)
		change(&now.Status)
		_, err := s.client.Nodes.UpdateStatus(ctx, now, metav1.UpdateOptions{})
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) member(name string) *network.TaktNode {
	s.t.Helper()
	found, err := s.client.Nodes.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return found
}

func (s *site) pod(name, node string) {
	s.t.Helper()
	grace := int64(0)
	_, err := s.kube.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) network(name string, spec network.TaktNetworkSpec) {
	s.t.Helper()
	if _, err := s.client.Networks.Create(ctx, &network.TaktNetwork{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) networkIs(name, kind string, holds bool, reason, message string) {
	s.t.Helper()
	apitest.Until(s.t, fmt.Sprintf("network %s: %s is %v because of %s (%s)", name, kind, holds, reason, message), func() bool {
		found, err := s.client.Networks.Get(ctx, name, metav1.GetOptions{})
		return err == nil && is(found.Status.Conditions, kind, holds, reason, message)
	})
}

func is(conditions []metav1.Condition, kind string, holds bool, reason, message string) bool {
	found := meta.FindStatusCondition(conditions, kind)
	return found != nil && (found.Status == metav1.ConditionTrue) == holds && found.Reason == reason && strings.Contains(found.Message, message)
}

func vxlan(vni int32) network.TaktNetworkSpec { return network.TaktNetworkSpec{VNI: &vni} }

func serving(name string) network.ServedNetwork {
	return network.ServedNetwork{Name: name, Reason: network.Serving}
}

// macs are the stations that a node is believed to have, with what else is said of them.
func (s *site) stations(node string) (found []string) {
	for _, station := range s.member(node).Spec.Stations {
		found = append(found, station.Network+" "+station.MAC+" "+station.VTEP+" "+strings.Join(station.Addresses, ","))
	}
	return found
}

func (s *site) stationsAre(node string, wanted ...string) {
	s.t.Helper()
	apitest.Until(s.t, fmt.Sprintf("node %s has stations %v", node, wanted), func() bool { return slices.Equal(s.stations(node), wanted) })
}

func endpoint(pod, mac, address string) network.Endpoint {
	return network.Endpoint{Network: "tsn", Namespace: "default", Pod: pod, Interface: "net1", MAC: mac, Addresses: []string{address}}
}

func TestOtherNodesAreToldOfPodsThatAreThereAlone(t *testing.T) {
	s := newSite(t, "node-1", "node-2")
	spec := vxlan(42)
	spec.Subnets, spec.Uplink = []string{"10.50.0.0/16"}, "eth1"
	s.network("tsn", spec)
	for _, node := range []string{"node-1", "node-2"} {
		apitest.Until(t, node+" is to serve the network", func() bool { return slices.Equal(s.member(node).Spec.Networks, []string{"tsn"}) })
	}
	s.networkIs("tsn", network.Served, false, "NotAsked", "node node-1")
	s.says("node-1", func(n *network.TaktNodeStatus) { n.Networks = []network.ServedNetwork{serving("tsn")} })
	s.says("node-2", func(n *network.TaktNodeStatus) {
		n.Networks = []network.ServedNetwork{{Name: "tsn", Reason: network.MTUTooLarge, Message: "mtu 1500 does not fit eth1"}}
	})
	s.networkIs("tsn", network.Served, false, network.MTUTooLarge, "node node-2: mtu 1500 does not fit eth1")
	apitest.Until(t, "the network's event names node and reason", func() bool { return s.events.have("tsn Warning MTUTooLarge", "node-2") })
	s.says("node-2", func(n *network.TaktNodeStatus) {
		n.Networks = []network.ServedNetwork{{Name: "tsn", Reason: network.Serving, VTEP: "198.51.100.2"}}
	})
	s.networkIs("tsn", network.Served, true, "Serving", "2 nodes")

	s.pod("talker", "node-1")
	s.pod("listener", "node-2")
	s.says("node-1", func(n *network.TaktNodeStatus) {
		n.Endpoints = []network.Endpoint{
			endpoint("talker", "02:00:00:00:00:01", "10.50.1.1/16"),
			// Of a pod that is not there, and of one that is another node's.
			endpoint("nobody", "02:00:00:00:00:03", "10.50.1.3/16"),
			endpoint("listener", "02:00:00:00:00:02", "10.50.2.2/16"),
		}
	})
	s.stationsAre("node-1", "tsn 02:00:00:00:00:01 192.0.2.1 10.50.1.1")
	s.says("node-2", func(n *network.TaktNodeStatus) {
		n.Endpoints = []network.Endpoint{endpoint("listener", "02:00:00:00:00:02", "10.50.2.2/16")}
	})
	// The uplink's own address, where it has one.
	s.stationsAre("node-2", "tsn 02:00:00:00:00:02 198.51.100.2 10.50.2.2")
	if one, other := s.member("node-1").Spec, s.member("node-2").Spec; !reflect.DeepEqual(one.Peer, &network.Peer{Address: "192.0.2.1:7400", Key: "key-of-node-1"}) ||
		!reflect.DeepEqual(other.VTEPs, []network.VTEP{{Network: "tsn", Address: "198.51.100.2"}}) {
		t.Errorf("they are believed to be %+v and %+v", one, other)
	}
	// A key that changes is passed on before it does, and when it has.
	for _, keys := range [][2]string{{"key-of-node-1", "another"}, {"another", ""}} {
		s.says("node-1", func(n *network.TaktNodeStatus) { n.Runtime.Key, n.Runtime.NextKey = keys[0], keys[1] })
		apitest.Until(t, "the new key is known", func() bool {
			peer := s.member("node-1").Spec.Peer
			return peer.Key == keys[0] && peer.NextKey == keys[1]
		})
	}

	// Who has an address keeps it, whatever the order of names; the other pod is told.
	s.pod("late", "node-1")
	s.says("node-1", func(n *network.TaktNodeStatus) {
		n.Endpoints = append(n.Endpoints[:1], endpoint("late", "02:00:00:00:00:04", "10.50.2.2/16"))
	})
	apitest.Until(t, "the conflict is told", func() bool {
		return s.events.have("late Warning AddressConflict", "10.50.2.2", "default/listener")
	})
	s.stationsAre("node-1", "tsn 02:00:00:00:00:01 192.0.2.1 10.50.1.1")
	s.stationsAre("node-2", "tsn 02:00:00:00:00:02 198.51.100.2 10.50.2.2")
	// Another replica knows it as well.
	s.start()
	// When the pod is gone, the address is the other's: it is as if it had moved.
	if err := s.kube.CoreV1().Pods("default").Delete(ctx, "listener", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.stationsAre("node-2")
	s.stationsAre("node-1", "tsn 02:00:00:00:00:01 192.0.2.1 10.50.1.1", "tsn 02:00:00:00:00:04 192.0.2.1 10.50.2.2")

	s.pod("outside", "node-2")
	s.says("node-2", func(n *network.TaktNodeStatus) {
		n.Endpoints = []network.Endpoint{endpoint("outside", "02:00:00:00:00:05", "10.51.0.1/16")}
	})
	apitest.Until(t, "the wrong subnet is told", func() bool { return s.events.have("outside Warning AddressOutsideSubnet", "10.51.0.1") })
	s.says("node-2", func(n *network.TaktNodeStatus) {
		n.Endpoints = []network.Endpoint{{Network: "typo", Namespace: "default", Pod: "outside", Interface: "net1", MAC: "02:00:00:00:00:05"}}
	})
	apitest.Until(t, "the unknown network is told", func() bool { return s.events.have("outside Warning UnknownNetwork", "typo") })
	s.stationsAre("node-2")

	// The same VXLAN twice is refused, and harms the first one in nothing.
	s.network("twice", vxlan(42))
	s.networkIs("twice", network.Accepted, false, "CarrierInUse", "tsn")
	s.networkIs("tsn", network.Accepted, true, "Accepted", "")

	// A runtime that is absent is said of the network; its pods stay known: the kernel takes their frames.
	s.says("node-1", func(n *network.TaktNodeStatus) {
		meta.SetStatusCondition(&n.Conditions, metav1.Condition{Type: network.Ready, Status: metav1.ConditionFalse, Reason: "RuntimeAbsent", Message: "taktd does not answer"})
	})
	s.networkIs("tsn", network.Served, false, "RuntimeAbsent", "node node-1: taktd does not answer")
	s.stationsAre("node-1", "tsn 02:00:00:00:00:01 192.0.2.1 10.50.1.1", "tsn 02:00:00:00:00:04 192.0.2.1 10.50.2.2")
	// A node that has gone is nobody's peer.
	if err := s.kube.CoreV1().Nodes().Delete(ctx, "node-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	apitest.Until(t, "the node is nobody's peer", func() bool { return s.member("node-1").Spec.Peer == nil })
}

// gates is a schedule of one entry after another, each a millisecond long.
func gates(name string, selects map[string]string, entries ...int32) *network.GateSchedule {
	g := &network.GateSchedule{ObjectMeta: metav1.ObjectMeta{Name: name}}
	g.Spec.Datapath, g.Spec.BaseTime = "udp", "5.000000001"
	if selects != nil {
		g.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: selects}
	}
	fill(g, entries...)
	return g
}

func fill(g *network.GateSchedule, entries ...int32) {
	g.Spec.Rate, g.Spec.CycleTime, g.Spec.Entries = 1_000_000_000, network.Duration(len(entries))*1_000_000, nil
	for _, class := range entries {
		g.Spec.Entries = append(g.Spec.Entries, network.GateEntry{Gates: []int32{class}, Interval: 1_000_000})
	}
}

func (s *site) install(g *network.GateSchedule) {
	s.t.Helper()
	if _, err := s.client.Schedules.Create(ctx, g, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) edit(name string, change func(*network.GateSchedule)) {
	s.t.Helper()
	if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now, err := s.client.Schedules.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(now)
		_, err = s.client.Schedules.Update(ctx, now, metav1.UpdateOptions{})
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
}

// assigned waits until a node is to have a generation of a schedule, and returns it.
func (s *site) assigned(node, name string, generation int64) (found network.Assignment) {
	s.t.Helper()
	apitest.Until(s.t, fmt.Sprintf("%s is to have %s, generation %d", node, name, generation), func() bool {
		all := s.member(node).Spec.Schedules
		if len(all) != 1 || all[0].Name != name || all[0].Generation != generation {
			return false
		}
		found = all[0]
		return true
	})
	return found
}

func (s *site) answers(node string, to network.Assignment, state, message string) {
	s.t.Helper()
	s.says(node, func(n *network.TaktNodeStatus) {
		n.Schedules = []network.LinkState{{
			Datapath: to.Datapath, Name: to.Name, UID: to.UID, Generation: to.Generation, BeginsNanoseconds: to.BeginsNanoseconds, State: state, Message: message,
		}}
	})
}

func (s *site) scheduleIs(name, kind string, holds bool, reason, message string) {
	s.t.Helper()
	apitest.Until(s.t, fmt.Sprintf("schedule %s: %s is %v because of %s (%s)", name, kind, holds, reason, message), func() bool {
		found, err := s.client.Schedules.Get(ctx, name, metav1.GetOptions{})
		return err == nil && is(found.Status.Conditions, kind, holds, reason, message)
	})
}

func TestAScheduleIsOnAllNodesFromOneInstantOrOnNone(t *testing.T) {
	s := newSite(t, "node-1", "node-2")
	s.install(gates("line", nil, 7, 0))
	one, two := s.assigned("node-1", "line", 1), s.assigned("node-2", "line", 1)
	if one.BeginsNanoseconds != two.BeginsNanoseconds || (one.BeginsNanoseconds-5_000_000_001)%2_000_000 != 0 {
		t.Errorf("they begin at %d and %d", one.BeginsNanoseconds, two.BeginsNanoseconds)
	}
	if ahead := one.BeginsNanoseconds - time.Now().UnixNano() - 37_000_000_000; ahead < 0 {
		t.Errorf("it begins %d ns ago", -ahead)
	}
	s.answers("node-1", one, network.Pending, "")
	s.scheduleIs("line", network.InForce, false, network.Installing, "2 nodes")
	if s.assigned("node-1", "line", 1).Committed {
		t.Error("it is committed while a node has not answered")
	}
	// Another replica goes on in the middle.
	s.start()
	s.answers("node-2", two, network.Pending, "")
	s.scheduleIs("line", network.InForce, false, network.Installing, "all 2 nodes have it, and it begins at ")
	s.answers("node-1", one, network.Running, "")
	s.answers("node-2", two, network.Running, "")
	s.scheduleIs("line", network.InForce, true, network.Installed, "on 2 nodes")
	apitest.Until(t, "it is committed", func() bool {
		return s.assigned("node-1", "line", 1).Committed && s.assigned("node-2", "line", 1).Committed
	})

	// The second generation: one node takes it, the other does not. Both get the first one back.
	s.edit("line", func(g *network.GateSchedule) { fill(g, 7, 5, 0) })
	next := s.assigned("node-1", "line", 2)
	if next.Previous == nil || next.Previous.Generation != 1 || len(next.Previous.Entries) != 2 {
		t.Errorf("what is given back is %+v", next.Previous)
	}
	s.answers("node-1", next, network.Pending, "")
	s.answers("node-2", s.assigned("node-2", "line", 2), network.Refused, "stream servo of default/vplc finds class 5 closed")
	back := s.assigned("node-1", "line", 1)
	if back.BeginsNanoseconds != one.BeginsNanoseconds || !back.Committed {
		t.Errorf("what was given back is %+v", back)
	}
	s.assigned("node-2", "line", 1)
	s.scheduleIs("line", network.InForce, false, network.RolledBack, "node node-2 refuses: stream servo")
	apitest.Until(t, "the event names node and reason", func() bool {
		return s.events.have("line Warning RolledBack", "node-2", "stream servo of default/vplc finds class 5 closed")
	})
	// It is not tried again by itself, by no replica.
	s.start()
	s.says("node-2", func(n *network.TaktNodeStatus) { n.Peers = "1/1" })
	s.network("wakes-the-controller", vxlan(7))
	s.networkIs("wakes-the-controller", network.Accepted, true, "Accepted", "")
	s.assigned("node-1", "line", 1)
	s.scheduleIs("line", network.InForce, false, network.RolledBack, "node-2")

	// A node that never answers is as good as one that refuses; the first generation stays.
	s.answers("node-1", back, network.Running, "")
	s.answers("node-2", back, network.Running, "")
	s.lead = 20 * time.Second
	s.start()
	s.edit("line", func(g *network.GateSchedule) { fill(g, 7, 4, 0) })
	s.answers("node-1", s.assigned("node-1", "line", 3), network.Pending, "")
	s.scheduleIs("line", network.InForce, false, network.RolledBack, "node-2 has not answered in time")
	s.assigned("node-1", "line", 1)
	s.lead = time.Minute
	s.start()
	// An edit in the middle of a rollout: the way back leads to what all had, not to what was never taken.
	s.edit("line", func(g *network.GateSchedule) { fill(g, 7, 3, 0) })
	s.assigned("node-2", "line", 4)
	s.edit("line", func(g *network.GateSchedule) { fill(g, 7, 2, 0) })
	if last := s.assigned("node-2", "line", 5); last.Previous == nil || last.Previous.Generation != 1 {
		t.Errorf("the way back leads to %+v", last.Previous)
	}
	for _, node := range []string{"node-1", "node-2"} {
		s.answers(node, s.assigned(node, "line", 5), network.Pending, "")
	}
	s.scheduleIs("line", network.InForce, false, network.Installing, "all 2 nodes have it, and it begins at ")
	for _, node := range []string{"node-1", "node-2"} {
		s.answers(node, s.assigned(node, "line", 5), network.Running, "")
	}
	s.scheduleIs("line", network.InForce, true, network.Installed, "on 2 nodes")

	// A node that joins gets it in phase; if it refuses, the others keep it.
	s.node("node-3", "192.0.2.3")
	joined := s.assigned("node-3", "line", 5)
	if begins := s.assigned("node-1", "line", 5).BeginsNanoseconds; joined.BeginsNanoseconds != begins {
		t.Errorf("it joins at %d, and the others have begun at %d", joined.BeginsNanoseconds, begins)
	}
	s.answers("node-3", joined, network.Refused, "no datapath udp")
	s.scheduleIs("line", network.InForce, false, network.Refused, "2/3 nodes: node node-3: no datapath udp")
	s.assigned("node-1", "line", 5)

	// Two for one link: the one that is there stays.
	s.install(gates("other", map[string]string{"name": "node-2"}, 0))
	s.scheduleIs("other", network.Accepted, false, "ScheduleConflict", "node node-2 has GateSchedule line on datapath udp")
	apitest.Until(t, "the conflict is told", func() bool { return s.events.have("other Warning ScheduleConflict", "line") })
	s.assigned("node-2", "line", 5)
	if err := s.client.Schedules.Delete(ctx, "line", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	apitest.Until(t, "node-1 has none any more", func() bool { return len(s.member("node-1").Spec.Schedules) == 0 })
	s.assigned("node-2", "other", 1)
}

func TestAScheduleThatCannotBeginSaysWhatIsMissing(t *testing.T) {
	s := newSite(t, "node-1", "node-2")
	nowhere := gates("nowhere", nil, 0)
	nowhere.Spec.Network = "typo"
	s.install(nowhere)
	s.scheduleIs("nowhere", network.Accepted, false, "UnknownNetwork", "there is no TaktNetwork typo")
	s.install(gates("nobody", map[string]string{"name": "node-9"}, 0))
	s.scheduleIs("nobody", network.InForce, false, "NoNodes", "nodeSelector")
	s.says("node-2", func(n *network.TaktNodeStatus) { n.Clock.TAIOffsetSeconds = 0 })
	s.install(gates("apart", nil, 0))
	s.scheduleIs("apart", network.InForce, false, "ClocksDisagree", "37 s on node node-1 and 0 s on node node-2")
	s.says("node-2", func(n *network.TaktNodeStatus) {
		meta.SetStatusCondition(&n.Conditions, metav1.Condition{Type: network.Ready, Status: metav1.ConditionFalse, Reason: "RuntimeAbsent", Message: "taktd does not answer: start it"})
	})
	s.scheduleIs("apart", network.InForce, false, "RuntimeAbsent", "node node-2: taktd does not answer: start it")
	if assigned := s.member("node-1").Spec.Schedules; len(assigned) > 0 {
		t.Errorf("half of it is made: %+v", assigned)
	}
	// It begins by itself when nothing stands in its way any more.
	s.says("node-2", func(n *network.TaktNodeStatus) {
		n.Clock.TAIOffsetSeconds = 37
		meta.SetStatusCondition(&n.Conditions, metav1.Condition{Type: network.Ready, Status: metav1.ConditionTrue, Reason: "Serving"})
	})
	s.assigned("node-2", "apart", 1)
	if err := s.client.Schedules.Delete(ctx, "apart", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	apitest.Until(t, "nothing of it is left", func() bool {
		return len(s.member("node-1").Spec.Schedules)+len(s.member("node-2").Spec.Schedules) == 0
	})
}
