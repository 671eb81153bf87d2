package node

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// pod is one with a claim of its name, which its container names if used, and requests so much CPU.
func (s *site) podOf(claim, cpu string, edit func(*corev1.Pod)) {
	s.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod", UID: "pod-uid"}}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "reservation", ResourceClaimName: &claim}}
	pod.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
		Claims:   []corev1.ResourceClaim{{Name: "reservation"}},
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
	}}}
	if edit != nil {
		edit(pod)
	}
	if _, err := s.client.CoreV1().Pods("default").Create(context.Background(), pod, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

func TestAClaimThatNoContainerNamesIsRefused(t *testing.T) {
	s := newSite(t)
	s.podOf("claim", "100m", func(pod *corev1.Pod) { pod.Spec.Containers[0].Resources.Claims = nil })
	response := s.prepare(s.claim("claim", plain, nil))
	if !strings.HasPrefix(response.Error, codeUnused+": no container of pod pod names claim claim") {
		t.Errorf("answer is %v", response)
	}
	if told := s.events.of("pod", reasonRefused); len(told) != 1 || !strings.Contains(told[0], "name it there") {
		t.Errorf("the pod is told %q", told)
	}
	s.until("the claim's status says why", func() bool {
		condition, _ := s.deviceStatus("claim")
		return condition.Status == metav1.ConditionFalse && strings.HasPrefix(condition.Message, codeUnused)
	})
	s.empty()
}

func TestAClaimOfATemplateIsFoundInThePod(t *testing.T) {
	s := newSite(t)
	s.podOf("claim", "100m", func(pod *corev1.Pod) {
		made, template := "claim", "template"
		pod.Spec.ResourceClaims[0].ResourceClaimName, pod.Spec.ResourceClaims[0].ResourceClaimTemplateName = nil, &template
		pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "reservation", ResourceClaimName: &made}}
		pod.Spec.Containers[0].Resources.Claims[0].Request = "cpu"
	})
	if response := s.prepare(s.claim("claim", plain, nil)); response.Error != "" {
		t.Error(response.Error)
	}
	if told := s.events.of("pod", reasonUnrequested); len(told) != 0 {
		t.Errorf("the pod is told %q", told)
	}
}

func TestAPodThatReservesMoreCPUThanItRequestsIsRefused(t *testing.T) {
	s := newSite(t)
	s.podOf("claim", "99m", nil)
	claim := s.claim("claim", plain, nil)
	if response := s.prepare(claim); !strings.HasPrefix(response.Error, codeUnrequested) || !strings.Contains(response.Error, "container main requests 99m CPU and reserves 100m") {
		t.Errorf("answer is %v", response)
	}
	s.agent.config.PodRequests = WarnOfRequests
	if response := s.prepare(claim); response.Error != "" {
		t.Error(response.Error)
	}
	if told := s.events.of("pod", reasonUnrequested); len(told) != 1 || !strings.Contains(told[0], "requests 99m CPU and reserves 100m") {
		t.Errorf("the pod is told %q", told)
	}
	s.unprepare(claim)
	s.empty()
}

// More is nobody's loss; none at all is given away a second time.
func TestAPodMayRequestMoreCPUThanItReservesAndNotNone(t *testing.T) {
	s := newSite(t)
	s.podOf("claim", "2", nil)
	claim := s.claim("claim", plain, nil)
	if response := s.prepare(claim); response.Error != "" {
		t.Error(response.Error)
	}
	s.unprepare(claim)
	if err := s.client.CoreV1().Pods("default").Delete(context.Background(), "pod", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.podOf("claim", "0", func(pod *corev1.Pod) { pod.Spec.Containers[0].Resources.Requests = nil })
	if response := s.prepare(claim); !strings.HasPrefix(response.Error, codeUnrequested) || !strings.Contains(response.Error, "reserves 100m") {
		t.Errorf("answer is %v", response)
	}
	s.empty()
}

// The kubelet does not ask again when a prepared claim passes to another pod.
func TestAPodToWhichAClaimPassesIsCheckedAsWell(t *testing.T) {
	s := newSite(t)
	s.podOf("claim", "100m", nil)
	claim := s.claim("claim", plain, nil)
	env := s.ready(claim)
	next := func(pod *corev1.Pod) { pod.Name, pod.UID = "next", "next-uid" }
	s.podOf("claim", "99m", next)
	passed := claim.DeepCopy()
	passed.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{podReference("next")}
	if _, err := s.client.ResourceV1().ResourceClaims("default").UpdateStatus(context.Background(), passed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.create("next", "main", "idle", env); err == nil || !strings.Contains(err.Error(), codeUnrequested) {
		t.Errorf("it requests too little CPU: %v", err)
	}
	// Nor is it a way past to be the second one when the claim is prepared.
	s.unprepare(claim)
	passed.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{podReference("pod"), podReference("next")}
	if _, err := s.client.ResourceV1().ResourceClaims("default").UpdateStatus(context.Background(), passed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if response := s.prepare(claim); !strings.HasPrefix(response.Error, codeUnrequested) || !strings.Contains(response.Error, "pod next") {
		t.Errorf("answer is %v", response)
	}
	// One that is done starts nothing more.
	if err := s.client.CoreV1().Pods("default").Delete(context.Background(), "next", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.podOf("claim", "99m", func(pod *corev1.Pod) { next(pod); pod.Status.Phase = corev1.PodSucceeded })
	if response := s.prepare(claim); response.Error != "" {
		t.Error(response.Error)
	}
}

// The kubelet prepares the claims of one pod after those of another, so that a claim of very many would hold all of them up.
func TestAClaimOfVeryManyPodsIsRefusedBeforeTheyAreLookedAt(t *testing.T) {
	s := newSite(t)
	of := func(pods int) *resourceapi.ResourceClaim {
		return s.claim(fmt.Sprint("of-", pods), plain, func(c *resourceapi.ResourceClaim) {
			c.Status.ReservedFor = nil
			for at := range pods {
				c.Status.ReservedFor = append(c.Status.ReservedFor, podReference(fmt.Sprint("pod-", at)))
			}
		})
	}
	some, many := of(mostPods), of(100)
	if response := s.prepare(some); response.Error != "" {
		t.Error(response.Error)
	}
	s.client.ClearActions()
	if response := s.prepare(many); !strings.HasPrefix(response.Error, codeShared+": claim of-100 is reserved for 100 pods") || !strings.Contains(response.Error, "ResourceClaimTemplate") {
		t.Errorf("answer is %v", response)
	}
	asked := 0
	for _, action := range s.client.Actions() {
		if action.Matches("get", "pods") {
			asked++
		}
	}
	if asked > mostPods {
		t.Errorf("%d pods are looked at", asked)
	}
	if told := s.events.of("pod-0", reasonRefused); len(told) != 1 {
		t.Errorf("the pod that is first is told %q", told)
	}
	s.unprepare(some)
	s.empty()
}

// What another container requests is that one's; what the pod requests as a whole is for all.
func TestEachContainerRequestsTheCPUThatItReserves(t *testing.T) {
	n := &Node{claims: map[types.UID]*prepared{}}
	n.config.PodRequests = RefuseRequests
	record := claimOf("claim", 0, 100_000)
	pod := &corev1.Pod{}
	name := "claim"
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "reservation", ResourceClaimName: &name}}
	cpu := func(text string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(text)}
	}
	pod.Spec.Containers = []corev1.Container{
		{Name: "main", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "reservation"}}, Requests: cpu("50m")}},
		{Name: "other", Resources: corev1.ResourceRequirements{Requests: cpu("4")}},
	}
	if err := n.checkRequests(pod, record); err == nil || !strings.Contains(err.Error(), "container main requests 50m") {
		t.Errorf("another container's request counts: %v", err)
	}
	pod.Spec.Resources = &corev1.ResourceRequirements{Requests: cpu("100m")}
	if err := n.checkRequests(pod, record); err != nil {
		t.Errorf("the pod's own request does not: %v", err)
	}
	pod.Spec.Resources.Requests = cpu("99m")
	if err := n.checkRequests(pod, record); err == nil || !strings.Contains(err.Error(), "as a whole requests 99m") {
		t.Errorf("the pod requests too little: %v", err)
	}
	pod.Spec.Resources, pod.Spec.Containers[0].Resources.Requests = nil, cpu("100m")
	if err := n.checkRequests(pod, record); err != nil {
		t.Error(err)
	}
	pod.Spec.InitContainers = []corev1.Container{{Name: "first", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "reservation", Request: "cpu"}}}}}
	if err := n.checkRequests(pod, record); err == nil || !strings.Contains(err.Error(), "container first requests 0") {
		t.Errorf("an init container's do not count: %v", err)
	}
}
