package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/objects"
)

// taktObjects is the client of the cluster's objects.
func taktObjects(t *testing.T) *objects.Client {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	of, err := objects.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return of
}

// processWhich is the first process of which this holds: its directory in /proc, and the words of its command line. 0: none.
func processWhich(is func(proc string, words []string) bool) int {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range all {
		text, err := os.ReadFile(filepath.Join(proc, "cmdline"))
		if err == nil && is(proc, strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")) {
			pid, _ := strconv.Atoi(filepath.Base(proc))
			return pid
		}
	}
	return 0
}

// taktdOf is the process of a node's taktd, by its own configuration: the second node's processes are seen from the first.
func taktdOf(node string) int {
	const config = "taktd.toml"
	return processWhich(func(proc string, words []string) bool {
		at, err := os.Readlink(filepath.Join(proc, "cwd"))
		return err == nil && len(words) == 3 && strings.HasSuffix(words[0], "/taktd") && words[2] == config && (filepath.Base(at) == "node-2") == (node == "node-2")
	})
}

// admin is the admin API of a node's taktd.
func admin(t *testing.T, node string) adminv1.AdminClient {
	t.Helper()
	socket := "/run/takt/admin.sock"
	if node == "node-2" {
		until(t, "taktd runs on "+node, func() bool { return taktdOf(node) > 0 })
		socket = fmt.Sprintf("/proc/%d/root%s", taktdOf(node), socket)
	}
	connection, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return adminv1.NewAdminClient(connection)
}

// on places a pod of a script on a node.
func on(node string, p *corev1.Pod) *corev1.Pod {
	p.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": node}
	return p
}

func addressOf(t *testing.T, name string) (address string) {
	t.Helper()
	// A pod may have said something before its status says where it is.
	until(t, name+" has an address", func() bool {
		p, err := client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			address = p.Status.PodIP
		}
		return address != ""
	})
	return address
}

// placed is where a node's taktd has a pod's address: its tunnel endpoints.
func placed(t *testing.T, node, address string) (vteps []string) {
	t.Helper()
	all, err := admin(t, node).ListNetworks(ctx, &adminv1.ListNetworksRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all.GetNetworks() {
		for _, station := range one.GetStations() {
			if slices.Contains(station.GetAddresses(), address) {
				vteps = append(vteps, station.GetVtep())
			}
		}
	}
	return vteps
}

// tolerance is that of the nodes' taktd (node.sh): what is sent later is told as late.
const tolerance = time.Second

// departures are what a node's taktd tells of frames in its network: how many it has sent, and how many later than tolerated.
func departures(t *testing.T, node string) (sent, late uint64) {
	t.Helper()
	of := admin(t, node)
	all, err := of.ListNetworks(ctx, &adminv1.ListNetworksRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all.GetNetworks() {
		sent += one.GetCounters().GetSent()
	}
	links, err := of.ListSchedules(ctx, &adminv1.ListSchedulesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links.GetLinks() {
		for _, class := range link.GetClasses() {
			late += class.GetSentLate() + class.GetSentGateMissed()
		}
	}
	return sent, late
}

// wire is what passes a cable to a UDP port, of a pod in the VXLAN or of a node, with the kernel's time stamps.
type wire struct {
	socket int
	port   uint16
	// Where the launch time is in a datagram's payload.
	at int
}

// watchWire watches the cable between the nodes for what goes to port 5001.
func watchWire(t *testing.T) *wire { return watchCable(t, "wire0", 5001, 0) }

func watchCable(t *testing.T, device string, port uint16, at int) *wire {
	t.Helper()
	cable, err := net.InterfaceByName(device)
	if err != nil {
		t.Fatal(err)
	}
	all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all))
	if err == nil {
		// Others' frames take no room: a node's UDP port is half a word at 36, a pod's, in a VXLAN, at 86.
		filter := []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 36},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(port), Jt: 2},
			{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: inner + 36},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(port), Jf: 1},
			{Code: unix.BPF_RET | unix.BPF_K, K: 2048},
			{Code: unix.BPF_RET | unix.BPF_K},
		}
		err = errors.Join(unix.SetsockoptSockFprog(socket, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}),
			unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: all, Ifindex: cable.Index}),
			unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
			unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
			unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000}))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(socket) })
	return &wire{socket, port, at}
}

// launches are how much later than its launch time each of so many datagrams has passed, in ns.
func (w *wire) launches(t *testing.T, count int) (late []int64) {
	t.Helper()
	stop := make(chan struct{})
	w.each(t, stop, func(_, by int64) {
		if late = append(late, by); len(late) == count {
			close(stop)
		}
	})
	if len(late) < count {
		t.Fatalf("of %d datagrams %d have passed", count, len(late))
	}
	return late
}

// inner is where a pod's Ethernet header begins in a VXLAN: behind Ethernet 14, IPv4 20, UDP 8 and VXLAN 8.
const inner = 50

// each tells of datagrams their launch times, and how much later they have passed, in ns: until it is stopped or none has passed for a
// minute.
func (w *wire) each(t *testing.T, stop <-chan struct{}, tell func(launch, late int64)) {
	// CLOCK_TAI and the stamps' CLOCK_REALTIME differ by what the kernel has been told.
	var utc, tai unix.Timespec
	if err := errors.Join(unix.ClockGettime(unix.CLOCK_REALTIME, &utc), unix.ClockGettime(unix.CLOCK_TAI, &tai)); err != nil {
		t.Error(err)
		return
	}
	offset := (tai.Nano() - utc.Nano() + 500_000_000) / 1_000_000_000 * 1_000_000_000
	frame, control := make([]byte, 2048), make([]byte, 256)
	last := time.Now()
	for {
		select {
		case <-stop:
			return
		default:
		}
		n, of, _, _, err := unix.Recvmsg(w.socket, frame, control, 0)
		if time.Since(last) > time.Minute {
			t.Error("none has passed for a minute")
			return
		}
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			t.Error(err)
			return
		}
		passed := frame[:n]
		if n > inner && slices.Contains([]uint16{4789, 8472}, binary.BigEndian.Uint16(passed[36:])) {
			passed = passed[inner:]
		}
		if len(passed) < 42+w.at+8 || binary.BigEndian.Uint16(passed[12:]) != unix.ETH_P_IP || passed[23] != unix.IPPROTO_UDP ||
			binary.BigEndian.Uint16(passed[36:]) != w.port {
			continue
		}
		last = time.Now()
		launch := int64(binary.NativeEndian.Uint64(passed[42+w.at:]))
		messages, err := unix.ParseSocketControlMessage(control[:of])
		if err != nil {
			t.Error(err)
			return
		}
		for _, message := range messages {
			if message.Header.Type == unix.SO_TIMESTAMPNS {
				seconds, nanos := binary.NativeEndian.Uint64(message.Data), binary.NativeEndian.Uint64(message.Data[8:])
				tell(launch, int64(seconds)*1_000_000_000+int64(nanos)+offset-launch)
			}
		}
	}
}

func conditionIs(conditions []metav1.Condition, kind string, holds bool, reason, message string) bool {
	found := meta.FindStatusCondition(conditions, kind)
	return found != nil && (found.Status == metav1.ConditionTrue) == holds && (reason == "" || found.Reason == reason) && strings.Contains(found.Message, message)
}

// served makes the network of the test's nodes an object, and waits until both serve it.
func served(t *testing.T, of *objects.Client) {
	t.Helper()
	vni, port, mtu := int32(1), int32(4789), int32(1450)
	if flannel {
		port = 8472
	}
	_, err := of.Networks.Create(ctx, &network.TaktNetwork{ObjectMeta: metav1.ObjectMeta{Name: "pods"}, Spec: network.TaktNetworkSpec{
		VNI: &vni, Port: &port, MTU: &mtu, Subnets: []string{"10.67.0.0/16"}, Access: []network.Access{{Namespaces: []string{"default"}, Classes: []int32{0, 5}}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = of.Networks.Delete(ctx, "pods", metav1.DeleteOptions{}) })
	networkIs(t, of, network.Served, true, "Serving", "2 nodes")
}

func networkIs(t *testing.T, of *objects.Client, kind string, holds bool, reason, message string) {
	t.Helper()
	last := ""
	until(t, fmt.Sprintf("network pods: %s is %v because of %s (%s)", kind, holds, reason, message), func() bool {
		found, err := of.Networks.Get(ctx, "pods", metav1.GetOptions{})
		if err == nil && fmt.Sprint(found.Status) != last {
			last = fmt.Sprint(found.Status)
			t.Log(last)
		}
		return err == nil && conditionIs(found.Status.Conditions, kind, holds, reason, message)
	})
}

// flooding sends without end in a class, launched at every multiple of 5 ms, to a port that nobody has.
const flooding = sender + `
talker.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, int(sys.argv[2]))
print("flooding", flush=True)
while True:
    launch = (time.clock_gettime_ns(11) // 5_000_000 + 1) * 5_000_000
    try:
        send(launch, struct.pack("Q", launch) + bytes(1192), 5002, socket.MSG_DONTWAIT)
    except OSError:
        pass
`

// ofMusl is a program of musl, as Alpine's are, in an image of its own.
func ofMusl(address string) *corev1.Pod {
	return unprivileged("musl", "takt.test/musl:1", timeSensitive, "/talk", address)
}

// ofGo is a static program in Go: its launch times are taken at its veth, and all else that its pod sends.
func ofGo(address string) *corev1.Pod {
	return unprivileged("static", "takt.test/guest:1", map[string]string{"takt.dev/time-sensitive": "true", "takt.dev/path": "veth", "takt.dev/class": "5", "takt.dev/other-traffic": "runtime"}, "/guest", "talk", address)
}

func TestTwoNodesSendAtLaunchTimesToPodsOfOthersAndFollowThem(t *testing.T) {
	of := taktObjects(t)
	served(t, of)
	exchange := func(talker func(address string) *corev1.Pod, from, to string) {
		t.Helper()
		const listener = "listener"
		create(t, on(to, python(listener, receiving, listening)))
		says(t, listener, "listening")
		address := addressOf(t, listener)
		vtep := map[string]string{"node-1": "10.66.0.1", "node-2": "10.66.0.3"}[to]
		until(t, "the listener is known on the other node", func() bool { return slices.Equal(placed(t, from, address), []string{vtep}) })
		cable := watchWire(t)
		sentBefore, lateBefore := departures(t, from)
		p := on(from, talker(address))
		create(t, p)
		late := cable.launches(t, 20)
		// The lane tells what it has sent a moment later.
		until(t, "the runtime, and not the kernel, has sent them", func() bool {
			sent, _ := departures(t, from)
			return sent >= sentBefore+20
		})
		slices.Sort(late)
		t.Logf("%s to %s: on the wire %d ns after the launch time at least, %d ns in the median, %d ns at most", from, to, late[0], late[10], late[19])
		if late[0] < 0 {
			t.Errorf("a datagram is on the wire %d ns before its launch time", -late[0])
		}
		// What is late on the wire was told as late.
		over := uint64(len(late) - sort.Search(len(late), func(at int) bool { return late[at] > int64(tolerance) }))
		if _, told := departures(t, from); over > told-lateBefore {
			t.Errorf("%d datagrams are later than %v on the wire, and the runtime tells of %d", over, tolerance, told-lateBefore)
		}
		if line := says(t, p.Name, "sent by"); line != "sent by user 65534" {
			t.Error(line)
		}
		if line := says(t, listener, "early"); line != "0 early from "+addressOf(t, p.Name) {
			t.Error(line)
		}
		remove(t, listener, "")
		until(t, "the listener is known nowhere", func() bool { return len(placed(t, from, address)) == 0 })
		remove(t, p.Name, "")
	}
	script := func(name string) func(string) *corev1.Pod {
		return func(address string) *corev1.Pod { return python(name, timeSensitive, talking, address) }
	}
	exchange(script("east"), "node-1", "node-2")
	// The listener moves, there and back: the talkers' nodes know it where it is.
	exchange(script("west"), "node-2", "node-1")
	exchange(script("back"), "node-1", "node-2")
	exchange(ofMusl, "node-1", "node-2")
	exchange(ofGo, "node-1", "node-2")

	// Beside a pod that sends as much as it can, in the same class and launched at the same instants.
	create(t, on("node-1", python("flood", timeSensitive, flooding, "10.67.2.1", "5")))
	says(t, "flood", "flooding")
	exchange(script("beside"), "node-1", "node-2")
	remove(t, "flood", "")

	// Those who may not use the network get no socket.
	_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "guests"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the namespace has its account", func() bool {
		_, err := client.CoreV1().ServiceAccounts("guests").Get(ctx, "default", metav1.GetOptions{})
		return err == nil
	})
	guest := python("guest", timeSensitive, listening)
	guest.Namespace = "guests"
	if _, err := client.CoreV1().Pods("guests").Create(ctx, guest, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the guest is told", func() bool {
		events, err := client.CoreV1().Events("guests").List(ctx, metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.Reason == "NetworkRefused" && strings.Contains(e.Message, "NotAllowed: ") && strings.Contains(e.Message, "access of the TaktNetwork")
		})
	})
	_ = client.CoreV1().Namespaces().Delete(ctx, "guests", metav1.DeleteOptions{})
}

func TestTwoNodesArePeersByKeysThatMayChange(t *testing.T) {
	of := taktObjects(t)
	peers := func(node, wanted string) {
		t.Helper()
		until(t, node+" has peers "+wanted, func() bool {
			found, err := of.Nodes.Get(ctx, node, metav1.GetOptions{})
			return err == nil && found.Status.Peers == wanted && conditionIs(found.Status.Conditions, network.Ready, true, "Serving", "")
		})
	}
	peers("node-1", "1/1")
	peers("node-2", "1/1")
	before, err := of.Nodes.Get(ctx, "node-2", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// A new key is made where there is none.
	if err := os.Remove(filepath.Join(dir, "node-2", "node.key")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(taktdOf("node-2"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	until(t, "the first node knows the new key", func() bool {
		found, err := of.Nodes.Get(ctx, "node-2", metav1.GetOptions{})
		if err != nil || found.Spec.Peer == nil || found.Spec.Peer.Key == before.Spec.Peer.Key {
			return false
		}
		known, err := admin(t, "node-1").ListPeers(ctx, &adminv1.ListPeersRequest{})
		return err == nil && len(known.GetPeers()) == 1 && known.GetPeers()[0].GetKey() == found.Spec.Peer.Key && known.GetPeers()[0].GetState() == adminv1.PeerState_PEER_STATE_UP
	})
	t.Logf("the nodes have channels again %v after the kill", time.Since(began).Round(100*time.Millisecond))
	peers("node-1", "1/1")
	peers("node-2", "1/1")
}

// counting counts the messages of one publisher on channel 7 for as long as it runs, from when no other one is heard.
const counting = `
import struct, takt
with takt.Session() as session, session.stream() as stream, stream.sink(7) as sink:
    print("subscribed", flush=True)
    of, count = None, 0
    while True:
        with sink.receive() as message:
            publisher, number = struct.unpack("QQ", message.data)
            if publisher != of and count < 50:
                of, first, count, wrong = publisher, number, 0, 0
            wrong += publisher != of or number != first + count
            count += 1
        if count % 50 == 0:
            print(count, "counted,", wrong, "out of order", flush=True)
`

// heardBy is what a pod that counts has said last.
func heardBy(name string) (count, wrong int) {
	log, _ := client.CoreV1().Pods("default").GetLogs(name, &corev1.PodLogOptions{}).DoRaw(ctx)
	for line := range strings.Lines(string(log)) {
		_, _ = fmt.Sscanf(line, "%d counted, %d out of order", &count, &wrong)
	}
	return count, wrong
}

// Reliable messages flow meanwhile, of which none may be missing or come twice.
func TestTwoNodesChangeTheirKeysWhileMessagesFlow(t *testing.T) {
	of := taktObjects(t)
	served(t, of)
	create(t, on("node-1", linked("steady", publishing)))
	says(t, "steady", "publishing")
	create(t, on("node-2", linked("listener", counting)))
	flow := func() {
		t.Helper()
		so, _ := heardBy("listener")
		// The line that follows may be of messages from before.
		until(t, "messages flow", func() bool { now, _ := heardBy("listener"); return now > so+50 })
	}
	flow()
	for _, name := range []string{"node-1", "node-2"} {
		before, err := of.Nodes.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, network.RotateKey, time.Now().UTC().Format(time.RFC3339))
		if _, err := of.Nodes.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		until(t, name+" has another key", func() bool {
			now, err := of.Nodes.Get(ctx, name, metav1.GetOptions{})
			return err == nil && now.Status.Runtime.Key != before.Status.Runtime.Key && now.Spec.KeyRotation.State == network.Rotated &&
				conditionIs(now.Status.Conditions, network.KeyCurrent, true, network.Rotated, "")
		})
		t.Logf("%s has another key after %v", name, time.Since(began).Round(100*time.Millisecond))
		flow()
	}
	if count, wrong := heardBy("listener"); wrong > 0 {
		t.Errorf("%d of %d messages are out of order", wrong, count)
	}
	for _, name := range []string{"steady", "listener"} {
		remove(t, name, "")
	}
}

// runs are the schedules of a node's link as taktd has them: base times, entries.
func runs(t *testing.T, node string) string {
	t.Helper()
	all, err := admin(t, node).ListSchedules(ctx, &adminv1.ListSchedulesRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	text := func(g *adminv1.GateSchedule) string {
		if g == nil {
			return "none"
		}
		return fmt.Sprintf("%d/%d", g.GetBaseTimeNs(), len(g.GetEntries()))
	}
	for _, link := range all.GetLinks() {
		if link.GetDatapath() == "udp" {
			return text(link.GetOperational()) + " then " + text(link.GetPending())
		}
	}
	return "no link"
}

func TestTwoNodesHaveAScheduleBothOrNeither(t *testing.T) {
	of := taktObjects(t)
	schedule := func() *network.GateSchedule {
		found, err := of.Schedules.Get(ctx, "line", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	is := func(holds bool, reason, message string) {
		t.Helper()
		until(t, fmt.Sprintf("it is in force: %v because of %s (%s)", holds, reason, message), func() bool {
			now := schedule()
			return now.Status.ObservedGeneration == now.Generation && conditionIs(now.Status.Conditions, network.InForce, holds, reason, message)
		})
	}
	edit := func(change func(*network.GateSchedule)) {
		t.Helper()
		until(t, "it is edited", func() bool {
			now := schedule()
			change(now)
			_, err := of.Schedules.Update(ctx, now, metav1.UpdateOptions{})
			return err == nil
		})
	}
	// Meanwhile a pod sends: whatever schedules come, change, are rolled back and go, all its datagrams leave, at their times or later, and
	// each inside a window of the schedule that is in force then.
	served(t, of)
	wire, _ := steadily(t)
	wire.flows(t, "datagrams pass")
	cable, _ := seeing(t, "wire0", 5001)
	from := tai(t)
	told := classOf(t, "node-1", "udp", 5).GetOverruns()
	earlier, later := halves{}, halves{second: true}
	made := &network.GateSchedule{ObjectMeta: metav1.ObjectMeta{Name: "line"}}
	made.Spec.Datapath, made.Spec.Rate, made.Spec.CycleTime, made.Spec.Entries = "udp", 1_000_000_000, network.Duration(halvesCycle), earlier.entries()
	if _, err := of.Schedules.Create(ctx, made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	is(true, network.Installed, "on 2 nodes")
	earlier.begins = schedule().Status.BeginsNanoseconds
	both := func(wanted string) {
		t.Helper()
		for _, node := range []string{"node-1", "node-2"} {
			until(t, node+" has "+wanted, func() bool { return runs(t, node) == wanted })
		}
	}
	first := fmt.Sprintf("%d/2 then none", earlier.begins)
	both(first)
	// What a node cannot do is done by none: the clocks of this machine are not known to be so good.
	within := network.Duration(1)
	edit(func(g *network.GateSchedule) {
		g.Spec.RequireSync, g.Spec.Entries = &within, later.entries()
	})
	is(false, network.RolledBack, "node node-1 refuses: ")
	both(first)
	edit(func(g *network.GateSchedule) { g.Spec.RequireSync = nil })
	is(true, network.Installed, "on 2 nodes")
	later.begins = schedule().Status.BeginsNanoseconds
	both(fmt.Sprintf("%d/2 then none", later.begins))
	wire.flows(t, "datagrams pass under the second schedule")
	frames, overruns := cable.all(), classOf(t, "node-1", "udp", 5).GetOverruns()-told
	wrong, inside := outside(frames, true, earlier, later)
	t.Logf("%d datagrams in windows of the first schedule, %d in those of the second, %d outside, of %d that taktd tells of", inside[0], inside[1], len(wrong), overruns)
	if uint64(len(wrong)) > overruns || inside[0] == 0 || inside[1] == 0 {
		t.Errorf("of %d datagrams %v are outside of their windows, and taktd tells of %d", len(frames), wrong, overruns)
	}

	// Only one refuses: its link has an operator's schedule. The other one, which has taken it, gives it back.
	if err := of.Schedules.Delete(ctx, "line", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	both("none then none")
	own := &adminv1.GateSchedule{CycleTimeNs: 1_000_000, Entries: []*adminv1.GateEntry{{Gates: 255, IntervalNs: 1_000_000}}}
	if _, err := admin(t, "node-2").InstallSchedule(ctx, &adminv1.InstallScheduleRequest{Datapath: "udp", Schedule: own, LinkRateBps: 1_000_000_000}); err != nil {
		t.Fatal(err)
	}
	made = &network.GateSchedule{ObjectMeta: metav1.ObjectMeta{Name: "line"}}
	made.Spec.Datapath, made.Spec.Rate, made.Spec.CycleTime, made.Spec.Entries = "udp", 1_000_000_000, network.Duration(halvesCycle), earlier.entries()
	if _, err := of.Schedules.Create(ctx, made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	is(false, network.RolledBack, "node node-2 refuses: datapath udp has a schedule that is not the cluster's")
	until(t, "the event names node and reason", func() bool {
		events, err := client.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=GateSchedule,reason=RolledBack"})
		return err == nil && slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return strings.Contains(e.Message, "node node-2 refuses") })
	})
	until(t, "node-1 has none", func() bool { return runs(t, "node-1") == "none then none" })
	if has := runs(t, "node-2"); has != "0/1 then none" {
		t.Errorf("the operator's schedule has become %s", has)
	}
	if err := of.Schedules.Delete(ctx, "line", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin(t, "node-2").RemoveSchedule(ctx, &adminv1.RemoveScheduleRequest{Datapath: "udp"}); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("kube", "kubectl", "get", "tnodes,gates,tnets").CombinedOutput(); err == nil {
		t.Logf("%s", out)
	}
	to := tai(t)
	wire.flows(t, "datagrams pass at the end")
	if missing, gap := wire.between(from, to); missing > 0 {
		t.Errorf("of %d datagrams %d have not been sent while schedules changed, for %v at most", (to-from)/beat, missing, gap)
	}
	wire.wasRight(t)
}
