package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/cni"
	"github.com/takt-dev/takt/kubernetes/internal/quote"
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
	turn turn
	// silent is since when taktd has not answered; zero: it does.
	silent time.Time

	mu sync.Mutex
	// unread are claims whose records could not be read. What seems to be nobody's may be theirs.
	unread map[types.UID]bool
	// unprepared are the claims that were refused, until the kubelet gives them back: the scheduler counts them.
	unprepared map[types.UID]refusedGate
	// unused is since when claims have waited for the first container of their pod, as far as this agent has seen.
	unused map[types.UID]time.Time
	// held are never changed, but replaced.
	held map[types.UID]*gateClaim
	// lost says of claims why taktd does not keep them.
	lost map[types.UID]error
	// said is what was last said of each in its status.
	said map[types.UID]condition
}

// turn is a lock that nobody waits for longer than a context lasts.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

func (t turn) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the agent still waits for what taktd says of other pods: %w", ctx.Err())
	}
}

func (t turn) give() { <-t }

// refusedGate is a claim with why it was not prepared, and what the scheduler has set aside for it.
type refusedGate struct {
	*gateClaim
	why      error
	consumed map[string]classes
}

// silence is how long taktd may be away, for a restart, before claims count as lost.
const silence = 10 * time.Second

// mostUnused is how long a place is held for a pod of which no container is created.
const mostUnused = 2 * time.Minute

func newGateTimes(n *Node) (*gateTimes, error) {
	d, disconnect, err := n.networks()
	if err != nil {
		return nil, err
	}
	return &gateTimes{n: n, admin: d.admin, disconnect: disconnect, wake: make(chan struct{}, 1), turn: newTurn(),
		unread: map[types.UID]bool{}, unprepared: map[types.UID]refusedGate{},
		unused: map[types.UID]time.Time{}, held: map[types.UID]*gateClaim{}, lost: map[types.UID]error{}, said: map[types.UID]condition{}}, nil
}

// load reads what an earlier agent has left.
func (g *gateTimes) load() error {
	found, unread, err := g.n.records.loadGates()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, uid := range unread {
		g.unread[uid] = true
	}
	for _, c := range found {
		g.held[c.Claim] = c
		if code, sentence, is := strings.Cut(c.Withdrawn, ": "); is {
			why := refuse(code, "%s", sentence)
			g.lost[c.Claim], g.said[c.Claim] = why, denied(reasonGateRefused, why)
		}
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
	delete(g.unread, c.Claim)
	delete(g.unprepared, c.Claim)
}

// refuse notes that a claim is not prepared here.
func (g *gateTimes) refuse(c *gateClaim, consumed map[string]classes, why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held[c.Claim] == nil {
		g.unprepared[c.Claim] = refusedGate{c, why, consumed}
	}
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

// declared are the claims that are held, but for those that are withdrawn.
func (g *gateTimes) declared() []*gateClaim {
	return slices.DeleteFunc(g.all(""), (*gateClaim).withdrawn)
}

// claimed is what claims hold, by network and class.
func (g *gateTimes) claimed() map[string]classes {
	sum := map[string]classes{}
	for _, c := range g.declared() {
		of := sum[c.network()]
		for _, request := range c.Requests {
			of[request.class()] += request.needs()
		}
		sum[c.network()] = of
	}
	return sum
}

// consumed is what the scheduler has set aside of each network for claims that are here, refused ones included.
func (g *gateTimes) consumed() map[string]classes {
	sum := map[string]classes{}
	add := func(consumed map[string]classes) {
		for network, more := range consumed {
			of := sum[network]
			for class := range of {
				of[class] += more[class]
			}
			sum[network] = of
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.held {
		add(c.consumed())
	}
	for _, c := range g.unprepared {
		add(c.consumed)
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

// classesOf are the classes of streams.
func classesOf(streams []*adminv1.DeclaredStream) (classes []uint32) {
	for _, one := range streams {
		classes = append(classes, one.GetTrafficClass())
	}
	return classes
}

// unclaimed is a listener without those of some classes in which it has no stream: nothing bounds there what it sends. Best
// effort is left to one that would have none: taktd takes none without, and programs of the pod may have its socket.
func unclaimed(listener *adminv1.Listener, claimed []uint32) *adminv1.Listener {
	next := confined(listener, claimed)
	if len(next.Classes) == 0 {
		next.Classes = []uint32{0}
	}
	return next
}

// confined is unclaimed, and may have no class at all.
func confined(listener *adminv1.Listener, claimed []uint32) *adminv1.Listener {
	next := proto.Clone(listener).(*adminv1.Listener)
	next.Classes = slices.DeleteFunc(next.Classes, func(class uint32) bool {
		return slices.Contains(claimed, class) && !slices.Contains(classesOf(next.GetStreams()), class)
	})
	return next
}

// set has taktd take a listener, and notes that it has.
func (g *gateTimes) set(ctx context.Context, all listeners, listener *adminv1.Listener) error {
	return g.move(ctx, all, listener, "")
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
// that is there, else at one that holds their place. They move in one step. If that is refused all is as it was. Call with
// g.turn held.
func (g *gateTimes) declare(ctx context.Context, all listeners, c *gateClaim) error {
	target := g.holding(c)
	streams := target.GetStreams()
	if at := all[c.Place]; c.Place != "" && at != nil {
		streams = c.streams()
		target = withStreams(at, streams)
		for _, class := range c.Granted {
			if !slices.Contains(target.Classes, class) {
				target.Classes = append(target.Classes, class)
			}
		}
	}
	others := g.elsewhere(all, c, streams, target.GetPath())
	if all.has(target.GetPath(), streams) {
		return g.leave(ctx, all, c, streams, others)
	}
	if err := os.MkdirAll(filepath.Dir(target.GetPath()), 0o700); err != nil {
		return fmt.Errorf("cannot make the place of a claim: %w", err)
	}
	from := ""
	if len(others) > 0 {
		from = others[0]
	}
	var undo []*adminv1.Listener
	for _, path := range others[min(1, len(others)):] {
		// First: all of them together may not fit.
		had := all[path]
		if err := g.leave(ctx, all, c, streams, []string{path}); err != nil {
			return errors.Join(err, g.restore(ctx, all, undo))
		}
		undo = append(undo, had)
	}
	if err := g.move(ctx, all, target, from); err != nil {
		return errors.Join(err, g.restore(ctx, all, undo))
	}
	return g.leave(ctx, all, c, streams, others)
}

// elsewhere are the listeners with streams of a claim, but for one.
func (g *gateTimes) elsewhere(all listeners, c *gateClaim, streams []*adminv1.DeclaredStream, but string) (paths []string) {
	for _, path := range slices.Sorted(maps.Keys(all)) {
		if path != but && (path == g.placeholder(c.Claim) || slices.ContainsFunc(all[path].GetStreams(), namedAs(streams))) {
			paths = append(paths, path)
		}
	}
	return paths
}

// leave takes a claim's streams out of listeners, and with them what they alone bounded.
func (g *gateTimes) leave(ctx context.Context, all listeners, c *gateClaim, streams []*adminv1.DeclaredStream, paths []string) error {
	for _, path := range paths {
		var err error
		if path == g.placeholder(c.Claim) {
			err = g.removeListener(ctx, all, path)
		} else {
			err = g.set(ctx, all, unclaimed(withoutStreams(all[path], streams), classesOf(streams)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// move has taktd take a listener, with its streams from another one if one is named, and notes that it has.
func (g *gateTimes) move(ctx context.Context, all listeners, listener *adminv1.Listener, from string) error {
	if _, err := g.admin.SetListener(ctx, &adminv1.SetListenerRequest{Listener: listener, Keep: true, TakeStreamsFrom: from}); err != nil {
		return err
	}
	all[listener.GetPath()] = listener
	if all[from] != nil {
		all[from] = withoutStreams(all[from], listener.GetStreams())
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
			if err := g.set(ctx, all, unclaimed(withoutStreams(all[path], streams), classesOf(streams))); err != nil && !isUnavailable(err) {
				return fmt.Errorf("taktd does not give the claim's streams back: %w", err)
			}
		}
	}
	if err := os.RemoveAll(filepath.Dir(g.placeholder(uid))); err != nil {
		return fmt.Errorf("cannot remove what claim %s left: %w", uid, err)
	}
	if err := g.n.records.removeGate(uid); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.unread, uid)
	return nil
}

// prepare admits a claim, or refuses it and leaves nothing; nil if it is for no gate time. With an error it returns the claim
// as far as it goes.
func (g *gateTimes) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) (*gateClaim, error) {
	c, err := newGateClaim(claim, g.n.name)
	if c == nil {
		return nil, err
	}
	if err == nil {
		err = g.admit(ctx, c)
	}
	if err != nil {
		g.refuse(c, consumedBy(claim, g.n.name), err)
	}
	return c, err
}

// admit is prepare of one whose parameters are good.
func (g *gateTimes) admit(ctx context.Context, c *gateClaim) error {
	ctx, cancel := context.WithTimeout(ctx, 2*askTaktd)
	defer cancel()
	if err := g.turn.take(ctx); err != nil {
		return err
	}
	defer g.turn.give()
	if err := g.permitted(c); err != nil {
		return err
	}
	all, err := g.listeners(ctx)
	if err != nil {
		return fmt.Errorf("taktd does not answer at %s: start it: %w", g.n.config.Network.AdminSocket, err)
	}
	gives, links, err := g.gives(ctx)
	if err == nil {
		err = c.offered(gives)
	}
	if err != nil {
		return err
	}
	old := g.get(c.Claim)
	if err := c.need(links); old == nil && err != nil {
		return err
	}
	if old != nil {
		c.Place, c.Granted = old.Place, old.Granted
	}
	if err := g.alone(c); err != nil {
		return err
	}
	// First: what is in taktd must be known to be somebody's.
	if err := g.n.records.writeGate(c); err != nil {
		return err
	}
	g.hold(c)
	if err := g.declare(ctx, all, c); err != nil {
		err = g.refused(c, err)
		if old != nil {
			g.hold(old)
			return errors.Join(err, g.n.records.writeGate(old))
		}
		return errors.Join(err, g.drop(ctx, c.Claim))
	}
	g.mu.Lock()
	g.unused[c.Claim] = time.Now()
	g.mu.Unlock()
	g.say(c, all, nil)
	return nil
}

// alone says whether no other claim of the pod is for the same frames: they cannot be of both.
func (g *gateTimes) alone(c *gateClaim) error {
	for _, other := range g.all("") {
		// Streams are told by the claim's name.
		if other.Claim != c.Claim && other.Namespace == c.Namespace && other.Name == c.Name {
			return refuse(codeGateTime, "a claim %s of before is still held by pod %s/%s: wait for its end, or delete it", c.Name, other.Pod.Namespace, other.Pod.Name)
		}
	}
	for _, other := range g.all(c.Pod.UID) {
		if other.Claim == c.Claim || other.network() != c.network() {
			continue
		}
		for _, request := range c.Requests {
			if at := slices.IndexFunc(other.Requests, request.sameFrames); at >= 0 {
				return refuse(codeParameters, "request %q is for the same frames as request %q of the pod's claim %s: claim them once, with all of their bytes", request.Name, other.Requests[at].Name, other.Name)
			}
		}
	}
	return nil
}

// refused is what a pod is told of taktd's refusal.
func (g *gateTimes) refused(c *gateClaim, err error) error {
	if away(err) {
		return fmt.Errorf("taktd does not answer at %s: start it: %w", g.n.config.Network.AdminSocket, err)
	}
	if status.Code(err) == codes.InvalidArgument {
		// It is of the listener, not of the schedule.
		return refuse(codeNotAllowed, "the pod's interface in network %q cannot have the streams: %s; takt-cni's configuration says what it may, and to place the pod again is of no use where that is the same", c.network(), quote.Plain(err))
	}
	var what []string
	for _, request := range c.Requests {
		what = append(what, fmt.Sprintf("%s in class %d", &request.Parameters, request.class()))
	}
	return refuse(codeGateTime, "network %q of this node has no gate time for %s: %s; or delete the pod to have it placed again",
		c.network(), strings.Join(what, " and "), quote.Plain(err))
}

// allowed says whether a listener, as takt-cni has set it, may have the claim's streams; it is given those classes beside its own.
func (c *gateClaim) allowed(listener *adminv1.Listener, given []uint32) error {
	for _, request := range c.Requests {
		if class := uint32(request.class()); !slices.Contains(listener.GetClasses(), class) && !slices.Contains(given, class) {
			return refuse(codeNotAllowed, "request %q: class %d is none of %v, which are what takt-cni gives the pod in network %q: add it to classes of its configuration (and access of the TaktNetwork) and delete the pod, or claim another one",
				request.Name, class, listener.GetClasses(), c.network())
		}
		channel := request.Parameters.Channel
		if channel != nil && !slices.ContainsFunc(listener.GetWrite(), func(r *adminv1.ChannelRange) bool { return r.GetFirst() <= *channel && *channel <= r.GetLast() }) {
			return refuse(codeNotAllowed, "request %q: channel %d is none that takt-cni lets the pod write in network %q: add it to write of its configuration and delete the pod, or claim one that it may write",
				request.Name, *channel, c.network())
		}
	}
	return nil
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
	if !there && g.n.config.Network.Unlisted == AllowUnlisted {
		return nil
	}
	if !there {
		return refuse(codeNotAllowed, "there is no TaktNetwork %s that says who may use it: create one, claim another, or write network.unlisted: allow", c.network())
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

// gives is what the node's schedules give to each class, and those schedules.
func (g *gateTimes) gives(ctx context.Context) (classes, []*adminv1.LinkSchedule, error) {
	schedules, err := g.admin.ListSchedules(ctx, &adminv1.ListSchedulesRequest{})
	if err != nil {
		return classes{}, nil, fmt.Errorf("taktd does not say which schedules it has: %w", err)
	}
	gives, _ := left(schedules.GetLinks(), nil)
	return gives, schedules.GetLinks(), nil
}

// need notes what the claim's streams take of links with these schedules, and says whether that is set aside for them. The
// schedules may be others later: what it was is what its pod was placed by.
func (c *gateClaim) need(links []*adminv1.LinkSchedule) error {
	for at := range c.Requests {
		request := &c.Requests[at]
		request.Needs = needs(links, &request.Parameters)
		err := request.Parameters.FitsCapacity(request.Consumed, request.Needs)
		switch {
		case errors.Is(err, reservation.ErrTooLarge):
			return refuse(codeGateTooLarge, "request %q: %w", request.Name, err)
		case err != nil:
			return refuse(codeGateTooSmall, "request %q: %w, or a period of which 40 cycles are a multiple", request.Name, err)
		}
	}
	return nil
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
	if err := g.turn.take(ctx); err != nil {
		return err
	}
	defer g.turn.give()
	if err := g.drop(ctx, uid); err != nil {
		return err
	}
	g.mu.Lock()
	delete(g.unprepared, uid)
	g.mu.Unlock()
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
	delete(g.unused, uid)
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
	directory := filepath.Join(g.n.config.Network.Sockets, sandbox.GetId())
	attached, err := interfaces(directory)
	if err != nil {
		return fmt.Errorf("cannot see what the pod is attached to: %w", err)
	}
	// Others start whether or not taktd answers.
	if len(claims) == 0 && (len(attached) == 0 || len(g.n.config.Network.Claimed) == 0) {
		return nil
	}
	if err := g.turn.take(ctx); err != nil {
		return err
	}
	defer g.turn.give()
	all, err := g.listeners(ctx)
	if err != nil {
		return fmt.Errorf("taktd does not say what the pod is attached to: %w", err)
	}
	// The one that its programs use goes first.
	if chosen := sandbox.GetAnnotations()[annotationInterface]; slices.Contains(attached, chosen) {
		attached = append([]string{chosen}, attached...)
	}
	for _, c := range claims {
		if c = g.get(c.Claim); c == nil {
			continue
		}
		place, err := c.at(all, directory, attached)
		if err == nil {
			err = g.place(ctx, all, c, place)
		}
		if err != nil {
			return g.withdraw(ctx, all, c, err)
		}
	}
	return g.bound(ctx, all, pod, directory, attached, claims)
}

// at is the socket of the interface that is in the claim's network.
func (c *gateClaim) at(all listeners, directory string, attached []string) (string, error) {
	for _, name := range attached {
		if path := filepath.Join(directory, name, cni.SocketName); all[path].GetEndpoint().GetNetwork() == c.network() {
			return path, nil
		}
	}
	return "", refuse(codeUnattached, "claim %s is for gate time of network %q, which has not attached the pod: annotate it with %s: \"true\", or claim it of the network that attaches it",
		c.Name, c.network(), cni.Annotation)
}

// sandboxed gives back the places of a pod's claims that it cannot have as it has just been attached: nobody knows when its first
// container comes, at which it would be refused. What it can have is its first container's.
func (g *gateTimes) sandboxed(ctx context.Context, sandbox *api.PodSandbox) error {
	claims := g.all(types.UID(sandbox.GetUid()))
	if len(claims) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*askTaktd)
	defer cancel()
	directory := filepath.Join(g.n.config.Network.Sockets, sandbox.GetId())
	attached, err := interfaces(directory)
	if err != nil {
		return fmt.Errorf("cannot see what the pod is attached to: %w", err)
	}
	if err := g.turn.take(ctx); err != nil {
		return err
	}
	defer g.turn.give()
	all, err := g.listeners(ctx)
	if err != nil {
		return fmt.Errorf("taktd does not say what the pod is attached to: %w", err)
	}
	for _, c := range g.declared() {
		if c.Pod.UID != types.UID(sandbox.GetUid()) || all[c.Place] != nil {
			continue // it is withdrawn, or a container was faster
		}
		place, why := c.at(all, directory, attached)
		if why == nil {
			why = c.allowed(all[place], g.n.config.Network.Claimed)
		}
		if why == nil {
			continue
		}
		if err := g.giveBack(ctx, all, c, why); err != nil {
			return err
		}
	}
	return nil
}

// bound takes classes that are for claims alone, and those that the pod claims, out of its interfaces that have no streams
// there: what it sends in them is in nobody's sum.
func (g *gateTimes) bound(ctx context.Context, all listeners, pod Pod, directory string, attached []string, claims []*gateClaim) error {
	claimed := slices.Clone(g.n.config.Network.Claimed)
	for _, c := range claims {
		claimed = append(claimed, classesOf(c.streams())...)
	}
	for _, name := range attached {
		listener := all[filepath.Join(directory, name, cni.SocketName)]
		if listener == nil {
			continue
		}
		next := confined(listener, claimed)
		if len(next.GetClasses()) == 0 {
			return refuse(codeNotAllowed, "classes %v of interface %s are for claims for gate time alone, and takt-cni's configuration gives no others: claim gate time of network %q, or add other classes to the configuration",
				listener.GetClasses(), name, listener.GetEndpoint().GetNetwork())
		}
		if !slices.Equal(next.GetClasses(), listener.GetClasses()) {
			if err := g.set(ctx, all, next); err != nil {
				return fmt.Errorf("taktd does not take classes that are for claims from the pod's interface %s: %w", name, err)
			}
			lost := slices.DeleteFunc(slices.Clone(listener.GetClasses()), func(class uint32) bool { return slices.Contains(next.GetClasses(), class) })
			g.n.event(pod, corev1.EventTypeNormal, reasonClasses, "the pod has classes %v of network %s at %s: %v are for claims for gate time alone (network.claimed, or a claim of the pod's at another interface); claim gate time there to send in them",
				next.GetClasses(), listener.GetEndpoint().GetNetwork(), name, lost)
		}
	}
	return nil
}

// lacking says which classes an interface has, if a class that all of its launch times are to be in is none of them.
func lacking(listener *adminv1.Listener, ifName, class string) string {
	if listener == nil || slices.Contains(listener.GetClasses(), uint32(class[0]-'0')) {
		return ""
	}
	return fmt.Sprintf("%v of network %s at %s", listener.GetClasses(), listener.GetEndpoint().GetNetwork(), ifName)
}

// tellOfClass tells a pod that an interface where launch times are taken now does not have their class.
func (g *gateTimes) tellOfClass(ctx context.Context, w vethWish) {
	if w.Class == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askTaktd)
	defer cancel()
	all, err := g.listeners(ctx)
	if err != nil {
		return
	}
	if lacks := lacking(all[w.Socket], w.Interface, w.Class); lacks != "" {
		g.n.event(w.of(), corev1.EventTypeWarning, reasonVeth, "%s: %s is %q, and the pod has classes %s: what has a launch time is refused there; give it that class (classes of takt-cni's configuration, access of the TaktNetwork, a claim for gate time), or write one of these",
			codeAnnotation, annotationClass, w.Class, lacks)
	}
}

// hasClass says whether a pod may send, by one of its interfaces, in the class that all is to be in which is taken at its veths;
// it is told of the others (tellOfClass). What taktd does not say is not refused: launch times are not taken without it.
func (g *gateTimes) hasClass(ctx context.Context, sandbox *api.PodSandbox, wish wish, attached []string) error {
	if !wish.veth() || wish.class == "" {
		return nil
	}
	all, err := g.listeners(ctx)
	if err != nil {
		return nil
	}
	var lack []string
	for _, name := range attached {
		lacks := lacking(all[filepath.Join(g.n.config.Network.Sockets, sandbox.GetId(), name, cni.SocketName)], name, wish.class)
		if lacks == "" {
			return nil
		}
		lack = append(lack, lacks)
	}
	return refuse(codeAnnotation, "%s is %q, and the pod has classes %s: write one of these, or give it that class (classes of takt-cni's configuration, access of the TaktNetwork, a claim for gate time)",
		annotationClass, wish.class, strings.Join(lack, ", "))
}

// withdraw gives back the place of a claim whose pod cannot have its streams: it waits, and nobody knows for how long. They
// are declared again when its next container is to be created. Call with g.turn held.
func (g *gateTimes) withdraw(ctx context.Context, all listeners, c *gateClaim, why error) error {
	var known refusal
	if !errors.As(why, &known) || c.Place != "" && all[c.Place] != nil {
		return why
	}
	streams := c.streams()
	if err := g.leave(ctx, all, c, streams, g.elsewhere(all, c, streams, "")); err != nil {
		return errors.Join(why, err)
	}
	is, next := denied(reasonGateRefused, why), *c
	// The next agent knows of it: it would declare them again for a pod that cannot have them.
	next.Withdrawn = is.message
	if err := g.n.records.writeGate(&next); err != nil {
		return errors.Join(why, err)
	}
	g.hold(&next)
	g.mu.Lock()
	delete(g.unused, c.Claim)
	g.lost[c.Claim], g.said[c.Claim] = why, is
	g.mu.Unlock()
	g.n.status.put(claimStatus{record: c.record(), gates: c.Requests, condition: is})
	return why
}

// giveBack is withdraw where nobody has asked, and the pod is told. Call with g.turn held.
func (g *gateTimes) giveBack(ctx context.Context, all listeners, c *gateClaim, why error) error {
	err := g.withdraw(ctx, all, c, why)
	if held := g.get(c.Claim); held == nil || !held.withdrawn() {
		return err
	}
	g.n.tell(c.Pod, reasonGateRefused, "claim "+c.Name, why)
	return nil
}

// place has the claim's streams at a pod's interface. Call with g.turn held.
func (g *gateTimes) place(ctx context.Context, all listeners, c *gateClaim, place string) error {
	next := *c
	next.Place, next.Withdrawn = place, ""
	if next.Place != c.Place {
		// What takt-cni has given it is taken away only with the streams.
		next.Granted = c.among(slices.Concat(all[place].GetClasses(), g.n.config.Network.Claimed))
	}
	if err := next.allowed(all[place], next.Granted); err != nil {
		return err
	}
	if next.Place != c.Place || c.withdrawn() {
		if err := g.n.records.writeGate(&next); err != nil {
			return err
		}
		g.hold(&next)
	}
	if err := g.declare(ctx, all, &next); err != nil {
		g.hold(c)
		return errors.Join(g.refused(c, err), g.n.records.writeGate(c))
	}
	g.say(&next, all, nil)
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
			return refuse(codeNotPrepared, "claim %s is not prepared on this node: the kubelet will try again; a container that sets %s* itself never has gate time", quote.Value(uid), gateVariable)
		}
		if c.Pod.UID == pod.UID {
			continue
		}
		if c, err = g.passed(ctx, c, pod); err != nil {
			return err
		}
		if err := g.turn.take(ctx); err != nil {
			return err
		}
		err := g.n.records.writeGate(c)
		if err == nil {
			g.hold(c)
		}
		g.turn.give()
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
	fresh.Place, fresh.Granted, fresh.Withdrawn = c.Place, c.Granted, c.Withdrawn
	for at := range fresh.Requests {
		for _, had := range c.Requests {
			if had.Name == fresh.Requests[at].Name {
				fresh.Requests[at].Needs = had.Needs
			}
		}
	}
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
	bounded, cancel := context.WithTimeout(ctx, 2*askTaktd)
	defer cancel()
	if err := g.turn.take(bounded); err != nil {
		return err
	}
	defer g.turn.give()
	all, answers, err := g.keep(bounded)
	switch {
	case answers:
		g.silent = time.Time{}
		return errors.Join(err, g.tidy(bounded, all))
	case ctx.Err() != nil:
	case g.silent.IsZero():
		g.silent = time.Now()
	case time.Since(g.silent) > silence:
		// It keeps what it had over a restart. Whether it comes back nobody knows.
		for _, c := range g.declared() {
			g.say(c, nil, fmt.Errorf("taktd does not answer at %s: start it, or see its log (%s)", g.n.config.Network.AdminSocket, status.Convert(err).Message()))
		}
	}
	return err
}

// keep has every claim where it belongs, unless taktd does not answer.
func (g *gateTimes) keep(ctx context.Context) (all listeners, answers bool, err error) {
	if all, err = g.listeners(ctx); err != nil {
		return nil, false, err
	}
	gives, _, err := g.gives(ctx)
	if err != nil {
		return nil, false, err
	}
	var mistakes []error
	for _, c := range g.declared() {
		if g.idles(all, c) {
			why := refuse(codeUnused, "no container of the pod has been created for %v: others may have its place meanwhile, and it is asked for again when one is created; see why none is (`kubectl describe pod`: its image, its networks)", mostUnused)
			switch err := g.giveBack(ctx, all, c, why); {
			case away(err):
				return nil, false, err
			case err != nil:
				mistakes = append(mistakes, err)
			}
			continue
		}
		c, err := g.grant(all, c)
		if err != nil {
			mistakes = append(mistakes, err)
		}
		err = g.declare(ctx, all, c)
		if err != nil {
			err = g.refused(c, err)
		} else {
			err = c.offered(gives)
		}
		var known refusal
		if err != nil && !errors.As(err, &known) {
			return nil, false, err // taktd has gone: it keeps what it had
		}
		if at := all[c.Place]; err != nil && c.Place != "" && at != nil {
			// Without its streams nothing bounds what it sends in their classes.
			if next := unclaimed(at, classesOf(c.streams())); !slices.Equal(next.GetClasses(), at.GetClasses()) {
				switch err := g.set(ctx, all, next); {
				case err != nil && away(err):
					return nil, false, err
				case err != nil:
					mistakes = append(mistakes, err) // of this listener alone
				}
			}
		}
		g.say(c, all, err)
	}
	return all, true, errors.Join(mistakes...)
}

// idles says whether a claim's place has been held too long for a pod that has no container.
func (g *gateTimes) idles(all listeners, c *gateClaim) bool {
	waits := c.Place == ""
	if !waits && all[c.Place] == nil {
		// Its sandbox has gone, and is made anew or not.
		_, err := os.Stat(filepath.Dir(c.Place))
		waits = errors.Is(err, fs.ErrNotExist)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !waits {
		delete(g.unused, c.Claim)
		return false
	}
	if g.unused[c.Claim].IsZero() {
		g.unused[c.Claim] = time.Now()
	}
	return time.Since(g.unused[c.Claim]) > mostUnused
}

// among are the classes of a claim's streams that are some of these, once each.
func (c *gateClaim) among(classes []uint32) (some []uint32) {
	for _, class := range classesOf(c.streams()) {
		if slices.Contains(classes, class) && !slices.Contains(some, class) {
			some = append(some, class)
		}
	}
	return some
}

// grant notes which classes of a claim's streams its listener has, where a record of the version before does not say. Call with
// g.turn held.
func (g *gateTimes) grant(all listeners, c *gateClaim) (*gateClaim, error) {
	at := all[c.Place]
	if c.Place == "" || at == nil || len(c.Granted) > 0 {
		return c, nil
	}
	next := *c
	next.Granted = c.among(at.GetClasses())
	if len(next.Granted) == 0 {
		return c, nil
	}
	if err := g.n.records.writeGate(&next); err != nil {
		return c, err
	}
	g.hold(&next)
	return &next, nil
}

// tidy takes out of taktd what is of no claim any more: what it had kept while it was away when the claim was given back.
func (g *gateTimes) tidy(ctx context.Context, all listeners) error {
	g.mu.Lock()
	unread := len(g.unread) > 0
	g.mu.Unlock()
	if unread {
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
			mistakes = append(mistakes, g.set(ctx, all, unclaimed(withoutStreams(all[path], nobodys), classesOf(nobodys))))
		}
	}
	return errors.Join(mistakes...)
}

// say writes how a claim stands with these listeners into its status, and tells its pod of what was lost.
func (g *gateTimes) say(c *gateClaim, all listeners, err error) {
	is := condition{ready: true, reason: "Prepared", message: "taktd has admitted the streams; they are the pod's when it is attached"}
	if all[c.Place] != nil {
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
	if err == nil && was {
		g.n.event(c.Pod, corev1.EventTypeNormal, is.reason, "claim %s has its gate time again: %s", c.Name, is.message)
	}
	if !same {
		g.n.status.put(claimStatus{record: c.record(), gates: c.Requests, condition: is})
	}
}

// at are the streams that claims have at the listener of a pod's interface.
func (g *gateTimes) at(path string) (found []report.GateTime) {
	for _, c := range g.all("") {
		if c.Place == path {
			found = append(found, g.told(c)...)
		}
	}
	return found
}

// told are a claim's streams as reports have them.
func (g *gateTimes) told(c *gateClaim) (found []report.GateTime) {
	g.mu.Lock()
	why := g.lost[c.Claim]
	if refused, is := g.unprepared[c.Claim]; is {
		why = refused.why
	}
	g.mu.Unlock()
	for _, request := range c.Requests {
		p := &request.Parameters
		one := report.GateTime{Claim: c.Name, Request: request.Name, Class: request.class(), Frames: p.Frames(), Frame: p.LargestFrame(), Period: p.Period.String()}
		if why != nil {
			one.Problem = quote.Text(quote.Plain(why))
		}
		found = append(found, one)
	}
	return found
}

// waiting are the claims that none of these sockets has.
func (g *gateTimes) waiting(sockets map[string]bool) (found []report.Waiting) {
	all := g.all("")
	g.mu.Lock()
	for _, uid := range slices.Sorted(maps.Keys(g.unprepared)) {
		if c := g.unprepared[uid].gateClaim; len(c.Requests) > 0 {
			all = append(all, c)
		}
	}
	g.mu.Unlock()
	for _, c := range all {
		if !sockets[c.Place] {
			found = append(found, report.Waiting{Namespace: c.Pod.Namespace, Pod: c.Pod.Name, Network: c.network(), GateTime: g.told(c), Placed: c.Place != ""})
		}
	}
	return found
}

// counts are the claims that taktd keeps, and those that it does not; neither are those whose pod cannot have them.
func (g *gateTimes) counts() (kept, lost int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	withdrawn := 0
	for _, c := range g.held {
		if c.withdrawn() {
			withdrawn++
		}
	}
	return len(g.held) - len(g.lost), len(g.lost) - withdrawn
}

// sweep gives back what is of claims that are not in the cluster any more, and that no pod has: one that runs keeps its gate
// time until the kubelet gives it back, and is told.
func (g *gateTimes) sweep(ctx context.Context) {
	g.forgetRefused(ctx)
	logger := klog.FromContext(ctx)
	bounded, cancel := context.WithTimeout(ctx, askTaktd)
	defer cancel()
	there, err := g.listeners(bounded)
	for _, c := range g.all("") {
		if g.n.exists(ctx, c.record()) {
			continue
		}
		if c.Place != "" && (err != nil || there[c.Place] != nil) {
			g.n.tell(c.Pod, reasonGateLost, "claim "+c.Name, refuse(codeNotPrepared, "it has gone from the cluster while the pod runs: what it declares stays until the pod ends, and the scheduler does not count it any more; delete the pod to have it placed again"))
			continue
		}
		logger.Info("A claim for gate time has gone from the cluster, giving it back", "claim", klog.KRef(c.Namespace, c.Name))
		if err := g.release(ctx, c.Claim); err != nil {
			logger.Error(err, "Cannot give it back")
		}
	}
}

// forgetRefused forgets claims that were refused and are not in the cluster any more: the scheduler counts them no longer.
func (g *gateTimes) forgetRefused(ctx context.Context) {
	g.mu.Lock()
	refused := slices.Collect(maps.Values(g.unprepared))
	g.mu.Unlock()
	for _, c := range refused {
		if !g.n.exists(ctx, c.record()) {
			g.mu.Lock()
			delete(g.unprepared, c.Claim)
			g.mu.Unlock()
		}
	}
}
