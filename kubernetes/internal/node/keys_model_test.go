package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/controller"
)

// model is a cluster whose controller and agents are the real ones, and whose API server and runtimes are not: each of their calls
// may be the last one of who makes it. Agents see objects as they were when they last looked.
type model struct {
	t     *testing.T
	now   time.Time
	names []string
	hosts map[string]*host
	// objects are those of the API server.
	objects map[string]*network.TaktNode
	version int
	made    int
	// calls counts calls that change something; whoever makes one of crash ends before it.
	calls int
	crash map[int]bool
	trace []string
}

// host is a node with its runtime.
type host struct {
	tables
	of        *model
	name, dir string
	key, next string
	keys      int
	// unplugged: nobody reaches it, nor does it reach the API server. cut: it does not reach the API server. silent: its agent does
	// not run.
	unplugged, cut, silent bool
	// excused: it was unplugged, or an object was deleted, since its agent last had its way.
	excused bool
	seen    []*network.TaktNode
}

// crashed is what ends a process of the model.
type crashed struct{}

func newModel(t *testing.T, nodes int) *model {
	m := &model{t: t, now: time.Now(), hosts: map[string]*host{}, objects: map[string]*network.TaktNode{}, crash: map[int]bool{}}
	for at := range nodes {
		name := fmt.Sprintf("node-%d", at+1)
		m.names = append(m.names, name)
		h := &host{of: m, name: name, dir: t.TempDir()}
		h.tables = tables{stations: map[string]*adminv1.Station{}, peers: map[string]string{}}
		h.key = h.another()
		m.hosts[name] = h
		m.make(name)
	}
	return m
}

func (m *model) make(name string) {
	m.made++
	m.objects[name] = &network.TaktNode{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(fmt.Sprint(m.made)), ResourceVersion: m.next()}}
}

func (m *model) next() string { m.version++; return fmt.Sprint(m.version) }

func (m *model) did(format string, args ...any) {
	m.trace = append(m.trace, fmt.Sprintf(format, args...))
}

// call is one that changes something.
func (m *model) call(format string, args ...any) {
	m.calls++
	if m.crash[m.calls] {
		m.did("crash before "+format, args...)
		panic(crashed{})
	}
	m.did(format, args...)
}

// process does something, which may end in the middle.
func process(do func()) {
	defer func() {
		if end := recover(); end != nil {
			if _, is := end.(crashed); !is {
				panic(end)
			}
		}
	}()
	do()
}

func (h *host) another() string {
	h.keys++
	return fmt.Sprintf("%s.%d", h.name, h.keys)
}

func (h *host) address() string {
	return fmt.Sprintf("192.0.2.%d:7400", slices.Index(h.of.names, h.name)+1)
}

func (h *host) GetStatus(context.Context, *adminv1.GetStatusRequest, ...grpc.CallOption) (*adminv1.GetStatusResponse, error) {
	return &adminv1.GetStatusResponse{Node: &adminv1.Node{Address: h.address(), Key: h.key, NextKey: h.next}}, nil
}

func (h *host) NextKey(context.Context, *adminv1.NextKeyRequest, ...grpc.CallOption) (*adminv1.NextKeyResponse, error) {
	h.of.call("%s makes its next key", h.name)
	if h.next == "" {
		h.next = h.another()
	}
	return &adminv1.NextKeyResponse{Key: h.next}, nil
}

func (h *host) SwitchKey(_ context.Context, r *adminv1.SwitchKeyRequest, _ ...grpc.CallOption) (*adminv1.SwitchKeyResponse, error) {
	h.of.call("%s takes %s", h.name, r.GetKey())
	switch r.GetKey() {
	case h.key:
	case h.next:
		h.key, h.next = h.next, ""
	default:
		return nil, status.Error(codes.FailedPrecondition, "another one")
	}
	return &adminv1.SwitchKeyResponse{Key: h.key}, nil
}

func (h *host) AddPeer(ctx context.Context, r *adminv1.AddPeerRequest, _ ...grpc.CallOption) (*adminv1.AddPeerResponse, error) {
	h.of.call("%s takes %s %s from %s", h.name, r.GetKey(), r.GetNextKey(), r.GetAddress())
	return h.tables.AddPeer(ctx, r)
}

func (h *host) RemovePeer(ctx context.Context, r *adminv1.RemovePeerRequest, _ ...grpc.CallOption) (*adminv1.RemovePeerResponse, error) {
	h.of.call("%s removes %s", h.name, r.GetAddress())
	return h.tables.RemovePeer(ctx, r)
}

// takes says whether a host takes what another one proves itself by.
func (h *host) takes(other *host) bool {
	return slices.Contains(strings.Fields(h.peers[other.address()]), other.key)
}

func (h *host) ListPeers(ctx context.Context, r *adminv1.ListPeersRequest, _ ...grpc.CallOption) (*adminv1.ListPeersResponse, error) {
	answer, err := h.tables.ListPeers(ctx, r)
	for _, peer := range answer.GetPeers() {
		peer.Authentication, peer.Attempts = adminv1.Authentication_AUTHENTICATION_NODE, enoughAttempts
		for _, other := range h.of.hosts {
			if other.address() == peer.GetAddress() && !other.unplugged && !h.unplugged && other.takes(h) && h.takes(other) {
				peer.State, peer.Attempts = adminv1.PeerState_PEER_STATE_UP, 0
			}
		}
	}
	return answer, err
}

// restart has a runtime forget all but its keys.
func (h *host) restart() {
	h.of.did("the runtime of %s starts anew", h.name)
	clear(h.peers)
}

// looks has an agent see what the API server has.
func (h *host) looks() {
	h.seen = nil
	for _, name := range h.of.names {
		if object := h.of.objects[name]; object != nil {
			h.seen = append(h.seen, object.DeepCopy())
		}
	}
}

// step is one of the agent's, another process each time, so that nothing is remembered but what is kept; and whether it has come to
// its end.
func (h *host) step() (ended bool) {
	if h.unplugged || h.cut || h.silent {
		return false
	}
	at := slices.IndexFunc(h.seen, func(n *network.TaktNode) bool { return n.Name == h.name })
	if at < 0 {
		if h.of.objects[h.name] == nil {
			h.of.did("%s makes its object", h.name)
			h.of.make(h.name)
		}
		return false
	}
	process(func() {
		known := []*network.TaktNode{h.seen[at]}
		for _, other := range h.seen {
			if other.Name != h.name {
				stripped := other.DeepCopy()
				stripped.Status = network.TaktNodeStatus{}
				known = append(known, stripped)
			}
		}
		m := memberOf(h.of.t, h.dir, &h.tables, known...)
		m.admin = h
		now := known[0].DeepCopy()
		if err := m.serve(background, now); err != nil {
			h.of.t.Fatal(err)
		}
		there := h.of.objects[h.name]
		if there == nil || there.ResourceVersion != now.ResourceVersion {
			return // a conflict
		}
		h.of.call("%s says %s %s, knows %v %s", h.name, now.Status.Runtime.Key, now.Status.Runtime.NextKey, now.Status.NextKeys, now.Status.KeyProblem)
		written := there.DeepCopy()
		written.Status, written.ResourceVersion = now.Status, h.of.next()
		h.of.objects[h.name], ended = written, true
	})
	return ended
}

// acts is a look and a step. Whatever came before, it knows of others now what they have said, if all have.
func (h *host) acts() {
	h.looks()
	all := !slices.ContainsFunc(h.of.names, func(name string) bool {
		object := h.of.objects[name]
		return object == nil || object.Spec.Peer == nil
	})
	if h.step() && all {
		h.excused = false
	}
}

// round is one of the controller's, which ends as its process does.
func (m *model) round() {
	w := &controller.World{Nodes: map[string]*corev1.Node{}, Pods: map[string]*corev1.Pod{}, Now: m.now, Lead: 10 * time.Second}
	for _, name := range m.names {
		h := m.hosts[name]
		ready := corev1.ConditionTrue
		if h.unplugged || h.cut {
			ready = corev1.ConditionUnknown
		}
		host, _, _ := strings.Cut(h.address(), ":")
		w.Nodes[name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: host}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}},
		}}
		if object := m.objects[name]; object != nil {
			w.Members = append(w.Members, object.DeepCopy())
		}
	}
	p := w.Make()
	process(func() {
		for _, member := range w.Members {
			spec := p.Specs[member.Name]
			if fmt.Sprintf("%+v %+v %+v", spec.Peer, spec.KeyRotation, spec.Planned) == fmt.Sprintf("%+v %+v %+v", member.Spec.Peer, member.Spec.KeyRotation, member.Spec.Planned) {
				continue
			}
			m.call("controller: %s has %+v, %+v", member.Name, spec.Peer, spec.KeyRotation)
			written := m.objects[member.Name].DeepCopy()
			written.Spec, written.ResourceVersion = spec, m.next()
			m.objects[member.Name] = written
		}
	})
}

// ask has all nodes of these names get other keys.
func (m *model) ask(names ...string) {
	for _, name := range names {
		if object := m.objects[name]; object != nil {
			m.did("%s is asked to change its key", name)
			written := object.DeepCopy()
			written.Annotations, written.ResourceVersion = map[string]string{network.RotateKey: m.now.Format(time.RFC3339)}, m.next()
			m.objects[name] = written
		}
	}
}

// check looks whether each runtime takes the keys of all others that it has been told of.
func (m *model) check() {
	going := 0
	for _, object := range m.objects {
		if object.Spec.KeyRotation.GoesOn() {
			going++
		}
	}
	if going > 1 {
		m.fail("%d nodes change their keys", going)
	}
	for _, h := range m.hosts {
		for _, other := range m.hosts {
			if h != other && !h.excused && h.peers[other.address()] != "" && !h.takes(other) {
				m.fail("%s takes %q from %s, which has %s", h.name, h.peers[other.address()], other.name, other.key)
			}
		}
	}
}

func (m *model) fail(format string, args ...any) {
	m.t.Helper()
	m.t.Fatalf("%s, after\n%s", fmt.Sprintf(format, args...), strings.Join(m.trace[max(0, len(m.trace)-60):], "\n"))
}

// fair has all do their part until something holds.
func (m *model) fair(what string, holds func() bool) {
	m.t.Helper()
	for range 100 {
		if holds() {
			return
		}
		m.round()
		m.check()
		for _, name := range m.names {
			m.hosts[name].acts()
			m.check()
		}
		m.now = m.now.Add(time.Second)
	}
	m.fail("still not: %s", what)
}

// known says that all have channels with all, by the keys that they have alone.
func (m *model) known() bool {
	for _, h := range m.hosts {
		for _, other := range m.hosts {
			if h != other && h.peers[other.address()] != other.key {
				return false
			}
		}
	}
	return true
}

// changed says that all of these have another key than before, that all know it, and that it says so.
func (m *model) changed(before map[string]string, names ...string) bool {
	for _, name := range names {
		object := m.objects[name]
		if object == nil || m.hosts[name].key == before[name] || object.Spec.KeyRotation == nil || object.Spec.KeyRotation.State != network.Rotated || len(object.Status.NextKeys) > 0 {
			return false
		}
	}
	return m.known()
}

func (m *model) keys() map[string]string {
	found := map[string]string{}
	for name, h := range m.hosts {
		found[name] = h.key
	}
	return found
}

// rotation has one node of three change its key, with these calls the last ones of who makes them, and says how many there were.
func rotation(t *testing.T, runtimesToo bool, crash ...int) int {
	t.Helper()
	m := newModel(t, 3)
	m.fair("all know all", m.known)
	m.calls = 0
	for _, at := range crash {
		m.crash[at] = true
	}
	before := m.keys()
	m.ask("node-2")
	seen := 0
	m.fair("the key is another one", func() bool {
		if runtimesToo && len(m.trace) > seen {
			for _, what := range m.trace[seen:] {
				if name, is := strings.CutPrefix(what, "crash before node-"); is {
					m.hosts["node-"+name[:1]].restart()
				}
			}
			seen = len(m.trace)
		}
		return m.changed(before, "node-2")
	})
	return m.calls
}

// Wherever agents, controller or runtimes end, twice: the others take the key that a node has at every instant, and in the end it has another one.
func TestAKeyIsChangedWithoutAnInstantAtWhichItIsNotTakenWhoeverEndsWherever(t *testing.T) {
	calls := rotation(t, false)
	t.Logf("%d calls that change something", calls)
	if calls < 10 {
		t.Fatalf("%d calls", calls)
	}
	for first := 1; first <= calls+2; first++ {
		rotation(t, false, first)
		rotation(t, true, first)
		for second := first + 1; second <= calls+4; second++ {
			rotation(t, false, first, second)
			rotation(t, true, first, second)
		}
	}
}

// Any order of all that may happen; afterwards, each node's key is changed.
func TestAKeyIsChangedWithoutAnInstantAtWhichItIsNotTakenInAnyOrder(t *testing.T) {
	seeds := uint64(200)
	if testing.Short() {
		seeds = 20
	}
	rotated, given := 0, 0
	for seed := range seeds {
		m := newModel(t, 4)
		m.did("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 1))
		m.fair("all know all", m.known)
		for range 250 {
			name := m.names[random.IntN(len(m.names))]
			h := m.hosts[name]
			clear(m.crash)
			if random.IntN(4) == 0 {
				m.crash[m.calls+1+random.IntN(3)] = true
			}
			switch what := random.IntN(100); {
			case what < 25:
				m.round()
			case what < 50:
				h.acts()
			case what < 60:
				h.looks()
			case what < 75:
				h.step() // by what it has seen before
			case what < 80:
				h.restart()
			case what < 84:
				h.unplugged = !h.unplugged
				h.excused = true
				m.did("%s is unplugged: %v", name, h.unplugged)
			case what < 88:
				h.silent = !h.silent
				m.did("the agent of %s is away: %v", name, h.silent)
			case what < 90:
				h.cut = !h.cut
				m.did("%s does not reach the API server: %v", name, h.cut)
			case what < 91:
				m.did("the object of %s is deleted", name)
				delete(m.objects, name)
				for _, other := range m.hosts {
					other.excused = true
				}
			case what < 94:
				m.ask(name)
			case what < 95:
				m.did("11 minutes later")
				m.now = m.now.Add(11 * time.Minute)
			default:
				m.now = m.now.Add(time.Second)
			}
			m.check()
			for _, object := range m.objects {
				if r := object.Spec.KeyRotation; r != nil && r.State == network.GivenUp {
					given++
				} else if r != nil && r.State == network.Rotated {
					rotated++
				}
			}
		}
		clear(m.crash)
		for _, h := range m.hosts {
			h.unplugged, h.cut, h.silent = false, false, false
		}
		m.fair("the last change has ended", func() bool {
			return !slices.ContainsFunc(m.names, func(name string) bool { return m.objects[name] == nil || m.objects[name].Spec.KeyRotation.GoesOn() })
		})
		m.now = m.now.Add(time.Minute)
		before := m.keys()
		m.ask(m.names...)
		m.fair("all have other keys", func() bool { return m.changed(before, m.names...) })
	}
	if rotated == 0 || given == 0 {
		t.Errorf("seen were %d that were changed and %d that were given up", rotated, given)
	}
}
