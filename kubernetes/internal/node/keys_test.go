package node

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/apitest"
	"github.com/takt-dev/takt/kubernetes/internal/controller"
	"github.com/takt-dev/takt/kubernetes/internal/objects"
)

// peers is a cluster of nodes with real runtimes, each in a network namespace of its own at one bridge, with their agents, a
// controller and a real API server.
type peers struct {
	*site
	kube     *kubernetes.Clientset
	client   *objects.Client
	programs []string
	nodes    map[string]*peerNode
	stop     func() // the controller
}

type peerNode struct {
	dir, namespace, address string
	agent                   *Node
	admin                   adminv1.AdminClient
	// kill ends taktd as a crash does, leave ends the agent.
	kill, leave func()
}

// nobodyHears takes events of any object.
type nobodyHears struct{}

func (nobodyHears) Eventf(apiruntime.Object, string, string, string, ...any) {}

func newPeers(t *testing.T, names ...string) *peers {
	t.Helper()
	programs := built(t, "takt", "taktd")
	s := newSite(t)
	s.stop()
	config := apitest.Start(t, "../../../deploy/helm/takt-node/crds")
	client, err := objects.New(config)
	if err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	p := &peers{site: s, kube: kube, client: client, programs: programs, nodes: map[string]*peerNode{}}
	between := fmt.Sprintf("takt-keys-%d", os.Getpid())
	ip(t, "netns add "+between)
	t.Cleanup(func() { ip(t, "netns del "+between) })
	ip(t, "-n "+between+" link add br0 type bridge")
	ip(t, "-n "+between+" link set br0 up")
	for at, name := range names {
		one := &peerNode{dir: filepath.Join(s.dir, name), namespace: between + "-" + name, address: fmt.Sprintf("10.99.0.%d", at+1)}
		p.nodes[name] = one
		ip(t, "netns add "+one.namespace)
		t.Cleanup(func() { ip(t, "netns del "+one.namespace) })
		for _, command := range []string{
			"-n " + one.namespace + " link set lo up",
			fmt.Sprintf("-n %s link add eth0 type veth peer name port%d netns %s", one.namespace, at, between),
			"-n " + one.namespace + " address add " + one.address + "/24 dev eth0", "-n " + one.namespace + " link set eth0 up",
			fmt.Sprintf("-n %s link set port%d master br0 up", between, at),
		} {
			ip(t, command)
		}
		if err := os.MkdirAll(filepath.Join(one.dir, "run"), 0o755); err != nil {
			t.Fatal(err)
		}
		node, err := kube.CoreV1().Nodes().Create(background, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err == nil {
			node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: one.address}}
			_, err = kube.CoreV1().Nodes().UpdateStatus(background, node, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		p.start(name)
		p.join(name)
	}
	p.lead()
	t.Cleanup(func() { p.stop() })
	for name := range p.nodes {
		p.answered(name, fmt.Sprintf("%d/%[1]d", len(names)-1))
	}
	return p
}

// lead has a controller lead; the one before has ended.
func (p *peers) lead() {
	if p.stop != nil {
		p.stop()
	}
	ctx, cancel := context.WithCancel(background)
	var running sync.WaitGroup
	c := controller.New(p.kube, p.client, nobodyHears{}, time.Minute)
	running.Go(func() { _ = c.Run(ctx) })
	p.stop = func() { cancel(); running.Wait() }
}

func (p *peers) socket(name string) string { return filepath.Join(p.nodes[name].dir, "takt.sock") }

// start starts a node's taktd.
func (p *peers) start(name string) {
	p.t.Helper()
	one := p.nodes[name]
	path := filepath.Join(one.dir, "takt.toml")
	p.write(path, fmt.Sprintf("[node]\nname = %q\naddress = %q\n[security]\nkey_file = %q\n[admin]\nsocket = %q\n",
		name, one.address, filepath.Join(one.dir, "node.key"), filepath.Join(one.dir, "admin.sock")))
	daemon := exec.Command("ip", "netns", "exec", one.namespace, p.programs[1], "--config", path)
	daemon.Env = append(os.Environ(), "TAKT_SOCKET="+p.socket(name))
	said := &bytes.Buffer{}
	daemon.Stdout, daemon.Stderr = said, said
	if err := daemon.Start(); err != nil {
		p.t.Fatal(err)
	}
	one.kill = sync.OnceFunc(func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
		if p.t.Failed() {
			p.t.Logf("taktd of %s: %s", name, said)
		}
	})
	p.t.Cleanup(one.kill)
}

// join has a node's agent take part; the one before has ended.
func (p *peers) join(name string) {
	p.t.Helper()
	one := p.nodes[name]
	if one.leave != nil {
		one.leave()
	}
	config := p.config
	config.RunDirectory = filepath.Join(one.dir, "run")
	config.Network = &NetworkConfig{Sockets: filepath.Join(one.dir, "cni"), AdminSocket: filepath.Join(one.dir, "admin.sock"), Preload: "/l.so", Objects: true, Peers: true}
	if err := config.Network.validate(); err != nil {
		p.t.Fatal(err)
	}
	agent, err := New(name, config, p.kube, p.events, p.backend)
	if err != nil {
		p.t.Fatal(err)
	}
	one.agent = agent
	disconnect, err := agent.Join(p.client)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(background)
	var running sync.WaitGroup
	running.Go(func() { agent.cluster.run(ctx) })
	one.leave = sync.OnceFunc(func() { cancel(); running.Wait(); _ = disconnect() })
	p.t.Cleanup(one.leave)
	if one.admin == nil {
		connection, err := grpc.NewClient("unix:"+config.Network.AdminSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			p.t.Fatal(err)
		}
		p.t.Cleanup(func() { connection.Close() })
		one.admin = adminv1.NewAdminClient(connection)
	}
}

func (p *peers) object(name string) *network.TaktNode {
	p.t.Helper()
	found, err := p.client.Nodes.Get(background, name, metav1.GetOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	return found
}

// answered waits until so many of a node's peers answer.
func (p *peers) answered(name, wanted string) {
	p.t.Helper()
	up, all := 0, 0
	apitest.Until(p.t, name+" has peers "+wanted, func() bool {
		known, err := p.nodes[name].admin.ListPeers(background, &adminv1.ListPeersRequest{}, grpc.WaitForReady(true))
		up, all = 0, len(known.GetPeers())
		for _, peer := range known.GetPeers() {
			if peer.GetState() == adminv1.PeerState_PEER_STATE_UP {
				up++
			}
		}
		return err == nil && fmt.Sprintf("%d/%d", up, all) == wanted
	})
}

// rotates asks for another key of a node and waits until the change is in this state; meanwhile something is done.
func (p *peers) rotates(name, state string, meanwhile func()) *network.KeyRotation {
	p.t.Helper()
	asked := time.Now().UTC().Format(time.RFC3339)
	if before := p.object(name).Annotations[network.RotateKey]; before == asked {
		asked = time.Now().Add(time.Second).UTC().Format(time.RFC3339)
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, network.RotateKey, asked)
	if _, err := p.client.Nodes.Patch(background, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		p.t.Fatal(err)
	}
	var last *network.KeyRotation
	defer func() {
		if p.t.Failed() {
			p.t.Logf("%+v", last)
		}
	}()
	apitest.Until(p.t, name+" changes its key", func() bool {
		last = p.object(name).Spec.KeyRotation
		return last != nil && last.Asked != nil && last.Asked.UTC().Format(time.RFC3339) == asked
	})
	meanwhile()
	apitest.Until(p.t, name+": "+state, func() bool { last = p.object(name).Spec.KeyRotation; return last.State == state })
	return last
}

// known waits until a node's peers take this key and no other.
func (p *peers) known(of string, key string, by ...string) {
	p.t.Helper()
	for _, name := range by {
		apitest.Until(p.t, fmt.Sprintf("%s knows %s by its key alone", name, of), func() bool {
			known, err := p.nodes[name].admin.ListPeers(background, &adminv1.ListPeersRequest{}, grpc.WaitForReady(true))
			if err != nil {
				return false
			}
			for _, peer := range known.GetPeers() {
				if strings.HasPrefix(peer.GetAddress(), p.nodes[of].address+":") {
					return peer.GetKey() == key && peer.GetNextKey() == "" && peer.GetState() == adminv1.PeerState_PEER_STATE_UP && peer.GetWarning() == ""
				}
			}
			return false
		})
	}
}

// flow is numbered messages of one node to another.
type flow struct{ seen, lost atomic.Int64 }

func (p *peers) flow(channel, from, to string) *flow {
	p.t.Helper()
	f := &flow{}
	run := func(args ...string) *exec.Cmd {
		command := exec.Command(p.programs[0], args...)
		p.t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
		return command
	}
	read := run("sub", channel, "--socket", p.socket(to))
	lines, err := read.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	write := run("pub", channel, "--socket", p.socket(from), "--interval", "2ms", "--count", "100000000", "--wait", "60s")
	for _, command := range []*exec.Cmd{read, write} {
		if err := command.Start(); err != nil {
			p.t.Fatal(err)
		}
	}
	go func() {
		last := int64(-1)
		for all := bufio.NewScanner(lines); all.Scan(); f.seen.Add(1) {
			var number int64
			if _, err := fmt.Sscanf(all.Text(), "message %d", &number); err != nil || last >= 0 && number != last+1 {
				f.lost.Add(1)
			}
			last = number
		}
	}()
	return f
}

// goesOn waits until more messages have come.
func (f *flow) goesOn(t *testing.T) {
	t.Helper()
	so := f.seen.Load()
	apitest.Until(t, "messages flow", func() bool { return f.seen.Load() > so+200 })
}

func TestANodeChangesItsKeyWhileMessagesFlowAndNoneIsLost(t *testing.T) {
	p := newPeers(t, "node-1", "node-2")
	flows := []*flow{p.flow("5", "node-1", "node-2"), p.flow("6", "node-2", "node-1")}
	flow := func() {
		for _, f := range flows {
			f.goesOn(t)
		}
	}
	flow()
	for _, step := range []struct {
		name, other string
		meanwhile   func()
	}{
		{"node-1", "node-2", func() {}},
		// The agents and the controller start anew in the middle of it.
		{"node-2", "node-1", func() { p.join("node-2"); p.lead(); p.join("node-1") }},
	} {
		before, began := p.object(step.name).Status.Runtime, time.Now()
		done := p.rotates(step.name, network.Rotated, step.meanwhile)
		t.Logf("%s has another key after %v", step.name, time.Since(began).Round(100*time.Millisecond))
		now := p.object(step.name).Status.Runtime
		if now.Key == before.Key || now.Key != done.To || now.NextKey != "" || done.From != before.Key {
			t.Errorf("%s had %+v and has %+v: %+v", step.name, before, now, done)
		}
		p.known(step.name, now.Key, step.other)
		flow()
		apitest.Until(t, step.name+" says so by its condition and its metrics", func() bool {
			is := meta.FindStatusCondition(p.object(step.name).Status.Conditions, network.KeyCurrent)
			page := httptest.NewRecorder()
			p.nodes[step.name].agent.metrics.handler().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			since := fmt.Sprintf("takt_node_key_since_timestamp_seconds %v", float64(now.KeySince.Unix()))
			return is != nil && is.Status == metav1.ConditionTrue && is.Reason == network.Rotated &&
				strings.Contains(page.Body.String(), since) && strings.Contains(page.Body.String(), "takt_node_key_rotation_given_up 0") && !strings.Contains(page.Body.String(), "rotation_started")
		})
	}
	for _, f := range flows {
		if lost := f.lost.Load(); lost > 0 {
			t.Errorf("%d gaps in %d messages", lost, f.seen.Load())
		}
		t.Logf("%d messages", f.seen.Load())
	}
}

func TestANodeThatWasAwayLearnsTheKeyThatAnotherOneHasTakenMeanwhile(t *testing.T) {
	p := newPeers(t, "node-1", "node-2", "node-3")
	ready := func(is corev1.ConditionStatus) {
		t.Helper()
		node, err := p.kube.CoreV1().Nodes().Get(background, "node-3", metav1.GetOptions{})
		if err == nil {
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: is}}
			_, err = p.kube.CoreV1().Nodes().UpdateStatus(background, node, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	away := p.nodes["node-3"]
	// The API server does not hear of it, and yet its runtime answers: the key is not taken as long as that lasts.
	away.leave()
	ready(corev1.ConditionUnknown)
	done := p.rotates("node-1", network.Rotated, func() {
		apitest.Until(t, "node-1 says for whom it does not take its key", func() bool {
			return strings.Contains(p.object("node-1").Status.KeyProblem, "node node-3 has not said")
		})
		p.answered("node-1", "2/2")
		away.kill()
	})
	if now := p.object("node-1").Status.Runtime; now.Key != done.To {
		t.Errorf("it has %+v: %+v", now, done)
	}
	p.start("node-3")
	p.join("node-3")
	ready(corev1.ConditionTrue)
	p.known("node-1", done.To, "node-2", "node-3")
	p.answered("node-1", "2/2")
	p.answered("node-3", "2/2")
	// Nothing is left of it.
	p.rotates("node-2", network.Rotated, func() {})
	p.rotates("node-1", network.Rotated, func() {})
}

func TestSinceWhenANodeHasItsKeyIsNoInstantToCome(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for _, tc := range []struct {
		before string
		had    time.Duration
		wanted time.Duration
	}{{"key", -time.Hour, -time.Hour}, {"key", time.Hour, 0}, {"another", -time.Hour, 0}} {
		had := metav1.NewTime(now.Add(tc.had))
		got := keySince(&network.Runtime{Key: tc.before, KeySince: &had}, &network.Runtime{Key: "key"}, now)
		if got == nil || !got.Time.Equal(now.Add(tc.wanted)) {
			t.Errorf("%+v: %v", tc, got)
		}
	}
}

func TestTheSameNodeIsNamedAtEachLookOfSeveralThatMayLoseTheKey(t *testing.T) {
	has := &tables{stations: map[string]*adminv1.Station{}, peers: map[string]string{}}
	nodes, rotation := []*network.TaktNode{bare("self", true)}, &network.KeyRotation{}
	for at := range 9 {
		node := nodeOf(fmt.Sprintf("node-%d", at))
		node.Spec.Peer = &network.Peer{Address: fmt.Sprintf("192.0.2.%d:7400", at), Key: key2}
		nodes, rotation.Without = append(nodes, node), append(rotation.Without, node.Name)
	}
	for range 20 {
		if err := memberOf(t, t.TempDir(), has, nodes...).allKnow(background, rotation); err == nil || !strings.Contains(err.Error(), "node node-0 has not said") {
			t.Fatal(err)
		}
	}
}

// Helm leaves the custom resources of before.
func TestWithCustomResourcesOfBeforeANodeSaysWhatToApplyAndWritesNoMore(t *testing.T) {
	crds := t.TempDir()
	if err := os.CopyFS(crds, os.DirFS("../../../deploy/helm/takt-node/crds")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(crds, "network.takt.dev_taktnodes.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before := regexp.MustCompile(`(?m)^ +keySince:\n( +description: .*\n)(.*\n){2} +type: string\n`).ReplaceAll(text, nil)
	if len(before) == len(text) || bytes.Contains(before, []byte("keySince:")) {
		t.Fatal("they are not those of before")
	}
	if err := os.WriteFile(file, before, 0o644); err != nil {
		t.Fatal(err)
	}
	config := apitest.Start(t, crds)
	writes := 0
	config.Wrap(func(to http.RoundTripper) http.RoundTripper {
		return transport(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPut {
				writes++
			}
			return to.RoundTrip(r)
		})
	})
	client, err := objects.New(config)
	if err != nil {
		t.Fatal(err)
	}
	self, err := client.Nodes.Create(background, bare("node-1", true), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m := memberOf(t, t.TempDir(), &tables{stations: map[string]*adminv1.Station{}, peers: map[string]string{}}, self)
	m.client = client
	steps := func() *metav1.Condition {
		t.Helper()
		for range 6 {
			if err := m.step(background); err != nil {
				t.Fatal(err)
			}
			if self, err = client.Nodes.Get(background, "node-1", metav1.GetOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := m.nodes.GetStore().Update(self); err != nil {
				t.Fatal(err)
			}
		}
		return meta.FindStatusCondition(self.Status.Conditions, network.Ready)
	}
	if ready := steps(); writes != 2 || self.Status.Runtime.KeySince != nil || ready.Status != metav1.ConditionTrue || !strings.Contains(ready.Message, "apply the custom resources of the chart") {
		t.Errorf("it writes %d times and says %+v", writes, ready)
	}
	// It looks whether they have been applied.
	m.pruned = m.pruned.Add(-tryPruned)
	if steps(); writes != 3 {
		t.Errorf("it writes %d times", writes)
	}
	since := metav1.Now()
	kept := network.TaktNodeStatus{Runtime: &network.Runtime{KeySince: &since}}
	m.notePruned(&kept, &kept)
	if err := m.serve(background, self); err != nil || meta.FindStatusCondition(self.Status.Conditions, network.Ready).Message != "taktd answers" {
		t.Errorf("%v: it says %+v", err, self.Status.Conditions)
	}
}

type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// What is away at that moment would have lost the node when it is back.
func TestANodeKeepsItsKeyForAPeerThatIsAwayAndNoNodeOfTheCluster(t *testing.T) {
	for keys, wanted := range map[string]string{key1: "peer 198.51.100.9:7400 does not answer now and is no node of this cluster", "": ""} {
		has := &tables{stations: map[string]*adminv1.Station{}, peers: map[string]string{"192.0.2.2:7400": key2, "198.51.100.9:7400": keys}}
		err := memberOf(t, t.TempDir(), has, bare("node-1", true), nodeOf("node-2")).allKnow(background, &network.KeyRotation{To: key2})
		if (err == nil) != (wanted == "") || err != nil && !strings.Contains(err.Error(), wanted) {
			t.Errorf("%q: %v", keys, err)
		}
	}
}

func TestANodeSaysThatItTakesAKeyOfBeforeAsLongAsThatIsAskedFor(t *testing.T) {
	for _, tc := range []struct {
		state, message, keys string
		says                 bool
	}{
		{network.Finishing, "", key2 + " " + key1, true}, {network.Finishing, "", key2, false},
		{network.Rotated, "", key2 + " " + key1, false}, {network.GivenUp, "why", key2 + " " + key1, false},
		{network.Rotated, "it is still taken", key2 + " " + key1, true}, {network.Rotated, "it is still taken", key2, false},
	} {
		other := nodeOf("node-2")
		other.Spec.KeyRotation = &network.KeyRotation{State: tc.state, From: key1, To: key2, Message: tc.message}
		has := &tables{stations: map[string]*adminv1.Station{}, peers: map[string]string{other.Spec.Peer.Address: tc.keys}}
		self := bare("node-1", true)
		if err := memberOf(t, t.TempDir(), has, self, other).serve(background, self); err != nil || (len(self.Status.NextKeys) > 0) != tc.says {
			t.Errorf("%+v: %v, it says %q", tc, err, self.Status.NextKeys)
		}
	}
}

func TestAnOperatorsEntryWithAKeyBesideTheOnlyOneIsNamed(t *testing.T) {
	for keys, wanted := range map[string]string{
		key2:              "",
		key2 + " " + key1: "peer 192.0.2.2:7400: an operator has entered it with a key beside the only one that it has, " + key2,
	} {
		has := &tables{stations: map[string]*adminv1.Station{}, peers: map[string]string{"192.0.2.2:7400": keys}}
		err := entering(t, t.TempDir(), has, bare("node-1", true), nodeOf("node-2"))
		if (err == nil) != (wanted == "") || err != nil && !strings.Contains(err.Error(), wanted) {
			t.Errorf("%q: %v", keys, err)
		}
		if has.peers["192.0.2.2:7400"] != keys {
			t.Errorf("%q has become %q", keys, has.peers["192.0.2.2:7400"])
		}
	}
}

func TestANodesConditionSaysHowTheChangeOfItsKeyStands(t *testing.T) {
	at := metav1.NewTime(time.Unix(1_800_000_000, 0))
	self := bare(nodeName, true)
	sayKey(self)
	if len(self.Status.Conditions) > 0 {
		t.Errorf("nothing was to be changed: %+v", self.Status.Conditions)
	}
	for _, tc := range []struct {
		state, message, says string
		holds                metav1.ConditionStatus
	}{
		{network.Preparing, "", "the key is being changed since 2027-01-15T08:00:00Z", metav1.ConditionFalse},
		{network.Switching, "it waits for node b", "the key is being changed since 2027-01-15T08:00:00Z: it waits for node b", metav1.ConditionFalse},
		{network.Rotated, "", "the key was changed at 2027-01-15T08:00:00Z", metav1.ConditionTrue},
		{network.GivenUp, "it stays as it was", "it stays as it was", metav1.ConditionFalse},
	} {
		self.Spec.KeyRotation = &network.KeyRotation{State: tc.state, Began: at, Since: at, Message: tc.message}
		sayKey(self)
		is := meta.FindStatusCondition(self.Status.Conditions, network.KeyCurrent)
		if is == nil || is.Status != tc.holds || is.Reason != tc.state || is.Message != tc.says {
			t.Errorf("%s: %+v", tc.state, is)
		}
	}
	self.Spec.KeyRotation = nil
	sayKey(self)
	if len(self.Status.Conditions) > 0 {
		t.Errorf("it is of no change: %+v", self.Status.Conditions)
	}
}

// A runtime outside of the cluster that knows a node by its key is not to be lost.
func TestANodeKeepsItsKeyWhileAPeerAnswersThatIsNoNodeOfTheCluster(t *testing.T) {
	p := newPeers(t, "node-1", "node-2")
	one, other := p.nodes["node-1"], p.nodes["node-2"]
	// The other one is the cluster's no more, and has stayed where it was.
	key := p.object("node-2").Status.Runtime.Key
	other.leave()
	if err := p.kube.CoreV1().Nodes().Delete(background, "node-2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := p.client.Nodes.Delete(background, "node-2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.answered("node-1", "0/0")
	if _, err := one.admin.AddPeer(background, &adminv1.AddPeerRequest{Address: other.address, Key: key}); err != nil {
		t.Fatal(err)
	}
	p.answered("node-1", "1/1")
	before := p.object("node-1").Status.Runtime.Key
	p.rotates("node-1", network.Rotated, func() {
		apitest.Until(t, "node-1 says for whom it does not take its key", func() bool {
			return strings.Contains(p.object("node-1").Status.KeyProblem, "peer "+other.address+":7400 answers and is no node of this cluster")
		})
		// As it is said.
		next := p.object("node-1").Spec.KeyRotation.To
		if _, err := other.admin.AddPeer(background, &adminv1.AddPeerRequest{Address: one.address, Key: before, NextKey: next}); err != nil {
			t.Fatal(err)
		}
		if _, err := one.admin.SwitchKey(background, &adminv1.SwitchKeyRequest{Key: next}); err != nil {
			t.Fatal(err)
		}
	})
	p.answered("node-1", "1/1")
}
