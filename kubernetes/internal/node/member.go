package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/cni"
	"github.com/takt-dev/takt/kubernetes/internal/objects"
	"github.com/takt-dev/takt/kubernetes/internal/quote"
)

const (
	// gather is how long changes of other nodes may gather before they are entered.
	gather = 100 * time.Millisecond
	// tellPeers is how often a node writes its status for a number of peers that has changed alone: when many nodes start, each
	// sees that of all others, and all nodes are told of each write.
	tellPeers = 30 * time.Second
	// tryPruned is how often it is looked whether the API server's custom resources have become as new as this program.
	tryPruned = 10 * time.Minute
)

// writeStatus is how long the API server may take for the node's status. A step that waits for it longer takes back in time no
// schedule that was not committed (objects.CommitMargin).
const writeStatus = 2 * time.Second

// noMAC stands for groups and unknown stations in taktd's tables.
const noMAC = "00:00:00:00:00:00"

// member is the node's part in the cluster's networks: it writes the status of the node's TaktNode, and has the node's
// taktd do what the specs of all TaktNodes say. It talks to nobody but the API server and the socket of its own taktd.
type member struct {
	n       *Node
	admin   adminv1.AdminClient
	taktd   *grpc.ClientConn
	client  *objects.Client
	nodes   cache.SharedIndexInformer
	nets    cache.SharedIndexInformer
	changed chan struct{}
	// written is when the status was last written.
	written time.Time
	// pruned is when the API server has last left out since when the node has its key: its custom resources are earlier ones.
	pruned time.Time

	mu sync.Mutex
	// listeners are those of takt-cni as taktd last had them, by path.
	listeners map[string]*adminv1.Listener
	synced    bool
}

func (n *Node) member(client *objects.Client, d *networks) *member {
	m := &member{n: n, admin: d.admin, taktd: d.connection, client: client, changed: make(chan struct{}, 1)}
	wake := m.changes
	m.nodes = client.Informer("taktnodes", &network.TaktNode{}, func() {})
	// Each node writes its status often, and all read all: only a spec, which has generations, is worth a look. Both only fail
	// once the informer runs.
	_, _ = m.nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { wake() }, DeleteFunc: func(any) { wake() },
		UpdateFunc: func(old, now any) {
			if generation(old) != generation(now) {
				wake()
			}
		},
	})
	_ = m.nodes.SetTransform(func(object any) (any, error) {
		if node, ok := object.(*network.TaktNode); ok && node.Name != n.name {
			// What others say of themselves is not looked at.
			node.Status, node.ManagedFields = network.TaktNodeStatus{}, nil
		}
		return object, nil
	})
	m.nets = client.Informer("taktnetworks", &network.TaktNetwork{}, wake)
	return m
}

func generation(of any) int64 {
	if node, ok := of.(*network.TaktNode); ok {
		return node.Generation
	}
	return 0
}

// run keeps in step until the context ends.
func (m *member) run(ctx context.Context) {
	if err := objects.Run(ctx, m.nodes, m.nets); err != nil {
		return // the context has ended
	}
	m.mu.Lock()
	m.synced = true
	m.mu.Unlock()
	// One that was started again has no stations and peers: what is sent to other nodes waits for them.
	back := make(chan struct{}, 1)
	var seeking sync.WaitGroup
	defer seeking.Wait()
	seeking.Go(func() {
		connected(ctx, m.taktd, func() {
			select {
			case back <- struct{}{}:
			default:
			}
		})
	})
	logger := klog.FromContext(ctx)
	said := ""
	for {
		err := m.step(ctx)
		if ctx.Err() != nil {
			return
		}
		// The same again says nothing new.
		if now := fmt.Sprint(err); now != said {
			said = now
			logger.Info("In step with the cluster's networks", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-back:
		case <-m.changed:
			select {
			case <-ctx.Done():
				return
			case <-time.After(gather):
			}
		case <-time.After(lookAtTaktd):
		}
	}
}

// step looks at taktd, has it do what is to be done, and says how it stands.
func (m *member) step(ctx context.Context) error {
	self, err := m.self(ctx)
	if err != nil {
		return err
	}
	now := self.DeepCopy()
	bounded, cancel := context.WithTimeout(ctx, 2*askTaktd)
	defer cancel()
	done := m.serve(bounded, now)
	if done != nil {
		meta.SetStatusCondition(&now.Status.Conditions, metav1.Condition{
			Type: network.Ready, Status: metav1.ConditionFalse, Reason: "RuntimeAbsent", ObservedGeneration: now.Generation,
			Message: fmt.Sprintf("taktd does not answer at %s: start it, or see its log (%s)", m.n.config.Network.AdminSocket, status.Convert(done).Message()),
		})
	}
	if m.quiet(&self.Status, &now.Status, time.Now()) {
		return done
	}
	bounded, cancel = context.WithTimeout(ctx, writeStatus)
	defer cancel()
	has, err := m.client.Nodes.UpdateStatus(bounded, now, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsConflict(err) {
		return errors.Join(done, fmt.Errorf("cannot write the status of the node: %w", err))
	}
	if err == nil {
		m.notePruned(&now.Status, &has.Status)
	}
	return done
}

// notePruned notes whether the API server has kept what was written.
func (m *member) notePruned(wrote, has *network.TaktNodeStatus) {
	if wrote.Runtime == nil || wrote.Runtime.KeySince == nil {
		return
	}
	pruned := has.Runtime == nil || has.Runtime.KeySince == nil
	if pruned != !m.pruned.IsZero() {
		m.changes()
	}
	m.pruned = time.Time{}
	if pruned {
		m.pruned = time.Now()
	}
}

// changes has the next look be at once.
func (m *member) changes() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// quiet says that a status is not worth being written at this instant.
func (m *member) quiet(had, now *network.TaktNodeStatus, at time.Time) bool {
	// What is left out each time is no news, and is tried again after a while.
	if at.Sub(m.pruned) < tryPruned && now.Runtime != nil && (had.Runtime == nil || had.Runtime.KeySince == nil) {
		now = now.DeepCopy()
		now.Runtime.KeySince = nil
	}
	if equality.Semantic.DeepEqual(had, now) {
		return true
	}
	same := *now
	same.Peers = had.Peers
	if had.Peers != "" && at.Sub(m.written) < tellPeers && equality.Semantic.DeepEqual(had, &same) {
		return true
	}
	m.written = at
	return false
}

// known is the node's own TaktNode as it was last seen; nil: there is none, or, m being nil, the agent has no objects.
func (m *member) known() *network.TaktNode {
	if m == nil {
		return nil
	}
	if found, there, _ := m.nodes.GetStore().GetByKey(m.n.name); there {
		return found.(*network.TaktNode)
	}
	return nil
}

// self is the node's own TaktNode, which is made if it is not there. It goes with the node.
func (m *member) self(ctx context.Context) (*network.TaktNode, error) {
	if known := m.known(); known != nil {
		return known, nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeStatus)
	defer cancel()
	node, err := m.n.client.CoreV1().Nodes().Get(ctx, m.n.name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("cannot see the node: %w", err)
	}
	made, err := m.client.Nodes.Create(ctx, &network.TaktNode{ObjectMeta: metav1.ObjectMeta{Name: m.n.name, OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID},
	}}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		made, err = m.client.Nodes.Get(ctx, m.n.name, metav1.GetOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("cannot make the TaktNode: are the custom resources of the chart installed? %w", err)
	}
	return made, nil
}

// planned says whether what the specs of the nodes do not say is not so. Of a TaktNode that was deleted and made anew the
// controller has yet to say what it said before.
func (m *member) planned(self *network.TaktNode) bool {
	return self.Spec.Planned && !slices.ContainsFunc(objects.All[*network.TaktNode](m.nodes), func(n *network.TaktNode) bool { return !n.Spec.Planned })
}

// serve writes into the status what taktd says, after it has been told what is to be done. An error means that taktd does
// not answer: what it said last stays.
func (m *member) serve(ctx context.Context, self *network.TaktNode) error {
	said, err := m.rotated(ctx, self)
	if err != nil {
		return err
	}
	all, err := m.admin.ListNetworks(ctx, &adminv1.ListNetworksRequest{})
	if err != nil {
		return err
	}
	clock, err := m.admin.GetClock(ctx, &adminv1.GetClockRequest{})
	if err != nil {
		return err
	}
	datapaths, err := m.admin.ListDatapaths(ctx, &adminv1.ListDatapathsRequest{})
	if err != nil {
		return err
	}
	listeners, err := m.admin.ListListeners(ctx, &adminv1.ListListenersRequest{})
	if err != nil {
		return err
	}
	s := &self.Status
	before := s.Runtime
	s.Runtime = runtimeOf(said.GetNode(), m.n.config.Network.Peers)
	s.Runtime.KeySince = keySince(before, s.Runtime, time.Now())
	s.Clock = clockOf(clock.GetClock())
	s.Datapaths = nil
	for _, path := range datapaths.GetDatapaths() {
		s.Datapaths = append(s.Datapaths, network.Datapath{Name: path.GetName(), Available: path.GetAvailable(), Accelerated: path.GetAccelerated(), Reason: path.GetReason()})
	}
	slices.SortFunc(s.Datapaths, func(a, b network.Datapath) int { return strings.Compare(a.Name, b.Name) })
	s.Networks = m.networksOf(self, all.GetNetworks())
	s.Endpoints = m.endpointsOf(listeners.GetListeners())
	entered, err := m.loadEntered()
	if err == nil {
		// First: it has to be in time, and many stations may take longer than this look may.
		if err := m.schedule(ctx, self, entered); err != nil {
			return err
		}
		planned := m.planned(self)
		err = errors.Join(m.enterStations(ctx, all.GetNetworks(), entered, planned), m.enterPeers(ctx, s, entered, planned))
	}
	ready := metav1.Condition{Type: network.Ready, Status: metav1.ConditionTrue, Reason: "Serving", Message: "taktd answers", ObservedGeneration: self.Generation}
	if problem := self.Spec.PeerProblem; problem != "" {
		ready.Reason, ready.Message = "NoPeerAddress", shortened(problem)
	}
	if !m.pruned.IsZero() {
		ready.Message = shortened("the API server leaves out what takt-node says of the node's key, which is not changed: apply the custom resources of the chart (deploy/helm/takt-node/crds); " + ready.Message)
	}
	if err != nil {
		ready.Reason, ready.Message = "EntriesRefused", "taktd does not take all that other nodes have: "+shortened(err.Error())
	}
	if said.GetNode().GetDraining() {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, "Draining", "taktd takes no more applications and is about to stop"
	}
	meta.SetStatusCondition(&s.Conditions, ready)
	sayKey(self)
	return nil
}

// shortened is what a condition has room for, and a reader patience.
func shortened(text string) string { return quote.Shorten(text, 512) }

func runtimeOf(said *adminv1.Node, peers bool) *network.Runtime {
	runtime := &network.Runtime{Version: said.GetVersion()}
	if at, err := netip.ParseAddrPort(said.GetAddress()); err == nil {
		runtime.Address, runtime.Port = at.Addr().Unmap().String(), int32(at.Port())
	}
	if peers {
		runtime.Key, runtime.NextKey = said.GetKey(), said.GetNextKey()
	}
	return runtime
}

func clockOf(said *adminv1.Clock) *network.Clock {
	if said == nil {
		return nil
	}
	return &network.Clock{State: clockState(said), Source: said.GetSource(), TAIOffsetSeconds: said.GetTaiOffsetSeconds()}
}

func clockState(said *adminv1.Clock) string {
	switch said.GetState() {
	case adminv1.ClockState_CLOCK_STATE_SYNCHRONISED:
		return "Synchronised"
	case adminv1.ClockState_CLOCK_STATE_HOLDOVER:
		return "Holdover"
	default:
		return "FreeRunning"
	}
}

// networksOf are the networks that taktd has, and those that it should have, each with what is wrong with it.
func (m *member) networksOf(self *network.TaktNode, has []*adminv1.Network) []network.ServedNetwork {
	var found []network.ServedNetwork
	wanted := objects.All[*network.TaktNetwork](m.nets)
	for _, one := range has {
		if !slices.ContainsFunc(wanted, func(w *network.TaktNetwork) bool { return w.Name == one.GetName() }) {
			found = append(found, network.ServedNetwork{Name: one.GetName(), Reason: network.UnknownNetwork,
				Message: fmt.Sprintf("there is no TaktNetwork %s: its pods are known to no other node. Create one with %s", one.GetName(), one.Carrier())})
		}
	}
	for _, one := range wanted {
		if !slices.Contains(self.Spec.Networks, one.Name) {
			continue
		}
		at := slices.IndexFunc(has, func(h *adminv1.Network) bool { return h.GetName() == one.Name })
		port := ""
		if one.Spec.TunnelPort() != network.DefaultTunnelPort {
			port = fmt.Sprintf(" and port = %d", one.Spec.TunnelPort())
		}
		served := network.ServedNetwork{Name: one.Name, Reason: network.NotConfigured,
			Message: fmt.Sprintf("taktd has no [[network]] %s: add one with carrier = %q%s to its configuration, and restart it", one.Name, one.Spec.Carrier(), port)}
		if at >= 0 {
			served.Reason, served.Message, served.VTEP = m.fits(one, has[at])
		}
		found = append(found, served)
	}
	slices.SortFunc(found, func(a, b network.ServedNetwork) int { return strings.Compare(a.Name, b.Name) })
	return found
}

// fits says whether a network of taktd is what the cluster wants, and where its tunnel ends here.
func (m *member) fits(wanted *network.TaktNetwork, has *adminv1.Network) (reason, message, vtep string) {
	spec := &wanted.Spec
	if has.Carrier() != spec.Carrier() {
		return network.Differs, fmt.Sprintf("the carrier is %s in taktd's configuration and %s in the TaktNetwork: make them the same", has.Carrier(), spec.Carrier()), ""
	}
	if spec.VNI != nil && has.GetPort() != uint32(spec.TunnelPort()) {
		return network.Differs, fmt.Sprintf("the port is %d in taktd's configuration and %d in the TaktNetwork: make them the same", has.GetPort(), spec.TunnelPort()), ""
	}
	if has.GetProblem() != "" {
		return network.NotFollowed, has.GetProblem(), ""
	}
	uplink, address, err := m.uplink(spec, has.GetInterface())
	if err != nil {
		return network.NoUplink, err.Error(), ""
	}
	if spec.Uplink != "" && spec.VNI != nil {
		vtep = address.String()
	}
	// What the carrier adds to a pod's packet, in bytes of the uplink's MTU, which does not count its own Ethernet header.
	added := 0
	switch {
	case spec.VNI != nil && address.Is6():
		added = 70 // IPv6 40, UDP 8, VXLAN 8, Ethernet 14
	case spec.VNI != nil:
		added = 50 // IPv4 20, UDP 8, VXLAN 8, Ethernet 14
	}
	if uplink != nil && spec.MTU != nil && int(*spec.MTU)+added > uplink.MTU {
		return network.MTUTooLarge, fmt.Sprintf("mtu %d and the carrier's %d do not fit %s, whose MTU is %d: write mtu: %d at most, or raise the uplink's",
			*spec.MTU, added, uplink.Name, uplink.MTU, uplink.MTU-added), ""
	}
	return network.Serving, "", vtep
}

// uplink is the interface that a network's frames leave by, with its address, where the TaktNetwork names none that which taktd has for it;
// nil where that cannot be told.
func (m *member) uplink(spec *network.TaktNetworkSpec, configured string) (*net.Interface, netip.Addr, error) {
	if spec.Uplink != "" {
		link, err := net.InterfaceByName(spec.Uplink)
		if err != nil {
			return nil, netip.Addr{}, fmt.Errorf("the node has no interface %s: name its uplink in the TaktNetwork, or exclude the node by nodeSelector", spec.Uplink)
		}
		if link.Flags&net.FlagUp == 0 {
			return nil, netip.Addr{}, fmt.Errorf("interface %s is down: set it up", spec.Uplink)
		}
		addresses := addressesOf(link)
		if len(addresses) == 0 {
			if spec.VNI == nil {
				return link, netip.Addr{}, nil
			}
			return nil, netip.Addr{}, fmt.Errorf("interface %s has no address for the tunnel endpoint: give it one", spec.Uplink)
		}
		return link, addresses[0], nil
	}
	if spec.VNI == nil {
		link, err := net.InterfaceByName(configured)
		if err != nil {
			return nil, netip.Addr{}, nil
		}
		return link, netip.Addr{}, nil
	}
	own, err := netip.ParseAddr(os.Getenv("HOST_IP"))
	if err != nil {
		return nil, netip.Addr{}, nil
	}
	links, err := net.Interfaces()
	if err != nil {
		return nil, netip.Addr{}, fmt.Errorf("cannot list the node's interfaces: %w", err)
	}
	for _, link := range links {
		if slices.Contains(addressesOf(&link), own) {
			return &link, own, nil
		}
	}
	return nil, own, nil
}

// addressesOf are those that others can reach, IPv4 first.
func addressesOf(link *net.Interface) (found []netip.Addr) {
	all, _ := link.Addrs()
	for _, one := range all {
		if prefix, err := netip.ParsePrefix(one.String()); err == nil && prefix.Addr().IsGlobalUnicast() {
			found = append(found, prefix.Addr())
		}
	}
	slices.SortStableFunc(found, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	return found
}

// endpointsOf are the interfaces of pods that takt-cni has attached.
func (m *member) endpointsOf(all []*adminv1.ListenerStatus) []network.Endpoint {
	var found []network.Endpoint
	listeners := map[string]*adminv1.Listener{}
	for _, one := range all {
		listener := one.GetListener()
		if !strings.HasPrefix(listener.GetPath(), filepath.Clean(m.n.config.Network.Sockets)+"/") || listener.GetEndpoint() == nil {
			continue
		}
		listeners[listener.GetPath()] = listener
		endpoint := network.Endpoint{Network: listener.GetEndpoint().GetNetwork(), MAC: strings.ToLower(listener.GetEndpoint().GetMac()), Addresses: listener.GetEndpoint().GetAddresses()}
		endpoint.Namespace, endpoint.Pod, endpoint.Interface = cni.Named(cni.Whole(filepath.Dir(listener.GetPath()), listener.GetIdentity()))
		if veth := m.n.veths.at(listener.GetPath()); veth != nil {
			if state := veth.state(); state.Taking {
				endpoint.Veth = state.Device
			} else {
				endpoint.VethProblem = state.Problem
			}
		}
		found = append(found, endpoint)
	}
	m.mu.Lock()
	m.listeners = listeners
	m.mu.Unlock()
	slices.SortFunc(found, func(a, b network.Endpoint) int {
		return strings.Compare(strings.Join([]string{a.Network, a.Namespace, a.Pod, a.Interface, a.MAC}, " "), strings.Join([]string{b.Network, b.Namespace, b.Pod, b.Interface, b.MAC}, " "))
	})
	return found
}

// untold says whether the controller has told other nodes nothing of an interface, although it has been told of that, and knows its network
// or there is none of that name any more.
func (m *member) untold(endpoint *adminv1.Endpoint) bool {
	self := m.known()
	if self == nil {
		return false
	}
	name, mac := endpoint.GetNetwork(), strings.ToLower(endpoint.GetMac())
	if !slices.ContainsFunc(self.Status.Endpoints, func(e network.Endpoint) bool { return e.Network == name && e.MAC == mac }) ||
		slices.ContainsFunc(self.Spec.Stations, func(s network.Station) bool { return s.Network == name && s.MAC == mac }) {
		return false
	}
	_, listed, _ := m.nets.GetStore().GetByKey(name)
	return slices.Contains(self.Spec.Networks, name) || !listed && m.n.config.Network.Unlisted != AllowUnlisted
}

// unserved is why the node does not serve a network as the TaktNetwork has it, or as there is none; nothing: it does.
func (m *member) unserved(name string) (reason, message string) {
	self := m.known()
	if self == nil {
		return "", ""
	}
	for _, served := range self.Status.Networks {
		unlisted := served.Reason == network.UnknownNetwork && m.n.config.Network.Unlisted == AllowUnlisted
		if served.Name == name && served.Reason != network.Serving && !unlisted {
			return served.Reason, served.Message
		}
	}
	return "", ""
}

// tooLong says that an interface takes longer packets than its network carries; empty: it does not.
func (m *member) tooLong(ifName string, endpoint *adminv1.Endpoint) string {
	if m == nil {
		return ""
	}
	found, there, _ := m.nets.GetStore().GetByKey(endpoint.GetNetwork())
	if !there {
		return ""
	}
	most := found.(*network.TaktNetwork).Spec.MTU
	if most == nil || endpoint.GetMtu() <= uint32(*most) {
		return ""
	}
	return fmt.Sprintf("the MTU of %s is %d, and network %s carries packets of %d bytes: write mtu: %[4]d in the CNI configuration, and create the pod again, or raise mtu of the TaktNetwork",
		ifName, endpoint.GetMtu(), endpoint.GetNetwork(), *most)
}

// listener is that of an attached interface. One that is younger than the last look is asked for.
func (m *member) listener(ctx context.Context, path string) (*adminv1.Listener, error) {
	m.mu.Lock()
	found := m.listeners[path]
	m.mu.Unlock()
	if found != nil {
		return found, nil
	}
	all, err := m.admin.ListListeners(ctx, &adminv1.ListListenersRequest{})
	if err != nil {
		return nil, fmt.Errorf("taktd does not say what the pod is attached to: %w", err)
	}
	for _, one := range all.GetListeners() {
		if one.GetListener().GetPath() == path {
			return one.GetListener(), nil
		}
	}
	return nil, fmt.Errorf("taktd knows nothing of %s: delete the pod, to have it attached again", path)
}

// entered is what this agent has entered into taktd, so that a later one takes back what has no reason any more, and
// nothing that an operator has entered. It is in a file because taktd outlives the agent.
type entered struct {
	// Stations by "NETWORK MAC VTEP".
	Stations map[string]bool `json:"stations"`
	Peers    map[string]bool `json:"peers"`
	// Schedules are the base times of those that were installed, TAI nanoseconds, by datapath.
	Schedules map[string][]int64 `json:"schedules,omitempty"`
	// Asked are digests of what was last installed, by datapath.
	Asked map[string]string `json:"asked,omitempty"`
}

func (m *member) enteredFile() string { return filepath.Join(m.n.config.RunDirectory, "entered.json") }

func (m *member) loadEntered() (*entered, error) {
	e := &entered{Stations: map[string]bool{}, Peers: map[string]bool{}, Schedules: map[string][]int64{}, Asked: map[string]string{}}
	text, err := os.ReadFile(m.enteredFile())
	if errors.Is(err, fs.ErrNotExist) {
		return e, nil
	}
	if err == nil {
		err = json.Unmarshal(text, e)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read what was entered into taktd: remove %s, and what other nodes have had entered stays until taktd starts anew: %w", m.enteredFile(), err)
	}
	return e, nil
}

// store is called before something is entered and after something has been taken back, so that nothing is forgotten.
func (m *member) store(e *entered) error {
	text, err := json.Marshal(e)
	if err == nil {
		err = os.WriteFile(m.enteredFile()+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(m.enteredFile()+".new", m.enteredFile())
	}
	if err != nil {
		return fmt.Errorf("cannot note what is entered into taktd: %w", err)
	}
	return nil
}

func stationKey(name, mac, vtep string) string { return name + " " + mac + " " + vtep }

// enterStations enters the pods of other nodes into the networks that taktd does not follow a kernel's device for. Unless all
// is planned, none is taken away.
func (m *member) enterStations(ctx context.Context, has []*adminv1.Network, e *entered, planned bool) error {
	wanted := m.stations(has)
	// What is there and was not noted before it was entered is an operator's: operators are the places of such stations.
	present, operators := map[string]*adminv1.Station{}, map[string]string{}
	for _, one := range has {
		for _, station := range one.GetStations() {
			if station.GetFollowed() {
				continue
			}
			mac := strings.ToLower(station.GetMac())
			key := stationKey(one.GetName(), mac, station.GetVtep())
			present[key] = station
			if !e.Stations[key] && mac != noMAC {
				operators[one.GetName()+" "+mac] = station.GetVtep()
			}
		}
	}
	var mistakes []error
	fresh := false
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		name, _, _ := strings.Cut(key, " ")
		vtep, theirs := operators[name+" "+wanted[key].GetMac()]
		switch there := present[key]; {
		case theirs && (there == nil || !equalSets(there.GetAddresses(), wanted[key].GetAddresses())):
			mistakes = append(mistakes, fmt.Errorf("station %s: an operator has entered it otherwise (vtep %q), and that stays: take it out of taktd's configuration, or `takt network remove %s %s`", key, vtep, name, wanted[key].GetMac()))
			delete(wanted, key)
		case e.Stations[key]:
		case there != nil:
			delete(wanted, key) // as it should be, and to stay when the pod goes
		default:
			e.Stations[key], fresh = true, true
		}
	}
	if fresh {
		if err := m.store(e); err != nil {
			return err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		station := wanted[key]
		if there := present[key]; there != nil && equalSets(there.GetAddresses(), station.GetAddresses()) {
			continue
		}
		name, _, _ := strings.Cut(key, " ")
		if _, err := m.admin.SetStation(ctx, &adminv1.SetStationRequest{Network: name, Station: station}); err != nil {
			mistakes = append(mistakes, fmt.Errorf("station %s: %w", key, err))
			if away(err) {
				// The rest is entered by the next look.
				return errors.Join(mistakes...)
			}
		}
	}
	gone := false
	for _, key := range slices.Sorted(maps.Keys(e.Stations)) {
		if wanted[key] != nil || !planned {
			continue
		}
		if present[key] != nil {
			parts := strings.Split(key, " ")
			// One that is elsewhere now has been changed already, and has another key.
			if _, err := m.admin.RemoveStation(ctx, &adminv1.RemoveStationRequest{Network: parts[0], Mac: parts[1], Vtep: parts[2]}); err != nil {
				mistakes = append(mistakes, fmt.Errorf("station %s: %w", key, err))
				continue
			}
		}
		delete(e.Stations, key)
		gone = true
	}
	if gone {
		mistakes = append(mistakes, m.store(e))
	}
	return errors.Join(mistakes...)
}

// stations are what taktd's networks need to know of other nodes, by key.
func (m *member) stations(has []*adminv1.Network) map[string]*adminv1.Station {
	wanted := map[string]*adminv1.Station{}
	serves := map[string]bool{}
	for _, one := range has {
		// Where the kernel's table is followed, the container network has them entered; a router needs none.
		serves[one.GetName()] = one.GetFollow() == "" && !one.GetRouted()
	}
	enter := func(name string, at network.Place) {
		wanted[stationKey(name, strings.ToLower(at.MAC), at.VTEP)] = &adminv1.Station{Mac: strings.ToLower(at.MAC), Vtep: at.VTEP, Addresses: at.Addresses}
	}
	// What pods have, on whichever node: they keep it, and the controller says so of the network.
	pods := map[string]bool{}
	for _, node := range objects.All[*network.TaktNode](m.nodes) {
		for _, station := range node.Spec.Stations {
			for _, what := range append([]string{station.MAC}, station.Addresses...) {
				pods[station.Network+" "+what] = true
			}
		}
	}
	for _, one := range objects.All[*network.TaktNetwork](m.nets) {
		for _, station := range one.Spec.Stations {
			if serves[one.Name] && !pods[one.Name+" "+strings.ToLower(station.MAC)] && !slices.ContainsFunc(station.Addresses, func(a string) bool { return pods[one.Name+" "+network.IP(a)] }) {
				enter(one.Name, station)
			}
		}
	}
	for _, node := range objects.All[*network.TaktNode](m.nodes) {
		if node.Name == m.n.name {
			continue
		}
		for _, station := range node.Spec.Stations {
			if serves[station.Network] {
				enter(station.Network, station.Place)
			}
		}
		for _, vtep := range node.Spec.VTEPs {
			if serves[vtep.Network] {
				enter(vtep.Network, network.Place{MAC: noMAC, VTEP: vtep.Address})
			}
		}
	}
	return wanted
}

func equalSets(a, b []string) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(a, b)
}

// enterPeers has taktd know the runtimes of other nodes by their keys, and says how many answer. Unless all is planned, none is
// taken away.
func (m *member) enterPeers(ctx context.Context, s *network.TaktNodeStatus, e *entered, planned bool) error {
	wanted := map[string]*network.Peer{}
	if m.n.config.Network.Peers {
		all := objects.All[*network.TaktNode](m.nodes)
		// The same one of two with one address at each look.
		slices.SortFunc(all, func(a, b *network.TaktNode) int { return strings.Compare(a.Name, b.Name) })
		for _, node := range all {
			if node.Name != m.n.name && node.Spec.Peer != nil {
				wanted[node.Spec.Peer.Address] = node.Spec.Peer
			}
		}
	}
	all, err := m.admin.ListPeers(ctx, &adminv1.ListPeersRequest{})
	if err != nil {
		return err
	}
	present, up := map[string]*adminv1.Peer{}, 0
	for _, peer := range all.GetPeers() {
		if peer.GetConfigured() {
			present[peer.GetAddress()] = peer
		}
		if peer.GetState() == adminv1.PeerState_PEER_STATE_UP {
			up++
		}
	}
	s.Peers = strconv.Itoa(up) + "/" + strconv.Itoa(len(all.GetPeers()))
	defer func() { s.NextKeys = m.nextKeys(present) }()
	var mistakes []error
	fresh := false
	for _, address := range slices.Sorted(maps.Keys(wanted)) {
		// One that is there and was not noted before it was entered is an operator's.
		switch has, there := present[address]; {
		case e.Peers[address]:
		case there && has.GetKey() != wanted[address].Key && (has.GetKey() == "" || has.GetKey() != wanted[address].NextKey):
			mistakes = append(mistakes, fmt.Errorf("peer %s: an operator has entered it with another key, and that stays: take it out of taktd's configuration, or `takt peer remove %s`", address, address))
			delete(wanted, address)
		case there:
			switch next := wanted[address].NextKey; {
			case next == "" && has.GetNextKey() != "":
				mistakes = append(mistakes, fmt.Errorf("peer %s: an operator has entered it with a key beside the only one that it has, %s: leave the other one out of taktd's configuration, or of `takt peer add`, as whoever has it can pretend to be this peer", address, wanted[address].Key))
			case next != "" && has.GetKey() != next && has.GetNextKey() != next:
				mistakes = append(mistakes, fmt.Errorf("peer %s: an operator has entered it without the key that it is going to have, %s: add that as its next_key in taktd's configuration, or with `takt peer add`", address, next))
			}
			delete(wanted, address) // as it should be, and to stay when the node goes
		default:
			e.Peers[address], fresh = true, true
		}
	}
	if fresh {
		if err := m.store(e); err != nil {
			return err
		}
	}
	for _, address := range slices.Sorted(maps.Keys(wanted)) {
		peer := wanted[address]
		// Of two keys taktd names the one first that the node has used last.
		keys := []string{peer.Key, peer.NextKey}
		if has, there := present[address]; there && equalSets(keys, []string{has.GetKey(), has.GetNextKey()}) {
			continue
		}
		if _, err := m.admin.AddPeer(ctx, &adminv1.AddPeerRequest{Address: address, Key: peer.Key, NextKey: peer.NextKey}); err != nil {
			mistakes = append(mistakes, fmt.Errorf("peer %s: %w", address, err))
			continue
		}
		present[address] = &adminv1.Peer{Address: address, Key: peer.Key, NextKey: peer.NextKey}
	}
	gone := false
	for _, address := range slices.Sorted(maps.Keys(e.Peers)) {
		if _, still := wanted[address]; still || !planned {
			continue
		}
		if _, there := present[address]; there {
			if _, err := m.admin.RemovePeer(ctx, &adminv1.RemovePeerRequest{Address: address}); err != nil {
				mistakes = append(mistakes, fmt.Errorf("peer %s: %w", address, err))
				continue
			}
		}
		delete(e.Peers, address)
		gone = true
	}
	if gone {
		mistakes = append(mistakes, m.store(e))
	}
	return errors.Join(mistakes...)
}
