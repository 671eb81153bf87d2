// Package controller keeps the TaktNodes of a cluster in step with its pods, nodes, TaktNetworks and GateSchedules. It
// talks to the API server alone: what a node is to do is written into its TaktNode, which its takt-node reads.
//
// Each round looks at everything (New) and computes what all objects have to say (plan.go, networks.go, schedules.go, keys.go);
// only what differs is written. So there is no state but the objects', and another replica goes on where one has ended.
package controller

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/quote"
)

// World is what a round looks at. Nothing in it is changed.
type World struct {
	Networks  []*network.TaktNetwork
	Schedules []*network.GateSchedule
	// Members are the nodes as runtimes, Nodes those of the cluster by name, Pods all pods by namespace/name.
	Members []*network.TaktNode
	Nodes   map[string]*corev1.Node
	Pods    map[string]*corev1.Pod
	// Now is UTC.
	Now time.Time
	// holders are the addresses in the cluster that are no network's, each with whose it is. Make finds them.
	holders map[string]string
	// kept are the addresses in networks, each with the pod that had it before and has it still. Make finds them.
	kept map[string]string
	// Lead is how long nodes have to take a schedule before it begins.
	Lead time.Duration
	// KeyRotation is how old nodes' keys become before they are changed; 0: they are not.
	KeyRotation time.Duration
	// Worded is when the message of the change of each node's key was another one last. Make keeps it.
	Worded map[string]time.Time
}

// Event is something to be told.
type Event struct {
	About   runtime.Object
	Warning bool
	// Once says that each round has it anew, and that it is told once. Else it is of a condition that has changed, and is told when
	// the object's status is taken.
	Once            bool
	Reason, Message string
}

// Plan is what objects have to say.
type Plan struct {
	Specs     map[string]network.TaktNodeSpec
	Networks  map[string]network.TaktNetworkStatus
	Schedules map[string]network.GateScheduleStatus
	Events    []Event
}

// Make computes what follows from a world.
func (w *World) Make() *Plan {
	p := &Plan{Specs: map[string]network.TaktNodeSpec{}, Networks: map[string]network.TaktNetworkStatus{}, Schedules: map[string]network.GateScheduleStatus{}}
	slices.SortFunc(w.Members, func(a, b *network.TaktNode) int { return cmp.Compare(a.Name, b.Name) })
	w.holders, w.kept = w.elsewhere(), w.keeps()
	specs, claims := map[string]*network.TaktNodeSpec{}, map[string][]*network.TaktNode{}
	for _, member := range w.Members {
		// Of one that has said nothing yet it is not known what it has, and nothing is taken from it.
		spec := &network.TaktNodeSpec{Planned: member.Spec.Planned || said(member)}
		specs[member.Name] = spec
		runtime := member.Status.Runtime
		if node := w.Nodes[member.Name]; node != nil && runtime != nil && runtime.Key != "" && runtime.Port > 0 {
			address := ""
			if address, spec.PeerProblem = peerAddress(node, runtime); address != "" {
				spec.Peer = &network.Peer{Address: hostPort(address, runtime.Port), Key: runtime.Key, NextKey: runtime.NextKey}
				claims[spec.Peer.Address] = append(claims[spec.Peer.Address], member)
			}
		}
	}
	for address, all := range claims {
		owner := w.byRight(address, all)
		for _, member := range all {
			if spec := specs[member.Name]; member != owner {
				spec.Peer = nil
				spec.PeerProblem = fmt.Sprintf("no other node has channels with this one: taktd's address %s is that of node %s, too: delete the Node object of the one that is gone (`kubectl delete node`), or give each an address of its own", address, owner.Name)
			}
		}
	}
	w.planNetworks(p, specs)
	w.planSchedules(p, specs)
	w.planKeys(p, specs)
	for name, spec := range specs {
		p.Specs[name] = *spec
	}
	return p
}

// byRight is whose an address of taktd is that several nodes have: who has it already, unless its kubelet is silent and the machine
// was since installed anew as another node. Who has not had it: those whose kubelets are heard of; then the younger one.
func (w *World) byRight(address string, all []*network.TaktNode) *network.TaktNode {
	replaced := func(member *network.TaktNode) bool {
		return slices.ContainsFunc(all, func(other *network.TaktNode) bool {
			return w.silent(other.Name) == "" && w.Nodes[other.Name].CreationTimestamp.After(w.silentSince(member.Name))
		})
	}
	rank := func(member *network.TaktNode) int {
		silent, has := w.silent(member.Name) != "", member.Spec.Peer
		switch {
		case has != nil && has.Address == address && (!silent || !replaced(member)):
			return 0
		case !silent:
			return 1
		}
		return 2
	}
	return slices.MinFunc(all, func(a, b *network.TaktNode) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), older(w.Nodes[b.Name], w.Nodes[a.Name]))
	})
}

// peerAddress is the one of the node's addresses that its taktd has: of all that is the first of its family. Without one, the
// problem says what to do.
func peerAddress(node *corev1.Node, runtime *network.Runtime) (address, problem string) {
	var internal, all []netip.Addr
	for _, one := range node.Status.Addresses {
		parsed, err := netip.ParseAddr(one.Address)
		if err != nil || one.Type != corev1.NodeInternalIP && one.Type != corev1.NodeExternalIP {
			continue
		}
		all = append(all, parsed)
		if one.Type == corev1.NodeInternalIP {
			internal = append(internal, parsed)
		}
	}
	own, err := netip.ParseAddr(runtime.Address)
	fits := func(one netip.Addr) bool { return one == own }
	switch {
	case err != nil: // an earlier takt-node does not say
		fits = func(netip.Addr) bool { return true }
		all = internal
	case own.IsUnspecified():
		fits = func(one netip.Addr) bool { return one.Is4() == own.Is4() }
		all = internal
	}
	if at := slices.IndexFunc(all, fits); at >= 0 {
		return all[at].String(), ""
	}
	return "", fmt.Sprintf("no other node has channels with this one: taktd's address is %s, and the Node's are %v: write one of these, or 0.0.0.0 or :: for all of that family, as node.address of taktd's configuration, on all nodes of one family, or have the kubelet name taktd's (--node-ip)",
		cmp.Or(runtime.Address, "not known"), all)
}

// address is a node's own, as the cluster has it: a node says nothing of its own address that is believed.
func (w *World) address(name string) string {
	node := w.Nodes[name]
	if node == nil {
		return ""
	}
	for _, address := range node.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			return address.Address
		}
	}
	return ""
}

// selects says whether a selector of nodes selects the one of this name. None selects all.
func (w *World) selects(selector *metav1.LabelSelector, name string) bool {
	node := w.Nodes[name]
	if node == nil {
		return false
	}
	if selector == nil {
		return true
	}
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(labels.Set(node.Labels))
}

// selectorProblem says what is wrong with a selector of nodes: the API server takes any operator, and one that cannot be read
// selects nothing.
func selectorProblem(selector *metav1.LabelSelector) string {
	if _, err := metav1.LabelSelectorAsSelector(selector); err != nil {
		return fmt.Sprintf("nodeSelector cannot be read: %v: write operator In or NotIn with values, Exists or DoesNotExist without, and labels as nodes may have them", err)
	}
	return ""
}

// older orders objects by their age.
func older(a, b metav1.Object) int {
	at, bt := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	return cmp.Or(at.Time.Compare(bt.Time), cmp.Compare(a.GetName(), b.GetName()))
}

// conditions are those of an object with new ones set, and those that have changed.
func conditions(had []metav1.Condition, now time.Time, set ...metav1.Condition) (all, changed []metav1.Condition) {
	for _, condition := range set {
		condition.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
		at := slices.IndexFunc(had, func(h metav1.Condition) bool { return h.Type == condition.Type })
		if at >= 0 {
			if had[at].Status == condition.Status {
				condition.LastTransitionTime = had[at].LastTransitionTime
			}
			if had[at].Status == condition.Status && had[at].Reason == condition.Reason && had[at].Message == condition.Message {
				all = append(all, condition)
				continue
			}
		}
		all = append(all, condition)
		changed = append(changed, condition)
	}
	return all, changed
}

func (p *Plan) tell(about runtime.Object, changed []metav1.Condition) {
	for _, condition := range changed {
		// What goes on is nothing to be warned of.
		warning := condition.Status == metav1.ConditionFalse && condition.Reason != network.Installing
		p.Events = append(p.Events, Event{About: about, Warning: warning, Reason: condition.Reason, Message: condition.Message})
	}
}

// identifier is what the API server takes for the reason of a condition.
var identifier = regexp.MustCompile("^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")

func condition(kind string, holds bool, generation int64, reason, message string) metav1.Condition {
	status := metav1.ConditionFalse
	if holds {
		status = metav1.ConditionTrue
	}
	// What a node says may be long, and no identifier. What the API server would change or refuse is never as it should be:
	// it would be written, and told, in every round.
	if !identifier.MatchString(reason) || len(reason) > 128 {
		reason = "Unspecified"
	}
	return metav1.Condition{Type: kind, Status: status, ObservedGeneration: generation, Reason: reason, Message: quote.Text(message)}
}
