package cni

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
)

func TestAnAnnotationIsToldInBounds(t *testing.T) {
	config := func(annotation, more string) []byte {
		return fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": "pods", "type": "takt-cni", "network": "pods", "pods": "annotated", %s
			"runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"takt.dev/time-sensitive": %q}}}`, more, annotation)
	}
	long := strings.Repeat("x\\", 100_000)
	for name, tc := range map[string]struct {
		stdin  []byte
		remedy string
	}{
		"an annotation":  {config(long, ""), `write "true" or "false"`},
		"an unknown key": {config("true", fmt.Sprintf(`"nonsense": %q,`, long)), "remove it, or correct its name"},
		"pods":           {config("true", fmt.Sprintf(`"Pods": %q,`, long)), "remove it, or correct its name"},
	} {
		err := bounded(add)(&skel.CmdArgs{ContainerID: "1", IfName: "eth0", StdinData: tc.stdin})
		if err == nil || len(err.Error()) > 1024 || !strings.Contains(err.Error(), tc.remedy) {
			t.Errorf("%s: %.2000v", name, err)
		}
	}
}
