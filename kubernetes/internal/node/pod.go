package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// mostPods are how many pods a claim may be reserved for.
const mostPods = 8

// checkPods looks at how all pods that a claim is reserved for use it: it may pass from one to the next, and the kubelet does
// not say for which one it is to be prepared.
func (n *Node) checkPods(ctx context.Context, record *Record) error {
	for _, of := range record.Pods {
		if err := n.checkPod(ctx, record, of); err != nil {
			return err
		}
	}
	return nil
}

// checkPod looks at how a pod uses a claim that is about to be prepared for it. A claim that no container
// names would leave all of them unreserved, and nobody would be told; CPU that is reserved but not requested is
// given away a second time by the scheduler.
func (n *Node) checkPod(ctx context.Context, record *Record, of Pod) error {
	pod, err := n.client.CoreV1().Pods(of.Namespace).Get(ctx, of.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || (err == nil && pod.UID != of.UID) {
		klog.FromContext(ctx).Info("The pod of a claim has gone", "pod", klog.KRef(of.Namespace, of.Name))
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot see how pod %s uses claim %s: %w", of.Name, record.Name, err)
	}
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil // it starts nothing more
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

// claimNames are the names by which the pod's containers know a claim.
func claimNames(pod *corev1.Pod, claim string) map[string]bool {
	names := map[string]bool{}
	for _, of := range pod.Spec.ResourceClaims {
		names[of.Name] = of.ResourceClaimName != nil && *of.ResourceClaimName == claim
	}
	for _, made := range pod.Status.ResourceClaimStatuses {
		if made.ResourceClaimName != nil && *made.ResourceClaimName == claim {
			names[made.Name] = true
		}
	}
	return names
}

// containerUses says whether a container names a request of a claim, which it knows by one of names.
func containerUses(container corev1.Container, names map[string]bool, request string) bool {
	main, _, _ := strings.Cut(request, "/")
	return slices.ContainsFunc(container.Resources.Claims, func(use corev1.ResourceClaim) bool {
		return names[use.Name] && (use.Request == "" || use.Request == main)
	})
}

// uses says whether a container of the pod names a request of a claim.
func uses(pod *corev1.Pod, claim, request string) bool {
	names := claimNames(pod, claim)
	return slices.ContainsFunc(containersOf(pod), func(c corev1.Container) bool { return containerUses(c, names, request) })
}

func containersOf(pod *corev1.Pod) []corev1.Container {
	return append(slices.Clone(pod.Spec.InitContainers), pod.Spec.Containers...)
}

// checkRequests compares what each of the pod's containers requests of CPU with what it reserves by this claim and by
// those that are prepared for the pod: the scheduler knows of the former only, and another container's request is that
// one's. A request of the pod as a whole is for all of its containers together.
func (n *Node) checkRequests(pod *corev1.Pod, record *Record) error {
	records := []*Record{record}
	n.mu.Lock()
	for uid, claim := range n.claims {
		if uid != record.Claim && slices.ContainsFunc(claim.Pods, func(of Pod) bool { return of.UID == pod.UID }) {
			records = append(records, claim.Record)
		}
	}
	n.mu.Unlock()
	var whole *resource.Quantity
	if pod.Spec.Resources != nil {
		if cpu, ok := pod.Spec.Resources.Requests[corev1.ResourceCPU]; ok {
			whole = &cpu
		}
	}
	milli := func(ppm int64) int64 { return (ppm + 999) / 1000 }
	var all int64
	var failed error
	for _, container := range containersOf(pod) {
		var reserved int64
		for _, of := range records {
			names := claimNames(pod, of.Name)
			for _, request := range of.Requests {
				if containerUses(container, names, request.Name) {
					reserved += request.ppm()
				}
			}
		}
		all += reserved
		requested := container.Resources.Requests[corev1.ResourceCPU]
		if whole == nil && requested.MilliValue() < milli(reserved) {
			failed = errors.Join(failed, fmt.Errorf("container %s requests %s CPU and reserves %dm: set its requests.cpu, and limits.cpu for a Guaranteed pod, to %dm or more",
				container.Name, requested.String(), milli(reserved), milli(reserved)))
		}
	}
	if whole != nil && whole.MilliValue() < milli(all) {
		failed = fmt.Errorf("its containers reserve %dm, and the pod as a whole requests %s CPU: set requests.cpu of its resources to %dm or more", milli(all), whole.String(), milli(all))
	}
	if failed == nil {
		return nil
	}
	err := refuse(codeUnrequested, "the scheduler gives CPU of pod %s away a second time: %w", pod.Name, failed)
	if n.config.PodRequests == RefuseRequests {
		return err
	}
	n.event(Pod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}, corev1.EventTypeWarning, reasonUnrequested, "%v", err)
	return nil
}

// ppm is what the request takes of all its cores together, in parts per million of a core.
func (r Request) ppm() (sum int64) {
	for _, device := range r.Devices {
		sum += device.PPM
	}
	return sum
}
