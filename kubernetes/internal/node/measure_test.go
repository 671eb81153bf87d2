package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/takt-dev/takt/kubernetes/internal/enforce"
	"github.com/takt-dev/takt/kubernetes/internal/inventory"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

// on is an agent of a machine below root, of which only the sums are used.
func on(t *testing.T, root, config string, backend enforce.Backend) *Node {
	t.Helper()
	read, err := load(t, config)
	if err != nil {
		t.Fatal(err)
	}
	offer, err := read.Offer(root, backend)
	if err != nil {
		t.Fatal(err)
	}
	return &Node{
		name: nodeName, config: read, backend: backend, events: &events{}, root: root, offer: offer,
		order: make(chan struct{}, 1), claims: map[types.UID]*prepared{}, drifts: map[int]drift{}, trouble: map[int]string{},
	}
}

func set(t *testing.T, root, file, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(root, file), []byte(text+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (n *Node) mustMeasure(t *testing.T) measured {
	t.Helper()
	m, err := n.remeasure(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestACPUThatGoesOfflineIsNotOfferedAndTheOthersGiveWhatIsProvenWithoutIt(t *testing.T) {
	root := machine(t, "0-3", "")
	n := on(t, root, "cores: all\n", enforce.Deadline{})
	n.mustMeasure(t)
	if got := n.offer.Capacities; !slices.Equal(got, []int64{571429, 571429, 571429, 571429}) && got[0] < 571_428 {
		t.Fatalf("four cores give %v", got)
	}
	for i, cpu := range []int{0, 1, 2, 3} {
		record := claimOf(types.UID(rune('a'+i)), cpu, 571_428)
		if err := n.fits(record); err != nil {
			t.Fatal(err)
		}
		n.claims[record.Claim] = &prepared{Record: record}
	}
	set(t, root, "sys/devices/system/cpu/online", "0-2")
	m := n.mustMeasure(t)
	// Of three cores, at most 3 - 2 * 0.571 are proven, and all of that is taken.
	if n.offer.RootDomain != 3 || n.offer.Capacities[3] != 0 {
		t.Errorf("published is %+v", n.offer)
	}
	if domains := n.domains(m); len(domains) != 1 || len(domains[0].cpus) != 3 {
		t.Errorf("the kernel's servers are counted on %v", domains)
	}
	for _, cpu := range []int{0, 1, 2, 3} {
		if n.trouble[cpu] == "" {
			t.Errorf("CPU %d is said to keep what is reserved", cpu)
		}
	}
	if err := n.fits(claimOf("new", 0, 1000)); err == nil || !strings.HasPrefix(err.Error(), codeUnkept) {
		t.Errorf("another claim: %v", err)
	}
	if err := n.fits(n.claims[types.UID(rune('a'))].Record); err != nil {
		t.Errorf("a claim that is there is prepared again: %v", err)
	}
	pool := inventory.Pool(n.offer)
	for _, device := range pool.Slices[0].Devices {
		if len(device.Taints) != 1 || device.Taints[0].Key != inventory.TaintUnkept {
			t.Errorf("device %s has taints %v", device.Name, device.Taints)
		}
	}
	if told := n.events.(*events).of(nodeName, reasonUnkept); len(told) != 4 {
		t.Errorf("the node is told %q", told)
	}
	set(t, root, "sys/devices/system/cpu/online", "0-3")
	n.mustMeasure(t)
	if len(n.trouble) > 0 || n.offer.Capacities[3] < 571_428 {
		t.Errorf("when it is back: %v, %v", n.trouble, n.offer.Capacities)
	}
}

func TestALimitThatIsLoweredLowersWhatIsPublished(t *testing.T) {
	root := machine(t, "0-1", "")
	for _, backend := range []enforce.Backend{enforce.Deadline{}, &whole{}} {
		set(t, root, "proc/sys/kernel/sched_rt_runtime_us", "950000")
		n := on(t, root, "cores: \"1\"\n", backend)
		set(t, root, "proc/sys/kernel/sched_rt_runtime_us", "350000")
		n.mustMeasure(t)
		if got := n.offer.Capacities[0]; got != 300_000 {
			t.Errorf("%s: published is %d", backend.Name(), got)
		}
		if err := n.fits(claimOf("a", 1, 300_001)); err == nil {
			t.Errorf("%s: more than the kernel admits fits", backend.Name())
		}
		// No bandwidth is left at all, which is no error of the agent's.
		set(t, root, "proc/sys/kernel/sched_rt_runtime_us", "40000")
		if _, err := n.remeasure(context.Background()); err == nil || n.offer.Capacities[0] != 0 || n.trouble[1] == "" {
			t.Errorf("%s: without any bandwidth: %v, %+v", backend.Name(), err, n.offer)
		}
	}
}

func TestAPartitionThatTakesACPUAwayTakesItFromTheRootDomain(t *testing.T) {
	root := machine(t, "0-3", "")
	if err := os.MkdirAll(filepath.Join(root, "sys/fs/cgroup"), 0o755); err != nil {
		t.Fatal(err)
	}
	set(t, root, "sys/fs/cgroup/cpuset.cpus.effective", "0-3")
	n := on(t, root, "cores: \"2,3\"\n", enforce.Deadline{})
	set(t, root, "sys/fs/cgroup/cpuset.cpus.effective", "0-2")
	n.mustMeasure(t)
	if n.offer.RootDomain != 3 || n.offer.Capacities[1] != 0 || !strings.Contains(n.trouble[3], "partition") {
		t.Errorf("%+v, %v", n.offer, n.trouble)
	}
}

// A stranger's density counts, not its share: 5 ms within 6 ms, every 50 ms.
func TestAThreadOutsideOfAllClaimsIsInTheProofByItsDensity(t *testing.T) {
	root := machine(t, "0-1", "")
	n := on(t, root, "cores: all\n", enforce.Deadline{})
	n.drifts[everywhere] = drift{outside: []sched.Attr{{Policy: sched.Deadline, Runtime: 5_000_000, Deadline: 6_000_000, Period: 50_000_000}}}
	n.mustMeasure(t)
	// 2 - 1 * 0.833334 are proven in all, less 0.833334.
	if sum := n.offer.Capacities[0] + n.offer.Capacities[1]; sum != 333_332 {
		t.Errorf("published is %v", n.offer.Capacities)
	}
	n.offer.Capacities = []int64{900_000, 900_000}
	for uid, want := range map[types.UID]string{"a": "", "b": codeUnproven} {
		record := claimOf(uid, 0, 450_000)
		err := n.fits(record)
		n.claims[uid] = &prepared{Record: record}
		if (len(n.claims) == 2) != (err != nil) {
			t.Errorf("the claim %d of 450000 ppm: %v (%s)", len(n.claims), err, want)
		}
	}
	n.mustMeasure(t)
	if n.trouble[0] == "" {
		t.Error("both claims beside it are said to be kept")
	}
}

// whole is a backend with a root domain per core, of which some are broken.
type whole struct {
	enforce.Deadline
	broken map[int]error
}

func (*whole) Name() string            { return enforce.PartitionName }
func (*whole) Roams() bool             { return false }
func (w *whole) Broken() map[int]error { return w.broken }

func TestAPartitionThatIsInvalidIsToldAndTakesNothingMore(t *testing.T) {
	root := machine(t, "0-2", "")
	backend := &whole{}
	n := on(t, root, "cores: \"1,2\"\n", backend)
	n.claims["a"] = &prepared{Record: claimOf("a", 1, 500_000)}
	m := n.mustMeasure(t)
	if domains := n.domains(m); len(domains) != 2 || domains[1].cpus[0] != 2 {
		t.Errorf("compared are %v", domains)
	}
	backend.broken = map[int]error{1: errors.New(`the kernel says of the partition of CPU 1: "root invalid"`)}
	m = n.mustMeasure(t)
	if n.offer.Capacities[0] != 0 || n.offer.Capacities[1] != 900_000 || len(n.domains(m)) != 1 {
		t.Errorf("published is %v", n.offer.Capacities)
	}
	c := &container{}
	c.grants = append(c.grants, enforce.Grant{Cores: []int{1}})
	if why := n.troubleOf(c); !strings.Contains(why, "root invalid") {
		t.Errorf("its container has %q", why)
	}
	if got := n.health(root)[0].Message; !strings.Contains(got, "root invalid") {
		t.Errorf("the kubelet is told %q", got)
	}
	if told := n.events.(*events).of(nodeName, reasonUnkept); len(told) != 1 {
		t.Errorf("the node is told %q", told)
	}
}

func TestADriftIsADevicesTaint(t *testing.T) {
	root := machine(t, "0-1", "")
	n := on(t, root, "cores: all\n", enforce.Deadline{})
	n.drifts[everywhere] = drift{rest: 10_000}
	before := n.offer.Capacities[0] + n.offer.Capacities[1]
	n.mustMeasure(t)
	for _, device := range inventory.Pool(n.offer).Slices[0].Devices {
		if len(device.Taints) != 1 || device.Taints[0].Value != inventory.DriftLost || device.Taints[0].Effect != "None" {
			t.Errorf("device %s has taints %v", device.Name, device.Taints)
		}
	}
	if sum := n.offer.Capacities[0] + n.offer.Capacities[1]; sum > before {
		t.Errorf("published is %v", n.offer.Capacities)
	}
}
