package node

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

func TestAPodThatReservesMoreCPUThanItRequestsIsTold(t *testing.T) {
	s := newSite(t)
	s.podOf("claim", "99m", nil)
	claim := s.claim("claim", plain, nil)
	if response := s.prepare(claim); response.Error != "" {
		t.Error(response.Error)
	}
	if told := s.events.of("pod", reasonUnrequested); len(told) != 1 || !strings.Contains(told[0], "requests 99m CPU and reserves 100m") {
		t.Errorf("the pod is told %q", told)
	}
	s.unprepare(claim)
	s.agent.config.PodRequests = RefuseRequests
	if response := s.prepare(claim); !strings.HasPrefix(response.Error, codeUnrequested) {
		t.Errorf("answer is %v", response)
	}
	s.empty()
}
