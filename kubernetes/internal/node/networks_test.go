package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/report"
)

// taktd starts the real one on loopback, and returns what ends it as a crash does.
func (s *site) taktd(more string) (kill func()) {
	s.t.Helper()
	program := filepath.Join(os.Getenv("TAKT_BUILT"), "taktd")
	if os.Getenv("TAKT_BUILT") == "" {
		program, _ = filepath.Abs("../../../target/debug/taktd")
	}
	if _, err := os.Stat(program); err != nil {
		s.t.Skipf("there is no taktd, run `make build` first: %v", err)
	}
	none := "listener = []\n"
	if strings.Contains(more, "[[listener]]") {
		none = ""
	}
	config := none + fmt.Sprintf("[security]\nkey_file = %q\n[admin]\nsocket = %q\n%s",
		filepath.Join(s.dir, "node.key"), s.config.Network.AdminSocket, more)
	path := filepath.Join(s.dir, "takt.toml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		s.t.Fatal(err)
	}
	daemon := exec.Command(program, "--config", path)
	// In a network of its own: it binds ports.
	daemon.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	said := &bytes.Buffer{}
	daemon.Stderr = said
	if err := daemon.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.daemon = daemon.Process.Pid
	kill = sync.OnceFunc(func() {
		daemon.Process.Kill()
		daemon.Wait()
		if s.t.Failed() {
			s.t.Logf("taktd: %s", said)
		}
	})
	s.t.Cleanup(kill)
	return kill
}

// published is what a driver has published last: networks with their carriers.
type published struct {
	mu      sync.Mutex
	last    []string
	devices []resourceapi.Device
}

func (p *published) PublishResources(_ context.Context, resources resourceslice.DriverResources) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.devices = []string{}, nil
	for _, slice := range resources.Pools[nodeName].Slices {
		for _, device := range slice.Devices {
			p.last = append(p.last, device.Name+" "+*device.Attributes["carrier"].StringValue)
			p.devices = append(p.devices, device)
		}
	}
	return nil
}

func (p *published) is(wanted ...string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last != nil && slices.Equal(p.last, wanted)
}

// chosen are the devices that a selector chooses, as the scheduler looks at them.
func (p *published) chosen(t *testing.T, selector string) (found []string) {
	t.Helper()
	compiled := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(selector, cel.Options{})
	if compiled.Error != nil {
		t.Fatalf("%s: %v", selector, compiled.Error)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, device := range p.devices {
		matches, _, err := compiled.DeviceMatches(background, cel.Device{Driver: reservation.NetworkDriver, Attributes: device.Attributes, Capacity: device.Capacity})
		if err != nil {
			t.Errorf("%s: %v", selector, err)
		}
		if matches {
			found = append(found, device.Name)
		}
	}
	return found
}

func TestTheNetworksOfARunningTaktdCanBeClaimed(t *testing.T) {
	s := newSite(t)
	s.config.Network = &NetworkConfig{AdminSocket: filepath.Join(s.dir, "admin.sock"), Preload: "/l.so"}
	if err := s.config.Network.validate(); err != nil {
		t.Fatal(err)
	}
	// Not the agent that runs: an API server that only stores knows no field selectors, and two drivers of one node meet.
	agent, err := New(nodeName, s.config, s.client, s.events, s.backend)
	if err != nil {
		t.Fatal(err)
	}
	agent.cluster = memberOf(t, s.dir, nil, bare(nodeName, true))
	d, disconnect, err := agent.networks()
	if err != nil {
		t.Fatal(err)
	}
	defer disconnect()
	ctx, cancel := context.WithCancel(context.Background())
	var slice published
	var background sync.WaitGroup
	background.Go(func() { d.publish(ctx, &slice) })
	defer background.Wait()
	defer cancel()
	s.until("no network is published", func() bool { return slice.is() })
	kill := s.taktd("[[network]]\nname = \"pods\"\ncarrier = \"vxlan:42\"\n[[network]]\nname = \"local\"\ncarrier = \"routed\"\nrouted = [\"10.1.0.0/16\"]\n" +
		"[[network]]\nname = \"No Device\"\ncarrier = \"vxlan:43\"\n")
	s.until("the networks are published", func() bool { return slice.is("local routed", "pods vxlan:42") })

	// What a pod may demand: the first of them is the one of the how-to.
	how, err := os.ReadFile("../../../docs/how-to/time-sensitive-pods.md")
	if err != nil {
		t.Fatal(err)
	}
	clock, err := d.admin.GetClock(context.Background(), &adminv1.GetClockRequest{})
	if err != nil {
		t.Fatal(err)
	}
	state := clockState(clock.GetClock())
	const demanded = `device.attributes["network.takt.dev"].name == "pods" &&
  "5" in device.attributes["network.takt.dev"].classes.split(",") &&
  "udp" in device.attributes["network.takt.dev"].datapaths.split(",") &&
  device.attributes["network.takt.dev"].clock == "Synchronised"`
	demand := strings.Replace(demanded, "Synchronised", state, 1)
	if of := strings.Replace(demanded, `"udp"`, `"xdp"`, 1); !strings.Contains(strings.Join(strings.Fields(string(how)), " "), strings.Join(strings.Fields(of), " ")) {
		t.Errorf("the how-to does not have %s", of)
	}
	if got := slice.chosen(t, demand); got != nil {
		t.Errorf("without a TaktNetwork it chooses %q", got)
	}
	tsn := &network.TaktNetwork{ObjectMeta: metav1.ObjectMeta{Name: "pods"}, Spec: network.TaktNetworkSpec{Access: []network.Access{
		{Namespaces: []string{"plant"}, Classes: []int32{0, 5}}, {Namespaces: []string{"office"}, Classes: []int32{1}}, {Namespaces: []string{}}}}}
	if err := agent.cluster.nets.GetStore().Add(tsn); err != nil {
		t.Fatal(err)
	}
	s.until("the class is some namespace's", func() bool { return slices.Equal(slice.chosen(t, demand), []string{"pods"}) })
	for _, selector := range []string{
		strings.Replace(demand, `"5"`, `"6"`, 1), strings.Replace(demand, "udp", "ud", 1), strings.Replace(demand, state, "Other", 1),
	} {
		if got := slice.chosen(t, selector); got != nil {
			t.Errorf("%s chooses %q", selector, got)
		}
	}
	if got := agent.cluster.classesOf("local"); got != "" {
		t.Errorf("of a network without a TaktNetwork: %s", got)
	}
	agent.cluster.n.config.Network.Unlisted = AllowUnlisted
	if got, without := agent.cluster.classesOf("local"), (*member)(nil).classesOf("local"); got != "0,1,2,3,4,5,6,7" || without != got {
		t.Errorf("where nothing is narrowed: %s, without objects %s", got, without)
	}

	says := func(reason string) {
		self := bare(nodeName, true)
		self.Status.Networks = []network.ServedNetwork{{Name: "pods", Reason: reason, Message: "so"}}
		if err := agent.cluster.nodes.GetStore().Update(self); err != nil {
			t.Fatal(err)
		}
	}
	says(network.Differs)
	s.until("what is not as its TaktNetwork says is withdrawn", func() bool { return slice.is("local routed") })
	says(network.UnknownNetwork)
	s.until("what has no TaktNetwork is published", func() bool { return slice.is("local routed", "pods vxlan:42") })

	kill()
	s.until("they are withdrawn", func() bool { return slice.is() })
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claim", UID: "claim-uid"},
		Status: resourceapi.ResourceClaimStatus{
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{podReference("pod")},
			Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
				{Request: "cpu", Driver: reservation.Driver, Pool: nodeName, Device: "cpu-0"},
				{Request: "network", Driver: reservation.NetworkDriver, Pool: nodeName, Device: "pods"},
			}}},
		},
	}
	prepare := func() kubeletplugin.PrepareResult {
		results, err := d.PrepareResourceClaims(context.Background(), []*resourceapi.ResourceClaim{claim})
		if err != nil || len(results) != 1 {
			t.Fatal(results, err)
		}
		return results[types.UID("claim-uid")]
	}
	result := prepare()
	if told := s.events.of("pod", reasonNetwork); result.Err == nil || len(told) != 1 || !strings.HasPrefix(told[0], codeNoNetwork+": ") {
		t.Errorf("%v, told %q", result.Err, told)
	}

	s.taktd("[[network]]\nname = \"pods\"\ncarrier = \"vlan:7\"\ninterface = \"lo\"\n")
	s.until("what it serves now is published", func() bool { return slice.is("pods vlan:7") })
	result = prepare()
	if result.Err != nil || len(result.Devices) != 1 || result.Devices[0].DeviceName != "pods" || !slices.Equal(result.Devices[0].Requests, []string{"network"}) ||
		!slices.Equal(result.Devices[0].CDIDeviceIDs, []string{networkCDI()}) {
		t.Errorf("%+v", result)
	}
}

func TestAsManyDatapathsArePublishedAsThereIsRoomFor(t *testing.T) {
	var all []*adminv1.Datapath
	for _, name := range []string{"xdp", "udp"} {
		all = append(all, &adminv1.Datapath{Name: name, Available: true})
	}
	all = append(all, &adminv1.Datapath{Name: "fabric"})
	if got := available(all); got != "udp,xdp" {
		t.Errorf("published are %q", got)
	}
	all = append(all, &adminv1.Datapath{Name: "z" + strings.Repeat("y", 60), Available: true})
	if got := available(all); got != "udp,xdp" {
		t.Errorf("published are %q", got)
	}
	if got := available([]*adminv1.Datapath{{Name: strings.Repeat("y", 65), Available: true}}); got != "" {
		t.Errorf("published are %q", got)
	}
}

func TestTheAgentTellsOfAttachedAndReservedPods(t *testing.T) {
	s := newSite(t)
	s.stop()
	s.config.Network = &NetworkConfig{Sockets: filepath.Join(s.dir, "cni"), AdminSocket: filepath.Join(s.dir, "admin.sock"), Preload: "/l.so"}
	if err := s.config.Network.validate(); err != nil {
		t.Fatal(err)
	}
	s.config.Viewer = viewer
	ask := func() report.Node {
		answer := httptest.NewRecorder()
		asked := httptest.NewRequest("GET", report.Path, nil)
		asked.Header.Set(report.TokenHeader, "viewer")
		s.agent.serveReport(answer, asked)
		var told report.Node
		if err := json.Unmarshal(answer.Body.Bytes(), &told); err != nil {
			t.Fatal(err)
		}
		return told
	}
	s.startAgent()
	if told := ask(); told.Node != nodeName || told.Networks.Problem == "" || len(told.Networks.Attached) > 0 || len(told.Reserved) > 0 {
		t.Errorf("without taktd: %+v", told)
	}
	socket := filepath.Join(s.config.Network.Sockets, "0123", "eth0", "takt.sock")
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	s.taktd(fmt.Sprintf("[[network]]\nname = \"pods\"\ncarrier = \"vxlan:42\"\n[[listener]]\npath = %q\nidentity = \"default/talker/eth0\"\nclasses = [0, 5]\n"+
		"[listener.endpoint]\nnetwork = \"pods\"\nmac = \"02:00:00:00:00:07\"\naddresses = [\"10.244.1.7/24\"]\n"+
		"[[listener]]\npath = %q\nidentity = \"operator\"\n", socket, filepath.Join(s.dir, "other.sock")))
	var told report.Node
	s.until("taktd answers", func() bool {
		told = ask()
		return told.Networks.Problem == ""
	})
	want := report.Attached{
		Namespace: "default", Pod: "talker", Interface: "eth0", Network: "pods", Addresses: []string{"10.244.1.7/24"}, Classes: []uint32{0, 5},
	}
	if len(told.Networks.Attached) != 1 || !reflect.DeepEqual(told.Networks.Attached[0], want) {
		t.Errorf("%+v and not %+v", told.Networks.Attached, want)
	}
}
