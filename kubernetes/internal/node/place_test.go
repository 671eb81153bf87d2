package node

import (
	"context"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"

	"github.com/takt-dev/takt/kubernetes/internal/enforce"
)

// placing is a backend that wants its containers below a cgroup of its own.
type placing struct{ enforce.Backend }

func (placing) Adjust([]enforce.Grant) enforce.Adjustment {
	return enforce.Adjustment{Cgroup: "/takt-cpu1"}
}

func TestAContainerIsCreatedWhereItsBackendWantsItUnlessSystemdDecides(t *testing.T) {
	s := newSiteWith(t, placing{enforce.Deadline{}})
	response := s.prepare(s.claim("claim", plain, nil))
	if response.Error != "" {
		t.Fatal(response.Error)
	}
	env := s.injected(response.Devices[0].CdiDeviceIds).Process.Env
	create := func(id, path string) (string, error) {
		created, err := s.runtime.CreateContainer(context.Background(), &adaptation.CreateContainerRequest{
			Pod: &api.PodSandbox{Id: "pod-sandbox", Namespace: "default", Name: "pod", Uid: "pod-uid"},
			Container: &api.Container{
				Id: id, PodSandboxId: "pod-sandbox", Name: "main", Env: env, State: api.ContainerState_CONTAINER_CREATED,
				Linux: &api.LinuxContainer{CgroupsPath: path},
			},
		})
		return created.GetAdjust().GetLinux().GetCgroupsPath(), err
	}
	if got, err := create("one", "/kubepods/pod/one"); err != nil || got != "/takt-cpu1/one" {
		t.Errorf("it is created in %q, %v", got, err)
	}
	if _, err := create("two", "kubepods-pod.slice:cri-containerd:two"); err == nil || !strings.Contains(err.Error(), "cgroupfs") {
		t.Errorf("with systemd: %v", err)
	}
	if told := s.events.of("pod", reasonRefused); len(told) != 1 || !strings.Contains(told[0], codeUnsupported+": ") {
		t.Errorf("the pod is told %q", told)
	}
}
