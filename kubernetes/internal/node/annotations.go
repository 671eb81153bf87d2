package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/takt-dev/takt/kubernetes/internal/cni"
	"github.com/takt-dev/takt/kubernetes/internal/quote"
)

// annotationPrefix begins the annotations of pods that are this agent's.
const annotationPrefix = "takt.dev/"

// annotationsKnown are all of them.
var annotationsKnown = []string{cni.Annotation, annotationPreload, annotationLibrary, annotationInterface, annotationPath, annotationClass, annotationOthers}

// checkAnnotations refuses annotations that nobody reads: of a pod that has one nobody knows what it asks for.
func checkAnnotations(annotations map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if !strings.HasPrefix(key, annotationPrefix) || slices.Contains(annotationsKnown, key) || containerOf(key) != "" {
			continue
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(key, annotationPrefix), ".")
		meant := slices.MinFunc(annotationsKnown, func(a, b string) int {
			return distance(name, strings.TrimPrefix(a, annotationPrefix)) - distance(name, strings.TrimPrefix(b, annotationPrefix))
		})
		if distance(name, strings.TrimPrefix(meant, annotationPrefix)) <= 3 {
			return refuse(codeAnnotation, "annotation %s is not known: write %s if that is meant, or remove it", quote.Value(key), meant)
		}
		return refuse(codeAnnotation, "annotation %s is not known: write one of %s, or remove it", quote.Value(key), strings.Join(annotationsKnown, ", "))
	}
	return nil
}

// containerOf is the container that an annotation is for alone; empty if it is for all.
func containerOf(key string) string {
	for _, of := range []string{annotationPreload, annotationLibrary} {
		if container, one := strings.CutPrefix(key, of+"."); one {
			return container
		}
	}
	return ""
}

// checkNamed refuses annotations for containers that the pod does not have: nobody would keep what they promise. That is looked
// up once, since a pod gets no other containers than ephemeral ones.
func (n *Node) checkNamed(ctx context.Context, sandbox *api.PodSandbox, ctr *api.Container) error {
	var others []string
	for _, key := range slices.Sorted(maps.Keys(sandbox.GetAnnotations())) {
		if container := containerOf(key); container != "" && container != ctr.GetName() {
			others = append(others, key)
		}
	}
	if _, known := n.named.Load(sandbox.GetId()); known || len(others) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askAPI)
	defer cancel()
	pod, err := n.client.CoreV1().Pods(sandbox.GetNamespace()).Get(ctx, sandbox.GetName(), metav1.GetOptions{})
	if err == nil && string(pod.UID) != sandbox.GetUid() && pod.Annotations[corev1.MirrorPodAnnotationKey] != sandbox.GetUid() {
		err = errors.New("there is another pod of its name")
	}
	if err != nil {
		return fmt.Errorf("cannot see whether the pod has the containers that its annotations name: %w", err)
	}
	var has []string
	for _, container := range containersOf(pod) {
		has = append(has, container.Name)
	}
	for _, container := range pod.Spec.EphemeralContainers {
		has = append(has, container.Name)
	}
	for _, key := range others {
		if !slices.Contains(has, containerOf(key)) {
			return refuse(codeAnnotation, "annotation %s is for a container that the pod does not have: write one of %s behind the dot, or remove it", quote.Value(key), strings.Join(has, ", "))
		}
	}
	n.named.Store(sandbox.GetId(), true)
	return nil
}

// distance is how many letters have to be put in, taken out or replaced to make one text the other (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			other := before
			if a[i] != b[j] {
				other++
			}
			before, row[j+1] = row[j+1], min(other, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
