package node

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	k8stesting "k8s.io/client-go/testing"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/enforce"
	"github.com/takt-dev/takt/kubernetes/internal/objects"
)

// closing is a backend that has something of the node until it is closed.
type closing struct {
	enforce.Backend
	closed int
}

func (c *closing) Close() error {
	c.closed++
	return nil
}

func TestUninstallingLeavesNothingOfTheAgentAndAllOfOthers(t *testing.T) {
	s := newSite(t)
	claim := s.claim("claim", plain, nil)
	s.prepare(claim)
	s.stop()
	plugins := filepath.Join(s.dir, "bin")
	const k3s = "/var/lib/rancher/k3s/agent/etc/cni/net.d"
	s.config.Network = &NetworkConfig{Sockets: filepath.Join(s.dir, "cni"), AdminSocket: filepath.Join(s.dir, "admin.sock"), Preload: "/l.so", Plugins: plugins, Configurations: k3s, Objects: true}
	if err := s.config.Network.validate(); err != nil {
		t.Fatal(err)
	}
	host := filepath.Join(s.dir, "host")
	list := filepath.Join(host, k3s, "10-pods.conflist")
	pod := filepath.Join(s.config.Network.Sockets, "0123/net1")
	for _, directory := range []string{pod, plugins, filepath.Dir(list), filepath.Dir(s.config.Gate)} {
		if err := os.MkdirAll(directory, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	brought := filepath.Join(filepath.Dir(s.config.Gate), broughtByTaktd, "takt-preload")
	s.config.Network.Preload = filepath.Join(brought, "libtakt_preload.so")
	if err := os.MkdirAll(brought, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{s.config.Gate, filepath.Join(brought, "libtakt_preload.so"), filepath.Join(plugins, "takt-cni"), filepath.Join(plugins, "bridge")} {
		s.write(file, "")
	}
	s.write(list, `{"plugins": [{"type": "bridge"}, {"type": "takt-cni"}]}`)
	s.taktd("[[network]]\nname = \"tsn\"\ncarrier = \"vxlan:42\"\nstations = [{ mac = \"02:00:00:00:00:09\", vtep = \"192.0.2.9\" }]\n")
	backend := &closing{Backend: s.backend}
	agent, err := New(nodeName, s.config, s.client, s.events, backend)
	if err != nil {
		t.Fatal(err)
	}
	agent.host = host
	if err := agent.records.writeNetworkCDI(); err != nil {
		t.Fatal(err)
	}
	d, disconnect, err := agent.networks()
	if err != nil {
		t.Fatal(err)
	}
	defer disconnect()
	// What an agent has entered, and what an operator has.
	m := &member{n: agent, admin: d.admin}
	e, err := m.loadEntered()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.admin.SetStation(background, &adminv1.SetStationRequest{Network: "tsn", Station: &adminv1.Station{Mac: "02:00:00:00:00:02", Vtep: "192.0.2.2"}}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	e.Stations[stationKey("tsn", "02:00:00:00:00:02", "192.0.2.2")] = true
	e.Stations[stationKey("gone", "02:00:00:00:00:02", "192.0.2.2")] = true
	if err := m.store(e); err != nil {
		t.Fatal(err)
	}
	if err := m.schedule(background, assignedTo(revisionAt(1, objects.TAI()-5_000_000_000)), e); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(pod, "takt.sock"), filepath.Join(s.config.Network.Sockets, "4444/net1/takt.sock"), filepath.Join(s.dir, "operators.sock")} {
		if _, err := d.admin.SetListener(background, &adminv1.SetListenerRequest{Listener: &adminv1.Listener{Path: path, Identity: "one", Classes: []uint32{0}}}); err != nil {
			t.Fatal(err)
		}
	}
	links := func() (bases []int64) {
		all, err := d.admin.ListSchedules(background, &adminv1.ListSchedulesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return present(linkOf(all, "udp"))
	}
	if len(links()) != 1 {
		t.Fatalf("the link has %v", links())
	}

	leaving := &leaving{n: agent, refused: map[types.UID][]Pod{}}
	defer leaving.stop()
	if err := agent.uninstall(background, leaving); err == nil || !strings.Contains(err.Error(), "default/pod") {
		t.Errorf("with a pod that has a claim: %v", err)
	}
	if err := agent.records.remove(claim.UID); err != nil {
		t.Fatal(err)
	}
	gates, err := reservation.DecodeGateTime([]byte(frameOfPods))
	if err == nil {
		err = agent.records.writeGate(&gateClaim{Claim: "gate", Pod: Pod{Namespace: "default", Name: "gated"}, Requests: []gateRequest{{Name: "gate", Device: Device{Name: "tsn"}, Parameters: *gates}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.uninstall(background, leaving); err == nil || !strings.Contains(err.Error(), "default/gated") {
		t.Errorf("with a pod that has gate time: %v", err)
	}
	if err := agent.records.removeGate("gate"); err != nil {
		t.Fatal(err)
	}
	if err := agent.uninstall(background, leaving); err == nil || !strings.Contains(err.Error(), k3s+"/10-pods.conflist names takt-cni") {
		t.Errorf("with takt-cni configured: %v", err)
	}
	if _, err := os.Stat(s.config.Gate); err != nil {
		t.Errorf("it has begun all the same: %v", err)
	}
	s.write(list, `{"plugins": [{"type": "bridge"}]}`)
	group := filepath.Join(host, "sys/fs/cgroup", vethGroup)
	if err := os.MkdirAll(group, 0o755); err != nil {
		t.Fatal(err)
	}
	s.write(filepath.Join(filepath.Dir(group), "cgroup.controllers"), "cpu\n")
	for id, at := range map[string]struct{ name, node, was, is string }{
		"1111": {"runs", nodeName, "1", "1"}, "2222": {"recreated", nodeName, "2", "3"}, "3333": {"moved", "other", "", "4"}, "4444": {"gone", "", "", ""},
	} {
		directory := filepath.Join(s.config.Network.Sockets, id, "net1")
		if err := os.MkdirAll(directory, 0o755); err != nil {
			t.Fatal(err)
		}
		s.write(filepath.Join(directory, "network"), "tsn")
		s.write(filepath.Join(directory, "identity"), "plant/"+at.name+"/net1")
		if at.was != "" {
			s.write(filepath.Join(directory, "uid"), at.was)
		}
		if at.node == "" {
			continue
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: at.name, UID: types.UID(at.is)}, Spec: corev1.PodSpec{NodeName: at.node}}
		if _, err := s.client.CoreV1().Pods("plant").Create(background, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := agent.uninstall(background, leaving); err == nil || !strings.Contains(err.Error(), "delete plant/runs/net1; if") {
		t.Errorf("with a pod that is attached: %v", err)
	}
	if _, err := os.Stat(filepath.Join(plugins, "takt-cni")); err != nil {
		t.Errorf("it has begun all the same: %v", err)
	}
	if err := s.client.CoreV1().Pods("plant").Delete(background, "runs", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := agent.uninstall(background, leaving); !errors.Is(err, errSettling) || len(leaving.helpers) == 0 {
		t.Errorf("as soon as nothing is in the way: %v, with %d drivers", err, len(leaving.helpers))
	}
	if backend.closed != 0 {
		t.Error("what the backend has of the node is given back before all is out of the way")
	}
	// Also a second time.
	for range 2 {
		if err := agent.uninstall(background, leaving); err != nil {
			t.Fatal(err)
		}
	}
	if backend.closed != 2 {
		t.Errorf("the backend was closed %d times", backend.closed)
	}
	if _, err := os.Stat(group); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the cgroup of veths is left: %v", err)
	}
	var left []string
	if err := filepath.WalkDir(s.dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && entry.Type()&fs.ModeSocket == 0 {
			name, _ := filepath.Rel(s.dir, path)
			left = append(left, name)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(left, " "); got != "bin/bridge host/sys/fs/cgroup/cgroup.controllers host/var/lib/rancher/k3s/agent/etc/cni/net.d/10-pods.conflist node.key takt.toml" {
		t.Errorf("left are %s", got)
	}
	all, err := d.admin.ListNetworks(background, &adminv1.ListNetworksRequest{})
	if err != nil || len(all.GetNetworks()[0].GetStations()) != 1 || len(links()) > 0 {
		t.Errorf("taktd has %v and %v, %v", all, links(), err)
	}
	listeners, err := d.admin.ListListeners(background, &adminv1.ListListenersRequest{})
	if err != nil || len(listeners.GetListeners()) != 1 || listeners.GetListeners()[0].GetListener().GetPath() != filepath.Join(s.dir, "operators.sock") {
		t.Errorf("taktd has %v, %v", listeners, err)
	}
}

func TestAnAgentThatUninstallsGivesClaimsBackAndPreparesNone(t *testing.T) {
	s := newSite(t)
	claim, late := s.claim("claim", plain, nil), s.claim("late", plain, nil)
	s.prepare(claim)
	s.prepare(s.claim("second", plain, nil))
	s.until("its cores are published", func() bool {
		slices, err := s.client.ResourceV1().ResourceSlices().List(background, metav1.ListOptions{})
		return err == nil && len(slices.Items) == 1
	})
	s.stop()
	other := "node-2"
	for name, of := range map[string]resourceapi.ResourceSliceSpec{
		"networks": {Driver: reservation.NetworkDriver, NodeName: &s.agent.name}, "gpus": {Driver: "gpu.example.com", NodeName: &s.agent.name},
		"elsewhere": {Driver: reservation.Driver, NodeName: &other}, "everywhere": {Driver: reservation.Driver},
	} {
		slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: of}
		if _, err := s.client.ResourceV1().ResourceSlices().Create(background, slice, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.config.Network = &NetworkConfig{Sockets: filepath.Join(s.dir, "cni"), AdminSocket: filepath.Join(s.dir, "admin.sock"), Preload: "/l.so", Plugins: filepath.Join(s.dir, "bin")}
	if err := s.config.Network.validate(); err != nil {
		t.Fatal(err)
	}
	configurations := filepath.Join(s.dir, "host/etc/cni/net.d")
	if err := os.MkdirAll(configurations, 0o755); err != nil {
		t.Fatal(err)
	}
	s.write(filepath.Join(configurations, "10-pods.conflist"), `{"plugins": [{"type": "takt-cni"}]}`)
	agent, err := New(nodeName, s.config, s.client, nil, s.backend)
	if err != nil {
		t.Fatal(err)
	}
	agent.host = filepath.Join(s.dir, "host")
	leaving := &leaving{n: agent, refused: map[types.UID][]Pod{}}
	defer leaving.stop()
	says := func(what string) {
		t.Helper()
		if err := agent.uninstall(background, leaving); err == nil || err.Error() != what {
			t.Errorf("in the way is %v", err)
		}
	}
	agent.config.Network.Configurations = "/etc/cni/net.d/10-pods.conflist"
	says("pods with claims for CPU time or networks are on the node, and need the agent to end: delete default/pod; and cannot see whether a network of the node names takt-cni, " +
		"without which none of its pods could start then: open " + filepath.Join(configurations, "10-pods.conflist") + ": not a directory")
	agent.config.Network.Configurations = "/etc/cni/net.d"
	const listed = "/etc/cni/net.d/10-pods.conflist names takt-cni, without which no pod of the node could start: take it out there first"
	says("pods with claims for CPU time or networks are on the node, and need the agent to end: delete default/pod; and " + listed)
	var left []string
	slices, err := s.client.ResourceV1().ResourceSlices().List(background, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, slice := range slices.Items {
		left = append(left, slice.Name)
	}
	if got := strings.Join(left, " "); got != "elsewhere everywhere gpus" {
		t.Errorf("offered are %s", got)
	}
	for driver, of := range map[string]*resourceapi.ResourceClaim{reservation.Driver: claim, reservation.NetworkDriver: late} {
		kubelet := drapb.NewDRAPluginClient(s.dial(filepath.Join(s.config.KubeletPlugins, driver, "dra.sock")))
		named := []*drapb.Claim{{Namespace: late.Namespace, Name: late.Name, Uid: string(late.UID)}}
		prepared, err := kubelet.NodePrepareResources(background, &drapb.NodePrepareResourcesRequest{Claims: named})
		if err != nil || !strings.Contains(prepared.Claims[string(late.UID)].GetError(), "takt-node is being uninstalled on node node-1: delete the pod") {
			t.Errorf("%s prepares: %v, %v", driver, prepared, err)
		}
		named = append(named, &drapb.Claim{Namespace: of.Namespace, Name: of.Name, Uid: string(of.UID)}, &drapb.Claim{Namespace: "default", Name: "second", Uid: "second-uid"})
		unprepared, err := kubelet.NodeUnprepareResources(background, &drapb.NodeUnprepareResourcesRequest{Claims: named})
		if err != nil || unprepared.Claims[string(of.UID)].GetError() != "" {
			t.Errorf("%s gives back: %v, %v", driver, unprepared, err)
		}
	}
	says(listed)
	if err := os.RemoveAll(configurations); err != nil {
		t.Fatal(err)
	}
	says(errSettling.Error())
	if err := agent.uninstall(background, leaving); err != nil || len(leaving.helpers) > 0 {
		t.Errorf("it ended with %v, and %d drivers", err, len(leaving.helpers))
	}
}

func TestAnAgentThatUninstallsSaysWhatItCannotSeeAndNeverHangs(t *testing.T) {
	s := newSite(t)
	s.stop()
	s.config.Listen = "127.0.0.1:0"
	s.config.Network = &NetworkConfig{Sockets: filepath.Join(s.dir, "cni"), AdminSocket: filepath.Join(s.dir, "admin.sock"), Preload: "/l.so", Plugins: filepath.Join(s.dir, "bin")}
	directory := filepath.Join(s.config.Network.Sockets, "50e7/eth0")
	if err := errors.Join(s.config.Network.validate(), os.MkdirAll(directory, 0o755)); err != nil {
		t.Fatal(err)
	}
	s.write(filepath.Join(directory, "network"), "tsn")
	s.write(filepath.Join(directory, "identity"), "default/pytalk/eth0")
	agent, err := New(nodeName, s.config, s.client, s.events, s.backend)
	if err != nil {
		t.Fatal(err)
	}
	agent.host = s.dir
	answer := func() (bool, runtime.Object, error) { return true, nil, errors.New("the server is away") }
	s.says(func(k8stesting.Action) (bool, runtime.Object, error) { return answer() })
	if err := agent.uninstall(background, &leaving{n: agent}); err == nil || !strings.Contains(err.Error(), "pod default/pytalk, which takt-cni has attached, has gone: the server is away") {
		t.Errorf("with an API server that does not answer: %v", err)
	}
	answer = func() (bool, runtime.Object, error) { panic("a mistake of the agent") }
	defer func() {
		if problem := recover(); problem != "a mistake of the agent" {
			t.Errorf("it ended with %v", problem)
		}
	}()
	t.Errorf("it ended with %v", agent.Uninstall(background))
}

// answering is an API server that is asked by requests which have not gone anywhere.
type answering func(*http.Request) *http.Response

func (a answering) RoundTrip(request *http.Request) (*http.Response, error) { return a(request), nil }

// However many pods have left something, each is asked for with as much patience.
func TestUninstallingWaitsForTheAPIServerAsLongForEachPod(t *testing.T) {
	dir := t.TempDir()
	const pods = 50
	for at := range pods {
		directory := filepath.Join(dir, fmt.Sprintf("%04d", at), "eth0")
		if err := os.MkdirAll(directory, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"network": "tsn", "identity": fmt.Sprintf("plant/pod-%d/eth0", at)} {
			if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	var until []time.Time
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api", QPS: -1, Transport: answering(func(request *http.Request) *http.Response {
		deadline, bounded := request.Context().Deadline()
		if !bounded {
			t.Error("one is asked for without end")
		}
		until = append(until, deadline)
		return &http.Response{StatusCode: http.StatusNotFound, Header: http.Header{"Content-Type": {"application/json"}}, Request: request,
			Body: io.NopCloser(strings.NewReader(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`))}
	})})
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{client: client, name: nodeName, config: Config{Network: &NetworkConfig{Sockets: dir}}}
	if names, err := n.stillAttached(background); err != nil || len(names) > 0 || len(until) != pods {
		t.Errorf("%v, %v after %d pods", names, err, len(until))
	}
	for at := 1; at < len(until); at++ {
		if !until[at].After(until[at-1]) {
			t.Fatalf("pod %d has no more time than the one before", at)
		}
	}
}

func TestOnlyWhatTheChartsTaktdHasBroughtIsTakenAway(t *testing.T) {
	for preload, want := range map[string]string{
		"/opt/takt-runtime/takt-preload":                "/opt/takt-runtime",
		"/opt/takt-runtime-of-others/takt-preload":      "",
		"/usr/lib/x86_64-linux-gnu/takt-preload/lib.so": "",
	} {
		c := Config{Gate: "/opt/takt-gate", Network: &NetworkConfig{Preload: preload}}
		if got := c.brought(); got != want {
			t.Errorf("of %s it is %q", preload, got)
		}
	}
	if got := (&Config{Gate: "/opt/takt-gate"}).brought(); got != "" {
		t.Errorf("without networks it is %q", got)
	}
}
