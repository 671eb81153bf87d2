package v1alpha1

import (
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
)

// Duration is a length of time with its unit, such as "250us": exact to the nanosecond.
type Duration = reservation.Duration

// A GateSchedule is installed on a link of every node that it selects, from one instant on, or on none.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=gates,categories=takt
// +kubebuilder:printcolumn:name="Datapath",type=string,JSONPath=`.spec.datapath`
// +kubebuilder:printcolumn:name="Cycle",type=string,JSONPath=`.spec.cycleTime`
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="In force",type=string,JSONPath=`.status.conditions[?(@.type=="InForce")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="InForce")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GateSchedule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec GateScheduleSpec `json:"spec"`
	// +optional
	Status GateScheduleStatus `json:"status,omitempty"`
}

// GateScheduleSpec is where a schedule is to be, and the schedule.
//
// +kubebuilder:validation:XValidation:rule="!has(self.nodeSelector) || !has(self.network)",message="a schedule is for the nodes of a network or for those of a nodeSelector: leave one of them out"
type GateScheduleSpec struct {
	// NodeSelector: the nodes; absent, and without network: all that have takt-node.
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// Network: the nodes that have to serve this TaktNetwork.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Network string `json:"network,omitempty"`
	// Datapath is the one whose link it is, such as udp or xdp. It does not change: the gates of its link would be open at once.
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="datapath does not change: create another GateSchedule for the other datapath, and delete this one to open the gates of its link"
	Datapath string `json:"datapath"`

	Schedule `json:",inline"`
}

// A Schedule is a gate control list with its cycle, and the link that it is for (IEEE 802.1Q-2022, clause 12.29.1). Its
// fields are those of Takt's own form of schedules.
//
// +kubebuilder:validation:XValidation:rule="!has(self.selection) || self.selection.all(s, s.algorithm == 'credit-based' || (!has(s.idleSlope) && !has(s.highCredit)))",message="idleSlope and highCredit are of credit-based classes"
type Schedule struct {
	// Rate of the link, bits per second, from which guard bands and the gate time that can be claimed follow. Absent or 0: it is
	// not told, so that frames take no time, and there is no gate time to claim.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Rate int64 `json:"rate"`
	// VLAN: the port inserts a tag, which takes its time too.
	// +optional
	VLAN bool `json:"vlan,omitempty"`
	// OtherTraffic says who keeps what leaves the link's interface without the runtime (pods, this host's programs) inside the windows
	// of best effort: port (or absent), nobody but takt uplink and takt veth for what they take; taprio, the kernel; taprio-offload,
	// the gates of the device; auto, the first of the last two that can, else as port, which the condition InForce tells. A node
	// that cannot do what is asked for refuses the schedule.
	// +optional
	// +kubebuilder:validation:Enum=port;taprio;taprio-offload;auto
	OtherTraffic string `json:"otherTraffic,omitempty"`
	// BaseTime is an instant at which a cycle begins, TAI, seconds since 1970, as in "1800000000.000000000"; 0 if absent. The
	// schedule begins at the first such instant that all nodes can keep.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9]{1,9}([.][0-9]{1,9})?$|^[0-8][0-9]{9}([.][0-9]{1,9})?$`
	BaseTime string `json:"baseTime,omitempty"`
	// CycleTime is the length of a cycle.
	CycleTime Duration `json:"cycleTime"`
	// CycleTimeExtension is by how much the last cycle before a change may be stretched.
	// +optional
	CycleTimeExtension Duration `json:"cycleTimeExtension,omitempty"`
	// InitialGates are open before the first cycle; absent: all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:Minimum=0
	// +kubebuilder:validation:items:Maximum=7
	InitialGates *[]int32 `json:"initialGates,omitempty"`
	// Entries follow each other from the start of a cycle, and last no longer than it; the last one lasts until its end.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1024
	Entries []GateEntry `json:"entries"`
	// MaxSDU is the longest service data unit of classes.
	// +optional
	// +listType=map
	// +listMapKey=class
	// +kubebuilder:validation:MaxItems=8
	MaxSDU []MaxSDU `json:"maxSDU,omitempty"`
	// Priorities: the class whose gate frames of each priority 0 to 7 pass; absent: each has its own.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=8
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:Minimum=0
	// +kubebuilder:validation:items:Maximum=7
	Priorities []int32 `json:"priorities,omitempty"`
	// RequireSync is how far a node's clock may be off; absent: nothing is demanded.
	// +optional
	RequireSync *Duration `json:"requireSync,omitempty"`
	// Selection is how classes choose among their frames; those left out by launch time.
	// +optional
	// +listType=map
	// +listMapKey=class
	// +kubebuilder:validation:MaxItems=8
	Selection []Selection `json:"selection,omitempty"`
}

// A GateEntry is one of a gate control list.
type GateEntry struct {
	// Gates are the classes whose gates are open.
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:Minimum=0
	// +kubebuilder:validation:items:Maximum=7
	Gates []int32 `json:"gates"`
	// Interval is how long it lasts.
	Interval Duration `json:"interval"`
}

// MaxSDU is the longest service data unit of a class.
type MaxSDU struct {
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=7
	Class int32 `json:"class"`
	// Octets behind the MAC header.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Octets int32 `json:"octets"`
}

// Selection is the transmission selection algorithm of a class (IEEE 802.1Q-2022, clause 8.6.8).
type Selection struct {
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=7
	Class int32 `json:"class"`
	// +kubebuilder:validation:Enum=launch-time;first-come;credit-based
	Algorithm string `json:"algorithm"`
	// IdleSlope of a credit-based class: bits per second of the link.
	// +optional
	// +kubebuilder:validation:Minimum=1
	IdleSlope int64 `json:"idleSlope,omitempty"`
	// HighCredit of a credit-based class: bits; absent: what the largest frame of other classes lets it gather.
	// +optional
	// +kubebuilder:validation:Minimum=1
	HighCredit int64 `json:"highCredit,omitempty"`
}

// EntriesTime is how long the entries last together.
func (s *Schedule) EntriesTime() (sum Duration) {
	for _, entry := range s.Entries {
		sum += entry.Interval
	}
	return sum
}

// BaseNanoseconds is the base time, TAI.
func (s *Schedule) BaseNanoseconds() (int64, error) {
	if s.BaseTime == "" {
		return 0, nil
	}
	whole, fraction, _ := strings.Cut(s.BaseTime, ".")
	if len(fraction) > 9 {
		return 0, fmt.Errorf("baseTime %q is finer than a nanosecond", s.BaseTime)
	}
	nanos, err := strconv.ParseInt(whole+fraction+strings.Repeat("0", 9-len(fraction)), 10, 64)
	if err != nil || nanos < 0 {
		return 0, fmt.Errorf("baseTime %q is not seconds since 1970, as in \"1800000000.000000000\"", s.BaseTime)
	}
	return nanos, nil
}

// InForce is the condition of a GateSchedule that runs on every node which it selects, by each node's own clock.
const InForce = "InForce"

// How the installation of a schedule stands.
const (
	// Installing: nodes have been asked, and it has not begun.
	Installing = "Installing"
	// Installed: every node has it. As the reason of InForce, it has begun.
	Installed = "Installed"
	// RolledBack: a node has refused, and every node has what it had before.
	RolledBack = "RolledBack"
)

// GateScheduleStatus is how it stands.
type GateScheduleStatus struct {
	// ObservedGeneration is that of the spec which the rest is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// State is Installing, Installed or RolledBack.
	// +optional
	State string `json:"state,omitempty"`
	// BeginsNanoseconds is the instant from which on it runs, TAI since 1970.
	// +optional
	BeginsNanoseconds int64 `json:"beginsNanoseconds,omitempty"`
	// Targets are the nodes that it was to be installed on at that instant.
	// +optional
	// +listType=set
	Targets []string `json:"targets,omitempty"`
	// Silent are the nodes that did not answer, for which it was rolled back: it is tried again when all of them speak again.
	// +optional
	// +listType=set
	Silent []string `json:"silent,omitempty"`
	// Nodes are how many have it of how many that it selects, as in `3/4`.
	// +optional
	Nodes string `json:"nodes,omitempty"`
	// Conditions are Accepted and InForce.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// GateScheduleList is a list of them.
//
// +kubebuilder:object:root=true
type GateScheduleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []GateSchedule `json:"items"`
}
