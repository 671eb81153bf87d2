package controller

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
)

// Reasons of events about pods.
const (
	// reasonConflict: an address of the pod's is another pod's.
	reasonConflict = "AddressConflict"
	// reasonOutside: an address is in no subnet of the network.
	reasonOutside = "AddressOutsideSubnet"
	// reasonTooMany: the node has more pods than others are told of.
	reasonTooMany = "TooManyStations"
	// reasonUnknown: the pod is attached to a network that the cluster does not know.
	reasonUnknown = "UnknownNetwork"
	// reasonVTEP, of a network: a node's tunnel endpoint is another node's, or a pod's.
	reasonVTEP = "TunnelEndpointInUse"
)

// What a TaktNode has room for: the custom resource refuses more, and with it all that is said of the node.
const (
	mostStations  = 2048
	mostNetworks  = 256
	mostAddresses = 64
)

// untilThen ends what is said of a network that is not as it was.
const untilThen = ". Until then what was there goes on as it was"

func hostPort(address string, port int32) string {
	return net.JoinHostPort(address, strconv.Itoa(int(port)))
}

// planNetworks says of each network which nodes serve it, and of each node which of its pods others may send to.
func (w *World) planNetworks(p *Plan, specs map[string]*network.TaktNodeSpec) {
	nets := slices.Clone(w.Networks)
	slices.SortFunc(nets, func(a, b *network.TaktNetwork) int { return older(a, b) })
	named, carriers := map[string]*network.TaktNetwork{}, map[string]string{}
	refused, refusedFor := map[string]string{}, map[string]string{}
	// What nodes have keeps its place.
	had := map[string]bool{}
	for _, member := range w.Members {
		for _, name := range member.Spec.Networks {
			had[name] = true
		}
	}
	room := mostNetworks
	for _, one := range nets {
		if had[one.Name] {
			room--
		}
	}
	// A carrier is the network's that has it already; its object has not changed since.
	settled := func(one *network.TaktNetwork) int {
		accepted := meta.FindStatusCondition(one.Status.Conditions, network.Accepted)
		if accepted != nil && accepted.Status == metav1.ConditionTrue && accepted.ObservedGeneration == one.Generation {
			return 0
		}
		return 1
	}
	byRight := slices.Clone(nets)
	slices.SortStableFunc(byRight, func(a, b *network.TaktNetwork) int { return cmp.Compare(settled(a), settled(b)) })
	for _, one := range byRight {
		named[one.Name] = one
		if problem := selectorProblem(one.Spec.NodeSelector); problem != "" {
			refusedFor[one.Name], refused[one.Name] = "Invalid", problem
			continue
		}
		key := ""
		switch spec := &one.Spec; {
		case spec.VNI != nil:
			key = fmt.Sprintf("vni %d at port %d", *spec.VNI, spec.TunnelPort())
		case spec.VLAN != nil:
			key = fmt.Sprintf("vlan %d of uplink %q", *spec.VLAN, spec.Uplink)
		}
		if other := carriers[key]; key != "" && other != "" {
			refusedFor[one.Name] = "CarrierInUse"
			refused[one.Name] = fmt.Sprintf("%s is network %s's: choose another one", key, other)
			continue
		}
		if !had[one.Name] {
			if room == 0 {
				refusedFor[one.Name] = "TooManyNetworks"
				refused[one.Name] = fmt.Sprintf("the cluster has %d networks already, which is the limit: delete one of them", mostNetworks)
				continue
			}
			room--
		}
		carriers[key] = one.Name
	}
	// What a node has served goes on when its TaktNetwork says something else, by mistake or before its taktd does: the pods
	// that are there are known where they were.
	goesOn := map[string]bool{}
	for _, one := range nets {
		nobody := !slices.ContainsFunc(w.Members, func(member *network.TaktNode) bool { return w.selects(one.Spec.NodeSelector, member.Name) })
		goesOn[one.Name] = had[one.Name] && (nobody || refused[one.Name] != "")
	}
	serves := map[string]map[string]network.ServedNetwork{}
	for _, member := range w.Members {
		serves[member.Name] = map[string]network.ServedNetwork{}
		for _, served := range member.Status.Networks {
			serves[member.Name][served.Name] = served
		}
	}
	// Who has had a tunnel endpoint keeps it, for as long as it says so.
	endpointOf := map[string]string{}
	for _, member := range w.Members {
		for _, had := range member.Spec.VTEPs {
			if network.IP(serves[member.Name][had.Network].VTEP) == had.Address && endpointOf[had.Address] == "" {
				endpointOf[had.Address] = member.Name
			}
		}
	}
	for _, member := range w.Members {
		for _, one := range nets {
			has := w.selects(one.Spec.NodeSelector, member.Name) && refused[one.Name] == ""
			if goesOn[one.Name] {
				has = slices.Contains(member.Spec.Networks, one.Name) || anew(member) &&
					slices.ContainsFunc(member.Status.Endpoints, func(e network.Endpoint) bool { return e.Network == one.Name })
			}
			if !has {
				continue
			}
			spec := specs[member.Name]
			spec.Networks = append(spec.Networks, one.Name)
			served := serves[member.Name][one.Name]
			if one.Spec.VNI == nil || served.Reason != network.Serving || refused[one.Name] != "" {
				continue
			}
			vtep := w.address(member.Name)
			// Of its uplink's address only the node knows. Frames for other nodes' pods go there: it is nobody else's.
			if said := network.IP(served.VTEP); said != "" && one.Spec.Uplink != "" {
				whose := w.holders[said]
				if owner := endpointOf[said]; owner != "" {
					whose = "node " + owner
				}
				if whose != "" && whose != "node "+member.Name {
					served.Reason = reasonVTEP
					served.Message = fmt.Sprintf("its tunnel endpoint %s is %s's: give interface %s another address", said, whose, one.Spec.Uplink)
					serves[member.Name][one.Name] = served
					continue
				}
				vtep, endpointOf[said] = said, member.Name
			}
			if vtep != "" {
				spec.VTEPs = append(spec.VTEPs, network.VTEP{Network: one.Name, Address: vtep})
			}
		}
		slices.Sort(specs[member.Name].Networks)
	}
	for _, member := range w.Members {
		spec := specs[member.Name]
		for _, had := range member.Spec.VTEPs {
			served := serves[member.Name][had.Network]
			owner := endpointOf[had.Address]
			if !slices.Contains(spec.Networks, had.Network) ||
				served.Reason == network.Serving && refused[had.Network] == "" || served.Reason == network.NotConfigured || served.Reason == reasonVTEP ||
				owner != "" && owner != member.Name {
				continue
			}
			endpointOf[had.Address] = member.Name
			spec.VTEPs = append(spec.VTEPs, had)
			if served.Message != "" {
				served.Message += untilThen
				serves[member.Name][had.Network] = served
			}
		}
		slices.SortFunc(spec.VTEPs, func(a, b network.VTEP) int { return cmp.Compare(a.Network, b.Network) })
	}
	endpoints := w.planStations(p, specs, named, goesOn)
	for _, one := range nets {
		status := network.TaktNetworkStatus{ObservedGeneration: one.Generation, Carrier: one.Spec.Carrier(), Endpoints: endpoints[one.Name]}
		if why := refused[one.Name]; why != "" {
			if goesOn[one.Name] {
				why += untilThen
			}
			var changed []metav1.Condition
			status.Nodes = "0/0"
			status.Conditions, changed = conditions(one.Status.Conditions, w.Now,
				condition(network.Accepted, false, one.Generation, refusedFor[one.Name], why), condition(network.Served, false, one.Generation, "NotAccepted", why))
			p.tell(one, changed[:min(len(changed), 1)])
			p.Networks[one.Name] = status
			continue
		}
		served := w.served(one, serves, specs)
		status.Nodes = served.count()
		is := served.condition(network.Served, one.Generation)
		if goesOn[one.Name] {
			status.Nodes, is = "0/0", (&tally{}).condition(network.Served, one.Generation)
			is.Message += untilThen
		}
		var changed []metav1.Condition
		status.Conditions, changed = conditions(one.Status.Conditions, w.Now,
			condition(network.Accepted, true, one.Generation, "Accepted", "goes together with the other networks"), is)
		p.tell(one, changed)
		p.Networks[one.Name] = status
	}
}

// tally is how many of some nodes do something, and why the first of the others does not.
type tally struct {
	do, of          int
	reason, message string
}

func (t *tally) count() string { return fmt.Sprintf("%d/%d", t.do, t.of) }

func (t *tally) not(reason, node, message string) {
	t.of++
	if t.reason == "" {
		t.reason, t.message = reason, fmt.Sprintf("node %s: %s", node, message)
	}
}

// served counts the nodes that serve a network.
func (w *World) served(one *network.TaktNetwork, serves map[string]map[string]network.ServedNetwork, specs map[string]*network.TaktNodeSpec) *tally {
	t := &tally{}
	for _, member := range w.Members {
		if !slices.Contains(specs[member.Name].Networks, one.Name) {
			continue
		}
		here, there := serves[member.Name][one.Name]
		absent := w.absence(member)
		switch {
		case absent != "":
			t.not("RuntimeAbsent", member.Name, absent)
		case !there:
			t.not("NotAsked", member.Name, "takt-node has not said yet whether it serves it")
		case here.Reason != network.Serving:
			t.not(here.Reason, member.Name, here.Message)
		default:
			t.do, t.of = t.do+1, t.of+1
		}
	}
	return t
}

func (t *tally) condition(kind string, generation int64) metav1.Condition {
	switch {
	case t.of == 0:
		return condition(kind, false, generation, "NoNodes", "no node with takt-node is selected: install it with network.objects, or change nodeSelector")
	case t.do < t.of:
		return condition(kind, false, generation, t.reason, fmt.Sprintf("%s of %d nodes: %s", strconv.Itoa(t.do), t.of, t.message))
	default:
		return condition(kind, true, generation, "Serving", fmt.Sprintf("%d nodes", t.of))
	}
}

// said says whether a node has said anything of itself.
func said(member *network.TaktNode) bool {
	return meta.FindStatusCondition(member.Status.Conditions, network.Ready) != nil
}

// absence says why a node's runtime is not there; empty if it is. A node that is gone cannot say so itself: its kubelet is not
// heard of any more.
func (w *World) absence(member *network.TaktNode) string {
	ready := meta.FindStatusCondition(member.Status.Conditions, network.Ready)
	if ready == nil {
		return "takt-node has not said anything yet"
	}
	if silent := w.silent(member.Name); silent != "" {
		return fmt.Sprintf("the node is not ready (%s), and what takt-node said last is old: see `kubectl describe node %s`", silent, member.Name)
	}
	if ready.Status != "True" {
		return ready.Message
	}
	return ""
}

// silent is why a Node is not Ready; empty if it is, nothing is said of that, or there is no Node.
func (w *World) silent(name string) string {
	if condition := w.notReady(name); condition != nil {
		return cmp.Or(condition.Reason, string(condition.Status))
	}
	return ""
}

// silentSince is since when a Node is not Ready.
func (w *World) silentSince(name string) time.Time {
	if condition := w.notReady(name); condition != nil {
		return condition.LastTransitionTime.Time
	}
	return w.Now
}

func (w *World) notReady(name string) *corev1.NodeCondition {
	node := w.Nodes[name]
	if node == nil {
		return nil
	}
	for at, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
			return &node.Status.Conditions[at]
		}
	}
	return nil
}

// planStations says of each node which of its endpoints are its own: their pods are there, and no address is another's.
// Who has had an address keeps it (see keeps). It counts the endpoints of each network.
func (w *World) planStations(p *Plan, specs map[string]*network.TaktNodeSpec, named map[string]*network.TaktNetwork, goesOn map[string]bool) map[string]int32 {
	count, holders := map[string]int32{}, map[string]string{}
	for _, again := range []bool{true, false} {
		for _, member := range w.Members {
			had := map[string]*network.Station{}
			for at := range member.Spec.Stations {
				station := &member.Spec.Stations[at]
				had[station.Network+" "+station.MAC] = station
			}
			for _, endpoint := range member.Status.Endpoints {
				before := had[endpoint.Network+" "+endpoint.MAC]
				if (before != nil) == again && (before != nil || !goesOn[endpoint.Network] || anew(member)) {
					w.planStation(p, specs, named, member, &endpoint, before, holders, count)
				}
			}
		}
	}
	for _, spec := range specs {
		slices.SortFunc(spec.Stations, func(a, b network.Station) int {
			return cmp.Or(cmp.Compare(a.Network, b.Network), cmp.Compare(a.MAC, b.MAC))
		})
	}
	return count
}

// anew says that a TaktNode has lost what was said of its node before: the Node has come back, or somebody has deleted the object.
func anew(member *network.TaktNode) bool { return !member.Spec.Planned }

// podOf is the pod of an endpoint: a node says only of its own pods where they are.
func (w *World) podOf(member *network.TaktNode, endpoint *network.Endpoint) *corev1.Pod {
	pod := w.Pods[endpoint.Namespace+"/"+endpoint.Pod]
	if pod == nil || pod.Spec.NodeName != member.Name || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	return pod
}

// keeps are the addresses that other nodes have been told of, by network, each with the pod that has it still. Whoever is new to
// one is refused, whatever else of it they have been told of.
func (w *World) keeps() map[string]string {
	kept := map[string]string{}
	for _, member := range w.Members {
		told := map[string]bool{}
		for _, station := range member.Spec.Stations {
			told[station.Network+" "+station.MAC] = true
			for _, address := range station.Addresses {
				told[station.Network+" "+station.MAC+" "+address] = true
			}
		}
		for _, endpoint := range member.Status.Endpoints {
			pod := w.podOf(member, &endpoint)
			if pod == nil || !told[endpoint.Network+" "+endpoint.MAC] {
				continue
			}
			keys := []string{endpoint.MAC}
			for _, text := range endpoint.Addresses {
				if prefix, err := netip.ParsePrefix(text); err == nil && told[endpoint.Network+" "+endpoint.MAC+" "+prefix.Addr().String()] {
					keys = append(keys, prefix.Addr().String())
				}
			}
			for _, key := range keys {
				if key = endpoint.Network + " " + key; kept[key] == "" {
					kept[key] = pod.Namespace + "/" + pod.Name
				}
			}
		}
	}
	return kept
}

// planStation says whether others are told of an endpoint; had is what they have been told of it, or nil.
func (w *World) planStation(p *Plan, specs map[string]*network.TaktNodeSpec, named map[string]*network.TaktNetwork,
	member *network.TaktNode, endpoint *network.Endpoint, had *network.Station, holders map[string]string, count map[string]int32,
) {
	pod := w.podOf(member, endpoint)
	if pod == nil {
		return
	}
	refuse := func(reason, format string, args ...any) {
		p.Events = append(p.Events, Event{About: pod, Warning: true, Once: true, Reason: reason, Message: fmt.Sprintf(format, args...)})
	}
	of := named[endpoint.Network]
	if of == nil {
		if had != nil || len(w.Networks) > 0 {
			refuse(reasonUnknown, "%s is attached to network %s, of which there is no TaktNetwork: no other node knows the pod. Create it, again if it was deleted, or correct takt-cni's configuration", endpoint.Interface, endpoint.Network)
		}
		return
	}
	if !ethernet.MatchString(endpoint.MAC) || len(endpoint.Addresses) > mostAddresses {
		return // no takt-node says that
	}
	me := pod.Namespace + "/" + pod.Name
	station := network.Station{Network: of.Name, Place: network.Place{MAC: endpoint.MAC}}
	keys := []string{of.Name + " " + endpoint.MAC}
	for _, text := range endpoint.Addresses {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			continue
		}
		address := prefix.Addr()
		if len(of.Spec.Subnets) > 0 && !slices.ContainsFunc(of.Spec.Subnets, func(s string) bool {
			subnet, err := netip.ParsePrefix(s)
			return err == nil && subnet.Contains(address)
		}) && !address.IsLinkLocalUnicast() {
			outcome, known := "no other node knows the pod", w.kept[of.Name+" "+address.String()] == me
			if known {
				outcome = "the pod, which had it before, goes on as it was"
			}
			refuse(reasonOutside, "address %s is in none of the subnets %s of network %s, and %s: correct the IPAM of the CNI configuration, or the TaktNetwork", address, strings.Join(of.Spec.Subnets, ", "), of.Name, outcome)
			if !known {
				return
			}
		}
		if slices.Contains(station.Addresses, address.String()) {
			continue
		}
		station.Addresses = append(station.Addresses, address.String())
		keys = append(keys, of.Name+" "+address.String())
	}
	// A node that is taken over may say what it likes of its own pods and of itself, but not take what the cluster knows to be another's.
	for _, address := range station.Addresses {
		had := w.kept[of.Name+" "+address] == me
		if other := w.holders[address]; other != "" && other != "pod "+me && !(had && strings.HasPrefix(other, "node ")) {
			refuse(reasonConflict, "%s is %s's, and no other node knows this pod with it: see that the IPAM of network %s gives other addresses", address, other, of.Name)
			return
		}
	}
	for _, outside := range of.Spec.Stations {
		same := slices.DeleteFunc(slices.Clone(keys), func(key string) bool {
			what := strings.TrimPrefix(key, of.Name+" ")
			return !strings.EqualFold(outside.MAC, what) && !slices.ContainsFunc(outside.Addresses, func(a string) bool { return network.IP(a) == what })
		})
		if len(same) > 0 && !slices.ContainsFunc(same, func(key string) bool { return w.kept[key] != me }) {
			// Its node and the others leave the station out.
			p.Events = append(p.Events, Event{About: of, Warning: true, Once: true, Reason: reasonConflict, Message: fmt.Sprintf("station %s is entered on no node: pod %s has %s, and keeps it: correct stations, or delete the pod",
				outside.MAC, me, strings.TrimPrefix(same[0], of.Name+" "))})
			continue
		}
		if len(same) > 0 {
			refuse(reasonConflict, "an address of %s is that of station %s outside of the cluster, and no other node knows this pod: correct stations of TaktNetwork %s, or see that the IPAM gives other addresses", endpoint.Interface, outside.MAC, of.Name)
			return
		}
	}
	for _, key := range keys {
		if other := cmp.Or(w.kept[key], holders[key]); other != "" && other != me {
			refuse(reasonConflict, "%s of network %s is pod %s's, and no other node knows this one: delete one of them, and see that the IPAM of their nodes does not overlap", strings.TrimPrefix(key, of.Name+" "), of.Name, other)
			return
		}
	}
	for _, key := range keys {
		holders[key] = me
	}
	count[of.Name]++
	for _, vtep := range specs[member.Name].VTEPs {
		if vtep.Network == of.Name {
			station.VTEP = vtep.Address
		}
	}
	if of.Spec.VNI != nil && station.VTEP == "" && (had == nil || had.VTEP != "") {
		// The node does not serve the network as it should: that is said of the network. One that was no VXLAN until now goes on.
		return
	}
	if len(specs[member.Name].Stations) == mostStations {
		refuse(reasonTooMany, "its node has %d interfaces in networks, of which others are told, and no other node knows this one: move pods to other nodes", mostStations)
		return
	}
	specs[member.Name].Stations = append(specs[member.Name].Stations, station)
}

// elsewhere are the addresses of nodes and of pods in the cluster's own network, by address, each with whose it is: a node's, of two
// nodes the one's that is heard of, then the older one's; else the older pod's. A pod with its node's addresses has none of its own.
func (w *World) elsewhere() map[string]string {
	found := map[string]string{}
	enter := func(address, whose string) {
		if address = network.IP(address); address != "" && found[address] == "" {
			found[address] = whose
		}
	}
	for _, node := range slices.SortedFunc(maps.Values(w.Nodes), func(a, b *corev1.Node) int {
		return cmp.Or(cmp.Compare(min(len(w.silent(a.Name)), 1), min(len(w.silent(b.Name)), 1)), older(a, b))
	}) {
		for _, address := range node.Status.Addresses {
			enter(address.Address, "node "+node.Name)
		}
	}
	for _, pod := range slices.SortedFunc(maps.Values(w.Pods), func(a, b *corev1.Pod) int { return older(a, b) }) {
		if pod.Spec.HostNetwork || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, address := range pod.Status.PodIPs {
			enter(address.IP, "pod "+pod.Namespace+"/"+pod.Name)
		}
	}
	return found
}

// ethernet is an address as takt-node says it.
var ethernet = regexp.MustCompile("^([0-9a-f]{2}:){5}[0-9a-f]{2}$")
