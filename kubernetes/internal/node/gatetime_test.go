package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"pgregory.net/rapid"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/apitest"
	"github.com/takt-dev/takt/kubernetes/internal/cni"
	"github.com/takt-dev/takt/kubernetes/internal/report"
)

// gated is a node with a real taktd and networks pods and other; class 5 has the first quarter of every millisecond of a
// gigabit. Its agent does not run: an API server that only stores knows no field selectors, and two drivers of one node meet.
type gated struct {
	*site
	admin  adminv1.AdminClient
	daemon func()
}

const networksOfATaktd = "[[network]]\nname = \"pods\"\ncarrier = \"vxlan:42\"\n[[network]]\nname = \"other\"\ncarrier = \"vxlan:43\"\n"

func newGated(t *testing.T) *gated {
	t.Helper()
	s := newSite(t)
	s.stop()
	s.config.Network = &NetworkConfig{Sockets: filepath.Join(s.dir, "cni"), AdminSocket: filepath.Join(s.dir, "admin.sock"), Preload: s.library(), Path: PathPreload}
	if err := s.config.Network.validate(); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(s.config.Network.Sockets, 0o700); err != nil {
		t.Fatal(err)
	}
	connection, err := grpc.NewClient("unix:"+s.config.Network.AdminSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	g := &gated{site: s, admin: adminv1.NewAdminClient(connection)}
	g.begin()
	g.schedule(0x20, 250_000, 0x01, 750_000)
	g.restart()
	return g
}

// begin starts taktd, which keeps what it is told to over its end.
func (g *gated) begin() {
	g.t.Helper()
	g.daemon = g.taktd(networksOfATaktd + fmt.Sprintf("[node]\nstate = %q\n", g.dir))
	g.until("taktd answers", func() bool {
		_, err := g.admin.GetStatus(background, &adminv1.GetStatusRequest{})
		return err == nil
	})
}

func (g *gated) schedule(entries ...uint32) {
	g.t.Helper()
	wanted := gatesOf(gigabit, 1_000_000, entries...).Operational
	if _, err := g.admin.InstallSchedule(background, &adminv1.InstallScheduleRequest{Datapath: "udp", LinkRateBps: gigabit, Schedule: wanted}); err != nil {
		g.t.Fatal(err)
	}
	g.until("the schedule runs", func() bool {
		all, err := g.admin.ListSchedules(background, &adminv1.ListSchedulesRequest{})
		return err == nil && linkOf(all, "udp").GetOperational().GetEntries() != nil
	})
}

// restart is a new agent, which knows what the one before has left.
func (g *gated) restart() {
	g.t.Helper()
	if g.agent != nil && g.agent.gates != nil {
		if err := g.agent.gates.disconnect(); err != nil {
			g.t.Fatal(err)
		}
	}
	agent, err := New(nodeName, g.config, g.client, g.events, g.backend)
	if err == nil {
		agent.host = "/"
		err = agent.recover(background)
	}
	if err != nil {
		g.t.Fatal(err)
	}
	g.agent = agent
}

func (g *gated) networks() *networks { return &networks{n: g.agent, admin: g.admin} }

// step is what the agent does every two seconds.
func (g *gated) step() {
	g.t.Helper()
	if err := g.agent.gates.step(background); err != nil {
		g.t.Fatal(err)
	}
}

const frameOfPods = `{"apiVersion":"network.takt.dev/v1alpha1","kind":"GateTime","class":5,"period":"1ms","bytes":1514,"window":"1us","destination":"10.244.1.9:4000"}`

// gateClaimOf is a claim of a pod for gate time on a network, as the scheduler has allocated it.
func (g *gated) gateClaimOf(pod, network, parameters string) *resourceapi.ResourceClaim {
	g.t.Helper()
	share := types.UID(pod + "-share")
	result := resourceapi.DeviceRequestAllocationResult{Request: "gate", Driver: reservation.NetworkDriver, Pool: nodeName, Device: network, ShareID: &share}
	if read, err := reservation.DecodeGateTime([]byte(parameters)); err == nil && read.Validate() == nil {
		result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
			resourceapi.QualifiedName(reservation.ClassCapacity(int(*read.Class))): *resource.NewQuantity(read.BitsPerSecond(), resource.DecimalSI),
		}
	}
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pod + "-gate", UID: types.UID(pod + "-gate-uid")},
		Status: resourceapi.ResourceClaimStatus{
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{podReference(pod)},
			Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{result},
				Config: []resourceapi.DeviceAllocationConfiguration{{Source: resourceapi.AllocationConfigSourceClaim, Requests: []string{"gate"},
					DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
						Driver: reservation.NetworkDriver, Parameters: apiruntime.RawExtension{Raw: []byte(parameters)},
					}}}},
			}},
		},
	}
	return claim
}

func (g *gated) prepareGate(claim *resourceapi.ResourceClaim) (cdi []string, err error) {
	g.t.Helper()
	results, err := g.networks().PrepareResourceClaims(background, []*resourceapi.ResourceClaim{claim})
	if err != nil {
		g.t.Fatal(err)
	}
	for _, device := range results[claim.UID].Devices {
		cdi = append(cdi, device.CDIDeviceIDs...)
	}
	return cdi, results[claim.UID].Err
}

func (g *gated) release(claim *resourceapi.ResourceClaim) {
	g.t.Helper()
	if err := g.agent.gates.release(background, claim.UID); err != nil {
		g.t.Fatal(err)
	}
}

// attachTo does what takt-cni does when the pod's sandbox is made.
func (g *gated) attachTo(pod, network string, at int, classes ...uint32) (socket string) {
	g.t.Helper()
	socket = filepath.Join(g.config.Network.Sockets, pod+"-sandbox", "eth0", cni.SocketName)
	g.attach(pod+"-sandbox", "eth0", "")
	_, err := g.admin.SetListener(background, &adminv1.SetListenerRequest{Keep: true, Listener: &adminv1.Listener{
		Path: socket, Mode: 0o666, Identity: "default/" + pod + "/eth0", Classes: classes,
		Endpoint: &adminv1.Endpoint{Network: network, Mac: fmt.Sprintf("02:00:00:00:01:%02x", at), Addresses: []string{fmt.Sprintf("10.244.1.%d/24", at)}},
	}})
	if err != nil {
		g.t.Fatal(err)
	}
	return socket
}

// detach is takt-cni's DEL.
func (g *gated) detach(socket string) {
	g.t.Helper()
	if _, err := g.admin.RemoveListener(background, &adminv1.RemoveListenerRequest{Path: socket}); err != nil {
		g.t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Dir(filepath.Dir(socket))); err != nil {
		g.t.Fatal(err)
	}
}

// created has the agent asked for a container of a pod.
func (g *gated) created(pod string, env ...string) (*api.ContainerAdjustment, error) {
	adjusted, _, err := (&nriPlugin{n: g.agent}).CreateContainer(background,
		&api.PodSandbox{Id: pod + "-sandbox", Namespace: "default", Name: pod, Uid: pod + "-uid"},
		&api.Container{Id: pod + "-main", PodSandboxId: pod + "-sandbox", Name: "main", Env: env})
	return adjusted, err
}

// declared are the streams that taktd has, by the socket that has them.
func (g *gated) declared() map[string][]string {
	g.t.Helper()
	all, err := g.admin.ListListeners(background, &adminv1.ListListenersRequest{})
	if err != nil {
		g.t.Fatal(err)
	}
	found := map[string][]string{}
	for _, one := range all.GetListeners() {
		for _, stream := range one.GetListener().GetStreams() {
			path := one.GetListener().GetPath()
			found[path] = append(found[path], stream.GetName())
		}
	}
	return found
}

// at says that a claim's stream is declared at a socket, and only there.
func (g *gated) at(claim *resourceapi.ResourceClaim, socket string) {
	g.t.Helper()
	name := "claim:default/" + claim.Name + "/gate"
	for path, streams := range g.declared() {
		if slices.Contains(streams, name) != (path == socket) {
			g.t.Errorf("%s has %q, and the stream of %s belongs to %q", path, streams, claim.Name, socket)
		}
	}
	if socket != "" && !slices.Contains(g.declared()[socket], name) {
		g.t.Errorf("%s has not the stream of %s", socket, claim.Name)
	}
}

// nothing fails the test if anything of a claim for gate time is left.
func (g *gated) nothing() {
	g.t.Helper()
	if left := g.declared(); len(left) > 0 {
		g.t.Errorf("left in taktd: %q", left)
	}
	places, err := os.ReadDir(g.agent.gates.claimsDirectory())
	if err != nil && !os.IsNotExist(err) || len(places) > 0 {
		g.t.Errorf("left of places: %v, %v", places, err)
	}
	if found, unread, err := g.agent.records.loadGates(); err != nil || len(found) > 0 || len(unread) > 0 || len(g.agent.gates.held) > 0 || len(g.agent.gates.lost) > 0 {
		g.t.Errorf("left are %v, %v, %v, %v, %v", found, unread, g.agent.gates.held, g.agent.gates.lost, err)
	}
}

// capacity is the gate time of a class that is published of a network; 0: there is none of that name.
func (g *gated) capacity(network string, class int) int64 {
	g.t.Helper()
	found, err := g.networks().devices(background)
	if err != nil {
		g.t.Fatal(err)
	}
	for _, device := range found {
		if device.Name == network {
			is := device.Capacity[resourceapi.QualifiedName(reservation.ClassCapacity(class))]
			return is.Value.Value()
		}
	}
	g.t.Fatal("network is not published: ", network)
	return 0
}

func TestAClaimForGateTimeIsAdmittedByTheScheduleOrItsPodWaits(t *testing.T) {
	g := newGated(t)
	if is := g.capacity("pods", 5); is != 250_000_000 || g.capacity("other", 5) != is || g.capacity("pods", 0) != 3*is || g.capacity("pods", 4) != 0 {
		t.Errorf("published are %d of class 5", is)
	}
	// Frames of 12.3 us, all at the begin of 250 us.
	var all []*resourceapi.ResourceClaim
	for at := range 20 {
		claim := g.gateClaimOf(fmt.Sprintf("pod-%d", at), []string{"pods", "other"}[at%2], frameOfPods)
		cdi, err := g.prepareGate(claim)
		if err != nil || len(cdi) != 1 || cdi[0] != gateCDI(claim.UID, "gate") {
			t.Fatalf("%d: %v, %q", at, err, cdi)
		}
		if hooks := g.injected(cdi).Hooks; hooks == nil || len(hooks.CreateRuntime) != 1 || hooks.CreateRuntime[0].Path != g.config.Gate {
			t.Fatalf("its container would start without the agent: %+v", hooks)
		}
		g.at(claim, g.agent.gates.placeholder(claim.UID))
		all = append(all, claim)
	}
	// What those of a network hold the scheduler takes off by itself, and not what those of another hold.
	if pods := g.capacity("pods", 5); pods != 250_000_000-10*12_336_000 {
		t.Errorf("published is %d", pods)
	}
	late := g.gateClaimOf("late", "pods", frameOfPods)
	_, err := g.prepareGate(late)
	told := g.events.of("late", reasonGateRefused)
	if err == nil || len(told) != 1 || !strings.HasPrefix(told[0], codeGateTime+": claim late-gate: network \"pods\" of this node has no gate time for 1 frame of 1514 octets every 1ms in class 5: ") ||
		!strings.Contains(told[0], "launch earlier, send less, or lengthen the window of the schedule") || !strings.HasSuffix(told[0], "delete the pod to have it placed again") {
		t.Fatalf("%v, told %q", err, told)
	}
	g.at(late, "")
	if g.agent.gates.get(late.UID) != nil {
		t.Error("what was refused is held")
	}
	// The same again changes nothing, and what is given back is another's.
	if _, err := g.prepareGate(all[3]); err != nil {
		t.Error(err)
	}
	g.release(all[7])
	g.release(all[7])
	if _, err := g.prepareGate(late); err != nil {
		t.Error(err)
	}
	if _, err := g.prepareGate(all[7]); err == nil {
		t.Error("the place of one that was given back is there twice")
	}
	if page := g.page(); !strings.Contains(page, "takt_node_gate_time_claims{kept=\"true\"} 20\n") ||
		!strings.Contains(page, "takt_node_gate_time_claimed_bits_per_second{class=\"5\",network=\"pods\"} 1.35696e+08\n") {
		t.Error(page)
	}
	for _, claim := range append(all, late) {
		g.release(claim)
	}
	g.nothing()
}

func TestWhatNoScheduleGivesIsRefused(t *testing.T) {
	g := newGated(t)
	refused := func(pod, network, parameters, code string, words ...string) {
		t.Helper()
		claim := g.gateClaimOf(pod, network, parameters)
		_, err := g.prepareGate(claim)
		if err == nil || !strings.HasPrefix(err.Error(), code+": ") || slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(err.Error(), w) }) {
			t.Errorf("%s: %v", pod, err)
		}
	}
	refused("closed", "pods", strings.Replace(frameOfPods, `"class":5`, `"class":4`, 1), codeNoGateTime, "no schedule of this node gives class 4 gate time: install one")
	refused("outside", "pods", strings.Replace(frameOfPods, `"window":"1us"`, `"offset":"600us"`, 1), codeGateTime, "finds class 5 closed: it is open from 0 ns to 250 µs; move the offset")
	refused("unknown", "nowhere", frameOfPods, codeNoNetwork)
	refused("mistaken", "pods", strings.Replace(frameOfPods, `"period":"1ms"`, `"period":1`, 1), codeParameters, `request "gate"`, "with a unit")
	more := g.gateClaimOf("more", "pods", frameOfPods)
	more.Status.Allocation.Devices.Results[0].ConsumedCapacity["class5"] = resource.MustParse("12335999")
	if _, err := g.prepareGate(more); err == nil || !strings.Contains(err.Error(), `request capacity class5: "12336000"`) {
		t.Error(err)
	}
	bare := g.gateClaimOf("bare", "pods", frameOfPods)
	bare.Status.Allocation.Devices.Config = nil
	if _, err := g.prepareGate(bare); err == nil || !strings.Contains(err.Error(), "has no parameters: add config with opaque.driver network.takt.dev and kind GateTime") {
		t.Error(err)
	}
	bare.Status.Allocation.Devices.Results[0].ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"class5": resource.MustParse("0")}
	if cdi, err := g.prepareGate(bare); err != nil || !slices.Equal(cdi, []string{networkCDI()}) {
		t.Errorf("a claim for the network alone: %v, %q", err, cdi)
	}
	two := g.gateClaimOf("two", "pods", frameOfPods)
	two.Status.ReservedFor = append(two.Status.ReservedFor, podReference("another"))
	if _, err := g.prepareGate(two); err == nil || !strings.HasPrefix(err.Error(), codeShared) {
		t.Error(err)
	}
	g.nothing()
	g.daemon()
	refused("away", "pods", frameOfPods, codeNoNetwork, "does not serve network")
}

// A stream of a long period costs what admission sets aside for it, at the scheduler as on the node.
func TestAClaimCostsWhatAdmissionCountsOfIt(t *testing.T) {
	g := newGated(t)
	long := strings.Replace(strings.Replace(frameOfPods, `"period":"1ms"`, `"period":"60s"`, 1), `"bytes":1514`, `"bytes":15140,"frame":1514`, 1)
	const declared, counted = 2_056, 10 * 1542 * 8 * 25
	cheap := g.gateClaimOf("cheap", "pods", long)
	_, err := g.prepareGate(cheap)
	if err == nil || !strings.HasPrefix(err.Error(), codeGateTooSmall+": ") || !strings.Contains(err.Error(), fmt.Sprintf(`sets aside %d bits per second of class 5`, declared)) ||
		!strings.Contains(err.Error(), fmt.Sprintf(`counted as often as they may meet others in 40 cycles of the node's schedule take %d: that is not set aside, request capacity class5: "%d"`, counted, counted)) {
		t.Errorf("%v", err)
	}
	g.release(cheap)
	g.nothing()
	asks := func(pod string, bits int64) *resourceapi.ResourceClaim {
		claim := g.gateClaimOf(pod, "pods", long)
		claim.Status.Allocation.Devices.Results[0].ConsumedCapacity["class5"] = *resource.NewQuantity(bits, resource.DecimalSI)
		return claim
	}
	if _, err := g.prepareGate(asks("greedy", reservation.MostCapacity(counted)+1)); err == nil || !strings.HasPrefix(err.Error(), codeGateTooLarge+": ") {
		t.Errorf("%v", err)
	}
	g.release(asks("greedy", 0))
	// What is set aside is what others do not find, of whatever network.
	honest := asks("honest", counted)
	g.must(honest)
	if pods, other := g.capacity("pods", 5), g.capacity("other", 5); pods != 250_000_000 || other != 250_000_000-counted {
		t.Errorf("published are %d and %d", pods, other)
	}
	if page := g.page(); !strings.Contains(page, fmt.Sprintf("takt_node_gate_time_claimed_bits_per_second{class=\"5\",network=\"pods\"} %v\n", float64(counted))) {
		t.Error(page)
	}
	// A schedule of shorter cycles counts it more often. Who has been prepared stays so, and others find less.
	shorter := gatesOf(gigabit, 500_000, 0x20, 250_000, 0x01, 250_000).Operational
	if _, err := g.admin.InstallSchedule(background, &adminv1.InstallScheduleRequest{Datapath: "udp", LinkRateBps: gigabit, Schedule: shorter}); err != nil {
		t.Fatal(err)
	}
	g.until("the shorter one runs", func() bool { return g.capacity("other", 5) == 500_000_000-2*counted })
	g.must(honest)
	g.release(honest)
	g.nothing()
}

func TestClaimedStreamsAreThePodsWhenItIsAttachedAndKeepTheirPlace(t *testing.T) {
	g := newGated(t)
	claim := g.gateClaimOf("talker", "pods", frameOfPods)
	if _, err := g.client.ResourceV1().ResourceClaims("default").Create(background, claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cdi, err := g.prepareGate(claim)
	if err != nil {
		t.Fatal(err)
	}
	env := g.injected(cdi).Process.Env
	place := g.agent.gates.placeholder(claim.UID)
	status := func() metav1.Condition {
		t.Helper()
		for _, s := range g.agent.status.take(metav1.Now().Time) {
			if err := g.agent.status.write(background, s); err != nil {
				t.Fatal(err)
			}
		}
		now, err := g.client.ResourceV1().ResourceClaims("default").Get(background, claim.Name, metav1.GetOptions{})
		if err != nil || len(now.Status.Devices) != 1 || now.Status.Devices[0].Device != "pods" || !strings.Contains(string(now.Status.Devices[0].Data.Raw), `"class":5`) {
			t.Fatalf("%v, %+v", err, now.Status.Devices)
		}
		return *meta.FindStatusCondition(now.Status.Devices[0].Conditions, ConditionReady)
	}
	if is := status(); is.Status != metav1.ConditionTrue || is.Reason != "Prepared" {
		t.Errorf("%+v", is)
	}
	// A pod that no network, or another, has attached has no use for it, and does not start.
	if _, err := g.created("talker", env...); err == nil || !strings.Contains(err.Error(), codeUnattached) {
		t.Errorf("not attached: %v", err)
	}
	// It may hang so for long: meanwhile its place is another's to take.
	if is := status(); is.Status != metav1.ConditionFalse || is.Reason != reasonGateRefused {
		t.Errorf("%+v", is)
	}
	g.step()
	g.at(claim, "")
	if kept, lost := g.agent.gates.counts(); kept != 0 || lost != 0 {
		t.Errorf("%d claims are kept, and %d lost", kept, lost)
	}
	g.detach(g.attachTo("talker", "other", 7, 0, 5))
	socket := g.attachTo("talker", "pods", 7, 0)
	if _, err := g.created("talker", env...); err == nil || !strings.Contains(err.Error(), codeNotAllowed+`: request "gate": class 5 is none of [0], which are what takt-cni gives the pod in network "pods": add it to classes of its configuration`) ||
		strings.Contains(err.Error(), codeGateTime+":") {
		t.Errorf("in a class that it has not: %v", err)
	}
	for _, told := range g.events.of("talker", reasonNetwork) {
		if strings.Contains(told, "rpc error") {
			t.Errorf("told %q", told)
		}
	}
	g.at(claim, "")
	socket = g.attachTo("talker", "pods", 7, 0, 5)
	for range 2 {
		if _, err := g.created("talker", env...); err != nil {
			t.Fatal(err)
		}
		g.at(claim, socket)
	}
	if is := status(); is.Status != metav1.ConditionTrue || is.Reason != reasonReserved {
		t.Errorf("%+v", is)
	}
	attached, _, err := g.agent.attached(background)
	want := report.GateTime{Claim: "talker-gate", Request: "gate", Class: 5, Frames: 1, Frame: 1514, Period: "1ms"}
	if err != nil || len(attached) != 1 || len(attached[0].GateTime) != 1 || attached[0].GateTime[0] != want {
		t.Errorf("%v, %+v", err, attached)
	}
	if links := []report.Schedule{{Datapath: "udp", Running: true, Cycle: "1ms"}}; len(attached) != 1 || !slices.Equal(attached[0].Schedules, links) {
		t.Errorf("the links have %+v", attached)
	}
	// taktd knows a long name only in part: takt-cni has noted all of it.
	noted, long := filepath.Join(filepath.Dir(socket), "identity"), strings.Repeat("p", 120)
	g.write(noted, "default/"+long+"/eth0")
	if attached, _, err := g.agent.attached(background); err != nil || len(attached) != 1 || attached[0].Namespace != "default" || attached[0].Pod != long || attached[0].Interface != "eth0" {
		t.Errorf("%v, %+v", err, attached)
	}
	if err := os.Remove(noted); err != nil {
		t.Fatal(err)
	}
	// A container of another pod that names the claim has none of it.
	if _, err := g.created("thief", env...); err == nil || !strings.Contains(err.Error(), codeShared) {
		t.Errorf("another pod's: %v", err)
	}

	// Restarts change nothing.
	g.restart()
	g.step()
	g.at(claim, socket)
	g.daemon()
	g.begin()
	g.until("the schedule is there again", func() bool { return g.capacity("pods", 5) > 0 })
	g.at(claim, socket)
	g.step()
	g.at(claim, socket)

	// The sandbox goes and comes: meanwhile nobody else has the place.
	g.detach(socket)
	g.step()
	g.at(claim, place)
	socket = g.attachTo("talker", "pods", 8, 0, 5)
	if _, err := g.created("talker", env...); err != nil {
		t.Fatal(err)
	}
	g.at(claim, socket)

	// Without a schedule the gates are open for everybody: the pod is told, once, and again when there is one.
	if _, err := g.admin.RemoveSchedule(background, &adminv1.RemoveScheduleRequest{Datapath: "udp"}); err != nil {
		t.Fatal(err)
	}
	g.step()
	g.step()
	if told := g.events.of("talker", reasonGateLost); len(told) != 1 || !strings.HasPrefix(told[0], codeNoGateTime+": claim talker-gate: ") {
		t.Errorf("told %q", told)
	}
	if is := status(); is.Status != metav1.ConditionFalse || is.Reason != reasonGateLost {
		t.Errorf("%+v", is)
	}
	g.schedule(0x20, 250_000, 0x01, 750_000)
	g.step()
	if is := status(); is.Status != metav1.ConditionTrue || is.Reason != reasonReserved {
		t.Errorf("%+v", is)
	}
	// A schedule without a place for it is refused.
	if _, err := g.admin.InstallSchedule(background, &adminv1.InstallScheduleRequest{Datapath: "udp", LinkRateBps: gigabit, Schedule: gatesOf(gigabit, 1_000_000, 0x01, 1_000_000).Operational}); err == nil ||
		!strings.Contains(err.Error(), "claim:default/talker-gate/gate") {
		t.Errorf("a schedule that takes what is claimed: %v", err)
	}

	g.release(claim)
	g.nothing()
	g.detach(socket)
}

// Who may use which class of a network is the cluster's word, and what is not known yet is asked again.
func TestAClassThatANamespaceMayNotUseIsNotClaimed(t *testing.T) {
	g := newGated(t)
	m := &member{n: g.agent, admin: g.admin, listeners: map[string]*adminv1.Listener{}}
	m.withoutObjects()
	pods := &network.TaktNetwork{ObjectMeta: metav1.ObjectMeta{Name: "pods"}}
	if err := m.nets.GetStore().Add(pods); err != nil {
		t.Fatal(err)
	}
	g.agent.cluster = m
	claim := g.gateClaimOf("talker", "pods", frameOfPods)
	for _, tc := range []struct {
		synced  bool
		access  []network.Access
		refused string
	}{
		{false, nil, "has not heard from the API server yet"},
		{true, []network.Access{{Namespaces: []string{"default"}, Classes: []int32{0, 4}}}, codeNotAllowed + ": namespace default may not use classes [5] of network pods: add them to access"},
		{true, []network.Access{{Namespaces: []string{"plant"}}}, codeNotAllowed},
		{true, []network.Access{{Namespaces: []string{"default"}, Classes: []int32{5}}}, ""},
	} {
		m.synced, pods.Spec.Access = tc.synced, tc.access
		if _, err := g.prepareGate(claim); tc.refused == "" && err != nil || tc.refused != "" && (err == nil || !strings.Contains(err.Error(), tc.refused)) {
			t.Errorf("%+v: %v", tc.access, err)
		}
	}
	g.release(claim)
	g.nothing()
}

// What is given back while taktd is away does not come back with it.
func TestAClaimThatIsGivenBackWithoutTaktdIsGone(t *testing.T) {
	g := newGated(t)
	waiting, running := g.gateClaimOf("waiting", "pods", frameOfPods), g.gateClaimOf("running", "pods", frameOfPods)
	for _, claim := range []*resourceapi.ResourceClaim{waiting, running} {
		if _, err := g.prepareGate(claim); err != nil {
			t.Fatal(err)
		}
	}
	socket := g.attachTo("running", "pods", 7, 0, 5)
	if _, err := g.created("running"); err != nil {
		t.Fatal(err)
	}
	g.at(running, socket)
	g.daemon()
	g.release(waiting)
	g.release(running)
	g.begin()
	g.at(waiting, "")
	g.until("the agent has found it again", func() bool { return g.agent.gates.step(background) == nil })
	g.nothing()
	// Of one that another agent was asked to give back while it was away nothing is known.
	if err := g.agent.gates.release(context.Background(), "stranger"); err != nil {
		t.Error(err)
	}
	// One that has gone from the cluster while the agent was away.
	if _, err := g.prepareGate(waiting); err != nil {
		t.Fatal(err)
	}
	g.restart()
	g.agent.gates.sweep(background)
	g.nothing()
}

// The scheduler's own allocator, with what a node publishes: a claim is placed where its class has time for it, and one for
// the network alone anywhere.
func TestTheSchedulerPlacesClaimsWhereThereIsGateTime(t *testing.T) {
	g := newGated(t)
	devices, err := g.networks().devices(background)
	if err != nil {
		t.Fatal(err)
	}
	name := nodeName
	pool := []*resourceapi.ResourceSlice{{Spec: resourceapi.ResourceSliceSpec{
		Driver: reservation.NetworkDriver, NodeName: &name, Devices: devices, Pool: resourceapi.ResourcePool{Name: nodeName, Generation: 1, ResourceSliceCount: 1},
	}}}
	state := structured.AllocatedState{AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection()}
	place := func(class, bits string) bool {
		t.Helper()
		request := &resourceapi.ExactDeviceRequest{DeviceClassName: reservation.NetworkDriver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.attributes["network.takt.dev"].name == "pods"`}}}}
		if class != "" {
			request.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{resourceapi.QualifiedName(class): resource.MustParse(bits)}}
		}
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claim", UID: "claim"},
			Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gate", Exactly: request}}}}}
		allocator, err := structured.NewAllocator(background, structured.Features{ConsumableCapacity: true}, state, networkClass{}, pool, cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}))
		if err != nil {
			t.Fatal(err)
		}
		results, err := allocator.Allocate(background, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, []*resourceapi.ResourceClaim{claim})
		if err != nil {
			t.Fatal(err)
		}
		if len(results) == 0 {
			return false
		}
		result := results[0].Devices.Results[0]
		device := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
		state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(device, result.ConsumedCapacity))
		state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(device, result.ShareID))
		return true
	}
	for _, tc := range []struct {
		class, bits string
		placed      bool
	}{{"class5", "200M", true}, {"class5", "50000001", false}, {"", "", true}, {"class4", "1", false}, {"class5", "50M", true}, {"class5", "1", false}, {"", "", true}, {"class0", "12336k", true}} {
		if place(tc.class, tc.bits) != tc.placed {
			t.Errorf("%s of %s: placed %v", tc.bits, tc.class, !tc.placed)
		}
	}
}

type networkClass struct{}

func (networkClass) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }

func (networkClass) Get(name string) (*resourceapi.DeviceClass, error) {
	if name != reservation.NetworkDriver {
		return nil, errors.New("no such class")
	}
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
		CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "network.takt.dev"`},
	}}}}, nil
}

// A kubelet asks the drivers of a pod's claims one after the other, in any order, again and again until all have prepared
// them. Pods with CPU and gate time come and go: each has both or neither, and there is never more than the schedule has.
func TestAPodHasCPUAndNetworkTimeTogetherOrNeither(t *testing.T) {
	g := newGated(t)
	type pod struct {
		cpu, gate *resourceapi.ResourceClaim
		socket    string
		runs      bool
	}
	round := 0
	outcomes := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		round++
		pods := map[string]*pod{}
		made := 0
		names := func() []string {
			var all []string
			for name := range pods {
				all = append(all, name)
			}
			slices.Sort(all)
			return all
		}
		prepareCPU := func(p *pod) bool {
			results, err := g.agent.PrepareResourceClaims(background, []*resourceapi.ResourceClaim{p.cpu})
			return err == nil && results[p.cpu.UID].Err == nil
		}
		prepareGate := func(p *pod) bool {
			results, err := g.networks().PrepareResourceClaims(background, []*resourceapi.ResourceClaim{p.gate})
			return err == nil && results[p.gate.UID].Err == nil
		}
		steps := map[string]func(*rapid.T){
			"come": func(t *rapid.T) {
				if len(pods) > 12 {
					t.Skip()
				}
				made++
				name := fmt.Sprintf("pod-%d-%d", round, made)
				frames, octets := rapid.IntRange(1, 4).Draw(t, "frames"), rapid.IntRange(60, 1514).Draw(t, "octets")
				period := rapid.SampledFrom([]string{"500us", "1ms", "2ms", "1001us"}).Draw(t, "period")
				offset := rapid.SampledFrom([]string{"0us", "100us", "200us", "240us", "400us"}).Draw(t, "offset")
				ppm := rapid.Int64Range(50_000, 400_000).Draw(t, "ppm")
				cpu := g.claimOf(name, ppm, g.agent.offer.CPUs[rapid.IntRange(0, len(g.agent.offer.CPUs)-1).Draw(t, "cpu")].ID)
				pods[name] = &pod{cpu: cpu, gate: g.gateClaimOf(name, rapid.SampledFrom([]string{"pods", "other"}).Draw(t, "network"), fmt.Sprintf(
					`{"apiVersion":"network.takt.dev/v1alpha1","kind":"GateTime","class":5,"period":%q,"bytes":%d,"frame":%d,"offset":%q,"destination":"10.244.1.9:%d"}`, period, frames*octets, octets, offset, made))}
			},
			"ask": func(t *rapid.T) {
				if len(pods) == 0 {
					t.Skip()
				}
				p := pods[rapid.SampledFrom(names()).Draw(t, "pod")]
				if p.runs {
					return
				}
				order := []func(*pod) bool{prepareCPU, prepareGate}
				if rapid.Bool().Draw(t, "the network first") {
					slices.Reverse(order)
				}
				first := order[0](p)
				p.runs = first && order[1](p)
				outcomes[fmt.Sprint(first, p.runs)]++
			},
			"attach": func(t *rapid.T) {
				if len(pods) == 0 {
					t.Skip()
				}
				name := rapid.SampledFrom(names()).Draw(t, "pod")
				p := pods[name]
				if !p.runs || p.socket != "" {
					return
				}
				made++
				p.socket = g.attachTo(name, p.gate.Status.Allocation.Devices.Results[0].Device, made%250+1, 0, 5)
				if _, err := g.created(name); err != nil {
					t.Fatal(err)
				}
			},
			"go": func(t *rapid.T) {
				if len(pods) == 0 {
					t.Skip()
				}
				name := rapid.SampledFrom(names()).Draw(t, "pod")
				p := pods[name]
				delete(pods, name)
				if p.socket != "" && rapid.Bool().Draw(t, "detached first") {
					g.detach(p.socket)
					p.socket = ""
				}
				for _, err := range []error{g.agent.unprepare(background, p.cpu.UID), g.agent.gates.release(background, p.gate.UID)} {
					if err != nil {
						t.Fatal(err)
					}
				}
				if p.socket != "" {
					g.detach(p.socket)
				}
			},
			"restart": func(t *rapid.T) { g.restart() },
			"look":    func(t *rapid.T) { g.step() },
			"": func(t *rapid.T) {
				var most, sum int64 = 250_000_000, 0
				holds := 0
				for name, p := range pods {
					g.agent.mu.Lock()
					cpu := g.agent.claims[p.cpu.UID] != nil
					g.agent.mu.Unlock()
					gate := g.agent.gates.get(p.gate.UID)
					if cpu != p.runs || (gate != nil) != p.runs {
						t.Fatalf("%s runs: %v, has CPU time: %v, has gate time: %v", name, p.runs, cpu, gate != nil)
					}
					if gate != nil {
						sum += gate.Requests[0].Parameters.BitsPerSecond()
						holds++
					}
				}
				declared := 0
				for _, streams := range g.declared() {
					declared += len(streams)
				}
				if declared != holds || sum > most {
					t.Fatalf("%d streams are declared for %d claims, which take %d of %d", declared, holds, sum, most)
				}
			},
		}
		t.Repeat(steps)
		for _, name := range names() {
			p := pods[name]
			if err := errors.Join(g.agent.unprepare(background, p.cpu.UID), g.agent.gates.release(background, p.gate.UID)); err != nil {
				t.Fatal(err)
			}
			if p.socket != "" {
				g.detach(p.socket)
			}
		}
		g.nothing()
		g.empty()
	})
	// That half of a pod is refused is what this is about.
	if outcomes["true true"] == 0 || outcomes["true false"] == 0 || outcomes["false false"] == 0 {
		t.Errorf("not all has come to pass: %v", outcomes)
	}
	t.Log(outcomes)
}

// Of a claim that several pods share nobody knows which of them was refused.
func TestARefusedClaimOfSeveralPodsTakesNothingFromThem(t *testing.T) {
	g := newGated(t)
	cpu := g.claimOf("first", 100_000, g.agent.offer.CPUs[0].ID)
	if results, err := g.agent.PrepareResourceClaims(background, []*resourceapi.ResourceClaim{cpu}); err != nil || results[cpu.UID].Err != nil {
		t.Fatal(err, results[cpu.UID].Err)
	}
	shared := g.gateClaimOf("first", "nowhere", frameOfPods)
	shared.Status.Allocation.Devices.Config = nil
	shared.Status.ReservedFor = append(shared.Status.ReservedFor, podReference("second"))
	if _, err := g.prepareGate(shared); err == nil {
		t.Fatal("a network that is not served is prepared")
	}
	if g.agent.claims[cpu.UID] == nil {
		t.Error("the CPU time of one of them was given back")
	}
	shared.Status.ReservedFor = shared.Status.ReservedFor[:1]
	if _, err := g.prepareGate(shared); err == nil || g.agent.claims[cpu.UID] != nil {
		t.Errorf("refused: %v; of one pod alone, its CPU time was not given back", err)
	}
}

// claimOf is a claim of a pod for so much of a CPU.
func (g *gated) claimOf(pod string, ppm int64, cpu int) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pod + "-cpu", UID: types.UID(pod + "-cpu-uid")},
		Status: resourceapi.ResourceClaimStatus{
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{podReference(pod)},
			Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{Request: "cpu", Driver: reservation.Driver, Pool: nodeName, Device: fmt.Sprintf("cpu-%d", cpu),
					ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{reservation.Bandwidth: *resource.NewQuantity(ppm, resource.DecimalSI)}}},
				Config: []resourceapi.DeviceAllocationConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
					Driver: reservation.Driver, Parameters: apiruntime.RawExtension{Raw: []byte(fmt.Sprintf(
						`{"apiVersion":"cpu.takt.dev/v1alpha1","kind":"Reservation","runtime":"%dns","period":"10ms"}`, ppm*10))},
				}}}},
			}},
		},
	}
}

// What is published, and what is said of a claim, as a real API server has it.
func TestANodesGateTimeIsWhatTheAPIServerTakes(t *testing.T) {
	g := newGated(t)
	kube, err := kubernetes.NewForConfig(apitest.Start(t, "../../../deploy/helm/takt-node/crds"))
	if err != nil {
		t.Fatal(err)
	}
	if g.agent, err = New(nodeName, g.config, kube, g.events, g.backend); err != nil {
		t.Fatal(err)
	}
	devices, err := g.networks().devices(background)
	if err != nil {
		t.Fatal(err)
	}
	name := nodeName
	slice, err := kube.ResourceV1().ResourceSlices().Create(background, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "networks"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: reservation.NetworkDriver, NodeName: &name, Devices: devices, Pool: resourceapi.ResourcePool{Name: nodeName, Generation: 1, ResourceSliceCount: 1},
	}}, metav1.CreateOptions{FieldValidation: "Strict"})
	if err != nil {
		t.Fatal(err)
	}
	if !equality.Semantic.DeepEqual(slice.Spec.Devices, devices) {
		t.Errorf("it has %+v", slice.Spec.Devices)
	}
	wanted := g.gateClaimOf("talker", "pods", frameOfPods)
	share := types.UID("0b1f3a52-0000-4000-8000-000000000001")
	wanted.Status.Allocation.Devices.Results[0].ShareID = &share
	wanted.Spec = resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{{Name: "gate", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: reservation.NetworkDriver,
			Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"class5": resource.MustParse("12336k")}}}}},
		Config: []resourceapi.DeviceClaimConfiguration{{Requests: []string{"gate"}, DeviceConfiguration: wanted.Status.Allocation.Devices.Config[0].DeviceConfiguration}},
	}}
	claim, err := kube.ResourceV1().ResourceClaims("default").Create(background, wanted, metav1.CreateOptions{FieldValidation: "Strict"})
	if err == nil {
		claim.Status = wanted.Status
		claim, err = kube.ResourceV1().ResourceClaims("default").UpdateStatus(background, claim, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.prepareGate(claim); err != nil {
		t.Fatal(err)
	}
	for _, s := range g.agent.status.take(metav1.Now().Time) {
		if err := g.agent.status.write(background, s); err != nil {
			t.Fatal(err)
		}
	}
	now, err := kube.ResourceV1().ResourceClaims("default").Get(background, claim.Name, metav1.GetOptions{})
	if err != nil || len(now.Status.Devices) != 1 || !meta.IsStatusConditionTrue(now.Status.Devices[0].Conditions, ConditionReady) || now.Status.Devices[0].Driver != reservation.NetworkDriver {
		t.Errorf("%v, %+v", err, now.Status.Devices)
	}
	g.release(now)
	g.nothing()
}
