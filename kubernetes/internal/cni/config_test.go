package cni

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
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

func TestAPodHasABoundOfItsMemory(t *testing.T) {
	for keys, want := range map[string]uint64{
		"":                                512 << 20,
		`, "memoryBytes": 25165824`:       512 << 20,
		`, "memoryBytes": 1073741824`:     1<<30 + 64<<20,
		`, "totalMemoryBytes": 167772160`: 160 << 20,
		`, "totalMemoryBytes": 4294967296, "memoryBytes": 1073741824`: 4 << 30,
	} {
		c, err := load(fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": "pods", "type": "takt-cni", "network": "pods"%s}`, keys))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.listener(c.attachment("1", "eth0"), "line/talker/eth0", &adminv1.Endpoint{}).GetTotalMemoryBytes(); got != want {
			t.Errorf("%s: all sessions have %d bytes and not %d", keys, got, want)
		}
	}
}

// Its device may have what is written there; of Takt's nothing is.
func TestTheDelegateIsToldWhereItsDeviceInfoGoes(t *testing.T) {
	stdin := []byte(`{"cniVersion": "1.1.0", "name": "tsn", "type": "takt-cni", "network": "tsn", "capabilities": {"CNIDeviceInfoFile": true},
		"runtimeConfig": {"CNIDeviceInfoFile": "/run/devinfo/1"}, "delegate": {"type": "host-device"}}`)
	c, err := load(stdin)
	if err != nil {
		t.Fatal(err)
	}
	conf, err := c.delegated(stdin)
	if err != nil || !strings.Contains(string(conf), `"runtimeConfig":{"CNIDeviceInfoFile":"/run/devinfo/1"}`) || !strings.Contains(string(conf), `"type":"host-device"`) {
		t.Errorf("it is told %s, %v", conf, err)
	}
}
