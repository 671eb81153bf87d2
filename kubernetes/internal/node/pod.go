package node

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// PodRequests says what happens to a pod whose requests for CPU are less than what it reserves.
type PodRequests string

const (
	// WarnOfRequests tells the pod.
	WarnOfRequests PodRequests = "warn"
	// RefuseRequests refuses its claim.
	RefuseRequests PodRequests = "refuse"
)

// checkPod looks at how the pod uses a claim that is about to be prepared for it. A claim that no container
// names would leave all of them unreserved, and nobody would be told; CPU that is reserved but not requested is
// given away a second time by the scheduler.
func (n *Node) checkPod(ctx context.Context, record *Record) error {
	of := record.Pods[0]
	pod, err := n.client.CoreV1().Pods(of.Namespace).Get(ctx, of.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || (err == nil && pod.UID != of.UID) {
		klog.FromContext(ctx).Info("The pod of a claim has gone", "pod", klog.KRef(of.Namespace, of.Name))
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot see how pod %s uses claim %s: %w", of.Name, record.Name, err)
	}
	var unused []string
	for _, request := range record.Requests {
		if !uses(pod, record.Name, request.Name) {
			unused = append(unused, request.Name)
		}
	}
	if len(unused) == len(record.Requests) {
		return refuse(codeUnused, "no container of pod %s names claim %s in resources.claims, so that all would run without a reservation: name it there, or leave it out of spec.resourceClaims",
			of.Name, record.Name)
	}
	if len(unused) > 0 {
		n.event(of, corev1.EventTypeWarning, reasonUnused, "no container names request %s of claim %s in resources.claims: it reserves for nobody", strings.Join(unused, ", "), record.Name)
	}
	return n.checkRequests(pod, record)
}

// uses says whether a container of the pod names a request of a claim.
func uses(pod *corev1.Pod, claim, request string) bool {
	main, _, _ := strings.Cut(request, "/")
	names := map[string]bool{}
	for _, of := range pod.Spec.ResourceClaims {
		names[of.Name] = of.ResourceClaimName != nil && *of.ResourceClaimName == claim
	}
	for _, made := range pod.Status.ResourceClaimStatuses {
		if made.ResourceClaimName != nil && *made.ResourceClaimName == claim {
			names[made.Name] = true
		}
	}
	used := func(resources corev1.ResourceRequirements) bool {
		for _, use := range resources.Claims {
			if names[use.Name] && (use.Request == "" || use.Request == main) {
				return true
			}
		}
		return false
	}
	for _, container := range pod.Spec.InitContainers {
		if used(container.Resources) {
			return true
		}
	}
	for _, container := range pod.Spec.Containers {
		if used(container.Resources) {
			return true
		}
	}
	return false
}

// checkRequests compares what the pod's containers request of CPU with what this claim and those that are
// prepared for the pod reserve: the scheduler knows of the former only.
func (n *Node) checkRequests(pod *corev1.Pod, record *Record) error {
	var requested resource.Quantity
	for _, container := range pod.Spec.Containers {
		requested.Add(container.Resources.Requests[corev1.ResourceCPU])
	}
	if pod.Spec.Resources != nil {
		if cpu, ok := pod.Spec.Resources.Requests[corev1.ResourceCPU]; ok {
			requested = cpu
		}
	}
	reserved := record.ppm()
	n.mu.Lock()
	for uid, claim := range n.claims {
		if uid != record.Claim && len(claim.Pods) > 0 && claim.Pods[0].UID == pod.UID {
			reserved += claim.ppm()
		}
	}
	n.mu.Unlock()
	milli := (reserved + 999) / 1000
	if requested.MilliValue() >= milli {
		return nil
	}
	err := refuse(codeUnrequested, "pod %s requests %s CPU and reserves %dm, which the scheduler gives away a second time: set requests.cpu of its containers to %dm or more, and limits.cpu to the same to have a Guaranteed pod",
		pod.Name, requested.String(), milli, milli)
	if n.config.PodRequests == RefuseRequests {
		return err
	}
	n.event(Pod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}, corev1.EventTypeWarning, reasonUnrequested, "%v", err)
	return nil
}

// ppm is what the record's requests take of all cores together, in parts per million of a core.
func (r *Record) ppm() int64 {
	var sum int64
	for _, request := range r.Requests {
		for _, device := range request.Devices {
			sum += device.PPM
		}
	}
	return sum
}
