package cluster

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
)

// flannel: each node has a subnet of its own, as flanneld routes it (node.sh).
var flannel = os.Getenv("TAKT_FLANNEL") != ""

// answering and asking are the two ends of a connection that knows nothing of Takt. Who asks says how often it was answered, and how long it took
// at most since it said so last.
const (
	answering = `
import socket
server = socket.create_server(("", 5003))
print("answering", flush=True)
connection, _ = server.accept()
while data := connection.recv(64):
    connection.sendall(data)
`
	asking = `
import itertools, socket, sys, time
connection = socket.create_connection((sys.argv[1], 5003))
longest = 0
for number in itertools.count(1):
    began = time.monotonic()
    connection.sendall(b"%08d" % number)
    data = b""
    while len(data) < 8:
        more = connection.recv(8 - len(data))
        if not more:
            sys.exit("closed")
        data += more
    if int(data) != number:
        sys.exit("%d is not %d" % (int(data), number))
    longest = max(longest, time.monotonic() - began)
    if number % 50 == 0:
        print("answered", number, "within", round(longest * 1000, 1), "ms", flush=True)
        longest = 0
    time.sleep(0.005)
`
)

// connection is one by the primary network, by the names of its pods.
type connection struct{ asks, answers string }

// connected has a pod of node-2, with these annotations, ask an ordinary one of node-1, until the test's end.
func connected(t *testing.T, name string, annotations map[string]string) connection {
	t.Helper()
	c := connection{name + "-asks", name + "-answers"}
	create(t, on("node-1", python(c.answers, nil, answering)))
	says(t, c.answers, "answering")
	create(t, on("node-2", python(c.asks, annotations, asking, addressOf(t, c.answers))))
	c.goesOn(t, name+" pods reach each other")
	return c
}

// answered is how often, as it has said last.
func (c connection) answered(t *testing.T) (times int) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(logOf(c.asks)), "\n")
	if words := strings.Fields(lines[len(lines)-1]); len(words) == 5 {
		times, _ = strconv.Atoi(words[1])
	}
	return times
}

// goesOn waits until it has been answered a hundred times more: by then at least fifty were asked after this.
func (c connection) goesOn(t *testing.T, what string) {
	t.Helper()
	before := c.answered(t)
	until(t, what, func() bool { return c.answered(t) >= before+100 })
}

// in runs a command in the network of a node.
func in(t *testing.T, node string, command ...string) string {
	t.Helper()
	if node == "node-2" {
		command = append([]string{"nsenter", "-t", strconv.Itoa(kubeletOf(node)), "-n"}, command...)
	}
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s on %s: %v: %s", strings.Join(command, " "), node, err, out)
	}
	return string(out)
}

// kubeletOf is the kubelet of a node: its own view is the node's.
func kubeletOf(node string) int {
	return processWhich(func(proc string, words []string) bool {
		return len(words) > 2 && words[1] == "kubelet" && words[len(words)-1] == node
	})
}

// primary is what the kernel of a node has of Flannel: devices, routes, neighbours, forwarding entries, queues.
func primary(t *testing.T, node string) string {
	t.Helper()
	all := ""
	for _, command := range []string{
		"ip -d link show flannel.1", "ip link show cni0", "ip address show flannel.1", "ip address show cni0", "ip -4 route show table all", "ip rule show",
		"ip neighbour show dev flannel.1", "/sbin/bridge fdb show dev flannel.1", "tc qdisc show dev flannel.1", "tc qdisc show dev cni0",
		"tc filter show dev cni0", "tc filter show dev flannel.1",
	} {
		all += command + "\n" + in(t, node, strings.Fields(command)...)
	}
	return all
}

// seen are the frames that have passed a place of the wire, in their order there.
type seen struct {
	lock   sync.Mutex
	frames []frame
}

// frame is one of them: when it was to leave, and when it was there.
type frame struct{ launch, at int64 }

// seeing notes what passes a device to a port until the test's end, or until stop is called.
func seeing(t *testing.T, device string, port uint16) (s *seen, stop func()) {
	t.Helper()
	s = &seen{}
	of, ending := watchCable(t, device, port, 0), make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		of.each(t, ending, func(launch, late int64) {
			s.lock.Lock()
			defer s.lock.Unlock()
			s.frames = append(s.frames, frame{launch, launch + late})
		})
	})
	stop = sync.OnceFunc(func() {
		close(ending)
		watching.Wait()
	})
	t.Cleanup(stop)
	return s, stop
}

// all are the frames so far.
func (s *seen) all() []frame {
	s.lock.Lock()
	defer s.lock.Unlock()
	return slices.Clone(s.frames)
}

// newest is the launch time of the last one.
func (s *seen) newest() int64 {
	all := s.all()
	if len(all) == 0 {
		return 0
	}
	return all[len(all)-1].launch
}

// passes waits until what is launched from now on passes, and returns the launch time of the last that has.
func (s *seen) passes(t *testing.T, what string) (newest int64) {
	t.Helper()
	since := tai(t)
	until(t, what, func() bool { newest = s.newest(); return newest > since })
	return newest
}

// halves is a schedule of which class 5 has one half of the cycle, and all others the other.
type halves struct {
	begins int64
	// Whether class 5 has the second half.
	second bool
}

const halvesCycle = int64(100 * time.Millisecond)

func (h halves) entries() []network.GateEntry {
	all := []network.GateEntry{{Gates: []int32{5}, Interval: network.Duration(halvesCycle / 2)}, {Gates: []int32{0, 1, 2, 3, 4, 6, 7}, Interval: network.Duration(halvesCycle / 2)}}
	if h.second {
		slices.Reverse(all)
	}
	return all
}

// open says whether the gate of class 5, or that of the others, is open.
func (h halves) open(five bool, at int64) bool {
	second := ((at-h.begins)%halvesCycle+halvesCycle)%halvesCycle >= halvesCycle/2
	return (second == h.second) == five
}

// outside are frames that passed while their gate was closed, under the schedule that was in force then; of before the first one nothing is said.
func outside(frames []frame, five bool, schedules ...halves) (found []frame, inside []int) {
	inside = make([]int, len(schedules))
	for _, f := range frames {
		at := -1
		for i, h := range schedules {
			if h.begins <= f.at {
				at = i
			}
		}
		switch {
		case at < 0:
		case schedules[at].open(five, f.at):
			inside[at]++
		default:
			found = append(found, f)
		}
	}
	return found, inside
}

// classOf is what a node's taktd counts of a class on the link of a datapath.
func classOf(t *testing.T, node, datapath string, class uint32) *adminv1.ClassDepartures {
	t.Helper()
	links, err := admin(t, node).ListSchedules(ctx, &adminv1.ListSchedulesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links.GetLinks() {
		for _, one := range link.GetClasses() {
			if link.GetDatapath() == datapath && one.GetClass() == class {
				return one
			}
		}
	}
	return &adminv1.ClassDepartures{}
}

func TestFlannelPodsOfAnyImageSendToTheOtherNodeAndToTheirOwn(t *testing.T) {
	if !flannel {
		t.Skip("a cluster of its own: make test-cluster-nodes")
	}
	served(t, taktObjects(t))
	ofPython := func(address string) *corev1.Pod { return python("script", timeSensitive, talking, address) }
	for _, way := range []struct {
		talker   func(address string) *corev1.Pod
		from, to string
	}{
		{ofPython, "node-1", "node-2"}, {ofMusl, "node-2", "node-1"}, {ofGo, "node-2", "node-1"}, {ofPython, "node-2", "node-2"},
	} {
		create(t, on(way.to, python("listener", receiving, listening)))
		says(t, "listener", "listening")
		before, _ := departures(t, way.from)
		p := on(way.from, way.talker(addressOf(t, "listener")))
		create(t, p)
		if line := says(t, p.Name, "sent by"); line != "sent by user 65534" {
			t.Error(line)
		}
		if line := says(t, "listener", "early"); line != "0 early from "+addressOf(t, p.Name) {
			t.Errorf("%s, %s to %s: %s", p.Name, way.from, way.to, line)
		}
		until(t, "the runtime, and not the kernel, has sent them", func() bool {
			sent, _ := departures(t, way.from)
			return sent >= before+20
		})
		remove(t, p.Name, "")
		remove(t, "listener", "")
	}
}

// A pod on a network as Flannel builds it sends over a link with a rate, beside one that floods the link by the kernel and one that floods it by
// Takt, while schedules are rolled out and one is rolled back. What it sends is seen at the far end of its node's cable, and behind the switch
// that has the rate. The primary network does what it did, and needs nothing of Takt.
func TestFlannelPodsKeepTheirWindowsOnALinkWithARateBesideFloods(t *testing.T) {
	rate, err := strconv.ParseInt(os.Getenv("TAKT_RATE"), 10, 64)
	if !flannel || err != nil {
		t.Skip("a cluster of its own: make test-cluster-nodes")
	}
	of := taktObjects(t)
	served(t, of)
	sent, _ := departures(t, "node-2")
	ordinary := connected(t, "ordinary", nil)
	if now, _ := departures(t, "node-2"); now != sent {
		t.Errorf("taktd has sent %d frames, of pods that know nothing of it", now-sent)
	}
	nodes := []string{"node-1", "node-2"}
	before := map[string]string{}
	for _, node := range nodes {
		before[node] = primary(t, node)
	}

	install := func(change func(*network.GateScheduleSpec)) {
		t.Helper()
		until(t, "the schedule is written", func() bool {
			now, err := of.Schedules.Get(ctx, "line", metav1.GetOptions{})
			if err != nil {
				now = &network.GateSchedule{ObjectMeta: metav1.ObjectMeta{Name: "line"}}
				now.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/hostname": "node-2"}}
				now.Spec.Datapath, now.Spec.Rate, now.Spec.CycleTime = "xdp", rate, network.Duration(halvesCycle)
				change(&now.Spec)
				_, err = of.Schedules.Create(ctx, now, metav1.CreateOptions{})
				return err == nil
			}
			change(&now.Spec)
			_, err = of.Schedules.Update(ctx, now, metav1.UpdateOptions{})
			return err == nil
		})
	}
	t.Cleanup(func() { _ = of.Schedules.Delete(ctx, "line", metav1.DeleteOptions{}) })
	inForce := func(holds bool, reason, message string) (begins int64) {
		t.Helper()
		until(t, fmt.Sprintf("the schedule is in force: %v because of %s (%s)", holds, reason, message), func() bool {
			now, err := of.Schedules.Get(ctx, "line", metav1.GetOptions{})
			if err != nil {
				return false
			}
			begins = now.Status.BeginsNanoseconds
			return now.Status.ObservedGeneration == now.Generation && conditionIs(now.Status.Conditions, network.InForce, holds, reason, message)
		})
		return begins
	}

	// What a time-sensitive pod sends without a launch time is the kernel's as ever.
	timed := connected(t, "timed", timeSensitive)
	first, second := halves{}, halves{second: true}
	install(func(spec *network.GateScheduleSpec) { spec.Entries = first.entries() })
	create(t, on("node-1", python("listener", nil, discarding)))
	says(t, "listener", "listening")
	address := addressOf(t, "listener")
	cable, cableEnds := seeing(t, "switch2", 5001)
	far, farEnds := seeing(t, "wire0", 5001)
	sentBefore := classOf(t, "node-2", "xdp", 5).GetSent()
	create(t, on("node-2", python("talker", timeSensitive, steady, address)))
	says(t, "talker", "begins")
	from := far.passes(t, "datagrams pass")
	first.begins = inForce(true, network.Installed, "on 1 node")
	told := classOf(t, "node-2", "xdp", 5)

	// More than the link carries, by the kernel and by Takt, in the windows of the other classes.
	neighbours, neighboursEnd := seeing(t, "switch2", 5002)
	toldOfNeighbours := classOf(t, "node-2", "xdp", 0)
	create(t, on("node-2", socketProgram("flood", nil, false, "flood", "--core", "1", "--to", address+":6001", "--rate", strconv.FormatInt(rate/10*12, 10))),
		on("node-2", python("neighbour", timeSensitive, flooding, address, "0")))
	says(t, "neighbour", "flooding")
	neighbours.passes(t, "what the neighbour sends passes")
	dropped := func() int { return dropsOf(t, "switch1") }
	until(t, "the link is full", func() bool { return dropped() > 0 })
	full := far.passes(t, "datagrams pass beside them")

	// What a node cannot do is rolled back, and the one before goes on; the next one is the other way round.
	within := network.Duration(1)
	install(func(spec *network.GateScheduleSpec) { spec.RequireSync, spec.Entries = &within, second.entries() })
	inForce(false, network.RolledBack, "node node-2 refuses: ")
	install(func(spec *network.GateScheduleSpec) { spec.RequireSync = nil })
	second.begins = inForce(true, network.Installed, "on 1 node")
	to := far.passes(t, "datagrams pass under the second schedule")
	for _, pod := range []string{"flood", "neighbour"} {
		remove(t, pod, "")
	}
	neighboursEnd()
	now, nowOfNeighbours := classOf(t, "node-2", "xdp", 5), classOf(t, "node-2", "xdp", 0)
	ordinary.goesOn(t, "the ordinary pods' connection outlives the flood")
	timed.goesOn(t, "and so does that of the time-sensitive pod")

	// The primary network does not need taktd. What is too late for its launch time when that goes on is not sent, and it tells of all of it.
	process := taktdOf("node-2")
	if err := syscall.Kill(process, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := tai(t)
	ordinary.goesOn(t, "ordinary pods reach each other while taktd stands still")
	timed.goesOn(t, "and so does a time-sensitive pod")
	until(t, "what was sent ahead is late", func() bool { return tai(t) > stopped+int64(2*tolerance) })
	if err := syscall.Kill(process, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	again := far.passes(t, "datagrams pass when it goes on")
	ordinary.goesOn(t, "ordinary pods reach each other as before")
	said := logOf("talker")
	end := classOf(t, "node-2", "xdp", 5)
	remove(t, "talker", "")
	until(t, "taktd tells of as many as have passed the cable", func() bool {
		counted := classOf(t, "node-2", "xdp", 5)
		return counted.GetQueued() == 0 && counted.GetSent()-sentBefore == uint64(len(cable.all()))
	})
	cableEnds()
	farEnds()

	for place, frames := range map[string][]frame{"the cable": cable.all(), "behind the switch": far.all()} {
		// The stamps are in order, and what the socket has from two cores need not be.
		slices.SortFunc(frames, func(a, b frame) int { return cmp.Compare(a.at, b.at) })
		early, disordered, last := 0, 0, int64(0)
		var late []int64
		for _, f := range frames {
			if f.at < f.launch {
				early++
			}
			if f.launch <= last {
				disordered++
			}
			last = f.launch
			if f.launch >= full && f.launch < to && first.open(true, f.launch) && f.launch < second.begins-halvesCycle {
				late = append(late, f.at-f.launch)
			}
		}
		if early+disordered > 0 {
			t.Errorf("%s: of %d datagrams %d are there before their launch times, %d after a later one or twice", place, len(frames), early, disordered)
		}
		if slices.Sort(late); len(late) > 0 {
			t.Logf("%s, beside the floods, launched in their window: %d datagrams, %d us after their launch times in the median, %d us at most", place, len(late), late[len(late)/2]/1000, late[len(late)-1]/1000)
		}
		missing, gap := unseen(frames, from, to)
		if missing > 0 {
			t.Errorf("%s: %d datagrams are missing, for %v at most; the talker says %s", place, missing, gap, said)
		}
	}
	// A frame outside of its window is one that taktd tells of.
	check := func(who string, frames []frame, five bool, overruns uint64) {
		t.Helper()
		wrong, inside := outside(frames, five, first, second)
		t.Logf("%s: %d frames in the windows of the first schedule, %d in those of the second, %d outside, of %d that taktd tells of", who, inside[0], inside[1], len(wrong), overruns)
		if inside[0] == 0 || inside[1] == 0 {
			t.Errorf("%s: no frame was seen under one of the schedules", who)
		}
		if uint64(len(wrong)) > overruns {
			t.Errorf("%s: %d frames are outside of their windows, and taktd tells of %d: the first is %d ns into the cycle", who, len(wrong), overruns, (wrong[0].at-first.begins)%halvesCycle)
		}
	}
	// Of before there was a schedule half are where the gate would be closed: this check can fail.
	if wrong, _ := outside(cable.all(), true, halves{begins: first.begins % halvesCycle}); len(wrong) == 0 || wrong[0].at > first.begins {
		t.Error("no datagram was launched where its gate is closed")
	}
	check("the talker", cable.all(), true, end.GetOverruns()-told.GetOverruns())
	check("the neighbour", neighbours.all(), false, nowOfNeighbours.GetOverruns()-toldOfNeighbours.GetOverruns())
	if late := now.GetSentLate() + now.GetSentGateMissed() - told.GetSentLate() - told.GetSentGateMissed(); late > 0 {
		t.Errorf("beside the floods taktd tells of %d datagrams that were more than %v late", late, tolerance)
	}
	// What it could not send any more has been told as that.
	missing, _ := unseen(cable.all(), to, again)
	lost := func(c *adminv1.ClassDepartures) int {
		return int(c.GetRefusedLate() + c.GetRefused() + c.GetDroppedLate() + c.GetDroppedGateMissed() + c.GetDropped())
	}
	if told := lost(end) - lost(now); missing == 0 || missing != told {
		t.Errorf("taktd stood still: %d datagrams have not passed, and it tells of %d; the talker says %s", missing, told, said)
	}
	for _, node := range nodes {
		if after := primary(t, node); after != before[node] {
			t.Errorf("the primary network of %s was\n%s\nand is\n%s", node, before[node], after)
		}
	}
}

// unseen are launches of a steady talker in a stretch of time that are not among those that were seen, and the longest time without any.
func unseen(frames []frame, from, to int64) (missing int, gap time.Duration) {
	p := &passed{seen: map[int64]bool{}}
	for _, f := range frames {
		p.base = f.launch % beat
		p.seen[f.launch] = true
	}
	return p.between(from, to)
}

// dropsOf are the packets that a device of the first node had no room for.
func dropsOf(t *testing.T, device string) int {
	t.Helper()
	for line := range strings.Lines(in(t, "node-1", "tc", "-s", "qdisc", "show", "dev", device)) {
		if _, rest, found := strings.Cut(line, "(dropped "); found {
			count, _ := strconv.Atoi(strings.SplitN(rest, ",", 2)[0])
			return count
		}
	}
	return 0
}
