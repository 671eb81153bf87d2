package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"

	"github.com/takt-dev/takt/kubernetes/internal/gate"
)

func networked(t *testing.T) *site {
	s := newSite(t)
	s.stop()
	s.config.Network = &NetworkConfig{Sockets: filepath.Join(s.dir, "cni"), AdminSocket: filepath.Join(s.dir, "admin.sock"), Preload: s.library(), Path: PathPreload}
	if err := s.config.Network.validate(); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(s.config.Network.Sockets, "pod/eth0"), 0o755); err != nil {
		t.Fatal(err)
	}
	return s
}

// passes is what the gate says that the hook of the claim's CDI device runs.
func (s *site) passes(id string) error {
	s.t.Helper()
	hooks := s.injected([]string{networkCDI()}).Hooks
	if hooks == nil || len(hooks.CreateRuntime) != 1 || hooks.CreateRuntime[0].Path != s.config.Gate {
		s.t.Fatalf("a container with a claim for a network has the hooks %+v", hooks)
	}
	return gate.Pass(strings.NewReader(fmt.Sprintf(`{"id":%q,"pid":1}`, id)), hooks.CreateRuntime[0].Args[1])
}

func TestAContainerThatClaimsANetworkDoesNotStartWithoutTheAgent(t *testing.T) {
	s := networked(t)
	s.startAgent()
	s.until("the device is described", func() bool {
		_, err := os.Stat(networkCDIFile(s.config.CDIDirectory))
		return err == nil
	})
	pod := &api.PodSandbox{Id: "pod", Namespace: "default", Name: "pod", Uid: "pod", Annotations: map[string]string{"takt.dev/time-sensitive": "true"}}
	if _, err := s.createOf(pod, &api.Container{Id: "seen", PodSandboxId: "pod", Name: "main"}); err != nil {
		t.Fatal(err)
	}
	if err := s.passes("seen"); err != nil {
		t.Errorf("it does not start: %v", err)
	}
	if err := s.passes("unseen"); err == nil || !strings.Contains(err.Error(), "unseen") {
		t.Errorf("one that the agent has not seen: %v", err)
	}
	s.stop()
	if err := s.passes("seen"); err == nil || !strings.Contains(err.Error(), "takt-node does not answer") {
		t.Errorf("without the agent: %v", err)
	}
	// One that was created before the agent ended has what it needs; one that came meanwhile, also with a mount of its own in
	// that place, has not.
	s.mu.Lock()
	s.pods = []*api.PodSandbox{pod}
	s.containers = nil
	strict := &api.PodSandbox{Id: "strict", Namespace: "default", Name: "strict", Uid: "strict", Annotations: map[string]string{
		"takt.dev/time-sensitive": "true", "takt.dev/preload": "required", "takt.dev/path": "preload",
	}}
	s.pods = append(s.pods, strict)
	s.containers = append(s.containers, &api.Container{Id: "strict", PodSandboxId: "strict", Name: "main", State: api.ContainerState_CONTAINER_CREATED,
		Mounts: []*api.Mount{{Source: filepath.Join(s.config.Network.Sockets, "strict"), Destination: containerSockets}}})
	for id, source := range map[string]string{"seen": filepath.Join(s.config.Network.Sockets, "pod"), "own": "/anywhere", "bare": ""} {
		ctr := &api.Container{Id: id, PodSandboxId: "pod", Name: id, State: api.ContainerState_CONTAINER_CREATED}
		if source != "" {
			ctr.Mounts = []*api.Mount{{Source: source, Destination: containerSockets}}
		}
		s.containers = append(s.containers, ctr)
	}
	s.mu.Unlock()
	s.startAgent()
	var passed []string
	for _, id := range []string{"seen", "own", "bare"} {
		if s.passes(id) == nil {
			passed = append(passed, id)
		}
	}
	if !slices.Equal(passed, []string{"seen"}) {
		t.Errorf("%q start", passed)
	}
	// What the kernel is to refuse it is looked at as by the agent that created it.
	if err := s.passes("strict"); err == nil || !strings.Contains(err.Error(), codeNoSeccomp) {
		t.Errorf("one that requires its launch times, without a policy: %v", err)
	}
	if err := s.runtime.RemoveContainer(context.Background(), &adaptation.RemoveContainerRequest{Pod: pod, Container: &api.Container{Id: "seen", PodSandboxId: "pod"}}); err != nil {
		t.Fatal(err)
	}
	if s.passes("seen") == nil {
		t.Error("one that was removed starts")
	}
}

// What the how-to page tells to write on pods without a claim is what the container runtime's own validator reads.
func TestAPodMayRequireTheAgent(t *testing.T) {
	s := networked(t)
	s.startAgent()
	required := map[string]string{"takt.dev/time-sensitive": "true", "required-plugins.noderesource.dev": "[takt-node]"}
	create := func(id string, annotations map[string]string) error {
		_, err := s.createOf(&api.PodSandbox{Id: "pod", Namespace: "default", Name: "pod", Uid: "pod", Annotations: annotations}, &api.Container{Id: id, PodSandboxId: "pod", Name: "main"})
		return err
	}
	if err := create("served", required); err != nil {
		t.Error(err)
	}
	s.stop()
	s.until("the runtime has noticed that the agent has gone", func() bool { return create("bare", nil) == nil })
	if err := create("refused", required); err == nil || !strings.Contains(err.Error(), "takt-node") {
		t.Errorf("without the agent: %v", err)
	}
}
