package cluster

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
)

// steady sends a datagram for every 10 ms, 300 ms ahead of its launch time, and says which ones it was refused.
const steady = sender + `
base = time.clock_gettime_ns(11) + 1_000_000_000
print("begins", base, flush=True)
for number in itertools.count():
    launch = base + number * 10_000_000
    ahead = launch - time.clock_gettime_ns(11) - 300_000_000
    if ahead > 0:
        time.sleep(ahead / 1e9)
    try:
        send(launch)
    except OSError as error:
        print("refused", launch, error.strerror, flush=True)
`

const beat = int64(10 * time.Millisecond)

// discarding takes all datagrams, and never answers.
const discarding = `
import socket
listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
listener.bind(("", 5001))
print("listening", flush=True)
while True:
    listener.recv(64)
`

// passed are the datagrams of a steady talker on the wire, by their launch times.
type passed struct {
	// base is the launch time of the first.
	base int64

	lock sync.Mutex
	seen map[int64]bool
	// latest is the launch time of the newest.
	latest int64
	// early and twice are what never may be.
	early, twice int
}

func (p *passed) enter(launch, late int64) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if late < 0 {
		p.early++
	}
	if p.seen[launch] {
		p.twice++
	}
	p.seen[launch], p.latest = true, max(p.latest, launch)
}

// between is what became of the launches of a stretch of time: how many have not passed, and the longest time without any.
func (p *passed) between(from, to int64) (missing int, gap time.Duration) {
	p.lock.Lock()
	defer p.lock.Unlock()
	run := 0
	for launch := p.base + (from-p.base+beat-1)/beat*beat; launch < to; launch += beat {
		if p.seen[launch] {
			run = 0
			continue
		}
		missing, run = missing+1, run+1
		gap = max(gap, time.Duration(run)*time.Duration(beat))
	}
	return missing, gap
}

// newest is the launch time of the newest that has passed.
func (p *passed) newest() int64 {
	p.lock.Lock()
	defer p.lock.Unlock()
	return p.latest
}

// steadily has a pod on node-1 send to one on node-2, whose address it returns, until the test's end.
func steadily(t *testing.T) (*passed, string) {
	t.Helper()
	create(t, on("node-2", python("listener", receiving, discarding)))
	says(t, "listener", "listening")
	address := addressOf(t, "listener")
	if !flannel { // else the kernel's tables say it
		until(t, "the listener is known on the other node", func() bool { return len(placed(t, "node-1", address)) == 1 })
	}
	p := &passed{seen: map[int64]bool{}}
	cable, stop := watchWire(t), make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { cable.each(t, stop, p.enter) })
	t.Cleanup(func() {
		close(stop)
		watching.Wait()
	})
	create(t, on("node-1", python("talker", timeSensitive, steady, address)))
	base, err := strconv.ParseInt(strings.Fields(says(t, "talker", "begins"))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	p.base = base
	return p, address
}

// flows waits until what is launched from now on passes.
func (p *passed) flows(t *testing.T, what string) {
	t.Helper()
	since := tai(t)
	until(t, what, func() bool { return p.newest() > since })
}

// wasRight fails the test if one was sent before its time, or twice.
func (p *passed) wasRight(t *testing.T) {
	t.Helper()
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.early > 0 || p.twice > 0 {
		t.Errorf("%d datagrams were on the wire before their launch times, %d twice", p.early, p.twice)
	}
}

func tai(t *testing.T) int64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_TAI, &now); err != nil {
		t.Fatal(err)
	}
	return now.Nano()
}

// processAt is the process of a program on a node; the second node's are seen from the first.
func processAt(node, program string) int {
	return processWhich(func(proc string, words []string) bool {
		groups, err := os.ReadFile(filepath.Join(proc, "cgroup"))
		return err == nil && filepath.Base(words[0]) == program && strings.Contains(string(groups), "/node-2/") == (node == "node-2")
	})
}

func TestTwoNodesSendOnWhileTheirPartsAreKilled(t *testing.T) {
	of := taktObjects(t)
	served(t, of)
	ordinary := connected(t, "ordinary", nil)
	wire, address := steadily(t)
	wire.flows(t, "datagrams pass")

	ready := func(path string) func() bool {
		return func() bool { return exec.Command("kube", "kubectl", "get", "--raw", path).Run() == nil }
	}
	agents := func() bool {
		set, err := client.AppsV1().DaemonSets("kube-system").Get(ctx, "takt-node", metav1.GetOptions{})
		return err == nil && set.Status.NumberReady == 2
	}
	healthy := func() bool {
		answer, err := http.Get("http://127.0.0.1:10248/healthz")
		if err == nil {
			answer.Body.Close()
		}
		return err == nil && answer.StatusCode == http.StatusOK
	}
	// Whoever leads says so again.
	var began time.Time
	renewed := func() bool {
		lease, err := client.CoordinationV1().Leases("kube-system").Get(ctx, "takt-controller", metav1.GetOptions{})
		return err == nil && lease.Spec.RenewTime != nil && lease.Spec.RenewTime.After(began)
	}
	// The other replica waits for its turn: nobody notices its end.
	leader := func() int {
		lease, err := client.CoordinationV1().Leases("kube-system").Get(ctx, "takt-controller", metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil {
			return 0
		}
		return processWhich(func(proc string, words []string) bool {
			environment, err := os.ReadFile(filepath.Join(proc, "environ"))
			return err == nil && filepath.Base(words[0]) == "takt-controller" && slices.Contains(strings.Split(string(environment), "\x00"), "POD_NAME="+*lease.Spec.HolderIdentity)
		})
	}
	kept := func(name string) func() int { return func() int { return processOf(name) } }
	at := func(node, program string) func() int { return func() int { return processAt(node, program) } }
	parts := []struct {
		name string
		pid  func() int
		// serves: it does again what it is there for.
		serves func() bool
		// carries: the datagrams of this node pass it.
		carries bool
	}{
		{"taktd of the talker's node", func() int { return taktdOf("node-1") }, func() bool {
			_, err := admin(t, "node-1").GetStatus(ctx, &adminv1.GetStatusRequest{})
			return err == nil && wire.newest() > tai(t)-int64(time.Second)
		}, true},
		{"taktd of the listener's node", func() int { return taktdOf("node-2") }, func() bool {
			_, err := admin(t, "node-2").GetStatus(ctx, &adminv1.GetStatusRequest{})
			return err == nil
		}, false},
		{"takt-node", at("node-1", "takt-node"), agents, false},
		{"takt-controller that leads", leader, renewed, false},
		{"API server", kept("apiserver"), ready("/readyz"), false},
		{"containerd", kept("containerd"), func() bool { return exec.Command("ctr", "version").Run() == nil }, false},
		{"kubelet", kept("kubelet"), healthy, false},
		{"etcd", kept("etcd"), ready("/readyz"), false},
	}
	table := fmt.Sprintf("%-30s %14s %16s %16s\n", "killed", "serves again", "not sent", "longest gap")
	for _, part := range parts {
		pid := part.pid()
		if pid <= 1 {
			t.Errorf("%s has no process here", part.name)
			continue
		}
		killed := tai(t)
		began = time.Now()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		until(t, part.name+" serves again", func() bool { now := part.pid(); return now > 1 && now != pid && part.serves() })
		again := time.Since(began)
		wire.flows(t, "datagrams pass after it")
		// They leave in the order of their launch times: what has not passed when a later one has does not any more.
		end := tai(t)
		until(t, "later ones have passed", func() bool { return wire.newest() > end })
		missing, gap := wire.between(killed, end)
		table += fmt.Sprintf("%-30s %12.1f s %16s %13.2f s\n", part.name, again.Seconds(), fmt.Sprintf("%d of %d", missing, (end-killed)/beat), gap.Seconds())
		// What has nothing of Takt does not notice.
		ordinary.goesOn(t, "ordinary pods reach each other after the end of "+part.name)
		if missing > 0 && !part.carries {
			t.Errorf("%s is killed: %d datagrams of a pod that runs have not been sent", part.name, missing)
		}
	}
	wire.wasRight(t)
	t.Logf("a datagram every 10 ms while parts are killed:\n%s", table)
	// New pods are served as before.
	create(t, on("node-1", python("late", timeSensitive, talking, address)))
	if line := says(t, "late", "sent by"); line != "sent by user 65534" {
		t.Error(line)
	}
	for _, name := range []string{"late", "talker", "listener"} {
		remove(t, name, "")
	}
}
