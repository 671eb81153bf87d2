// Package v1alpha1 has the objects of a cluster's time-sensitive networks: what the network administrator wants
// (TaktNetwork, GateSchedule), and what each node is and is to do (TaktNode). The schemas in the chart are made from
// these types (`make -C kubernetes generate`).
//
// What travels between the controller and the nodes is in TaktNode alone: its status is what a node says of itself, its
// spec what the controller has found to be true of it, which is what other nodes act on.
//
// +kubebuilder:object:generate=true
// +groupName=network.takt.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the version of the objects.
var GroupVersion = schema.GroupVersion{Group: "network.takt.dev", Version: "v1alpha1"}

// AddToScheme makes the objects known.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &TaktNetwork{}, &TaktNetworkList{}, &GateSchedule{}, &GateScheduleList{}, &TaktNode{}, &TaktNodeList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
