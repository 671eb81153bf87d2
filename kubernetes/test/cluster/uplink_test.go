package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
)

// ordinary sends datagrams every 3 ms or so, each with the time at which it was sent, as any program does.
const ordinary = `
import socket, struct, sys, time
talker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    talker.sendto(struct.pack("Q", time.clock_gettime_ns(11)), (sys.argv[1], 5001))
    time.sleep(0.003)
`

// What pods send that know nothing of Takt is inside the schedule of their node's link as soon as the manifest has been applied there,
// and the kernel's again without it.
func TestTwoNodesSendAllElseInsideTheSchedule(t *testing.T) {
	of := taktObjects(t)
	served(t, of)
	const cycle = 100_000_000
	made := &network.GateSchedule{ObjectMeta: metav1.ObjectMeta{Name: "line"}}
	made.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/hostname": "node-2"}}
	made.Spec.Datapath, made.Spec.Rate, made.Spec.CycleTime = "udp", 1_000_000_000, cycle
	made.Spec.Entries = []network.GateEntry{{Gates: []int32{0, 1, 2, 3, 4, 6, 7}, Interval: cycle / 2}, {Gates: []int32{5}, Interval: cycle / 2}}
	if _, err := of.Schedules.Create(ctx, made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = of.Schedules.Delete(ctx, "line", metav1.DeleteOptions{}) })
	begins := int64(0)
	until(t, "the schedule is in force and has begun", func() bool {
		now, err := of.Schedules.Get(ctx, "line", metav1.GetOptions{})
		if err != nil {
			return false
		}
		begins = now.Status.BeginsNanoseconds
		var tai unix.Timespec
		return conditionIs(now.Status.Conditions, network.InForce, true, network.Installed, "on 1 node") &&
			unix.ClockGettime(unix.CLOCK_TAI, &tai) == nil && tai.Nano() > begins
	})

	create(t, on("node-1", python("listener", nil, listening)))
	says(t, "listener", "listening")
	create(t, on("node-2", python("ordinary", nil, ordinary, addressOf(t, "listener"))))
	// beside is how many of so many datagrams pass the cable in the other half.
	const count = 400
	beside := func() (others int) {
		t.Helper()
		cable, stop, seen := watchWire(t), make(chan struct{}), 0
		cable.each(t, stop, func(sent, late int64) {
			if into := ((sent+late-begins)%cycle + cycle) % cycle; into >= cycle/2 {
				others++
			}
			if seen++; seen == count {
				close(stop)
			}
		})
		return others
	}
	before := beside()
	if before < count/4 {
		t.Fatalf("%d of %d datagrams of the kernel are in the other half: half of them are expected", before, count)
	}

	manifest := filepath.Join(os.Getenv("TAKT_MANIFESTS"), "uplink.yaml")
	text, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	applied := filepath.Join(t.TempDir(), "uplink.yaml")
	adapted := strings.Replace(string(text), "      hostPID: true\n", "      hostPID: true\n      nodeSelector: {kubernetes.io/hostname: node-2}\n", 1)
	if err := os.WriteFile(applied, []byte(adapted), 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl(t, "apply", "-f", applied)
	t.Cleanup(func() { kubectl(t, "delete", "--ignore-not-found", "-f", applied) })
	kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/takt-uplink", "--timeout=4m")
	after := beside()
	t.Logf("of %d datagrams of an ordinary pod %d were in the windows of others, and %d with takt-uplink", count, before, after)
	if after > before/10 {
		say := func(what ...string) string {
			return kubectl(t, append([]string{"-n", "kube-system", "exec", "daemonset/takt-uplink", "--", "/usr/bin/takt"}, what...)...)
		}
		t.Errorf("%d of %d datagrams are in the other half, without takt-uplink %d:\n%s%s", after, count, before,
			say("uplink", "status", "--device", "eth0"), say("schedule", "status"))
	}
	// The node goes on: its kubelet's heartbeats and the pods' logs leave by the same link.
	kubectl(t, "wait", "--for=condition=Ready", "node/node-2", "--timeout=1m")
	if line := says(t, "listener", "listening"); line != "listening" {
		t.Error(line)
	}

	kubectl(t, "delete", "-f", applied)
	until(t, "what leaves is the kernel's again", func() bool { return beside() >= count/4 })
}
