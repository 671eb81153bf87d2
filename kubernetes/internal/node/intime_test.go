package node

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/cni"
)

// mute is a taktd that takes calls and answers none of these methods.
type mute struct {
	listening
	list, set bool
}

func (m *mute) ListListeners(ctx context.Context, in *adminv1.ListListenersRequest, opts ...grpc.CallOption) (*adminv1.ListListenersResponse, error) {
	if m.list {
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return m.listening.ListListeners(ctx, in, opts...)
}

func (m *mute) SetListener(ctx context.Context, in *adminv1.SetListenerRequest, opts ...grpc.CallOption) (*adminv1.SetListenerResponse, error) {
	if m.set {
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return m.listening.SetListener(ctx, in, opts...)
}

// Whatever does not answer, the container is refused by the agent, before the container runtime goes on without it.
func TestAContainerIsRefusedBeforeTheRuntimeWaitsNoLonger(t *testing.T) {
	before := hookPatience
	hookPatience = 50 * time.Millisecond
	defer func() { hookPatience = before }()
	for _, tc := range []struct {
		name  string
		taktd mute
		held  bool
	}{
		{"what the pod is attached to", mute{list: true}, false},
		{"the classes that it may use", mute{set: true}, false},
		{"the turn of other pods", mute{}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSite(t)
			s.stop()
			s.config.Network = &NetworkConfig{Sockets: filepath.Join(s.dir, "cni"), AdminSocket: filepath.Join(s.dir, "admin.sock"), Preload: "/l.so", Objects: true, Claimed: []uint32{7}}
			if err := s.config.Network.validate(); err != nil {
				t.Fatal(err)
			}
			n, err := New(nodeName, s.config, s.client, s.events, s.backend)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(s.config.Network.Sockets, "sandbox", "net1", cni.SocketName)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			tc.taktd.all = map[string]*adminv1.Listener{path: {Path: path, Classes: []uint32{0, 5}, Endpoint: &adminv1.Endpoint{Network: "tsn"}}}
			n.cluster = &member{n: n, admin: &tc.taktd, synced: true}
			n.cluster.withoutObjects()
			n.cluster.nets = cache.NewSharedIndexInformer(&cache.ListWatch{}, &network.TaktNetwork{}, 0, cache.Indexers{})
			tsn := &network.TaktNetwork{Spec: network.TaktNetworkSpec{Access: []network.Access{{Classes: []int32{0}}}}}
			tsn.Name = "tsn"
			if err := n.cluster.nets.GetStore().Add(tsn); err != nil {
				t.Fatal(err)
			}
			n.gates = &gateTimes{n: n, admin: &tc.taktd, turn: newTurn(), held: map[types.UID]*gateClaim{}}
			if tc.held {
				if err := n.gates.turn.take(background); err != nil {
					t.Fatal(err)
				}
			}
			sandbox := &api.PodSandbox{Id: "sandbox", Namespace: "default", Name: "pod", Uid: "uid", Annotations: map[string]string{cni.Annotation: "true"}}
			_, _, err = (&nriPlugin{n}).CreateContainer(background, sandbox, &api.Container{Id: "c", Name: "main", PodSandboxId: "sandbox"})
			if err == nil || !strings.HasPrefix(err.Error(), codeNoAnswer+": ") || !strings.Contains(err.Error(), "see that taktd runs") {
				t.Errorf("the container is told %v", err)
			}
			if told := s.events.of("pod", reasonNetwork); len(told) != 1 || !strings.Contains(told[0], codeNoAnswer) {
				t.Errorf("the pod is told %q", told)
			}
		})
	}
}
