package v1alpha1

import (
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A TaktNetwork is what the `[[network]]` of its name has to be on every node that serves it, and who may use it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=tnet,categories=takt
// +kubebuilder:printcolumn:name="Carrier",type=string,JSONPath=`.status.carrier`
// +kubebuilder:printcolumn:name="MTU",type=integer,JSONPath=`.spec.mtu`
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Pods",type=integer,JSONPath=`.status.endpoints`
// +kubebuilder:printcolumn:name="Served",type=string,JSONPath=`.status.conditions[?(@.type=="Served")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Served")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 63",message="the name is that of a [[network]] and of a device: a-z, 0-9 and -, 63 at most"
type TaktNetwork struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec TaktNetworkSpec `json:"spec"`
	// +optional
	Status TaktNetworkStatus `json:"status,omitempty"`
}

// TaktNetworkSpec is what the network has to be.
//
// +kubebuilder:validation:XValidation:rule="(has(self.vni) ? 1 : 0) + (has(self.vlan) ? 1 : 0) + (has(self.routed) && self.routed ? 1 : 0) <= 1",message="a network is one of vni, vlan and routed, or native without any of them"
// +kubebuilder:validation:XValidation:rule="!has(self.port) || has(self.vni)",message="port is that of a VXLAN's tunnel endpoints: write vni beside it, or leave it out"
// +kubebuilder:validation:XValidation:rule="!has(self.stations) || self.stations.all(s, has(s.vtep) == has(self.vni))",message="a station of a VXLAN is behind a vtep, and one of another network is not"
type TaktNetworkSpec struct {
	// VNI: frames travel in a VXLAN with this network identifier (RFC 7348).
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=16777215
	VNI *int32 `json:"vni,omitempty"`
	// Port is the UDP port of the VXLAN's tunnel endpoints; 4789 if absent.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port *int32 `json:"port,omitempty"`
	// VLAN: frames leave the uplink tagged with it.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4094
	VLAN *int32 `json:"vlan,omitempty"`
	// Routed: nodes are routers for their pods, and no frames travel between them.
	// +optional
	Routed bool `json:"routed,omitempty"`
	// Subnets hold the addresses of all its pods; none: any.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="self.all(s, isCIDR(s))",message="subnets are addresses with the lengths of their prefixes, as in 10.50.0.0/16"
	// +kubebuilder:validation:XValidation:rule="self.all(s, !isCIDR(s) || cidr(s) == cidr(s).masked())",message="subnets have no bits beyond their prefix: write 10.50.0.0/24 and not 10.50.0.1/24, or 10.50.0.1/32 for that address alone"
	Subnets []string `json:"subnets,omitempty"`
	// MTU is the most bytes of a pod's IP packet; none: not looked at. It has to fit the uplink, with what the carrier adds.
	// +optional
	// +kubebuilder:validation:Minimum=576
	// +kubebuilder:validation:Maximum=65535
	MTU *int32 `json:"mtu,omitempty"`
	// Uplink is the interface of the nodes that frames leave by. A VXLAN has its tunnel endpoint there; without it, at the
	// node's address.
	// +optional
	// +kubebuilder:validation:Pattern=`^[^/\s]{1,15}$`
	Uplink string `json:"uplink,omitempty"`
	// NodeSelector: the nodes that have to serve it; absent: all that have takt-node.
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// Access is who may use it; absent: every namespace, in the classes that takt-cni's configuration gives. A list without
	// entries, which an earlier release has taken, is nobody.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:XValidation:rule="self.size() > 0",message="a list without entries lets nobody in: write who may use the network, or leave access out to let every namespace use it"
	Access []Access `json:"access,omitzero"`
	// Stations are outside of the cluster: frames can be sent to them from every node.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Stations []Place `json:"stations,omitempty"`
}

// Access lets pods of namespaces use a network.
type Access struct {
	// Namespaces; absent: all of them. An empty list is none.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self.size() > 0",message="a list without entries is of no namespace: name some, or leave namespaces out for all of them"
	Namespaces []string `json:"namespaces,omitzero"`
	// Classes are the traffic classes that they may use; absent: those that takt-cni's configuration gives. An empty list is none.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:Minimum=0
	// +kubebuilder:validation:items:Maximum=7
	// +kubebuilder:validation:XValidation:rule="self.size() > 0",message="a list without entries has no class: write some, or leave classes out for those that takt-cni's configuration gives"
	Classes []int32 `json:"classes,omitzero"`
}

// A Place is where a station is.
type Place struct {
	// MAC is its address.
	// +kubebuilder:validation:Pattern=`^([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}$`
	MAC string `json:"mac"`
	// VTEP is the tunnel endpoint that it is behind, in a VXLAN.
	// +optional
	// +kubebuilder:validation:MaxLength=39
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="vtep is an IP address"
	VTEP string `json:"vtep,omitempty"`
	// Addresses are its IP addresses: no request for them crosses the network.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=39
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a))",message="addresses are IP addresses without a prefix"
	Addresses []string `json:"addresses,omitempty"`
}

// Condition types of a TaktNetwork.
const (
	// Accepted: the object goes together with all others.
	Accepted = "Accepted"
	// Served: every node that it selects serves it as it says.
	Served = "Served"
)

// TaktNetworkStatus is how it stands.
type TaktNetworkStatus struct {
	// ObservedGeneration is that of the spec which the rest is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Carrier is how frames travel, as in `vxlan:42`.
	// +optional
	Carrier string `json:"carrier,omitempty"`
	// Nodes are how many serve it of how many that have to, as in `3/4`.
	// +optional
	Nodes string `json:"nodes,omitempty"`
	// Endpoints are how many interfaces of pods are attached.
	// +optional
	Endpoints int32 `json:"endpoints,omitempty"`
	// Conditions are Accepted and Served.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// TaktNetworkList is a list of them.
//
// +kubebuilder:object:root=true
type TaktNetworkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []TaktNetwork `json:"items"`
}

// Carrier is how frames travel, as taktd's configuration has it.
func (s *TaktNetworkSpec) Carrier() string {
	switch {
	case s.VNI != nil:
		return fmt.Sprintf("vxlan:%d", *s.VNI)
	case s.VLAN != nil:
		return fmt.Sprintf("vlan:%d", *s.VLAN)
	case s.Routed:
		return "routed"
	default:
		return "native"
	}
}

// DefaultTunnelPort is that of a VXLAN without port, and of a [[network]] of taktd without one.
const DefaultTunnelPort = 4789

// TunnelPort is the UDP port of a VXLAN's tunnel endpoints.
func (s *TaktNetworkSpec) TunnelPort() int32 {
	if s.Port != nil {
		return *s.Port
	}
	return DefaultTunnelPort
}

// Allows says whether a pod of a namespace may use the network, and if so, those of these classes that it may not use. Who
// takes the last entry out of a list opens nothing: only a list that is absent does.
func (s *TaktNetworkSpec) Allows(namespace string, classes []uint32) (allowed bool, excess []uint32) {
	if s.Access == nil {
		return true, nil
	}
	granted := []int32{}
	every := false
	for _, access := range s.Access {
		if access.Namespaces != nil && !slices.Contains(access.Namespaces, namespace) {
			continue
		}
		allowed = true
		every = every || access.Classes == nil
		granted = append(granted, access.Classes...)
	}
	for _, class := range classes {
		if allowed && !every && !slices.Contains(granted, int32(class)) {
			excess = append(excess, class)
		}
	}
	return allowed, excess
}

// Offers says whether pods of any namespace at all may use a class.
func (s *TaktNetworkSpec) Offers(class uint32) bool {
	return s.Access == nil || slices.ContainsFunc(s.Access, func(a Access) bool {
		return (a.Namespaces == nil || len(a.Namespaces) > 0) && (a.Classes == nil || slices.Contains(a.Classes, int32(class)))
	})
}

// IP is an IP address in the form that all addresses are compared in; empty if it is none.
func IP(text string) string {
	address, err := netip.ParseAddr(text)
	if err != nil || address.Zone() != "" {
		return ""
	}
	return address.String()
}
