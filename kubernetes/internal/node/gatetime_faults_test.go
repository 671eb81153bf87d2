package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/cni"
)

// frames are those of a claim that launches so many of so many octets every millisecond, to a port of its own.
func framesOf(frames, octets, port int, more string) string {
	return fmt.Sprintf(`{"apiVersion":"network.takt.dev/v1alpha1","kind":"GateTime","class":5,"period":"1ms","bytes":%d,"frame":%d,%s"destination":"10.244.1.9:%d"}`,
		frames*octets, octets, more, port)
}

// must prepares claims.
func (g *gated) must(claims ...*resourceapi.ResourceClaim) {
	g.t.Helper()
	for _, claim := range claims {
		if _, err := g.prepareGate(claim); err != nil {
			g.t.Fatal(claim.Name, ": ", err)
		}
	}
}

// start has a container of an attached pod created.
func (g *gated) start(pod string) {
	g.t.Helper()
	if _, err := g.created(pod); err != nil {
		g.t.Fatal(pod, ": ", err)
	}
}

// classesAt are those of the listener at a socket; nil: there is none.
func (g *gated) classesAt(socket string) []uint32 {
	g.t.Helper()
	all, err := g.agent.gates.listeners(background)
	if err != nil {
		g.t.Fatal(err)
	}
	return all[socket].GetClasses()
}

func TestAClaimThatIsHeldKeepsItsPlaceWhenItsPodIsAttached(t *testing.T) {
	g := newGated(t)
	narrow := g.gateClaimOf("narrow", "pods", framesOf(8, 1514, 4000, ""))
	wide := g.gateClaimOf("wide", "pods", framesOf(1, 64, 4001, `"window":"200us",`))
	g.must(narrow, wide)
	socket := g.attachTo("narrow", "pods", 7, 0, 5)
	g.start("narrow")
	g.at(narrow, socket)
	g.at(wide, g.agent.gates.placeholder(wide.UID))
	if waiting := g.agent.podsNow(background).Networks.Waiting; len(waiting) != 1 || waiting[0].Pod != "wide" || waiting[0].GateTime[0].Problem != "" {
		t.Errorf("waiting are %+v", waiting)
	}
}

// meddler does something before and after each change of a listener.
type meddler struct {
	adminv1.AdminClient
	meddle func()
}

func (m *meddler) SetListener(ctx context.Context, in *adminv1.SetListenerRequest, opts ...grpc.CallOption) (*adminv1.SetListenerResponse, error) {
	m.meddle()
	defer m.meddle()
	return m.AdminClient.SetListener(ctx, in, opts...)
}

func (m *meddler) RemoveListener(ctx context.Context, in *adminv1.RemoveListenerRequest, opts ...grpc.CallOption) (*adminv1.RemoveListenerResponse, error) {
	m.meddle()
	defer m.meddle()
	return m.AdminClient.RemoveListener(ctx, in, opts...)
}

func TestNobodyGetsThePlaceOfAClaimWhileItMoves(t *testing.T) {
	g := newGated(t)
	claim := g.gateClaimOf("talker", "pods", framesOf(20, 1514, 4000, ""))
	g.must(claim)
	asked := 0
	g.agent.gates.admin = &meddler{g.admin, func() {
		asked++
		channel := uint64(1)
		thief := &adminv1.Listener{Path: filepath.Join(g.dir, "thief.sock"), Identity: "thief", Classes: []uint32{5}, Write: []*adminv1.ChannelRange{{First: 1, Last: 1}},
			Streams: []*adminv1.DeclaredStream{{Name: "thief", TrafficClass: 5, Channel: &channel, PeriodNs: 1_000_000, Frame: 1514}}}
		if _, err := g.admin.SetListener(background, &adminv1.SetListenerRequest{Listener: thief}); err == nil {
			t.Error("another one has got its place")
		}
		if free := g.capacity("pods", 5); free != 250_000_000 {
			t.Errorf("published is %d", free)
		}
	}}
	socket := g.attachTo("talker", "pods", 7, 0, 5)
	g.start("talker")
	g.at(claim, socket)
	if asked < 2 {
		t.Error("nobody has tried")
	}
}

func TestARefusalTellsNothingOfOtherNamespaces(t *testing.T) {
	g := newGated(t)
	for at := range 20 {
		claim := g.gateClaimOf(fmt.Sprintf("pod-%d", at), "pods", frameOfPods)
		claim.Namespace = "a"
		g.must(claim)
	}
	late := g.gateClaimOf("late", "pods", frameOfPods)
	late.Namespace = "b"
	_, err := g.prepareGate(late)
	if err == nil || strings.Contains(err.Error(), "claim:a/") || strings.Contains(err.Error(), "pod-") || !strings.Contains(err.Error(), "stream `claim:b/late-gate/gate`") {
		t.Errorf("%v", err)
	}
	// kubectl takt shows both those that wait and what was refused.
	problems := 0
	waiting := g.agent.podsNow(background).Networks.Waiting
	for _, one := range waiting {
		if problem := one.GateTime[0].Problem; problem != "" {
			problems++
			if one.Pod != "late" || one.Network != "pods" || problem != err.Error() {
				t.Errorf("%+v", one)
			}
		}
	}
	if len(waiting) != 21 || problems != 1 {
		t.Errorf("%d wait, %d with a problem", len(waiting), problems)
	}
	g.release(late)
	if waiting := g.agent.podsNow(background).Networks.Waiting; len(waiting) != 20 {
		t.Errorf("%d wait", len(waiting))
	}
}

func TestATaktdThatComesBackWithoutTheWindowTakesTheClassAndNotTheSocket(t *testing.T) {
	g := newGated(t)
	claim := g.gateClaimOf("talker", "pods", frameOfPods)
	g.must(claim)
	socket := g.attachTo("talker", "pods", 7, 0, 5)
	g.start("talker")
	// The operator removes what was installed, and writes another schedule into the configuration.
	g.daemon()
	if err := os.Remove(filepath.Join(g.dir, "schedules")); err != nil {
		t.Fatal(err)
	}
	closed := filepath.Join(g.dir, "closed")
	g.write(closed, "tc qdisc replace dev eth0 parent root taprio num_tc 2 map 0 0 0 0 0 1 0 0 0 0 0 0 0 0 0 0 queues 1@0 1@1 base-time 0 sched-entry S 01 1000000 clockid CLOCK_TAI")
	g.daemon = g.taktd(networksOfATaktd + fmt.Sprintf("[node]\nstate = %q\n[[schedule]]\ndatapath = \"udp\"\nfile = %q\n", g.dir, closed))
	g.until("taktd answers", func() bool { return g.agent.gates.step(background) == nil })
	if is := g.classesAt(socket); !slices.Equal(is, []uint32{0}) {
		t.Errorf("its classes are %v", is)
	}
	g.at(claim, "")
	if told := g.events.of("talker", reasonGateLost); len(told) != 1 || g.agent.gates.said[claim.UID].reason != reasonGateLost {
		t.Errorf("told %q, said %+v", told, g.agent.gates.said)
	}
	// There is a window again.
	g.schedule(0x20, 250_000, 0x01, 750_000)
	g.step()
	g.at(claim, socket)
	if is := g.classesAt(socket); !slices.Equal(is, []uint32{0, 5}) || g.agent.gates.said[claim.UID].reason != reasonReserved {
		t.Errorf("its classes are %v, said %+v", is, g.agent.gates.said)
	}
	if told := g.events.of("talker", reasonReserved); len(told) != 1 || !strings.Contains(told[0], "claim talker-gate has its gate time again") {
		t.Errorf("told %q", told)
	}
	// Where the listener has gone, its place is held, and nothing is reserved at an interface.
	if _, err := g.admin.RemoveListener(background, &adminv1.RemoveListenerRequest{Path: socket}); err != nil {
		t.Fatal(err)
	}
	g.step()
	g.at(claim, g.agent.gates.placeholder(claim.UID))
	if is := g.agent.gates.said[claim.UID]; is.reason != "Prepared" {
		t.Errorf("%+v", is)
	}
}

func TestGateTimeIsSentInByThoseWhoClaimItAlone(t *testing.T) {
	g := newGated(t)
	claim := g.gateClaimOf("talker", "pods", frameOfPods)
	g.must(claim)
	socket := g.attachTo("talker", "pods", 7, 0, 5)
	second := filepath.Join(g.config.Network.Sockets, "talker-sandbox", "net1", cni.SocketName)
	g.attach("talker-sandbox", "net1", "")
	if _, err := g.admin.SetListener(background, &adminv1.SetListenerRequest{Keep: true, Listener: &adminv1.Listener{
		Path: second, Mode: 0o666, Identity: "default/talker/net1", Classes: []uint32{0, 5},
		Endpoint: &adminv1.Endpoint{Network: "other", Mac: "02:00:00:00:02:07", Addresses: []string{"10.245.1.7/24"}},
	}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		g.start("talker")
		if first, second := g.classesAt(socket), g.classesAt(second); !slices.Equal(first, []uint32{0, 5}) || !slices.Equal(second, []uint32{0}) {
			t.Errorf("its interfaces have classes %v and %v", first, second)
		}
	}
	g.release(claim)
	if is := g.classesAt(socket); !slices.Equal(is, []uint32{0}) {
		t.Errorf("without its claim it has classes %v", is)
	}
	// A pod without a claim, where the class is for claims alone, and not.
	free := g.attachTo("free", "pods", 8, 0, 5)
	g.start("free")
	if is := g.classesAt(free); !slices.Equal(is, []uint32{0, 5}) {
		t.Errorf("it has classes %v", is)
	}
	g.config.Network.Claimed = []uint32{5}
	g.restart()
	g.start("free")
	if is := g.classesAt(free); !slices.Equal(is, []uint32{0}) {
		t.Errorf("it has classes %v", is)
	}
	if told := g.events.of("free", reasonClasses); len(told) != 1 || !strings.Contains(told[0], "has classes [0] of network pods at eth0: [5] are for claims") {
		t.Errorf("told %q", told)
	}
	// That is once: the next container finds it so.
	g.start("free")
	if told := g.events.of("free", reasonClasses); len(told) != 1 {
		t.Errorf("told %q", told)
	}
	again := g.gateClaimOf("again", "pods", frameOfPods)
	g.must(again)
	at := g.attachTo("again", "pods", 9, 5)
	g.start("again")
	if is := g.classesAt(at); !slices.Equal(is, []uint32{5}) {
		t.Errorf("with a claim it has classes %v", is)
	}
	g.release(again)
	if is := g.classesAt(at); !slices.Equal(is, []uint32{0}) {
		t.Errorf("without it, it has classes %v", is)
	}
	// One without a claim that would have no class at all: what takt-cni does not give it, it does not get instead.
	alone := g.attachTo("alone", "pods", 10, 5)
	if adjusted, err := g.created("alone"); err != nil || len(adjusted.GetMounts()) > 0 {
		t.Errorf("it has %v, %v", adjusted, err)
	}
	if told := g.events.of("alone", reasonUnattached); len(told) != 1 || !strings.Contains(told[0], "starts without the socket") || !strings.Contains(told[0], "[5] of interface eth0") {
		t.Errorf("told %q", told)
	}
	_, _, err := (&nriPlugin{n: g.agent}).CreateContainer(background,
		&api.PodSandbox{Id: "alone-sandbox", Namespace: "default", Name: "alone", Uid: "alone-uid", Annotations: map[string]string{cni.Annotation: "true"}},
		&api.Container{Id: "alone-second", PodSandboxId: "alone-sandbox", Name: "second"})
	if err == nil || !strings.Contains(err.Error(), codeNotAllowed+": ") || !strings.Contains(err.Error(), "claim gate time of network \"pods\"") {
		t.Errorf("time-sensitive: %v", err)
	}
	if is := g.classesAt(alone); !slices.Equal(is, []uint32{5}) {
		t.Errorf("it has classes %v", is)
	}
}

// What the scheduler has counted stays published until it does not count it any more: else a network is full for all claims,
// those for no gate time included.
func TestWhatIsSetAsideForARefusedClaimIsPublishedUntilItIsGivenBack(t *testing.T) {
	g := newGated(t)
	parameters := framesOf(16, 1514, 4000, "")
	const need, all = 16 * 1542 * 8 * 1000, 250_000_000
	first, second := g.gateClaimOf("first", "pods", parameters), g.gateClaimOf("second", "other", parameters)
	g.must(first)
	if is := g.capacity("other", 5); is != all-need {
		t.Fatalf("published is %d", is)
	}
	if _, err := g.prepareGate(second); err == nil {
		t.Fatal("both fit")
	}
	if pods, other := g.capacity("pods", 5), g.capacity("other", 5); pods != all || other != all {
		t.Errorf("published are %d and %d", pods, other)
	}
	// Also what it could not even read.
	g.release(second)
	if is := g.capacity("other", 5); is != all-need {
		t.Errorf("published is %d", is)
	}
	second.Status.Allocation.Devices.Config[0].Opaque.Parameters.Raw = []byte(`{"class":`)
	if _, err := g.prepareGate(second); err == nil || g.capacity("other", 5) != all {
		t.Errorf("%v, and published is %d", err, g.capacity("other", 5))
	}
	g.release(second)
	// What is rounded up is published as it was counted; what would keep others out is refused.
	rounded := func(quantity string) *resourceapi.ResourceClaim {
		claim := g.gateClaimOf("rounded", "other", frameOfPods)
		claim.Status.Allocation.Devices.Results[0].ConsumedCapacity["class5"] = resource.MustParse(quantity)
		return claim
	}
	g.must(rounded("20M"))
	if is := g.capacity("other", 5); is != all-need-12_336_000+20_000_000 {
		t.Errorf("published is %d", is)
	}
	g.release(rounded("20M"))
	if _, err := g.prepareGate(rounded("52M")); err == nil || !strings.Contains(err.Error(), `nobody else could claim the rest, request capacity class5: "12336000"`) {
		t.Errorf("%v", err)
	}
	g.release(rounded("52M"))
	other := rounded("13M")
	other.Status.Allocation.Devices.Results[0].ConsumedCapacity["class0"] = resource.MustParse("1")
	if _, err := g.prepareGate(other); err == nil || !strings.Contains(err.Error(), "takes 1 of capacity class0, and its parameters are for class 5") {
		t.Errorf("%v", err)
	}
	g.release(other)
	g.release(first)
	g.nothing()
}

func TestANetworkThatNobodyMayUseIsNotClaimed(t *testing.T) {
	g := newGated(t)
	m := &member{n: g.agent, admin: g.admin, listeners: map[string]*adminv1.Listener{}, synced: true}
	m.withoutObjects()
	g.agent.cluster = m
	claim := g.gateClaimOf("talker", "pods", frameOfPods)
	if _, err := g.prepareGate(claim); err == nil || !strings.HasPrefix(err.Error(), codeNotAllowed+": there is no TaktNetwork pods") {
		t.Errorf("%v", err)
	}
	g.at(claim, "")
	g.agent.config.Network.Unlisted = AllowUnlisted
	g.must(claim)
}

func TestTheClaimOfARunningPodIsNotSwept(t *testing.T) {
	g := newGated(t)
	claim := g.gateClaimOf("talker", "pods", frameOfPods)
	g.must(claim)
	socket := g.attachTo("talker", "pods", 7, 0, 5)
	g.start("talker")
	// The API server does not have it.
	g.agent.gates.sweep(background)
	g.at(claim, socket)
	// One of its name is another, and takes nothing of it.
	again := g.gateClaimOf("talker", "pods", framesOf(1, 64, 4001, ""))
	again.UID = "again"
	if _, err := g.prepareGate(again); err == nil || !strings.Contains(err.Error(), "of before is still held by pod default/talker: wait for its end") {
		t.Errorf("%v", err)
	}
	if told := g.events.of("talker", reasonGateLost); len(told) != 1 || !strings.Contains(told[0], "it has gone from the cluster while the pod runs") {
		t.Errorf("told %q", told)
	}
	g.detach(socket)
	g.agent.gates.sweep(background)
	g.nothing()
}

func TestTheSameFramesAreClaimedOnce(t *testing.T) {
	g := newGated(t)
	one, two := g.gateClaimOf("talker", "pods", frameOfPods), g.gateClaimOf("talker", "pods", strings.Replace(frameOfPods, `"bytes":1514`, `"bytes":100`, 1))
	two.Name, two.UID = "talker-again", "talker-again-uid"
	g.must(one)
	if _, err := g.prepareGate(two); err == nil || !strings.Contains(err.Error(), `request "gate" is for the same frames as request "gate" of the pod's claim talker-gate`) {
		t.Errorf("%v", err)
	}
	// As a pod gets all or nothing.
	g.nothing()
	both := g.gateClaimOf("both", "pods", frameOfPods)
	results := &both.Status.Allocation.Devices
	again := *results.Results[0].DeepCopy()
	again.Request = "again"
	results.Results = append(results.Results, again)
	results.Config[0].Requests = nil
	if _, err := g.prepareGate(both); err == nil || !strings.Contains(err.Error(), `requests "gate" and "again" are for the same frames`) {
		t.Errorf("%v", err)
	}
	yes := true
	both.Status.Allocation.Devices.Results = results.Results[:1]
	both.Status.Allocation.Devices.Results[0].AdminAccess = &yes
	if _, err := g.prepareGate(both); err == nil || !strings.Contains(err.Error(), "leave adminAccess out") {
		t.Errorf("admin access: %v", err)
	}
	g.nothing()
}

func TestWhatATaktdThatIsAwayDoesNotKeepIsSaid(t *testing.T) {
	g := newGated(t)
	claim := g.gateClaimOf("talker", "pods", frameOfPods)
	g.must(claim)
	g.daemon()
	// Pods that are in no network start all the same.
	g.agent.config.Network.Claimed = []uint32{5}
	g.start("ordinary")
	g.agent.config.Network.Claimed = nil
	if err := g.agent.gates.step(background); err == nil {
		t.Fatal("there is none")
	}
	if kept, lost := g.agent.gates.counts(); kept != 1 || lost != 0 {
		t.Errorf("it may be starting: kept %d, lost %d", kept, lost)
	}
	g.agent.gates.silent = time.Now().Add(-2 * silence)
	for range 2 {
		if err := g.agent.gates.step(background); err == nil {
			t.Fatal("there is none")
		}
	}
	told := g.events.of("talker", reasonGateLost)
	if kept, lost := g.agent.gates.counts(); kept != 0 || lost != 1 || len(told) != 1 || !strings.Contains(told[0], "taktd does not answer at "+g.config.Network.AdminSocket) {
		t.Errorf("kept %d, lost %d, told %q", kept, lost, told)
	}
	if is := g.agent.gates.said[claim.UID]; is.ready || is.reason != reasonGateLost {
		t.Errorf("%+v", is)
	}
	g.begin()
	g.until("the schedule is there again", func() bool { return g.capacity("pods", 5) > 0 })
	g.until("the agent has found it", func() bool { return g.agent.gates.step(background) == nil })
	if kept, lost := g.agent.gates.counts(); kept != 1 || lost != 0 || !g.agent.gates.silent.IsZero() {
		t.Errorf("kept %d, lost %d", kept, lost)
	}
}

// What is not of the schedule is not told as if it were.
func TestAChannelThatThePodMayNotWriteIsToldAsThat(t *testing.T) {
	g := newGated(t)
	claim := g.gateClaimOf("talker", "pods", strings.Replace(frameOfPods, `"destination":"10.244.1.9:4000"`, `"channel":99`, 1))
	g.must(claim)
	socket := g.attachTo("talker", "pods", 7, 0, 5)
	_, err := g.created("talker")
	if err == nil || !strings.HasPrefix(err.Error(), codeNotAllowed+`: request "gate": channel 99 is none that takt-cni lets the pod write in network "pods": add it to write of its configuration and delete the pod, or claim one`) ||
		strings.Contains(err.Error(), "placed again") {
		t.Errorf("%v", err)
	}
	g.at(claim, "")
	all, err := g.agent.gates.listeners(background)
	if err != nil {
		t.Fatal(err)
	}
	listener := all[socket]
	listener.Write = []*adminv1.ChannelRange{{First: 98, Last: 99}}
	if _, err := g.admin.SetListener(background, &adminv1.SetListenerRequest{Listener: listener, Keep: true}); err != nil {
		t.Fatal(err)
	}
	g.start("talker")
	g.at(claim, socket)
	// Nor what taktd alone knows of.
	other := g.agent.gates.refused(g.agent.gates.get(claim.UID), status.Error(codes.InvalidArgument, "stream: declare 64 at most"))
	if !strings.HasPrefix(other.Error(), codeNotAllowed+`: the pod's interface in network "pods" cannot have the streams: stream: declare 64 at most; `) {
		t.Errorf("%v", other)
	}
}

// waited has a claim have waited for so long.
func (g *gated) waited(claim *resourceapi.ResourceClaim, so time.Duration) {
	g.agent.gates.mu.Lock()
	defer g.agent.gates.mu.Unlock()
	g.agent.gates.unused[claim.UID] = time.Now().Add(-so)
}

func TestAPodWithoutContainersHoldsNoPlaceForLong(t *testing.T) {
	g := newGated(t)
	// An image that never comes.
	idle, other := g.gateClaimOf("idle", "pods", framesOf(16, 1514, 4000, "")), g.gateClaimOf("other", "pods", framesOf(16, 1514, 4001, ""))
	g.must(idle)
	g.attachTo("idle", "pods", 7, 0, 5)
	g.waited(idle, mostUnused-time.Minute)
	g.step()
	g.at(idle, g.agent.gates.placeholder(idle.UID))
	if _, err := g.prepareGate(other); err == nil {
		t.Fatal("both fit")
	}
	g.release(other)
	g.waited(idle, mostUnused+time.Second)
	for range 2 {
		g.step()
		g.at(idle, "")
	}
	// Nor does another agent hold it again.
	g.restart()
	g.step()
	g.at(idle, "")
	if claimed := g.agent.gates.claimed(); len(claimed) > 0 {
		t.Errorf("claimed is %v", claimed)
	}
	told := g.events.of("idle", reasonGateRefused)
	if is := g.agent.gates.said[idle.UID]; len(told) != 1 || !strings.HasPrefix(told[0], codeUnused+": claim idle-gate: no container of the pod has been created for 2m0s: others may have its place meanwhile, and it is asked for again when one is created") || is.ready || is.reason != reasonGateRefused {
		t.Errorf("told %q, said %+v", told, is)
	}
	if kept, lost := g.agent.gates.counts(); kept != 0 || lost != 0 || g.capacity("other", 5) != 250_000_000 {
		t.Errorf("kept %d, lost %d, published is %d", kept, lost, g.capacity("other", 5))
	}
	g.must(other)
	// Its image is there after all, and then also the time.
	if _, err := g.created("idle"); err == nil || !strings.Contains(err.Error(), codeGateTime+": ") {
		t.Errorf("%v", err)
	}
	g.release(other)
	g.start("idle")
	g.step()
	socket := g.agent.gates.get(idle.UID).Place
	g.at(idle, socket)
	// One that runs has it for as long as it does, also while taktd does not have its listener.
	if _, err := g.admin.RemoveListener(background, &adminv1.RemoveListenerRequest{Path: socket}); err != nil {
		t.Fatal(err)
	}
	g.waited(idle, time.Hour)
	g.step()
	g.at(idle, g.agent.gates.placeholder(idle.UID))
	// Its sandbox goes, and none comes.
	g.detach(socket)
	g.step()
	g.at(idle, g.agent.gates.placeholder(idle.UID))
	g.waited(idle, mostUnused+time.Second)
	g.step()
	g.at(idle, "")
	g.release(idle)
	g.nothing()
	if left := len(g.agent.gates.unused); left > 0 {
		t.Errorf("%d are left", left)
	}
}

func TestAPlaceThatThePodCannotHaveIsGivenBackWhenItIsAttached(t *testing.T) {
	g := newGated(t)
	plugin := &nriPlugin{n: g.agent}
	attached := func(pod string) {
		t.Helper()
		if err := plugin.RunPodSandbox(background, &api.PodSandbox{Id: pod + "-sandbox", Namespace: "default", Name: pod, Uid: pod + "-uid"}); err != nil {
			t.Fatal(err)
		}
	}
	lacks, channel, strange, good := g.gateClaimOf("lacks", "pods", frameOfPods), g.gateClaimOf("channel", "pods", strings.Replace(frameOfPods, `"destination":"10.244.1.9:4000"`, `"channel":99`, 1)),
		g.gateClaimOf("strange", "pods", frameOfPods), g.gateClaimOf("good", "pods", frameOfPods)
	g.must(lacks, channel, strange, good)
	g.attachTo("lacks", "pods", 7, 0, 4)
	g.attachTo("channel", "pods", 8, 0, 5)
	g.attachTo("strange", "other", 9, 0, 5)
	g.attachTo("good", "pods", 10, 0, 5)
	for pod, want := range map[string]string{
		"lacks":   codeNotAllowed + `: claim lacks-gate: request "gate": class 5 is none of [0 4], which are what takt-cni gives the pod`,
		"channel": codeNotAllowed + `: claim channel-gate: request "gate": channel 99 is none that takt-cni lets the pod write`,
		"strange": codeUnattached + `: claim strange-gate: claim strange-gate is for gate time of network "pods", which has not attached the pod`,
	} {
		attached(pod)
		g.until(pod+" is told", func() bool {
			told := g.events.of(pod, reasonGateRefused)
			return len(told) == 1 && strings.HasPrefix(told[0], want)
		})
	}
	if err := g.agent.gates.sandboxed(background, &api.PodSandbox{Id: "good-sandbox", Namespace: "default", Name: "good", Uid: "good-uid"}); err != nil {
		t.Fatal(err)
	}
	attached("of nobody")
	g.step()
	for _, claim := range []*resourceapi.ResourceClaim{lacks, channel, strange} {
		g.at(claim, "")
	}
	g.at(good, g.agent.gates.placeholder(good.UID))
	if told := g.events.of("good", reasonGateRefused); len(told) > 0 {
		t.Errorf("told %q", told)
	}
	// Its container was faster.
	g.start("good")
	if err := g.agent.gates.sandboxed(background, &api.PodSandbox{Id: "good-sandbox", Namespace: "default", Name: "good", Uid: "good-uid"}); err != nil {
		t.Fatal(err)
	}
	g.at(good, g.agent.gates.get(good.UID).Place)
}

// A sandbox that is gone is none: what its pod holds is given back with the rest.
func TestWhatAPodHeldWhoseSandboxIsGoneIsGivenBack(t *testing.T) {
	g := newGated(t)
	claim := g.gateClaimOf("talker", "pods", frameOfPods)
	g.must(claim)
	socket := g.attachTo("talker", "pods", 7, 0, 5)
	g.start("talker")
	refuse := func() {
		t.Helper()
		cpu := g.claimOf("talker", 100_000, 4095)
		results, err := g.agent.PrepareResourceClaims(background, []*resourceapi.ResourceClaim{cpu})
		if err != nil || results[cpu.UID].Err == nil {
			t.Fatal("there is such a core: ", err)
		}
	}
	refuse()
	g.at(claim, socket)
	g.detach(socket)
	refuse()
	g.nothing()
}

func TestARecordThatCannotBeReadIsInTheWayOnlyAsLongAsItIsThere(t *testing.T) {
	g := newGated(t)
	g.write(g.agent.records.gatePath("broken"), "{")
	g.restart()
	stray := &adminv1.Listener{Path: g.agent.gates.placeholder("stray"), Identity: "stray", Classes: []uint32{5}}
	if err := os.MkdirAll(filepath.Dir(stray.Path), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := g.admin.SetListener(background, &adminv1.SetListenerRequest{Listener: stray, Keep: true}); err != nil {
		t.Fatal(err)
	}
	g.step()
	if g.classesAt(stray.Path) == nil {
		t.Error("what may be somebody's has been taken out")
	}
	if err := g.agent.gates.release(background, types.UID("broken")); err != nil {
		t.Fatal(err)
	}
	g.step()
	if g.classesAt(stray.Path) != nil {
		t.Error("what is nobody's is left")
	}
	g.nothing()
}

func TestClaimedClassesAreTrafficClasses(t *testing.T) {
	c := &NetworkConfig{Preload: "/usr/lib/takt-preload", Claimed: []uint32{5, 8}}
	if err := c.validate(); err == nil || !strings.Contains(err.Error(), "network.claimed: 8 is no traffic class: write 0 to 7") {
		t.Errorf("%v", err)
	}
}

// What a pod writes of its class, and what it sends, is known to be refused: the one at once, the other by who asks.
func TestAClassThatThePodHasNotIsToldAtItsStart(t *testing.T) {
	g := newGated(t)
	g.attachTo("talker", "pods", 7, 0, 5)
	create := func(class, path string) error {
		_, _, err := (&nriPlugin{n: g.agent}).CreateContainer(background,
			&api.PodSandbox{Id: "talker-sandbox", Namespace: "default", Name: "talker", Uid: "talker-uid", Annotations: map[string]string{annotationClass: class, annotationPath: path}},
			&api.Container{Id: "talker-main-" + class, PodSandboxId: "talker-sandbox", Name: "main"})
		return err
	}
	if err := create("7", "veth"); err == nil || !strings.Contains(err.Error(), codeAnnotation+`: takt.dev/class is "7", and the pod has classes [0 5] of network pods at eth0: write one of these`) {
		t.Errorf("a class that it has not: %v", err)
	}
	if told := g.events.of("talker", reasonNetwork); len(told) != 1 {
		t.Errorf("told %q", told)
	}
	// One that it has is taken, as far as the node takes launch times at veths; without them nobody asks for it.
	if err := create("5", "veth"); err == nil || strings.Contains(err.Error(), codeAnnotation) {
		t.Errorf("a class that it has: %v", err)
	}
	if err := create("7", "preload"); err != nil {
		t.Errorf("a class that nothing is taken in: %v", err)
	}
}

// Each interface has classes of its own; taktd may say which only when the pod runs, or another agent is there.
func TestAPodIsToldOfEachInterfaceWithoutItsClass(t *testing.T) {
	s := newSite(t)
	s.stop()
	s.config.Network = &NetworkConfig{Sockets: filepath.Join(s.dir, "cni"), Preload: s.library(), Takt: filepath.Join(s.dir, "takt"), Path: PathVeth}
	if err := s.config.Network.validate(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.config.Network.Takt, fmt.Appendf(nil, standIn, s.dir), 0o755); err != nil {
		t.Fatal(err)
	}
	l := &listening{all: map[string]*adminv1.Listener{}}
	for name, classes := range map[string][]uint32{"eth0": {0}, "net1": {0, 5}} {
		s.attach("pod", name, "veth-"+name)
		path := filepath.Join(s.config.Network.Sockets, "pod", name, "takt.sock")
		l.all[path] = &adminv1.Listener{Path: path, Classes: classes, Endpoint: &adminv1.Endpoint{Network: "pods"}}
	}
	pod, ctr := sensitivePod("pod", annotationClass, "5")
	begin := func() *Node {
		agent, err := New(nodeName, s.config, s.client, s.events, s.backend)
		if err != nil {
			t.Fatal(err)
		}
		agent.host, agent.gates.admin = "/", l
		t.Cleanup(func() { newVeths(agent).keep(background, nil) })
		return agent
	}
	told := func(times int) {
		t.Helper()
		s.until("the pod is told", func() bool { return len(s.events.of("pod", reasonVeth)) >= times })
	}
	agent := begin()
	wish, err := agent.wishes(pod.GetAnnotations(), "main")
	if err == nil {
		err = agent.gates.hasClass(background, pod, wish, []string{"eth0", "net1"})
	}
	if err == nil {
		err = agent.takeAtVeths(background, pod, wish, []string{"eth0", "net1"}, true)
	}
	if err != nil {
		t.Fatal(err)
	}
	told(1)
	agent.veths.close()
	s.runs(pod, ctr)
	next := begin()
	next.takeAgain(background, []*api.PodSandbox{pod}, []*api.Container{ctr})
	told(2)
	next.veths.close()
	all := s.events.of("pod", reasonVeth)
	for _, text := range all {
		if !strings.HasPrefix(text, codeAnnotation+`: takt.dev/class is "5", and the pod has classes [0] of network pods at eth0: `) {
			t.Errorf("the pod is told %q", text)
		}
	}
	if len(all) != 2 {
		t.Errorf("the pod is told %q", all)
	}
}

// A release before took a destination that is nobody's: what runs with it runs on, and is given back.
func TestTheRecordOfADestinationThatIsNobodysIsRead(t *testing.T) {
	s := records{dir: t.TempDir(), run: t.TempDir(), gate: "/gate"}
	parameters, err := reservation.DecodeGateTime([]byte(strings.Replace(frameOfPods, "10.244.1.9", "0.0.0.0", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.writeGate(&gateClaim{Claim: "before", Requests: []gateRequest{{Name: "gate", Parameters: *parameters}}}); err != nil {
		t.Fatal(err)
	}
	if all, unread, err := s.loadGates(); err != nil || len(all) != 1 || len(unread) > 0 {
		t.Errorf("%d records are read, %v are not: %v", len(all), unread, err)
	}
}
