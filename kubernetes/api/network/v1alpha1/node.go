package v1alpha1

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A TaktNode is a node of the cluster as a runtime: takt-node makes one for its own node and writes its status, the
// controller writes its spec.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=tnode,categories=takt
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.runtime.version`
// +kubebuilder:printcolumn:name="Clock",type=string,JSONPath=`.status.clock.state`
// +kubebuilder:printcolumn:name="Peers",type=string,JSONPath=`.status.peers`
// +kubebuilder:printcolumn:name="Key",type=date,JSONPath=`.status.runtime.keySince`
// +kubebuilder:printcolumn:name="Rotation",type=string,JSONPath=`.spec.keyRotation.state`
// +kubebuilder:printcolumn:name="Since",type=date,JSONPath=`.spec.keyRotation.since`
// +kubebuilder:printcolumn:name="Schedule",type=string,JSONPath=`.status.schedules[*].name`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.schedules[*].state`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type TaktNode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec TaktNodeSpec `json:"spec,omitempty"`
	// +optional
	Status TaktNodeStatus `json:"status,omitempty"`
}

// TaktNodeSpec is what the controller has found to be true of the node, for all others, and what it is to do itself. Only
// the controller writes it.
type TaktNodeSpec struct {
	// Planned: the controller has written this spec, knowing what the node has said of itself; absent: the object is new, and what
	// it does not say may be all the same. Until then nothing is taken away from any node.
	// +optional
	Planned bool `json:"planned,omitempty"`
	// Peer is how others reach its channels; absent: they do not.
	// +optional
	Peer *Peer `json:"peer,omitempty"`
	// PeerProblem is why others do not reach its channels although it has a key, and what to do.
	// +optional
	PeerProblem string `json:"peerProblem,omitempty"`
	// Networks are the TaktNetworks that it has to serve.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	Networks []string `json:"networks,omitempty"`
	// VTEPs are its tunnel endpoints, by network.
	// +optional
	// +listType=map
	// +listMapKey=network
	// +kubebuilder:validation:MaxItems=256
	VTEPs []VTEP `json:"vteps,omitempty"`
	// Stations are its pods: other nodes send frames for them to it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2048
	Stations []Station `json:"stations,omitempty"`
	// Schedules are what its links are to have.
	// +optional
	// +listType=map
	// +listMapKey=datapath
	// +kubebuilder:validation:MaxItems=16
	Schedules []Assignment `json:"schedules,omitempty"`
	// KeyRotation is the change of its key that goes on, or the last one.
	// +optional
	KeyRotation *KeyRotation `json:"keyRotation,omitempty"`
}

// RotateKey is the annotation of a TaktNode that asks for another key: an instant as in 2026-01-31T12:00:00Z, another one than the
// last time.
const RotateKey = "network.takt.dev/rotate-key"

// RotateKeyAt is what the annotation says, in whole seconds as the API server keeps instants; nil: there is none.
func (n *TaktNode) RotateKeyAt() (*metav1.Time, error) {
	said := n.Annotations[RotateKey]
	if said == "" {
		return nil, nil
	}
	at, err := time.Parse(time.RFC3339, said)
	if err != nil {
		return nil, fmt.Errorf("the annotation %s is %q, which is no instant as in 2026-01-31T12:00:00Z: `kubectl takt key rotate %s` writes one", RotateKey, said, n.Name)
	}
	found := metav1.NewTime(at.Truncate(time.Second))
	return &found, nil
}

// KeyAsked is the instant of a change that is asked for and has not begun; nil: there is none.
func (n *TaktNode) KeyAsked() (*metav1.Time, error) {
	at, err := n.RotateKeyAt()
	if err != nil || at == nil {
		return nil, err
	}
	had, runtime := n.Spec.KeyRotation, n.Status.Runtime
	switch {
	case had != nil && at.Equal(had.Asked):
		return nil, nil
	// An earlier controller leaves out what has become of it; the node has had another key since.
	case had == nil && runtime != nil && runtime.KeySince != nil && at.Before(runtime.KeySince):
		return nil, nil
	}
	return at, nil
}

// KeyTried says that what is asked for was begun, and given up before the node had a key that nobody could have known.
func (n *TaktNode) KeyTried() bool {
	at, _ := n.KeyAsked()
	had := n.Spec.KeyRotation
	return at != nil && had != nil && had.State == GivenUp && had.Asked == nil && !at.After(had.Began.Time)
}

// KeyFixed is why its key cannot be changed from here, by what its takt-node says, with what to do; empty: it can.
func (n *TaktNode) KeyFixed() string {
	switch runtime := n.Status.Runtime; {
	case runtime == nil:
		return "takt-node has not said anything yet: see whether it runs on this node"
	case runtime.Key == "":
		return "the node has no key that others know: see network.peers of the chart, and node.key_file of taktd's configuration"
	case runtime.KeySince == nil:
		// An earlier one would not know what to do.
		return "takt-node does not say since when the node has its key: apply the custom resources of the chart (deploy/helm/takt-node/crds), and upgrade it"
	}
	return ""
}

// States of a KeyRotation.
const (
	// Preparing: the node makes its next key, and the others are told of it.
	Preparing = "Preparing"
	// Switching: all nodes that are there know the next key, and the node is to take it.
	Switching = "Switching"
	// Finishing: the node has it, and the others take the key of before out.
	Finishing = "Finishing"
	// Rotated: the node has another key.
	Rotated = "Rotated"
	// GivenUp: it has the key of before.
	GivenUp = "GivenUp"
)

// MostWithout is how many nodes may be away when another one takes its next key.
const MostWithout = 64

// A KeyRotation is a change of a node's key.
type KeyRotation struct {
	// State is Preparing, Switching, Finishing, Rotated or GivenUp.
	// +kubebuilder:validation:Enum=Preparing;Switching;Finishing;Rotated;GivenUp
	State string `json:"state"`
	// Began is when it began.
	Began metav1.Time `json:"began"`
	// Since is when it came into its state.
	Since metav1.Time `json:"since"`
	// Asked is what the annotation network.takt.dev/rotate-key said when it began; absent where the node takes a key that was made
	// before that: another change follows, to a fresh one.
	// +optional
	Asked *metav1.Time `json:"asked,omitempty"`
	// From is the public key of before, base64.
	From string `json:"from"`
	// To is the public key that follows, base64; absent: the node has not made it yet.
	// +optional
	To string `json:"to,omitempty"`
	// Without are nodes that are away and have not said that they know the next key: the node does not take it while one of them
	// answers.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Without []string `json:"without,omitempty"`
	// Message is what it waits for, if that lasts, or why it was given up.
	// +optional
	Message string `json:"message,omitempty"`
}

// StillTaken begins the message of a change that has ended while other nodes, which follow, take the key of before.
const StillTaken = "the key of before is still taken by "

// BeforeTaken says whether the key has changed and others are known to take the key of before, so that whoever has that key can use it there.
func (r *KeyRotation) BeforeTaken() bool {
	return r != nil && r.State == Rotated && strings.HasPrefix(r.Message, StillTaken)
}

// GoesOn says whether the key is being changed.
func (r *KeyRotation) GoesOn() bool {
	return r != nil && r.State != Rotated && r.State != GivenUp
}

// A Peer is a runtime that others have channels with.
type Peer struct {
	// Address of its peering protocol, as in 10.0.0.1:7400.
	Address string `json:"address"`
	// Key is its public key, base64.
	Key string `json:"key"`
	// NextKey is the public key that it is going to have, base64: it may prove itself by either.
	// +optional
	NextKey string `json:"nextKey,omitempty"`
}

// A VTEP is a node's tunnel endpoint in a network.
type VTEP struct {
	Network string `json:"network"`
	// Address is its IP address.
	Address string `json:"address"`
}

// A Station is an interface of a pod in a network.
type Station struct {
	Network string `json:"network"`
	Place   `json:",inline"`
}

// An Assignment is a schedule for a link of the node.
type Assignment struct {
	Datapath string `json:"datapath"`
	Revision `json:",inline"`
	// Committed: every node has taken it.
	// +optional
	Committed bool `json:"committed,omitempty"`
	// Previous is what the link had before, and has again if a node refuses; absent: all gates were open.
	// +optional
	Previous *Revision `json:"previous,omitempty"`
}

// A Revision is a GateSchedule as it was at some time, with its instant.
type Revision struct {
	// Name, UID and Generation are the GateSchedule's.
	Name       string    `json:"name"`
	UID        types.UID `json:"uid"`
	Generation int64     `json:"generation"`
	// BeginsNanoseconds is the instant from which on it runs, TAI since 1970: the base time that the node installs.
	BeginsNanoseconds int64 `json:"beginsNanoseconds"`

	Schedule `json:",inline"`
}

// Ready is the condition of a TaktNode whose runtime answers and takes applications.
const Ready = "Ready"

// KeyCurrent is the condition of a TaktNode whose key was changed when it was to be; it is absent if it never was to be.
const KeyCurrent = "KeyCurrent"

// TaktNodeStatus is what the node says of itself. Only its own takt-node writes it.
type TaktNodeStatus struct {
	// Runtime is its taktd, as it last answered.
	// +optional
	Runtime *Runtime `json:"runtime,omitempty"`
	// Clock is the one that launch times and gates go by.
	// +optional
	Clock *Clock `json:"clock,omitempty"`
	// Datapaths are its technologies.
	// +optional
	// +listType=map
	// +listMapKey=name
	Datapaths []Datapath `json:"datapaths,omitempty"`
	// Networks are those that its taktd has, and those TaktNetworks that it has to serve.
	// +optional
	// +listType=map
	// +listMapKey=name
	Networks []ServedNetwork `json:"networks,omitempty"`
	// Endpoints are the interfaces of pods that takt-cni has attached.
	// +optional
	// +listType=atomic
	Endpoints []Endpoint `json:"endpoints,omitempty"`
	// Schedules are what became of the assignments.
	// +optional
	// +listType=map
	// +listMapKey=datapath
	Schedules []LinkState `json:"schedules,omitempty"`
	// Peers are how many of those that it knows answer, as in `3/4`.
	// +optional
	Peers string `json:"peers,omitempty"`
	// NextKeys are the keys of nodes whose keys are being changed that its taktd takes beside the ones of before.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	NextKeys []string `json:"nextKeys,omitempty"`
	// KeyProblem is why its taktd has not made or not taken its next key, and what to do.
	// +optional
	KeyProblem string `json:"keyProblem,omitempty"`
	// Conditions are Ready and KeyCurrent.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Runtime is a node's taktd.
type Runtime struct {
	Version string `json:"version"`
	// Address is its own, as configured; 0.0.0.0 or :: if it is all of the node's. Others use it only if the Node has it.
	// +optional
	Address string `json:"address,omitempty"`
	// Port of its peering protocol.
	Port int32 `json:"port"`
	// Key is its public key, base64; empty: it has none, and is nobody's peer.
	// +optional
	Key string `json:"key,omitempty"`
	// KeySince is since when its takt-node has seen it with that key; an earlier takt-node does not say.
	// +optional
	KeySince *metav1.Time `json:"keySince,omitempty"`
	// NextKey is the public key that it is going to have, base64; empty: none was made.
	// +optional
	NextKey string `json:"nextKey,omitempty"`
}

// Clock is how good a node's clock is.
type Clock struct {
	// State is Synchronised, Holdover or FreeRunning.
	State string `json:"state"`
	// Source is whose word that is, such as ptp4l.
	// +optional
	Source string `json:"source,omitempty"`
	// TAIOffsetSeconds is TAI minus UTC as the node's kernel has it.
	TAIOffsetSeconds int32 `json:"taiOffsetSeconds"`
}

// Datapath is a technology of a node.
type Datapath struct {
	Name        string `json:"name"`
	Available   bool   `json:"available"`
	Accelerated bool   `json:"accelerated"`
	// Reason why it is not available.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// Reasons why a node does not serve a network as its TaktNetwork says.
const (
	// Serving: it does.
	Serving = "Serving"
	// NotConfigured: taktd has no [[network]] of this name.
	NotConfigured = "NotConfigured"
	// Differs: the [[network]] is another one.
	Differs = "Differs"
	// NoUplink: the interface is not there, or has no address.
	NoUplink = "NoUplink"
	// MTUTooLarge: the uplink does not carry the network's packets.
	MTUTooLarge = "MTUTooLarge"
	// NotFollowed: the device that the [[network]] follows cannot be read.
	NotFollowed = "NotFollowed"
	// UnknownNetwork: there is no TaktNetwork of this name.
	UnknownNetwork = "UnknownNetwork"
)

// ServedNetwork is a network on a node.
type ServedNetwork struct {
	Name string `json:"name"`
	// Reason is Serving, or why it is not as its TaktNetwork says.
	Reason string `json:"reason"`
	// Message says what to do about it.
	// +optional
	Message string `json:"message,omitempty"`
	// VTEP is the address of the node's tunnel endpoint at the uplink; absent: the node's address.
	// +optional
	VTEP string `json:"vtep,omitempty"`
}

// Endpoint is an interface of a pod.
type Endpoint struct {
	Network   string `json:"network"`
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Interface string `json:"interface"`
	MAC       string `json:"mac"`
	// Addresses with the lengths of their prefixes.
	// +optional
	// +listType=atomic
	Addresses []string `json:"addresses,omitempty"`
	// Veth is the node's end of it where launch times of programs are taken that are not preloaded; absent: nowhere, or not now.
	// +optional
	Veth string `json:"veth,omitempty"`
	// VethProblem is why they are not, although the pod wants it.
	// +optional
	VethProblem string `json:"vethProblem,omitempty"`
}

// States of an assignment on a node.
const (
	// Pending: the schedule is installed, and begins at its instant.
	Pending = "Pending"
	// Running: it has begun.
	Running = "Running"
	// Refused: it is not installed; what was there before runs on.
	Refused = "Refused"
	// Expired: it was not committed in time, and the node has taken it back; what was there before runs on.
	Expired = "Expired"
)

// LinkState is what became of an assignment.
type LinkState struct {
	Datapath string `json:"datapath"`
	// Name, UID, Generation and BeginsNanoseconds are the assignment's.
	Name              string    `json:"name"`
	UID               types.UID `json:"uid"`
	Generation        int64     `json:"generation"`
	BeginsNanoseconds int64     `json:"beginsNanoseconds"`
	// Installed are the base times, TAI nanoseconds, of the schedules which takt-node has installed and the link still has.
	// Others are left alone.
	// +optional
	// +listType=set
	Installed []int64 `json:"installed,omitempty"`
	// State is Pending, Running, Refused or Expired.
	State string `json:"state"`
	// Message says why it is refused or was taken back, and what to do; or what is doubtful in one that runs or will.
	// +optional
	Message string `json:"message,omitempty"`
}

// TaktNodeList is a list of them.
//
// +kubebuilder:object:root=true
type TaktNodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []TaktNode `json:"items"`
}

// Of says whether the state is of this revision.
func (s *LinkState) Of(r *Revision) bool {
	return s.UID == r.UID && s.Generation == r.Generation && s.BeginsNanoseconds == r.BeginsNanoseconds
}

// Reverted is what a link has when an assignment is taken back.
func (a *Assignment) Reverted() *Revision {
	if a.Committed {
		return &a.Revision
	}
	return a.Previous
}
