package node

import (
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
)

// listening is a taktd with listeners.
type listening struct {
	adminv1.AdminClient
	all map[string]*adminv1.Listener
}

func (l *listening) ListListeners(context.Context, *adminv1.ListListenersRequest, ...grpc.CallOption) (*adminv1.ListListenersResponse, error) {
	answer := &adminv1.ListListenersResponse{}
	for _, one := range l.all {
		answer.Listeners = append(answer.Listeners, &adminv1.ListenerStatus{Listener: one})
	}
	return answer, nil
}

func (l *listening) SetListener(_ context.Context, request *adminv1.SetListenerRequest, _ ...grpc.CallOption) (*adminv1.SetListenerResponse, error) {
	l.all[request.GetListener().GetPath()] = request.GetListener()
	return &adminv1.SetListenerResponse{}, nil
}

func TestANetworkThatTheClusterDoesNotKnowIsNobodys(t *testing.T) {
	told := &events{}
	n := &Node{name: nodeName, events: told}
	n.config.Network = &NetworkConfig{Sockets: "/run/takt/cni", Preload: "/l.so", Objects: true}
	if err := n.config.Network.validate(); err != nil {
		t.Fatal(err)
	}
	l := &listening{all: map[string]*adminv1.Listener{}}
	m := &member{n: n, admin: l, synced: true, listeners: map[string]*adminv1.Listener{}}
	m.withoutObjects()
	path := func(namespace string) string { return filepath.Join("/run/takt/cni", namespace, "net1", "takt.sock") }
	for _, namespace := range []string{"plant", "office", "guests", "visitors"} {
		l.all[path(namespace)] = &adminv1.Listener{Path: path(namespace), Identity: namespace + "/pod/net1", Classes: []uint32{0, 5, 6}, Endpoint: &adminv1.Endpoint{Network: "tsn"}}
	}
	allows := func(namespace string) string {
		if err := m.allows(background, &api.PodSandbox{Id: namespace, Namespace: namespace, Name: namespace}, "net1"); err != nil {
			return err.Error()
		}
		return ""
	}
	if said := allows("guests"); !strings.HasPrefix(said, codeNotAllowed+": ") || !strings.Contains(said, "there is no TaktNetwork tsn") {
		t.Errorf("a network without a TaktNetwork: %q", said)
	}
	tsn := &network.TaktNetwork{ObjectMeta: metav1.ObjectMeta{Name: "tsn"}}
	tsn.Spec.Access = []network.Access{{Namespaces: []string{"plant"}}, {Namespaces: []string{"office"}, Classes: []int32{0, 5}}, {Namespaces: []string{"guests"}, Classes: []int32{1}}}
	if err := m.nets.GetStore().Add(tsn); err != nil {
		t.Fatal(err)
	}
	for namespace, want := range map[string][]uint32{"plant": {0, 5, 6}, "office": {0, 5}} {
		// Twice, as a pod of two containers.
		for range 2 {
			if said := allows(namespace); said != "" {
				t.Errorf("%s: %s", namespace, said)
			}
		}
		if got := l.all[path(namespace)].GetClasses(); !slices.Equal(got, want) {
			t.Errorf("%s has classes %v and not %v", namespace, got, want)
		}
	}
	if got := told.of("office", reasonClasses); len(got) != 1 || !strings.Contains(got[0], "may not use [6]") || len(told.of("plant", reasonClasses)) > 0 {
		t.Errorf("told %q", told.all)
	}
	if said := allows("guests"); !strings.Contains(said, "[0 5 6]") {
		t.Errorf("a pod without any of its classes: %q", said)
	}
	if said := allows("others"); !strings.Contains(said, "knows nothing of") {
		t.Errorf("a pod that is not attached: %q", said)
	}
	// A container that starts again is of a pod that has started.
	n.cluster = m
	office := &api.PodSandbox{Id: "office", Namespace: "office", Name: "office"}
	n.served.Store("office", true)
	tsn.Spec.Access[1].Classes = []int32{0}
	if err := n.allowed(background, office, []string{"net1"}); err != nil || !slices.Equal(l.all[path("office")].GetClasses(), []uint32{0, 5}) {
		t.Errorf("after a change its classes are %v: %v", l.all[path("office")].GetClasses(), err)
	}
	n.served.Delete("office")
	if err := n.allowed(background, office, []string{"net1"}); err != nil || !slices.Equal(l.all[path("office")].GetClasses(), []uint32{0}) {
		t.Errorf("the classes of a new pod are %v: %v", l.all[path("office")].GetClasses(), err)
	}
	// The last entry is taken away: that opens nothing either.
	for spec, open := range map[string]bool{
		`{"vni":42}`: true, `{"vni":42,"access":[]}`: false, `{"vni":42,"access":[{}]}`: true,
		`{"vni":42,"access":[{"namespaces":[]}]}`: false, `{"vni":42,"access":[{"classes":[]}]}`: false,
	} {
		tsn.Spec = network.TaktNetworkSpec{}
		if err := json.Unmarshal([]byte(spec), &tsn.Spec); err != nil {
			t.Fatal(err)
		}
		// As it is kept, and written again.
		kept, err := json.Marshal(tsn.DeepCopy().Spec)
		if err != nil || string(kept) != spec {
			t.Errorf("%s has become %s, %v", spec, kept, err)
		}
		if said := allows("visitors"); (said == "") != open || !open && !strings.HasPrefix(said, codeNotAllowed+": ") {
			t.Errorf("with %s: %q", spec, said)
		}
	}
	l.all[path("visitors")].Endpoint.Mtu = 1500
	for most, warned := range map[int32]int{1500: 0, 1450: 1} {
		tsn.Spec, told.all = network.TaktNetworkSpec{MTU: &most}, nil
		if said := allows("visitors"); said != "" {
			t.Error(said)
		}
		if got := told.of("visitors", network.MTUTooLarge); len(got) != warned || warned > 0 && !strings.Contains(got[0], "the MTU of net1 is 1500, and network tsn carries packets of 1450 bytes: write mtu: 1450") {
			t.Errorf("with mtu %d: told %q", most, told.all)
		}
	}
	// It is deleted: nothing is opened by that, unless it is wanted.
	if err := m.nets.GetStore().Delete(tsn); err != nil {
		t.Fatal(err)
	}
	if said := allows("guests"); said == "" {
		t.Error("deleting the TaktNetwork has let everybody in")
	}
	n.config.Network.Unlisted = AllowUnlisted
	if said := allows("guests"); said != "" {
		t.Error(said)
	}
}
