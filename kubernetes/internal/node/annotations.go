package node

import (
	"maps"
	"slices"
	"strings"

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
		if !strings.HasPrefix(key, annotationPrefix) || slices.Contains(annotationsKnown, key) {
			continue
		}
		name, container, one := strings.Cut(strings.TrimPrefix(key, annotationPrefix), ".")
		if known := annotationPrefix + name; one && (known == annotationPreload || known == annotationLibrary) && container != "" {
			continue
		}
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
