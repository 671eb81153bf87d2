package node

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/objects"
)

// tables are a taktd with stations of networks by key, and peers with their keys by address.
type tables struct {
	adminv1.AdminClient
	stations map[string]*adminv1.Station
	peers    map[string]string // the keys of each, with a space between
	added    int
}

func (t *tables) networks() []*adminv1.Network {
	one := &adminv1.Network{Name: "tsn"}
	for _, key := range slices.Sorted(maps.Keys(t.stations)) {
		one.Stations = append(one.Stations, t.stations[key])
	}
	return []*adminv1.Network{one}
}

func (t *tables) SetStation(_ context.Context, r *adminv1.SetStationRequest, _ ...grpc.CallOption) (*adminv1.SetStationResponse, error) {
	// One station is in one place.
	maps.DeleteFunc(t.stations, func(_ string, s *adminv1.Station) bool {
		return s.GetMac() == r.GetStation().GetMac() && s.GetMac() != noMAC
	})
	t.stations[stationKey(r.GetNetwork(), r.GetStation().GetMac(), r.GetStation().GetVtep())] = r.GetStation()
	return &adminv1.SetStationResponse{}, nil
}

func (t *tables) RemoveStation(_ context.Context, r *adminv1.RemoveStationRequest, _ ...grpc.CallOption) (*adminv1.RemoveStationResponse, error) {
	delete(t.stations, stationKey(r.GetNetwork(), r.GetMac(), r.GetVtep()))
	return &adminv1.RemoveStationResponse{Removed: true}, nil
}

func (t *tables) ListPeers(context.Context, *adminv1.ListPeersRequest, ...grpc.CallOption) (*adminv1.ListPeersResponse, error) {
	answer := &adminv1.ListPeersResponse{}
	for address, keys := range t.peers {
		key, next, _ := strings.Cut(keys, " ")
		answer.Peers = append(answer.Peers, &adminv1.Peer{Address: address, Key: key, NextKey: next, Configured: true})
	}
	return answer, nil
}

func (t *tables) AddPeer(_ context.Context, r *adminv1.AddPeerRequest, _ ...grpc.CallOption) (*adminv1.AddPeerResponse, error) {
	t.added++
	t.peers[r.GetAddress()] = strings.TrimSpace(r.GetKey() + " " + r.GetNextKey())
	return &adminv1.AddPeerResponse{}, nil
}

func (t *tables) RemovePeer(_ context.Context, r *adminv1.RemovePeerRequest, _ ...grpc.CallOption) (*adminv1.RemovePeerResponse, error) {
	delete(t.peers, r.GetAddress())
	return &adminv1.RemovePeerResponse{Removed: true}, nil
}

func (t *tables) GetStatus(context.Context, *adminv1.GetStatusRequest, ...grpc.CallOption) (*adminv1.GetStatusResponse, error) {
	return &adminv1.GetStatusResponse{Node: &adminv1.Node{Address: "198.51.100.1:7400", Key: key1}}, nil
}

func (t *tables) ListNetworks(context.Context, *adminv1.ListNetworksRequest, ...grpc.CallOption) (*adminv1.ListNetworksResponse, error) {
	return &adminv1.ListNetworksResponse{Networks: t.networks()}, nil
}

func (t *tables) GetClock(context.Context, *adminv1.GetClockRequest, ...grpc.CallOption) (*adminv1.GetClockResponse, error) {
	return &adminv1.GetClockResponse{}, nil
}

func (t *tables) ListDatapaths(context.Context, *adminv1.ListDatapathsRequest, ...grpc.CallOption) (*adminv1.ListDatapathsResponse, error) {
	return &adminv1.ListDatapathsResponse{}, nil
}

func (t *tables) ListListeners(context.Context, *adminv1.ListListenersRequest, ...grpc.CallOption) (*adminv1.ListListenersResponse, error) {
	return &adminv1.ListListenersResponse{}, nil
}

func (t *tables) ListSchedules(context.Context, *adminv1.ListSchedulesRequest, ...grpc.CallOption) (*adminv1.ListSchedulesResponse, error) {
	return &adminv1.ListSchedulesResponse{}, nil
}

// has are the stations and peers, by their keys and addresses.
func (t *tables) has() string {
	found := slices.Sorted(maps.Keys(t.stations))
	for _, address := range slices.Sorted(maps.Keys(t.peers)) {
		found = append(found, address+" "+t.peers[address])
	}
	return strings.Join(found, ", ")
}

// entering is an agent that knows these TaktNodes, the first of which is its own. Each enters once, as another one that knows
// what is noted on the node.
func entering(t *testing.T, dir string, has *tables, nodes ...*network.TaktNode) error {
	t.Helper()
	m := memberOf(t, dir, has, nodes...)
	e, err := m.loadEntered()
	if err != nil {
		t.Fatal(err)
	}
	planned := m.planned(nodes[0])
	err = m.enterStations(background, has.networks(), e, planned)
	return errors.Join(err, m.enterPeers(background, &network.TaktNodeStatus{}, e, planned))
}

func memberOf(t *testing.T, dir string, has *tables, nodes ...*network.TaktNode) *member {
	t.Helper()
	n := &Node{name: nodes[0].Name}
	n.config.RunDirectory = dir
	n.config.Network = &NetworkConfig{Peers: true}
	m := &member{n: n, admin: has}
	m.withoutObjects()
	for _, node := range nodes {
		if err := m.nodes.GetStore().Add(node); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// silent is a taktd that is not there.
type silent struct{ adminv1.AdminClient }

func (silent) GetStatus(context.Context, *adminv1.GetStatusRequest, ...grpc.CallOption) (*adminv1.GetStatusResponse, error) {
	return nil, status.Error(codes.Unavailable, "nobody is there")
}

// What has to be taken back in time is seen to by the next look.
func TestALookDoesNotWaitForAnAPIServerThatDoesNotAnswer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		// Before that it does not notice that nobody waits any more.
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	defer server.Close()
	client, err := objects.New(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	m := memberOf(t, t.TempDir(), nil, &network.TaktNode{ObjectMeta: metav1.ObjectMeta{Name: nodeName}})
	m.admin, m.client = silent{}, client
	if err := m.step(background); err == nil || !strings.Contains(err.Error(), "cannot write the status of the node") {
		t.Errorf("the look has ended by %v", err)
	}
}

// withoutObjects has it know of no objects yet.
func (m *member) withoutObjects() {
	m.nodes = cache.NewSharedIndexInformer(&cache.ListWatch{}, &network.TaktNode{}, 0, cache.Indexers{})
	m.nets = cache.NewSharedIndexInformer(&cache.ListWatch{}, &network.TaktNetwork{}, 0, cache.Indexers{})
}

// nodeOf is one whose spec the controller has written: a pod at 192.0.2.2, and its key.
func nodeOf(name string) *network.TaktNode {
	return &network.TaktNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: network.TaktNodeSpec{
		Planned: true, Peer: &network.Peer{Address: "192.0.2.2:7400", Key: key2},
		Stations: []network.Station{{Network: "tsn", Place: network.Place{MAC: "02:00:00:00:00:02", VTEP: "192.0.2.2", Addresses: []string{"10.50.0.2"}}}},
	}}
}

// bare is a TaktNode of which nothing is said but that the controller has, or has not, looked at it.
func bare(name string, planned bool) *network.TaktNode {
	return &network.TaktNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: network.TaktNodeSpec{Planned: planned}}
}

func TestATaktNodeThatIsMadeAnewTakesNoEntryAway(t *testing.T) {
	dir, has := t.TempDir(), &tables{stations: map[string]*adminv1.Station{}, peers: map[string]string{}}
	const all = "tsn 02:00:00:00:00:02 192.0.2.2, 192.0.2.2:7400 " + key2
	for _, step := range []struct {
		what   string
		nodes  []*network.TaktNode
		wanted string
	}{
		{"told", []*network.TaktNode{bare("node-1", true), nodeOf("node-2")}, all},
		{"the other's is new", []*network.TaktNode{bare("node-1", true), bare("node-2", false)}, all},
		{"its own is new", []*network.TaktNode{bare("node-1", false)}, all},
		{"nothing is to be there", []*network.TaktNode{bare("node-1", true), bare("node-2", true)}, ""},
	} {
		if err := entering(t, dir, has, step.nodes...); err != nil {
			t.Fatal(err)
		}
		if got := has.has(); got != step.wanted {
			t.Errorf("%s: taktd has %q and not %q", step.what, got, step.wanted)
		}
	}
}

// Wherever the pod is: also of its own pods a node would send to the station otherwise.
func TestAStationOutsideWithAnAddressOfAPodIsNotEntered(t *testing.T) {
	outside := &network.TaktNetwork{ObjectMeta: metav1.ObjectMeta{Name: "tsn"}, Spec: network.TaktNetworkSpec{Stations: []network.Place{
		{MAC: "02:00:00:00:0A:01", VTEP: "198.51.100.7", Addresses: []string{"10.50.0.2"}},
		{MAC: "02:00:00:00:00:02", VTEP: "198.51.100.7"},
		{MAC: "02:00:00:00:0A:03", VTEP: "198.51.100.7", Addresses: []string{"fd00:0::3"}},
		{MAC: "02:00:00:00:0A:04", VTEP: "198.51.100.7", Addresses: []string{"10.50.0.4"}},
	}}}
	pods := nodeOf("node-2")
	pods.Spec.Stations[0].Addresses = append(pods.Spec.Stations[0].Addresses, "fd00::3")
	for _, nodes := range [][]*network.TaktNode{{pods}, {bare("node-1", true), pods}} {
		m := memberOf(t, t.TempDir(), &tables{}, nodes...)
		if err := m.nets.GetStore().Add(outside); err != nil {
			t.Fatal(err)
		}
		var found []string
		for key := range m.stations([]*adminv1.Network{{Name: "tsn"}}) {
			if strings.HasSuffix(key, " 198.51.100.7") {
				found = append(found, key)
			}
		}
		if !slices.Equal(found, []string{"tsn 02:00:00:00:0a:04 198.51.100.7"}) {
			t.Errorf("entered are %q", found)
		}
	}
}

func TestWhatAnOperatorHasEnteredIsNeitherChangedNorTakenAway(t *testing.T) {
	station := func(vtep string, addresses ...string) *adminv1.Station {
		return &adminv1.Station{Mac: "02:00:00:00:00:02", Vtep: vtep, Addresses: addresses}
	}
	for _, tc := range []struct {
		name            string
		station         *adminv1.Station
		key             string
		station2, peer2 string // what is said of them
	}{
		{"the same", station("192.0.2.2", "10.50.0.2"), key2, "", ""},
		{"another key", station("192.0.2.2", "10.50.0.2"), key9, "", "takt peer remove 192.0.2.2:7400"},
		{"no key", station("192.0.2.2", "10.50.0.2"), "", "", "takt peer remove 192.0.2.2:7400"},
		{"other addresses", station("192.0.2.2", "10.50.0.9"), key2, "otherwise (vtep \"192.0.2.2\")", ""},
		{"another place", station("192.0.2.9", "10.50.0.2"), key2, "otherwise (vtep \"192.0.2.9\")", ""},
	} {
		dir := t.TempDir()
		has := &tables{stations: map[string]*adminv1.Station{stationKey("tsn", tc.station.Mac, tc.station.Vtep): tc.station}, peers: map[string]string{"192.0.2.2:7400": tc.key}}
		before := has.has()
		for range 2 {
			err := entering(t, dir, has, bare("node-1", true), nodeOf("node-2"))
			said := ""
			if err != nil {
				said = err.Error()
			}
			if (said == "") != (tc.station2+tc.peer2 == "") || !strings.Contains(said, tc.station2) || !strings.Contains(said, tc.peer2) {
				t.Errorf("%s: it is said %q", tc.name, said)
			}
			if got := has.has(); got != before || !slices.Equal(has.networks()[0].Stations[0].GetAddresses(), tc.station.Addresses) {
				t.Errorf("%s: it was %q and is %q", tc.name, before, got)
			}
		}
		// When the node goes, they stay.
		if err := entering(t, dir, has, bare("node-1", true)); err != nil || has.has() != before {
			t.Errorf("%s: it was %q and is %q, %v", tc.name, before, has.has(), err)
		}
	}
	// What an agent has entered it changes, and takes away.
	dir, has := t.TempDir(), &tables{stations: map[string]*adminv1.Station{}, peers: map[string]string{}}
	moved := nodeOf("node-2")
	moved.Spec.Peer.Key, moved.Spec.Stations[0].VTEP = key1, "192.0.2.3"
	for _, step := range []struct {
		nodes  []*network.TaktNode
		wanted string
	}{
		{[]*network.TaktNode{bare("node-1", true), nodeOf("node-2")}, "tsn 02:00:00:00:00:02 192.0.2.2, 192.0.2.2:7400 " + key2},
		{[]*network.TaktNode{bare("node-1", true), moved}, "tsn 02:00:00:00:00:02 192.0.2.3, 192.0.2.2:7400 " + key1},
		{[]*network.TaktNode{bare("node-1", true)}, ""},
	} {
		if err := entering(t, dir, has, step.nodes...); err != nil || has.has() != step.wanted {
			t.Errorf("taktd has %q and not %q, %v", has.has(), step.wanted, err)
		}
	}
}

// Of a controller that gives one address to two nodes.
func TestTheKeyOfAnAddressDoesNotAlternate(t *testing.T) {
	dir, has := t.TempDir(), &tables{stations: map[string]*adminv1.Station{}, peers: map[string]string{}}
	twin := bare("node-3", true)
	twin.Spec.Peer = &network.Peer{Address: "192.0.2.2:7400", Key: key1}
	for range 20 {
		if err := entering(t, dir, has, bare("node-1", true), nodeOf("node-2"), twin); err != nil || has.peers["192.0.2.2:7400"] != key1 {
			t.Fatalf("taktd has %q, %v", has.has(), err)
		}
	}
}

func TestAPeerHasTwoKeysWhileItChangesFromOneToTheOther(t *testing.T) {
	const at = "192.0.2.2:7400"
	dir, has := t.TempDir(), &tables{stations: map[string]*adminv1.Station{}, peers: map[string]string{}}
	changes := nodeOf("node-2")
	changes.Spec.Stations, changes.Spec.Peer.NextKey = nil, key1
	changed := nodeOf("node-2")
	changed.Spec.Stations, changed.Spec.Peer.Key = nil, key1
	for _, step := range []struct {
		what   string
		node   *network.TaktNode
		uses   string // as taktd tells it
		wanted string
		added  int
	}{
		{"the next key is known", changes, "", key2 + " " + key1, 1},
		{"it has used it", changes, key1 + " " + key2, key1 + " " + key2, 1},
		{"it has it", changed, "", key1, 2},
		{"nothing is new", changed, "", key1, 2},
	} {
		if step.uses != "" {
			has.peers[at] = step.uses
		}
		if err := entering(t, dir, has, bare("node-1", true), step.node); err != nil {
			t.Fatal(err)
		}
		if has.peers[at] != step.wanted || has.added != step.added {
			t.Errorf("%s: taktd has %q, entered %d times", step.what, has.peers[at], has.added)
		}
	}
	// An operator's stays, with either key.
	for _, key := range []string{key1, key2} {
		has := &tables{stations: map[string]*adminv1.Station{}, peers: map[string]string{at: key}}
		err := entering(t, t.TempDir(), has, bare("node-1", true), changes)
		if told := err != nil && strings.Contains(err.Error(), "without the key that it is going to have"); told != (key == key2) || has.added > 0 {
			t.Errorf("with %s taktd has %q, %v", key, has.peers[at], err)
		}
	}
}

func TestANodeSaysWhyItIsNobodysPeer(t *testing.T) {
	self := bare("node-1", true)
	self.Spec.PeerProblem = "taktd's address is none of the Node's"
	m := memberOf(t, t.TempDir(), &tables{stations: map[string]*adminv1.Station{}, peers: map[string]string{}}, self)
	now := self.DeepCopy()
	if err := m.serve(background, now); err != nil {
		t.Fatal(err)
	}
	ready := meta.FindStatusCondition(now.Status.Conditions, network.Ready)
	if ready == nil || ready.Status != metav1.ConditionTrue || ready.Reason != "NoPeerAddress" || ready.Message != self.Spec.PeerProblem || now.Status.Runtime.Address != "198.51.100.1" {
		t.Errorf("it says %+v and %+v", ready, now.Status.Runtime)
	}
}

// An interface is untold if the controller knows it and its network, or there is none, and has nothing of it in stations.
func TestWhatOtherNodesHaveNotBeenToldOfIsSaid(t *testing.T) {
	self := &network.TaktNode{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	m := memberOf(t, t.TempDir(), nil, self)
	endpoint := &adminv1.Endpoint{Network: "tsn", Mac: "02:00:00:00:00:0A"}
	is := func(what string, want bool) {
		t.Helper()
		if got := m.untold(endpoint); got != want {
			t.Errorf("%s: %v", what, got)
		}
	}
	self.Status.Endpoints = []network.Endpoint{{Network: "tsn", MAC: "02:00:00:00:00:0a"}}
	is("a network whose TaktNetwork was deleted", true)
	m.n.config.Network.Unlisted = AllowUnlisted
	is("a network that need not be a TaktNetwork", false)
	m.n.config.Network.Unlisted = ""
	if err := m.nets.GetStore().Add(&network.TaktNetwork{ObjectMeta: metav1.ObjectMeta{Name: "tsn"}}); err != nil {
		t.Fatal(err)
	}
	is("a network that is not the node's", false)
	self.Spec.Networks = []string{"tsn"}
	self.Spec.Stations = []network.Station{{Network: "other", Place: network.Place{MAC: "02:00:00:00:00:0a"}}}
	is("refused by the controller", true)
	self.Spec.Stations[0].Network = "tsn"
	is("told", false)
	self.Spec.Stations, self.Status.Endpoints = nil, nil
	is("not known to the controller yet", false)
	if (*member)(nil).untold(endpoint) {
		t.Error("an agent without objects says that others have not been told")
	}
}

// What keeps a node from a network is said of each of its pods; a network that need not be a TaktNetwork lacks nothing.
func TestWhyANodeDoesNotServeAPodsNetworkIsSaid(t *testing.T) {
	self := &network.TaktNode{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	m := memberOf(t, t.TempDir(), nil, self)
	endpoint := &adminv1.Endpoint{Network: "tsn", Mtu: 1500}
	is := func(what, want string) {
		t.Helper()
		if _, got := m.unserved("tsn"); got != want {
			t.Errorf("%s: %q", what, got)
		}
	}
	is("nothing told yet", "")
	self.Status.Networks = []network.ServedNetwork{{Name: "other", Reason: network.NoUplink, Message: "no uplink"}, {Name: "tsn", Reason: network.Serving}}
	is("served", "")
	self.Status.Networks[1] = network.ServedNetwork{Name: "tsn", Reason: network.Differs, Message: "the carrier differs"}
	is("another carrier", "the carrier differs")
	self.Status.Networks[1] = network.ServedNetwork{Name: "tsn", Reason: network.UnknownNetwork, Message: "there is none"}
	is("a network whose TaktNetwork was deleted", "there is none")
	m.n.config.Network.Unlisted = AllowUnlisted
	is("a network that need not be a TaktNetwork", "")

	most := int32(1500)
	taktNetwork := &network.TaktNetwork{ObjectMeta: metav1.ObjectMeta{Name: "tsn"}, Spec: network.TaktNetworkSpec{MTU: &most}}
	if err := m.nets.GetStore().Add(taktNetwork); err != nil {
		t.Fatal(err)
	}
	if said := m.tooLong("eth0", endpoint); said != "" {
		t.Errorf("an interface with the network's MTU: %q", said)
	}
	most = 1450
	if said := m.tooLong("eth0", endpoint); !strings.Contains(said, "the MTU of eth0 is 1500, and network tsn carries packets of 1450 bytes: write mtu: 1450") {
		t.Errorf("an interface with a larger MTU: %q", said)
	}
	if _, said := (*member)(nil).unserved("tsn"); said != "" || (*member)(nil).tooLong("eth0", endpoint) != "" {
		t.Error("an agent without objects knows of networks")
	}
}
