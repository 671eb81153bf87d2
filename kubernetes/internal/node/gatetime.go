package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/cni"
	"github.com/takt-dev/takt/kubernetes/internal/report"
)

// gateTimes are the claims for gate time that are prepared here. Each is declared to taktd as streams of its pod, which
// taktd admits or refuses: a claim that it does not take is not prepared, and its pod waits.
//
// A claim is prepared before its pod has a sandbox. Until takt-cni has attached that, the streams are those of a listener
// that nobody can reach and that holds their place; then they move to the listener of the pod's interface, and back when
// that goes.
type gateTimes struct {
	n          *Node
	admin      adminv1.AdminClient
	disconnect func() error
	wake       chan struct{}

	// turn is held while listeners are changed, so that what is moved is not given to another meanwhile.
	turn sync.Mutex
	// unread: records of claims could not be read. What seems to be nobody's may be theirs.
	unread bool

	mu sync.Mutex
	// held are never changed, but replaced.
	held map[types.UID]*gateClaim
	// lost says of claims why taktd does not keep them.
	lost map[types.UID]error
	// said is what was last said of each in its status.
	said map[types.UID]condition
}

func newGateTimes(n *Node) (*gateTimes, error) {
	d, disconnect, err := n.networks()
	if err != nil {
		return nil, err
	}
	return &gateTimes{n: n, admin: d.admin, disconnect: disconnect, wake: make(chan struct{}, 1),
		held: map[types.UID]*gateClaim{}, lost: map[types.UID]error{}, said: map[types.UID]condition{}}, nil
}

// load reads what an earlier agent has left.
func (g *gateTimes) load() error {
	found, err := g.n.records.loadGates()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unread = err != nil
	for _, c := range found {
		g.held[c.Claim] = c
	}
	return err
}

func (g *gateTimes) get(uid types.UID) *gateClaim {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held[uid]
}

func (g *gateTimes) hold(c *gateClaim) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held[c.Claim] = c
}

// all are the claims that are held, by UID; of a pod if one is named.
func (g *gateTimes) all(pod types.UID) (found []*gateClaim) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, uid := range slices.Sorted(maps.Keys(g.held)) {
		if c := g.held[uid]; pod == "" || c.Pod.UID == pod {
			found = append(found, c)
		}
	}
	return found
}

// claimed is what claims hold, by network and class.
func (g *gateTimes) claimed() map[string]classes {
	sum := map[string]classes{}
	for _, c := range g.all("") {
		of := sum[c.network()]
		for _, request := range c.Requests {
			of[request.class()] += request.Parameters.BitsPerSecond()
		}
		sum[c.network()] = of
	}
	return sum
}

// claimsDirectory is where listeners are that hold places. takt-cni passes over names with a dot.
func (g *gateTimes) claimsDirectory() string {
	return filepath.Join(g.n.config.Network.Sockets, ".claims")
}

// placeholder is the socket of the listener that holds the claim's place.
func (g *gateTimes) placeholder(uid types.UID) string {
	return filepath.Join(g.claimsDirectory(), string(uid), cni.SocketName)
}

// listeners are those of taktd below takt-cni's directory, by path.
type listeners map[string]*adminv1.Listener

func (g *gateTimes) listeners(ctx context.Context) (listeners, error) {
	all, err := g.admin.ListListeners(ctx, &adminv1.ListListenersRequest{})
	if err != nil {
		return nil, err
	}
	found := listeners{}
	for _, one := range all.GetListeners() {
		if path := one.GetListener().GetPath(); strings.HasPrefix(path, filepath.Clean(g.n.config.Network.Sockets)+"/") {
			found[path] = one.GetListener()
		}
	}
	return found, nil
}

// has says whether the listener at a path has these streams.
func (l listeners) has(path string, wanted []*adminv1.DeclaredStream) bool {
	return l[path] != nil && !slices.ContainsFunc(wanted, func(w *adminv1.DeclaredStream) bool {
		return !slices.ContainsFunc(l[path].GetStreams(), func(s *adminv1.DeclaredStream) bool { return proto.Equal(s, w) })
	})
}

func namedAs(streams []*adminv1.DeclaredStream) func(*adminv1.DeclaredStream) bool {
	return func(one *adminv1.DeclaredStream) bool {
		return slices.ContainsFunc(streams, func(s *adminv1.DeclaredStream) bool { return s.GetName() == one.GetName() })
	}
}

// withStreams is a listener with streams, instead of those of their names that it has.
func withStreams(listener *adminv1.Listener, streams []*adminv1.DeclaredStream) *adminv1.Listener {
	next := withoutStreams(listener, streams)
	next.Streams = append(next.Streams, streams...)
	return next
}

// withoutStreams is a listener without streams of these names.
func withoutStreams(listener *adminv1.Listener, streams []*adminv1.DeclaredStream) *adminv1.Listener {
	next := proto.Clone(listener).(*adminv1.Listener)
	next.Streams = slices.DeleteFunc(next.Streams, namedAs(streams))
	return next
}

// set has taktd take a listener, and notes that it has.
func (g *gateTimes) set(ctx context.Context, all listeners, listener *adminv1.Listener) error {
	if _, err := g.admin.SetListener(ctx, &adminv1.SetListenerRequest{Listener: listener, Keep: true}); err != nil {
		return err
	}
	all[listener.GetPath()] = listener
	return nil
}

func (g *gateTimes) removeListener(ctx context.Context, all listeners, path string) error {
	if _, err := g.admin.RemoveListener(ctx, &adminv1.RemoveListenerRequest{Path: path}); err != nil {
		return err
	}
	delete(all, path)
	return nil
}

// holding is the listener that holds the claim's place: nobody can attach there. Whose frames its streams are says nothing,
// because there are none.
func (g *gateTimes) holding(c *gateClaim) *adminv1.Listener {
	listener := &adminv1.Listener{
		Path: g.placeholder(c.Claim), Mode: 0o600, Identity: shortName(c.Pod.Namespace + "/" + c.Pod.Name),
		Write: []*adminv1.ChannelRange{{First: 1, Last: uint64(len(c.Requests))}}, Sessions: 1, Endpoints: 1, TotalEndpoints: 1,
	}
	for at, one := range c.streams() {
		channel := uint64(at + 1)
		one.Channel, one.Destination = &channel, ""
		listener.Streams = append(listener.Streams, one)
		if !slices.Contains(listener.Classes, one.GetTrafficClass()) {
			listener.Classes = append(listener.Classes, one.GetTrafficClass())
		}
	}
	slices.Sort(listener.Classes)
	return listener
}

// declare has the claim's streams declared where they belong, and nowhere else: at the listener of its pod's interface if
// that is there, else at one that holds their place. If that is refused all is as it was. Call with g.turn held.
func (g *gateTimes) declare(ctx context.Context, all listeners, c *gateClaim) error {
	target := g.holding(c)
	streams := target.GetStreams()
	if at := all[c.Place]; c.Place != "" && at != nil {
		streams = c.streams()
		target = withStreams(at, streams)
	}
	done := all.has(target.GetPath(), streams)
	var undo []*adminv1.Listener
	for _, path := range slices.Sorted(maps.Keys(all)) {
		had := all[path]
		if path == target.GetPath() || !slices.ContainsFunc(had.GetStreams(), namedAs(streams)) {
			continue
		}
		// First: both together may not fit.
		var err error
		if path == g.placeholder(c.Claim) {
			err = g.removeListener(ctx, all, path)
		} else {
			err = g.set(ctx, all, withoutStreams(had, streams))
		}
		if err != nil {
			return errors.Join(err, g.restore(ctx, all, undo))
		}
		undo = append(undo, had)
	}
	if done {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(target.GetPath()), 0o700); err != nil {
		return errors.Join(fmt.Errorf("cannot make the place of a claim: %w", err), g.restore(ctx, all, undo))
	}
	if err := g.set(ctx, all, target); err != nil {
		return errors.Join(err, g.restore(ctx, all, undo))
	}
	return nil
}

// restore puts listeners back as they were, the last first.
func (g *gateTimes) restore(ctx context.Context, all listeners, undo []*adminv1.Listener) error {
	var mistakes []error
	for _, had := range slices.Backward(undo) {
		mistakes = append(mistakes, g.set(ctx, all, had))
	}
	return errors.Join(mistakes...)
}

// isUnavailable says that nobody serves taktd's socket.
func isUnavailable(err error) bool { return status.Code(err) == codes.Unavailable }

// retract takes the claim's streams out of taktd, wherever they are. One that is away has nothing that would come back:
// streams at a pod's listener are taken from it when it is there again. Call with g.turn held.
func (g *gateTimes) retract(ctx context.Context, uid types.UID) error {
	all, err := g.listeners(ctx)
	if err != nil && !isUnavailable(err) {
		return fmt.Errorf("taktd does not say what it has: %w", err)
	}
	if all[g.placeholder(uid)] != nil {
		if err := g.removeListener(ctx, all, g.placeholder(uid)); err != nil && !isUnavailable(err) {
			return fmt.Errorf("taktd does not give the claim's place back: %w", err)
		}
	}
	if c := g.get(uid); c != nil {
		streams := c.streams()
		for _, path := range slices.Sorted(maps.Keys(all)) {
			if !slices.ContainsFunc(all[path].GetStreams(), namedAs(streams)) {
				continue
			}
			if err := g.set(ctx, all, withoutStreams(all[path], streams)); err != nil && !isUnavailable(err) {
				return fmt.Errorf("taktd does not give the claim's streams back: %w", err)
			}
		}
	}
	if err := os.RemoveAll(filepath.Dir(g.placeholder(uid))); err != nil {
		return fmt.Errorf("cannot remove what claim %s left: %w", uid, err)
	}
	return g.n.records.removeGate(uid)
}

// prepare admits a claim, or refuses it and leaves nothing; nil if it is for no gate time. With an error it returns the claim
// as far as it goes.
func (g *gateTimes) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) (*gateClaim, error) {
	c, err := newGateClaim(claim, g.n.name)
	if c == nil || err != nil {
		return c, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*askTaktd)
	defer cancel()
	g.turn.Lock()
	defer g.turn.Unlock()
	if err := g.permitted(c); err != nil {
		return c, err
	}
	all, err := g.listeners(ctx)
	if err != nil {
		return c, fmt.Errorf("taktd does not answer at %s: start it: %w", g.n.config.Network.AdminSocket, err)
	}
	gives, err := g.gives(ctx)
	if err == nil {
		err = c.offered(gives)
	}
	if err != nil {
		return c, err
	}
	old := g.get(c.Claim)
	if old != nil {
		c.Place = old.Place
	}
	// First: what is in taktd must be known to be somebody's.
	if err := g.n.records.writeGate(c); err != nil {
		return c, err
	}
	g.hold(c)
	if err := g.declare(ctx, all, c); err != nil {
		err = g.refused(c, err)
		if old != nil {
			g.hold(old)
			return c, errors.Join(err, g.n.records.writeGate(old))
		}
		return c, errors.Join(err, g.drop(ctx, c.Claim))
	}
	g.say(c, nil)
	return c, nil
}

// refused is what a pod is told of taktd's refusal.
func (g *gateTimes) refused(c *gateClaim, err error) error {
	if away(err) {
		return fmt.Errorf("taktd does not answer at %s: start it: %w", g.n.config.Network.AdminSocket, err)
	}
	var what []string
	for _, request := range c.Requests {
		what = append(what, fmt.Sprintf("%s in class %d", &request.Parameters, request.class()))
	}
	return refuse(codeGateTime, "network %q of this node has no gate time for %s: %s; or delete the pod to have it placed again",
		c.network(), strings.Join(what, " and "), status.Convert(err).Message())
}

// permitted says whether the pod's namespace may use the classes, as the network's TaktNetwork has it.
func (g *gateTimes) permitted(c *gateClaim) error {
	m := g.n.cluster
	if m == nil {
		return nil
	}
	m.mu.Lock()
	synced := m.synced
	m.mu.Unlock()
	if !synced {
		return errors.New("takt-node has not heard from the API server yet who may use which network: it will be tried again")
	}
	found, there, _ := m.nets.GetStore().GetByKey(c.network())
	if !there {
		return nil // whether it may do without one is looked at when its containers are created
	}
	var classes []uint32
	for _, request := range c.Requests {
		classes = append(classes, uint32(request.class()))
	}
	allowed, excess := found.(*network.TaktNetwork).Spec.Allows(c.Namespace, classes)
	if !allowed || len(excess) > 0 {
		return refuse(codeNotAllowed, "namespace %s may not use classes %v of network %s: add them to access of the TaktNetwork, or claim others", c.Namespace, classes, c.network())
	}
	return nil
}

// gives is what the node's schedules give to each class.
func (g *gateTimes) gives(ctx context.Context) (classes, error) {
	schedules, err := g.admin.ListSchedules(ctx, &adminv1.ListSchedulesRequest{})
	if err != nil {
		return classes{}, fmt.Errorf("taktd does not say which schedules it has: %w", err)
	}
	gives, _ := left(schedules.GetLinks(), nil)
	return gives, nil
}

// offered says whether schedules give the claim's classes anything at all: without one taktd admits whatever comes.
func (c *gateClaim) offered(gives classes) error {
	for _, request := range c.Requests {
		if gives[request.class()] == 0 {
			return refuse(codeNoGateTime, "request %q: no schedule of this node gives class %d gate time: install one with a window for it and the link's rate (GateSchedule, takt schedule install), or delete the pod to have it placed again",
				request.Name, request.class())
		}
	}
	return nil
}

// release gives a claim back; it is no error if nothing is held.
func (g *gateTimes) release(ctx context.Context, uid types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, 2*askTaktd)
	defer cancel()
	g.turn.Lock()
	defer g.turn.Unlock()
	if err := g.drop(ctx, uid); err != nil {
		return err
	}
	g.n.status.forget(uid, reservation.NetworkDriver)
	return nil
}

// drop is release with g.turn held.
func (g *gateTimes) drop(ctx context.Context, uid types.UID) error {
	if err := g.retract(ctx, uid); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.held, uid)
	delete(g.lost, uid)
	delete(g.said, uid)
	return nil
}

// attach gives the pod of a container its streams, before the container is created: what it claims moves to the listener of
// the interface that is in the network.
func (g *gateTimes) attach(ctx context.Context, sandbox *api.PodSandbox, ctr *api.Container) error {
	pod := podOf(sandbox)
	if err := g.belong(ctx, pod, ctr); err != nil {
		return err
	}
	claims := g.all(pod.UID)
	if len(claims) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTaktd)
	defer cancel()
	g.turn.Lock()
	defer g.turn.Unlock()
	all, err := g.listeners(ctx)
	if err != nil {
		return fmt.Errorf("taktd does not say what the pod is attached to: %w", err)
	}
	directory := filepath.Join(g.n.config.Network.Sockets, sandbox.GetId())
	attached, err := interfaces(directory)
	if err != nil {
		return fmt.Errorf("cannot see what the pod is attached to: %w", err)
	}
	// The one that its programs use goes first.
	if chosen := sandbox.GetAnnotations()[annotationInterface]; slices.Contains(attached, chosen) {
		attached = append([]string{chosen}, attached...)
	}
	for _, c := range claims {
		if c = g.get(c.Claim); c == nil {
			continue
		}
		at := slices.IndexFunc(attached, func(name string) bool {
			return all[filepath.Join(directory, name, cni.SocketName)].GetEndpoint().GetNetwork() == c.network()
		})
		if at < 0 {
			return refuse(codeUnattached, "claim %s is for gate time of network %q, which has not attached the pod: annotate it with %s: \"true\", or claim it of the network that attaches it",
				c.Name, c.network(), cni.Annotation)
		}
		if err := g.move(ctx, all, c, filepath.Join(directory, attached[at], cni.SocketName)); err != nil {
			return err
		}
	}
	return nil
}

// move has the claim's streams at a place. Call with g.turn held.
func (g *gateTimes) move(ctx context.Context, all listeners, c *gateClaim, place string) error {
	next := *c
	next.Place = place
	if next.Place != c.Place {
		if err := g.n.records.writeGate(&next); err != nil {
			return err
		}
		g.hold(&next)
	}
	if err := g.declare(ctx, all, &next); err != nil {
		g.hold(c)
		return errors.Join(g.refused(c, err), g.n.records.writeGate(c))
	}
	g.say(&next, nil)
	return nil
}

// belong says whether the claims that a container names are its pod's. The kubelet does not ask again when a prepared claim
// passes from one pod to the next, so the API server is asked here.
func (g *gateTimes) belong(ctx context.Context, pod Pod, ctr *api.Container) error {
	claims, err := gateMarks(ctr)
	if err != nil {
		return err
	}
	for _, uid := range claims {
		c := g.get(uid)
		if c == nil {
			return refuse(codeNotPrepared, "claim %s is not prepared on this node: the kubelet will try again; a container that sets %s* itself never has gate time", uid, gateVariable)
		}
		if c.Pod.UID == pod.UID {
			continue
		}
		if c, err = g.passed(ctx, c, pod); err != nil {
			return err
		}
		g.turn.Lock()
		err := g.n.records.writeGate(c)
		if err == nil {
			g.hold(c)
		}
		g.turn.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// passed is the claim as it is now, if it is a pod's.
func (g *gateTimes) passed(ctx context.Context, c *gateClaim, pod Pod) (*gateClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, askAPI)
	defer cancel()
	now, err := g.n.client.ResourceV1().ResourceClaims(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("cannot see whom claim %s is reserved for: %w", c.Name, err)
	}
	fresh, err := newGateClaim(now, g.n.name)
	if err != nil {
		return nil, err
	}
	if fresh == nil || now.UID != c.Claim || fresh.Pod.UID != pod.UID || pod.Namespace != c.Namespace {
		return nil, refuse(codeShared, "claim %s/%s is not of pod %s/%s: gate time is one pod's, use a ResourceClaimTemplate", c.Namespace, c.Name, pod.Namespace, pod.Name)
	}
	fresh.Place = c.Place
	return fresh, nil
}

// run keeps taktd in step until the context ends.
func (g *gateTimes) run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	said := ""
	for {
		err := g.step(ctx)
		if ctx.Err() != nil {
			return
		}
		if now := fmt.Sprint(err); now != said {
			said = now
			logger.Info("In step with claims for gate time", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-g.wake:
		case <-time.After(lookAtTaktd):
		}
	}
}

// look has it looked at soon.
func (g *gateTimes) look() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// step has every claim where it belongs, and nothing else of claims there.
func (g *gateTimes) step(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*askTaktd)
	defer cancel()
	g.turn.Lock()
	defer g.turn.Unlock()
	all, err := g.listeners(ctx)
	if err != nil {
		return err
	}
	gives, err := g.gives(ctx)
	if err != nil {
		return err
	}
	for _, c := range g.all("") {
		err := g.declare(ctx, all, c)
		if err != nil {
			err = g.refused(c, err)
		} else {
			err = c.offered(gives)
		}
		var known refusal
		if err != nil && !errors.As(err, &known) {
			return err // taktd has gone: it keeps what it had
		}
		g.say(c, err)
	}
	return g.tidy(ctx, all)
}

// tidy takes out of taktd what is of no claim any more: what it had kept while it was away when the claim was given back.
func (g *gateTimes) tidy(ctx context.Context, all listeners) error {
	if g.unread {
		return nil
	}
	owned := map[string]bool{}
	for _, c := range g.all("") {
		for _, one := range c.streams() {
			owned[one.GetName()] = true
		}
	}
	var mistakes []error
	for _, path := range slices.Sorted(maps.Keys(all)) {
		nobodys := slices.DeleteFunc(slices.Clone(all[path].GetStreams()), func(s *adminv1.DeclaredStream) bool {
			return !strings.HasPrefix(s.GetName(), streamPrefix) || owned[s.GetName()]
		})
		uid := types.UID(filepath.Base(filepath.Dir(path)))
		switch {
		case path == g.placeholder(uid) && g.get(uid) == nil:
			mistakes = append(mistakes, g.removeListener(ctx, all, path), os.RemoveAll(filepath.Dir(path)))
		case len(nobodys) > 0:
			mistakes = append(mistakes, g.set(ctx, all, withoutStreams(all[path], nobodys)))
		}
	}
	return errors.Join(mistakes...)
}

// say writes how a claim stands into its status, and tells its pod of what was lost.
func (g *gateTimes) say(c *gateClaim, err error) {
	is := condition{ready: true, reason: "Prepared", message: "taktd has admitted the streams; they are the pod's when it is attached"}
	if c.Place != "" {
		is = condition{ready: true, reason: reasonReserved, message: "the streams are declared at the pod's interface"}
	}
	if err != nil {
		is = denied(reasonGateLost, err)
	}
	g.mu.Lock()
	_, was := g.lost[c.Claim]
	same := g.said[c.Claim] == is
	g.said[c.Claim] = is
	if err != nil {
		g.lost[c.Claim] = err
	} else {
		delete(g.lost, c.Claim)
	}
	g.mu.Unlock()
	if err != nil && !was {
		g.n.tell(c.Pod, reasonGateLost, "claim "+c.Name, err)
	}
	if !same {
		g.n.status.put(claimStatus{record: c.record(), gates: c.Requests, condition: is})
	}
}

// at are the streams that claims have at the listener of a pod's interface.
func (g *gateTimes) at(path string) (found []report.GateTime) {
	for _, c := range g.all("") {
		if c.Place != path {
			continue
		}
		g.mu.Lock()
		lost := g.lost[c.Claim]
		g.mu.Unlock()
		for _, request := range c.Requests {
			p := &request.Parameters
			one := report.GateTime{Claim: c.Name, Request: request.Name, Class: request.class(), Frames: p.Frames(), Frame: p.LargestFrame(), Period: p.Period.String()}
			if lost != nil {
				one.Problem = lost.Error()
			}
			found = append(found, one)
		}
	}
	return found
}

// counts are the claims that taktd keeps, and those that it does not.
func (g *gateTimes) counts() (kept, lost int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.held) - len(g.lost), len(g.lost)
}

// sweep gives back what is of claims that are not in the cluster any more.
func (g *gateTimes) sweep(ctx context.Context) {
	for _, c := range g.all("") {
		if g.n.exists(ctx, c.record()) {
			continue
		}
		logger := klog.FromContext(ctx)
		logger.Info("A claim for gate time has gone from the cluster, giving it back", "claim", klog.KRef(c.Namespace, c.Name))
		if err := g.release(ctx, c.Claim); err != nil {
			logger.Error(err, "Cannot give it back")
		}
	}
}
