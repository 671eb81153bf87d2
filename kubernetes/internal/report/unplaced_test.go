package report

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
)

// gates is the capacity of gate time of class 5, as slices of networks have it.
const gates = resourceapi.QualifiedName("class5")

// offers are a node and what it has: so much bandwidth of a core, so much gate time.
func offers(name string, bandwidth, gate int64) []runtime.Object {
	shared := true
	slice := func(driver, device string, capacity resourceapi.QualifiedName, value int64) *resourceapi.ResourceSlice {
		return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name + "-" + driver}, Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: &name, Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{Name: device, AllowMultipleAllocations: &shared, Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
				capacity: {Value: *resource.NewQuantity(value, resource.DecimalSI)},
			}}},
		}}
	}
	return []runtime.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
		slice(reservation.Driver, "cpu-0", reservation.Bandwidth, bandwidth),
		slice(reservation.NetworkDriver, "pods", gates, gate),
	}
}

func deviceClass(driver string) *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "` + driver + `"`}}},
	}}
}

func claim(name, class string, capacity resourceapi.QualifiedName, value int64) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}, Spec: resourceapi.ResourceClaimSpec{
		Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "main", Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
			Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{capacity: *resource.NewQuantity(value, resource.DecimalSI)}},
		}}}},
	}}
}

// allocated is a claim with its device.
func allocated(claim *resourceapi.ResourceClaim, driver, node, device string, capacity resourceapi.QualifiedName, value int64) *resourceapi.ResourceClaim {
	share := types.UID("00000000-0000-4000-8000-000000000000")
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
		Request: "main", Driver: driver, Pool: node, Device: device, ShareID: &share,
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{capacity: *resource.NewQuantity(value, resource.DecimalSI)},
	}}}}
	return claim
}

func claims(pod *corev1.Pod, names ...string) *corev1.Pod {
	for _, name := range names {
		made := name
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "its-" + name, ResourceClaimName: &made})
	}
	pod.Status.Phase = corev1.PodPending
	return pod
}

func TestAPodThatWaitsForANodeIsToldWhichOfItsClaimsHasRoomWhere(t *testing.T) {
	cpu := func(name string, value int64) *resourceapi.ResourceClaim {
		return claim(name, reservation.Driver, reservation.Bandwidth, value)
	}
	gate := func(name string, value int64) *resourceapi.ResourceClaim {
		return claim(name, reservation.NetworkDriver, gates, value)
	}
	templated := pod("default", "templated", "", nil)
	templated.Status.Phase = corev1.PodPending
	template, made := "any", "cpu-much"
	templated.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "cpu", ResourceClaimTemplateName: &template}}
	templated.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "cpu", ResourceClaimName: &made}}
	unmade := pod("default", "unmade", "", map[string]string{reservation.TimeSensitive: "true"})
	unmade.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "cpu", ResourceClaimTemplateName: &template}}
	misspelt := gate("misspelt", 1)
	misspelt.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "` + reservation.NetworkDriver + `.example"`}}}
	others := claim("others", "gpu", "memory", 1)
	objects := []runtime.Object{
		agent("takt-node-1", "one"), deviceClass(reservation.Driver), deviceClass(reservation.NetworkDriver), deviceClass("gpu"),
		allocated(cpu("taken", 600), reservation.Driver, "one", "cpu-0", reservation.Bandwidth, 600),
		allocated(gate("kept", 100), reservation.NetworkDriver, "two", "pods", gates, 100),
		cpu("cpu-little", 100), cpu("cpu-some", 500), cpu("cpu-much", 950), gate("gate-some", 500), gate("gate-much", 2000), others,
		claims(pod("default", "neither", "", nil), "cpu-much", "gate-much"),
		claims(pod("default", "no-gates", "", nil), "cpu-little", "gate-much"),
		claims(pod("default", "apart", "", nil), "cpu-some", "gate-some"),
		claims(pod("default", "elsewhere", "", nil), "cpu-little", "gate-some"),
		claims(pod("default", "beside", "", nil), "kept", "gate-some"),
		claims(pod("default", "has-all", "", nil), "kept"),
		claims(pod("default", "of-others", "", nil), "others"),
		allocated(gate("little", 100), reservation.NetworkDriver, "one", "pods", gates, 100), gate("gate-all", 1000), misspelt,
		claims(pod("default", "taken", "", nil), "gate-all"),
		claims(pod("default", "misspelt", "", nil), "misspelt"),
		cpu("cpu-whole", reservation.WholeCore), claims(pod("default", "whole", "", nil), "cpu-whole"),
		templated, unmade,
	}
	// All but 300 of a core of the first are taken, and the second has gates for little.
	objects = append(objects, offers("one", 900, 1000)...)
	objects = append(objects, offers("two", 900, 400)...)
	for _, name := range []string{"three", "four", "five", "six"} {
		objects = append(objects, offers(name, 100, 0)...)
	}
	client := fake.NewClientset(objects...)
	ask := func(context.Context, *corev1.Pod) (Node, error) { return Node{}, nil }
	found, problems, err := Cluster(context.Background(), client, ask, "default", Agents)
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	told := map[string]string{}
	for _, one := range found {
		told[one.Pod] = one.Problem
	}
	const never = ", also if all were empty, for its request main (see what it asks for, its selectors, and whether a node offers that)"
	for name, want := range map[string]string{
		"neither":   "not placed yet: claim cpu-much (its-cpu-much) has room on no node" + never + ", claim gate-much (its-gate-much) has room on no node" + never,
		"no-gates":  "not placed yet: claim cpu-little (its-cpu-little) has room on five, four, one and 3 more, claim gate-much (its-gate-much) has room on no node" + never,
		"apart":     "not placed yet: no node has room for all of its claims; claim cpu-some (its-cpu-some) has room on two, claim gate-some (its-gate-some) has room on one",
		"elsewhere": "not placed yet, though its claims have room on one: kubectl describe pod",
		"beside":    "not placed yet: no node has room for all of its claims; claim kept (its-kept) is on two, claim gate-some (its-gate-some) has room on one",
		"has-all":   "not placed yet: its claims have their devices already; kubectl describe pod",
		"templated": "not placed yet: claim cpu-much (cpu) has room on no node" + never,
		"taken":     "not placed yet: claim gate-all (its-gate-all) has room on no node",
		"misspelt":  "not placed yet: claim misspelt (its-misspelt) has room on no node" + never,
		"whole": "not placed yet: claim cpu-whole (its-cpu-whole) has room on no node" +
			strings.Replace(never, " (see", ", where whole cores are only of nodes with the backend whole-core (see", 1),
		"unmade": notPlaced,
	} {
		if told[name] != want {
			t.Errorf("%s: %q, not %q", name, told[name], want)
		}
		delete(told, name)
	}
	if len(told) > 0 {
		t.Errorf("also told: %v", told)
	}

	for _, resource := range []string{"nodes", "resourceclaims", "resourceslices", "deviceclasses"} {
		client := fake.NewClientset(objects...)
		client.PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", fmt.Errorf("no rights"))
		})
		found, problems, err := Cluster(context.Background(), client, ask, "default", Agents)
		if err != nil || len(problems) > 0 || len(found) != 1 || found[0].Pod != "unmade" || found[0].Problem != unseen {
			t.Errorf("without the right to list %s: %v, %v, %v", resource, found, problems, err)
		}
	}
	client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, io.ErrUnexpectedEOF })
	_, problems, err = Cluster(context.Background(), client, ask, "default", Agents)
	if err != nil || len(problems) != 1 || !strings.Contains(problems[0], "unexpected EOF") {
		t.Errorf("without an answer: %v, %v", problems, err)
	}
}
