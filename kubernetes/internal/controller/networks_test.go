package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
)

// serve has all nodes serve a VXLAN.
func (w *World) serve(name string, vni int32) *network.TaktNetwork {
	one := &network.TaktNetwork{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: vxlan(vni)}
	w.Networks = append(w.Networks, one)
	for _, member := range w.Members {
		member.Status.Networks = append(member.Status.Networks, serving(name))
	}
	return one
}

// run adds a pod; with an interface, its node tells of it.
func (w *World) run(name, node string, age time.Duration, ip, mac string, addresses ...string) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(w.Now.Add(-age))}}
	pod.Spec.NodeName = node
	if ip != "" {
		pod.Status.PodIPs = []corev1.PodIP{{IP: ip}}
	}
	w.Pods["default/"+name] = pod
	for _, member := range w.Members {
		if member.Name == node && mac != "" {
			one := endpoint(name, mac, "")
			one.Addresses = addresses
			member.Status.Endpoints = append(member.Status.Endpoints, one)
		}
	}
}

func (p *Plan) stations(node string) (found []string) {
	for _, station := range p.Specs[node].Stations {
		found = append(found, station.MAC+" "+strings.Join(station.Addresses, ","))
	}
	return found
}

func (p *Plan) told(about, reason string) string {
	for _, event := range p.Events {
		if event.About.(metav1.Object).GetName() == about && event.Reason == reason {
			return event.Message
		}
	}
	return ""
}

func TestANodeClaimsNoAddressThatTheClusterKnowsToBeAnothers(t *testing.T) {
	w := worldOf("node-1", "node-2")
	tsn := w.serve("tsn", 42)
	tsn.Spec.Stations = []network.Place{{MAC: "02:00:00:00:00:F9", VTEP: "192.0.2.9", Addresses: []string{"10.50.9.9"}}}
	// Of the cluster's own network, attached to none of Takt.
	w.run("database", "node-2", time.Hour, "10.244.2.7", "")
	w.run("mine", "node-1", time.Minute, "10.244.1.1", "02:00:00:00:00:01", "10.244.1.1/24", "10.244.1.1/24", "fe80::1/64")
	w.run("pods", "node-1", time.Minute, "10.244.1.2", "02:00:00:00:00:02", "10.244.2.7/24")
	w.run("nodes", "node-1", time.Minute, "10.244.1.3", "02:00:00:00:00:03", "192.0.2.2/24")
	w.run("outside", "node-1", time.Minute, "10.244.1.4", "02:00:00:00:00:04", "10.50.9.9/16")
	w.run("mac", "node-1", time.Minute, "10.244.1.5", "02:00:00:00:00:f9", "10.50.0.5/16")
	// Its status says so, too: the older pod has it.
	w.run("status", "node-1", time.Minute, "10.244.2.7", "02:00:00:00:00:06", "10.244.2.7/24")
	w.run("no-mac", "node-1", time.Minute, "10.244.1.8", "02-00", "10.50.0.8/16")
	p := w.Make()
	if got := p.stations("node-1"); !slices.Equal(got, []string{"02:00:00:00:00:01 10.244.1.1,fe80::1"}) {
		t.Errorf("node-1 has %q", got)
	}
	for pod, whose := range map[string]string{"pods": "pod default/database", "nodes": "node node-2", "outside": "station 02:00:00:00:00:F9", "mac": "station 02:00:00:00:00:F9", "status": "pod default/database"} {
		if said := p.told(pod, reasonConflict); !strings.Contains(said, whose) {
			t.Errorf("pod %s is told %q and not of %s", pod, said, whose)
		}
	}
}

// Its pods run, and other nodes forget them at once.
func TestAPodIsToldThatItsNetworkIsDeleted(t *testing.T) {
	w := worldOf("node-1", "node-2")
	w.run("mine", "node-1", time.Minute, "", "02:00:00:00:00:01", "10.50.0.1/16")
	if said := w.next().told("mine", reasonUnknown); said != "" {
		t.Errorf("without any TaktNetwork the pod is told %q", said)
	}
	w.serve("tsn", 42)
	if p := w.next(); len(p.stations("node-1")) != 1 || p.told("mine", reasonUnknown) != "" {
		t.Fatalf("node-1 has %q, told %+v", p.stations("node-1"), p.Events)
	}
	w.Networks = nil
	p := w.next()
	if said := p.told("mine", reasonUnknown); len(p.stations("node-1")) > 0 || !strings.Contains(said, "network tsn, of which there is no TaktNetwork") || !strings.Contains(said, "Create it, again if it was deleted") {
		t.Errorf("node-1 has %q, and the pod is told %q", p.stations("node-1"), said)
	}
}

// Of what a TaktNode has no room for, the rest is written all the same.
func TestWhatATaktNodeHasNoRoomForIsLeftOut(t *testing.T) {
	w := worldOf("node-1")
	w.serve("tsn", 42)
	for at := range mostStations + 1 {
		w.run(fmt.Sprintf("pod-%04d", at), "node-1", time.Minute, "", fmt.Sprintf("02:00:00:00:%02x:%02x", at/256, at%256), fmt.Sprintf("10.50.%d.%d/16", at/250, at%250+1))
	}
	for at := range mostNetworks {
		w.serve(fmt.Sprintf("z-%03d", at), int32(1000+at))
	}
	p := w.Make()
	if got := len(p.Specs["node-1"].Stations); got != mostStations {
		t.Errorf("%d stations", got)
	}
	if p.told(fmt.Sprintf("pod-%04d", mostStations), reasonTooMany) == "" {
		t.Error("the pod that is left out is not told")
	}
	if got := len(p.Specs["node-1"].Networks); got != mostNetworks || !is(p.Networks["z-255"].Conditions, network.Accepted, false, "TooManyNetworks", "256") {
		t.Errorf("%d networks, the last one is %+v", got, p.Networks["z-255"].Conditions)
	}
	// One that is refused after a change keeps its place.
	w.next()
	w.Networks[1].Spec.NodeSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}
	if p := w.next(); len(p.Specs["node-1"].Networks) != mostNetworks || !is(p.Networks["z-255"].Conditions, network.Accepted, false, "TooManyNetworks", "256") {
		t.Errorf("%d networks", len(p.Specs["node-1"].Networks))
	}
}

func TestWhatANodeSaysIsNotWrittenAsTheAPIServerWouldNotTakeIt(t *testing.T) {
	w := worldOf("node-1")
	w.serve("tsn", 42)
	said := &w.Members[0].Status.Networks[0]
	said.Reason, said.Message, said.VTEP = "not an identifier!", strings.Repeat("é", 2000), "nowhere"
	found := w.Make().Networks["tsn"].Conditions[1]
	if found.Reason != "Unspecified" || !utf8.ValidString(found.Message) || len(found.Message) > 1024 || len(found.Message) < 1000 {
		t.Errorf("the condition is %+v", found)
	}
	said.Reason = network.Serving
	if vteps := w.Make().Specs["node-1"].VTEPs; len(vteps) != 1 || vteps[0].Address != "192.0.2.1" {
		t.Errorf("the tunnel ends at %+v", vteps)
	}
}

func TestAScheduleWhoseStatusIsNotTakenHoldsUpNothingElse(t *testing.T) {
	w := worldOf("node-1", "node-2")
	a, b := scheduleOf("a", time.Hour, "node-1"), scheduleOf("b", 0, "node-2")
	w.Schedules = []*network.GateSchedule{a, b}
	for range 3 {
		w.next()
	}
	before := w.Members[0].Spec.Schedules[0]
	for _, g := range w.Schedules {
		g.Generation = 2
		fill(g, 7, 6, 0)
	}
	p := w.Make()
	p.hold(w.Members, map[types.UID]bool{"a": true})
	if got := p.Specs["node-1"].Schedules; len(got) != 1 || got[0].Generation != 1 || got[0].BeginsNanoseconds != before.BeginsNanoseconds {
		t.Errorf("node-1 is assigned %+v", got)
	}
	if got := p.Specs["node-2"].Schedules; len(got) != 1 || got[0].Generation != 2 {
		t.Errorf("node-2 is assigned %+v", got)
	}
}

// What is not said of a node that has not spoken is not taken from it.
func TestATaktNodeIsPlannedOnceItsNodeHasSpoken(t *testing.T) {
	w := worldOf("node-1", "node-2")
	w.Members[1].Status = network.TaktNodeStatus{}
	if p := w.Make(); !p.Specs["node-1"].Planned || p.Specs["node-2"].Planned {
		t.Errorf("they are %+v and %+v", p.Specs["node-1"], p.Specs["node-2"])
	}
	w.Members[1].Spec.Planned = true
	if p := w.Make(); !p.Specs["node-2"].Planned {
		t.Error("it is so no more")
	}
}

// A node that has had a station may say of it what it likes; an address that another one has had is not its.
func TestAnAddressStaysWithTheStationThatHasHadIt(t *testing.T) {
	w := worldOf("node-a", "node-z")
	w.serve("tsn", 42)
	w.run("thief", "node-a", time.Hour, "", "02:00:00:00:00:01", "10.50.0.1/16")
	w.run("victim", "node-z", time.Hour, "", "02:00:00:00:00:02", "10.50.0.2/16", "10.50.0.3/16")
	w.next()
	thief, victim := &w.Members[0].Status.Endpoints[0], &w.Members[1].Status.Endpoints[0]
	// Also while the victim has one address more, or one less.
	for _, addresses := range [][]string{{"10.50.0.2/16", "10.50.0.3/16"}, {"10.50.0.2/16", "10.50.0.4/16"}} {
		thief.Addresses, victim.Addresses = []string{"10.50.0.1/16", "10.50.0.2/16"}, addresses
		for range 2 {
			p := w.next()
			if len(p.stations("node-a")) > 0 || len(p.stations("node-z")) != 1 {
				t.Fatalf("node-a has %q, node-z has %q", p.stations("node-a"), p.stations("node-z"))
			}
			if said := p.told("thief", reasonConflict); !strings.Contains(said, "10.50.0.2 of network tsn is pod default/victim's") || p.told("victim", reasonConflict) != "" {
				t.Errorf("the pods are told %q and %q", said, p.told("victim", reasonConflict))
			}
		}
	}
	// When it has gone, the address is the other's.
	delete(w.Pods, "default/victim")
	if p := w.next(); len(p.stations("node-a")) != 1 {
		t.Errorf("node-a has %q", p.stations("node-a"))
	}
}

// A station outside that is entered later takes no address from a pod, and a pod that comes later none from it.
func TestAnAddressStaysWithThePodOrTheStationOutsideThatHadItFirst(t *testing.T) {
	w := worldOf("node-1")
	tsn := w.serve("tsn", 42)
	w.run("first", "node-1", time.Hour, "", "02:00:00:00:00:01", "10.50.0.1/16")
	w.next()
	tsn.Spec.Stations = []network.Place{
		{MAC: "02:00:00:00:0A:01", VTEP: "198.51.100.7", Addresses: []string{"10.50.0.1"}},
		{MAC: "02:00:00:00:0a:02", VTEP: "198.51.100.7", Addresses: []string{"10.50.0.2"}},
	}
	w.run("second", "node-1", time.Hour, "", "02:00:00:00:00:02", "10.50.0.2/16")
	for range 2 {
		p := w.next()
		if got := p.stations("node-1"); len(got) != 1 || !strings.Contains(fmt.Sprint(got), "02:00:00:00:00:01") {
			t.Fatalf("node-1 has %q", got)
		}
		if said := p.told("tsn", reasonConflict); !strings.Contains(said, "station 02:00:00:00:0A:01 is entered on no node: pod default/first has 10.50.0.1, and keeps it") || p.told("first", reasonConflict) != "" {
			t.Errorf("the network is told %q, the pod %q", said, p.told("first", reasonConflict))
		}
		if said := p.told("second", reasonConflict); !strings.Contains(said, "is that of station 02:00:00:00:0a:02 outside of the cluster") {
			t.Errorf("the pod that came later is told %q", said)
		}
	}
}

// A mistake in an object that is in use cuts nobody off.
func TestWhatANodeHasServedGoesOnWhileItsTaktNetworkSaysSomethingElse(t *testing.T) {
	w := worldOf("node-1", "node-2")
	tsn := w.serve("tsn", 42)
	w.run("talker", "node-1", time.Hour, "", "02:00:00:00:00:01", "10.50.0.1/16")
	w.next()
	here := &w.Members[0].Status.Networks[0]
	for _, reason := range []string{network.Differs, network.MTUTooLarge, network.NoUplink, network.NotFollowed} {
		here.Reason, here.Message, here.VTEP = reason, "make them the same", ""
		p := w.next()
		if vteps, stations := p.Specs["node-1"].VTEPs, p.stations("node-1"); len(vteps) != 1 || vteps[0].Address != "192.0.2.1" || len(stations) != 1 {
			t.Errorf("%s: the tunnel ends at %+v, stations are %q", reason, vteps, stations)
		}
		if !is(p.Networks["tsn"].Conditions, network.Served, false, reason, "make them the same. Until then what was there goes on as it was") {
			t.Errorf("%s: said is %+v", reason, p.Networks["tsn"].Conditions)
		}
	}
	// Also where it is no VXLAN any more by its object, and back.
	id := int32(42)
	tsn.Spec = network.TaktNetworkSpec{VLAN: &id}
	here.Reason = network.Differs
	for range 2 {
		if p := w.next(); len(p.stations("node-1")) != 1 || p.Specs["node-1"].Stations[0].VTEP != "192.0.2.1" {
			t.Errorf("stations are %+v", p.Specs["node-1"].Stations)
		}
	}
	here.Reason = network.Serving
	for range 2 {
		if p := w.next(); len(p.stations("node-1")) != 1 || p.Specs["node-1"].Stations[0].VTEP != "" {
			t.Errorf("stations are %+v", p.Specs["node-1"].Stations)
		}
	}
	tsn.Spec = vxlan(42)
	here.Reason = network.Differs
	for range 2 {
		if p := w.next(); len(p.stations("node-1")) != 1 || p.Specs["node-1"].Stations[0].VTEP != "" {
			t.Errorf("stations are %+v", p.Specs["node-1"].Stations)
		}
	}
	// Another node has the address by now.
	tsn.Spec.Uplink = "eth1"
	here.Reason, here.VTEP = network.Serving, "198.51.100.1"
	w.next()
	here.Reason, here.VTEP = network.NoUplink, ""
	w.Members[1].Status.Networks[0].VTEP = "198.51.100.1"
	if p := w.next(); len(p.Specs["node-1"].VTEPs) != 0 || p.Specs["node-2"].VTEPs[0].Address != "198.51.100.1" {
		t.Errorf("tunnels end at %+v and %+v", p.Specs["node-1"].VTEPs, p.Specs["node-2"].VTEPs)
	}
	// taktd does not have it any more.
	w.Members[1].Status.Networks[0].Reason = network.NotConfigured
	if p := w.next(); len(p.Specs["node-2"].VTEPs) != 0 {
		t.Errorf("the tunnel ends at %+v", p.Specs["node-2"].VTEPs)
	}
}

func TestPodsThatAreThereGoOnWhileTheirTaktNetworkIsRefused(t *testing.T) {
	w := worldOf("node-1", "node-2")
	other, tsn := w.serve("other", 41), w.serve("tsn", 42)
	w.run("talker", "node-1", time.Hour, "", "02:00:00:00:00:01", "10.50.0.1/16")
	w.next()
	w.run("late", "node-1", 0, "", "02:00:00:00:00:02", "10.50.0.2/16")
	late := w.Members[0].Status.Endpoints[1]
	w.Members[0].Status.Endpoints = w.Members[0].Status.Endpoints[:1]
	for reason, spec := range map[string]network.TaktNetworkSpec{
		"CarrierInUse": vxlan(41),
		"Invalid":      {VNI: tsn.Spec.VNI, NodeSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}},
	} {
		good := tsn.Spec
		tsn.Spec = spec
		for _, says := range []string{network.Differs, network.Serving} {
			w.Members[0].Status.Networks[1].Reason = says
			w.Members[0].Status.Endpoints = append(w.Members[0].Status.Endpoints[:1], late)
			p := w.next()
			if got := p.stations("node-1"); !slices.Equal(got, []string{"02:00:00:00:00:01 10.50.0.1"}) || p.Specs["node-1"].Stations[0].VTEP != "192.0.2.1" {
				t.Errorf("%s, %s: node-1 has %+v", reason, says, p.Specs["node-1"].Stations)
			}
			if !is(p.Networks["tsn"].Conditions, network.Accepted, false, reason, "Until then what was there goes on as it was") {
				t.Errorf("said is %+v", p.Networks["tsn"].Conditions)
			}
		}
		w.Members[0].Status.Networks[1].Reason, tsn.Spec = network.Serving, good
	}
	if p := w.next(); len(p.stations("node-1")) != 2 || !is(p.Networks["other"].Conditions, network.Served, true, "Serving", "2 nodes") {
		t.Errorf("node-1 has %q, %s is %+v", p.stations("node-1"), other.Name, p.Networks["other"].Conditions)
	}
	// One that never was accepted serves nobody.
	w.Networks = append(w.Networks, &network.TaktNetwork{ObjectMeta: metav1.ObjectMeta{Name: "zwei"}, Spec: vxlan(42)})
	if p := w.next(); slices.Contains(p.Specs["node-1"].Networks, "zwei") || !is(p.Networks["zwei"].Conditions, network.Accepted, false, "CarrierInUse", "tsn") || strings.Contains(fmt.Sprint(p.Networks["zwei"].Conditions), "goes on") {
		t.Errorf("it is %+v", p.Networks["zwei"].Conditions)
	}
}

// Whoever has a carrier keeps it, whatever is written into an older object.
func TestAMistakeInOneNetworkRefusesNoOther(t *testing.T) {
	w := worldOf("node-1", "node-2")
	older, younger := w.serve("older", 41), w.serve("younger", 42)
	younger.CreationTimestamp = metav1.NewTime(w.Now)
	older.Generation, younger.Generation = 1, 1
	w.next()
	older.Spec, older.Generation = vxlan(42), 2
	for range 2 {
		p := w.next()
		if !is(p.Networks["older"].Conditions, network.Accepted, false, "CarrierInUse", "younger") || !is(p.Networks["younger"].Conditions, network.Served, true, "Serving", "2 nodes") {
			t.Errorf("they are %+v and %+v", p.Networks["older"].Conditions, p.Networks["younger"].Conditions)
		}
	}
}

func TestATaktNodeThatIsMadeAnewHasItsPodsWhereTheirNetworkGoesOn(t *testing.T) {
	w := worldOf("node-1", "node-2")
	tsn := w.serve("tsn", 42)
	w.run("talker", "node-1", time.Hour, "", "02:00:00:00:00:01", "10.50.0.1/16")
	w.next()
	tsn.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"tsn": "yse"}}
	w.next()
	w.Members[0].Spec = network.TaktNodeSpec{}
	for range 3 {
		if p := w.next(); len(p.stations("node-1")) != 1 || len(p.Specs["node-1"].VTEPs) != 1 {
			t.Errorf("node-1 has %+v", p.Specs["node-1"])
		}
	}
}

func TestAPodWhoseAddressIsNoLongerInASubnetGoesOn(t *testing.T) {
	w := worldOf("node-1")
	tsn := w.serve("tsn", 42)
	w.run("talker", "node-1", time.Hour, "", "02:00:00:00:00:01", "10.50.0.1/16")
	w.next()
	tsn.Spec.Subnets = []string{"10.60.0.0/16"}
	w.run("late", "node-1", 0, "", "02:00:00:00:00:02", "10.50.0.2/16")
	for range 2 {
		p := w.next()
		if got := p.stations("node-1"); !slices.Equal(got, []string{"02:00:00:00:00:01 10.50.0.1"}) {
			t.Errorf("node-1 has %q", got)
		}
		if said := p.told("talker", reasonOutside); !strings.Contains(said, "the pod, which had it before, goes on as it was: correct") {
			t.Errorf("the pod is told %q", said)
		}
		if said := p.told("late", reasonOutside); !strings.Contains(said, "no other node knows the pod: correct") {
			t.Errorf("the pod that came later is told %q", said)
		}
	}
}

func TestATunnelEndpointIsTheNodesThatHasIt(t *testing.T) {
	w := worldOf("node-1", "node-2", "node-3")
	tsn := w.serve("tsn", 42)
	vteps := func(p *Plan) (found []string) {
		for _, member := range w.Members {
			for _, vtep := range p.Specs[member.Name].VTEPs {
				found = append(found, vtep.Address)
			}
		}
		return found
	}
	says := func(node int, vtep string) { w.Members[node].Status.Networks[0].VTEP = vtep }
	// Without an uplink it is the node's address, whatever a node says.
	says(1, "198.51.100.2")
	if got := vteps(w.next()); !slices.Equal(got, []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"}) {
		t.Errorf("tunnels end at %v", got)
	}
	tsn.Spec.Uplink = "eth1"
	says(0, "198.51.100.1")
	says(2, "198.51.100.3")
	if got := vteps(w.next()); !slices.Equal(got, []string{"198.51.100.1", "198.51.100.2", "198.51.100.3"}) {
		t.Errorf("tunnels end at %v", got)
	}
	// Another one's, by whatever name it comes, and another node's own address.
	for _, c := range []struct{ vtep, whose string }{{"198.51.100.2", "node node-2"}, {"192.0.2.3", "node node-3"}} {
		says(0, c.vtep)
		for range 2 {
			p := w.next()
			if got := vteps(p); !slices.Equal(got, []string{"198.51.100.2", "198.51.100.3"}) {
				t.Errorf("tunnels end at %v", got)
			}
			if !is(p.Networks["tsn"].Conditions, network.Served, false, reasonVTEP, "node node-1: its tunnel endpoint "+c.vtep+" is "+c.whose+"'s: give interface eth1 another address") {
				t.Errorf("it is %+v", p.Networks["tsn"].Conditions)
			}
		}
	}
}

// A kubelet that is taken over may write any address into its Node.
func TestANodesStatusTakesNoAddressThatIsAnothersAlready(t *testing.T) {
	for _, thief := range []string{"node-1", "node-3"} {
		w := worldOf("node-1", "node-2", "node-3")
		tsn := w.serve("tsn", 42)
		tsn.Spec.Uplink = "eth1"
		for at, member := range w.Members {
			member.Status.Networks[0].VTEP = fmt.Sprintf("198.51.100.%d", at+1)
		}
		w.run("talker", "node-2", time.Hour, "10.50.0.2", "02:00:00:00:00:02", "10.50.0.2/16")
		w.next()
		node := w.Nodes[thief]
		for _, address := range []string{"198.51.100.2", "10.50.0.2"} {
			node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
		}
		here := &w.Members[1].Status.Networks[0]
		for _, is := range []network.ServedNetwork{*here, {Name: "tsn", Reason: network.NoUplink, Message: "interface eth1 is down"}} {
			*here = is
			for range 2 {
				p := w.next()
				if got := p.Specs["node-2"]; len(got.VTEPs) != 1 || got.VTEPs[0].Address != "198.51.100.2" || len(got.Stations) != 1 || got.Stations[0].VTEP != "198.51.100.2" {
					t.Errorf("%s says it has them, %s: node-2 has %+v and %+v", thief, is.Reason, got.VTEPs, got.Stations)
				}
				if said := p.told("talker", reasonConflict); said != "" {
					t.Errorf("%s says it has them: the pod is told %q", thief, said)
				}
			}
		}
	}
}

// Whose address it is does not depend on names.
func TestAnAddressOfTwoNodesIsTheOlderOnesThatIsHeardOf(t *testing.T) {
	for _, older := range []string{"node-1", "node-2"} {
		w := worldOf("node-1", "node-2")
		for _, node := range w.Nodes {
			node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.9"}}
			node.CreationTimestamp = metav1.NewTime(w.Now)
		}
		w.run("pod", "node-1", 2*time.Hour, "192.0.2.9", "")
		w.Nodes[older].CreationTimestamp = metav1.NewTime(w.Now.Add(-time.Hour))
		if got := w.elsewhere()["192.0.2.9"]; got != "node "+older {
			t.Errorf("it is %s's, and %s is older", got, older)
		}
		w.Nodes[older].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
		if got := w.elsewhere()["192.0.2.9"]; got == "node "+older || !strings.HasPrefix(got, "node ") {
			t.Errorf("it is %s's, and %s is gone", got, older)
		}
	}
}

func TestPeersReachANodeWhereItsTaktdIs(t *testing.T) {
	internal := func(addresses ...string) (all []corev1.NodeAddress) {
		for _, address := range addresses {
			all = append(all, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
		}
		return all
	}
	external := append(internal("192.0.2.1"), corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "203.0.113.1"}, corev1.NodeAddress{Type: corev1.NodeHostName, Address: "node-1"})
	for _, c := range []struct {
		own      string
		has      []corev1.NodeAddress
		peer     string
		problems []string
	}{
		{"", internal("192.0.2.1", "2001:db8::1"), "192.0.2.1:7400", nil},
		{"0.0.0.0", internal("192.0.2.1"), "192.0.2.1:7400", nil},
		{"0.0.0.0", internal("2001:db8::1", "192.0.2.1"), "192.0.2.1:7400", nil},
		{"::", internal("192.0.2.1", "2001:db8::1"), "[2001:db8::1]:7400", nil},
		{"192.0.2.9", internal("192.0.2.1", "192.0.2.9"), "192.0.2.9:7400", nil},
		{"203.0.113.1", external, "203.0.113.1:7400", nil},
		{"0.0.0.0", internal("2001:db8::1"), "", []string{"taktd's address is 0.0.0.0", "[2001:db8::1]", "node.address", "--node-ip"}},
		{"198.51.100.1", internal("192.0.2.1"), "", []string{"taktd's address is 198.51.100.1", "[192.0.2.1]"}},
	} {
		w := worldOf("node-1")
		w.Nodes["node-1"].Status.Addresses = c.has
		w.Members[0].Status.Runtime = &network.Runtime{Address: c.own, Port: 7400, Key: "key"}
		spec := w.Make().Specs["node-1"]
		peer := ""
		if spec.Peer != nil {
			peer = spec.Peer.Address
		}
		said := !slices.ContainsFunc(c.problems, func(part string) bool { return !strings.Contains(spec.PeerProblem, part) })
		if peer != c.peer || !said || (spec.PeerProblem == "") != (c.problems == nil) {
			t.Errorf("taktd at %q of %v: it is reached at %q, %q", c.own, c.has, peer, spec.PeerProblem)
		}
	}
}

// Of two nodes with one address others would have now one key and now the other.
func TestAnAddressOfPeersIsOneNodesAlone(t *testing.T) {
	w := worldOf("node-a", "node-b")
	for at, member := range w.Members {
		member.Status.Runtime = &network.Runtime{Address: "0.0.0.0", Port: 7400, Key: "key-of-" + member.Name}
		w.Nodes[member.Name].CreationTimestamp = metav1.NewTime(w.Now.Add(time.Duration(at) * time.Hour))
	}
	same := func(names ...string) {
		for _, name := range names {
			w.Nodes[name].Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
		}
	}
	since := metav1.NewTime(w.Now)
	ready := func(name string, is corev1.ConditionStatus) {
		w.Nodes[name].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: is, Reason: "NodeStatusUnknown", LastTransitionTime: since}}
	}
	owner := func(when, whose string) {
		t.Helper()
		for range 2 {
			p := w.next()
			for _, member := range w.Members {
				spec := p.Specs[member.Name]
				if member.Name == whose && (spec.Peer == nil || spec.Peer.Key != "key-of-"+whose || spec.PeerProblem != "") {
					t.Errorf("%s: %s is %+v, %q", when, whose, spec.Peer, spec.PeerProblem)
				}
				if member.Name != whose && (spec.Peer != nil || !strings.Contains(spec.PeerProblem, "192.0.2.1:7400 is that of node "+whose+", too: delete the Node object")) {
					t.Errorf("%s: %s is %+v, %q", when, member.Name, spec.Peer, spec.PeerProblem)
				}
			}
		}
	}
	w.next()
	same("node-b")
	owner("a kubelet writes another's address into its Node", "node-a")
	since = metav1.NewTime(w.Now.Add(2 * time.Hour))
	ready("node-a", corev1.ConditionUnknown)
	owner("it waits until the other one's kubelet is silent", "node-a")
	since = metav1.NewTime(w.Now.Add(time.Minute))
	ready("node-a", corev1.ConditionUnknown)
	owner("the machine was installed anew as another node", "node-b")
	ready("node-a", corev1.ConditionTrue)
	owner("both are there, and one has had it", "node-b")
	for _, member := range w.Members {
		member.Spec.Peer = nil
	}
	owner("both are new", "node-b")
	ready("node-a", corev1.ConditionUnknown)
	owner("the older one is gone", "node-b")
	w.Members[0].Spec.Peer, w.Members[1].Spec.Peer = w.Members[1].Spec.Peer, nil
	ready("node-b", corev1.ConditionFalse)
	owner("neither is heard of", "node-a")
}
