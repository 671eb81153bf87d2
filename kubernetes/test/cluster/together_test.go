package cluster

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

// A controller as a vPLC is: it has more than half of all CPU time and of the class's gate time, by a claim for each.
const (
	mostCPU = `"runtime":"10ms","period":"20ms"`
	// Twelve frames in a window that has room for twenty-one.
	mostGate     = `"period":"1ms","bytes":12000,"frame":1000,"destination":"%s:5001","offset":%q`
	mostGateBits = 8 * 12 * (1000 + 28) * 1000
)

var allOfCPU = sched.Attr{Policy: sched.Deadline, Flags: sched.ResetOnFork, Runtime: 10_000_000, Deadline: 20_000_000, Period: 20_000_000}

// vPLC is what a controller consists of in the cluster: a pod and its two claims.
type vPLC struct{ name string }

func (v vPLC) cpu() string  { return v.name + "-cpu" }
func (v vPLC) gate() string { return v.name + "-gate" }

// ending gives a pod time to end: it is there until its node has given back what it had. The guest needs none of it.
func ending(p *corev1.Pod) *corev1.Pod {
	grace := int64(30)
	p.Spec.TerminationGracePeriodSeconds = &grace
	return p
}

// part creates the pod or one of its claims.
func (v vPLC) part(t *testing.T, which, destination string) {
	t.Helper()
	switch which {
	case "cpu":
		create(t, claim(v.cpu(), 2, 500_000, mostCPU))
	case "gate":
		create(t, gate(v.gate(), mostGateBits, fmt.Sprintf(mostGate, destination, "20us")))
	case "pod":
		p := ending(pod(v.name, v.cpu(), "idle"))
		p.Annotations = map[string]string{"takt.dev/time-sensitive": "true"}
		gates := v.gate()
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "gate", ResourceClaimName: &gates})
		p.Spec.Containers[0].Resources.Claims = append(p.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: "gate"})
		create(t, p)
	}
}

// gone deletes a part, and does not wait.
func (v vPLC) gone(t *testing.T, which string) {
	t.Helper()
	claims := client.ResourceV1().ResourceClaims("default")
	var err error
	switch which {
	case "cpu":
		err = claims.Delete(ctx, v.cpu(), metav1.DeleteOptions{})
	case "gate":
		err = claims.Delete(ctx, v.gate(), metav1.DeleteOptions{})
	case "pod":
		err = client.CoreV1().Pods("default").Delete(ctx, v.name, metav1.DeleteOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}

// streamsOf are how many streams the node's taktd keeps for claims of this pod.
func (v vPLC) streams(t *testing.T) (count int) {
	t.Helper()
	all, err := admin(t, "node-1").ListListeners(ctx, &adminv1.ListListenersRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all.GetListeners() {
		for _, stream := range one.GetListener().GetStreams() {
			if strings.Contains(stream.GetName(), "/"+v.gate()+"/") {
				count++
			}
		}
	}
	return count
}

// prepared are how many claims for CPU time the node has set aside, of all pods.
func prepared() int {
	files, _ := filepath.Glob("/run/cdi/cpu.takt.dev-*")
	return len(files)
}

// hasBoth waits until it runs with both.
func (v vPLC) hasBoth(t *testing.T) {
	t.Helper()
	pid := running(t, v.name)
	until(t, v.name+" has CPU and gate time", func() bool {
		return holders(pid, allOfCPU) > 0 && prepared() == 1 && v.streams(t) == 1 && readiness(v.gate(), reservation.NetworkDriver) == "Reserved"
	})
}

// hasNeither says that nothing is kept for it.
func (v vPLC) hasNeither(t *testing.T, when string) {
	t.Helper()
	if pid, streams := guests()[v.name], v.streams(t); pid > 0 || streams > 0 {
		t.Errorf("%s: %s is process %d and has %d streams in taktd", when, v.name, pid, streams)
	}
	for _, name := range []string{v.cpu(), v.gate()} {
		if c, err := client.ResourceV1().ResourceClaims("default").Get(ctx, name, metav1.GetOptions{}); err == nil && c.Status.Allocation != nil {
			t.Errorf("%s: claim %s is allocated: %+v", when, name, c.Status.Allocation)
		}
	}
}

// orders are all in which the parts can come or go.
func orders(parts ...string) (all [][]string) {
	if len(parts) == 0 {
		return [][]string{nil}
	}
	for i := range parts {
		for _, rest := range orders(slices.Delete(slices.Clone(parts), i, i+1)...) {
			all = append(all, append([]string{parts[i]}, rest...))
		}
	}
	return all
}

func TestATimeSensitivePodHasBothOfItsClaimsOrNeitherInEveryOrder(t *testing.T) {
	of := admin(t, "node-1")
	if _, err := of.InstallSchedule(ctx, &adminv1.InstallScheduleRequest{Datapath: "udp", LinkRateBps: 1_000_000_000, Schedule: &adminv1.GateSchedule{
		CycleTimeNs: 1_000_000, Entries: []*adminv1.GateEntry{{Gates: 0x20, IntervalNs: 180_000}, {Gates: 0xdf, IntervalNs: 820_000}},
	}}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = of.RemoveSchedule(ctx, &adminv1.RemoveScheduleRequest{Datapath: "udp"}) })
	const destination = "10.67.0.250"

	// The parts come and go in every order. Each controller needs more than half of all: what one leaves behind the next one lacks.
	comes, goes := orders("pod", "cpu", "gate"), orders("pod", "cpu", "gate")
	slices.Reverse(goes)
	for i, order := range comes {
		v := vPLC{fmt.Sprintf("vplc-%d", i)}
		for at, part := range order {
			v.part(t, part, destination)
			if at < len(order)-1 {
				v.hasNeither(t, fmt.Sprintf("of %v there is %v", order, order[:at+1]))
			}
		}
		v.hasBoth(t)
		for at, part := range goes[i] {
			if part != "pod" && at < slices.Index(goes[i], "pod") {
				// What a running pod has stays until it has gone.
				v.gone(t, part)
				v.hasBoth(t)
				continue
			}
			v.gone(t, part)
		}
		until(t, fmt.Sprintf("after %v nothing is left of it", goes[i]), func() bool {
			claims, err := client.ResourceV1().ResourceClaims("default").List(ctx, metav1.ListOptions{})
			return err == nil && len(claims.Items) == 0 && guests()[v.name] == 0 && v.streams(t) == 0 && prepared() == 0
		})
	}

	// Two others hold one of both each: it waits until both have gone, whichever goes first, and keeps neither from anybody meanwhile.
	gateAlone := func(name string) {
		create(t, gate(name, mostGateBits, fmt.Sprintf(mostGate, destination, "20us")))
		p := ending(pod(name, name, "idle"))
		p.Annotations = map[string]string{"takt.dev/time-sensitive": "true"}
		create(t, p)
		running(t, name)
	}
	cpuAlone := func(name string) {
		create(t, claim(name, 2, 500_000, mostCPU), ending(pod(name, name, "idle")))
		running(t, name)
	}
	for round, first := range []string{"cpu", "gate"} {
		name := func(of string) string { return fmt.Sprintf("%s-alone-%d", of, round) }
		cpuAlone(name("cpu"))
		gateAlone(name("gate"))
		v := vPLC{fmt.Sprintf("waits-%d", round)}
		for _, part := range []string{"cpu", "gate", "pod"} {
			v.part(t, part, destination)
		}
		until(t, "there is no room for it", func() bool { return unschedulable(v.name) })
		remove(t, name(first), name(first))
		v.hasNeither(t, "when the "+first+" time is free again")
		// Somebody else may have it.
		switch again := name(first) + "-again"; first {
		case "cpu":
			cpuAlone(again)
			v.hasNeither(t, "when its CPU time was given away")
			remove(t, again, again)
		case "gate":
			gateAlone(again)
			v.hasNeither(t, "when its gate time was given away")
			remove(t, again, again)
		}
		second := map[string]string{"cpu": "gate", "gate": "cpu"}[first]
		remove(t, name(second), name(second))
		v.hasBoth(t)
		remove(t, v.name, v.cpu())
		remove(t, "", v.gate())
	}

	// The node refuses one of both, which the scheduler has room for: the other one is given back.
	for _, tc := range []struct{ refused, why, more, offset string }{
		{"gate", "GateTimeExceeded: ", "", "300us"},
		{"cpu", "NotSupportedByBackend: ", `,"policy":"fifo"`, "20us"},
	} {
		v := vPLC{"refused-" + tc.refused}
		create(t, claim(v.cpu(), 2, 500_000, mostCPU+tc.more), gate(v.gate(), mostGateBits, fmt.Sprintf(mostGate, destination, tc.offset)))
		v.part(t, "pod", destination)
		told(t, v.name, map[string]string{"gate": "GateTimeRefused", "cpu": "ReservationRefused"}[tc.refused], tc.why)
		// The kubelet asks for them in either order, and for the second one not at all when the first was refused.
		until(t, "it holds neither, as the "+tc.refused+" time is refused", func() bool {
			ofGate, ofCPU := readiness(v.gate(), reservation.NetworkDriver), readiness(v.cpu(), reservation.Driver)
			return v.streams(t) == 0 && prepared() == 0 && (ofGate == "GateTimeRefused" || ofGate == "" && tc.refused == "cpu") && (ofCPU == "ReservationRefused" || ofCPU == "" && tc.refused == "gate")
		})
		if guests()[v.name] > 0 {
			t.Errorf("%s runs", v.name)
		}
		remove(t, v.name, v.cpu())
		remove(t, "", v.gate())
	}
	until(t, "nothing of it is left in taktd", func() bool {
		all, err := of.ListListeners(ctx, &adminv1.ListListenersRequest{})
		return err == nil && !slices.ContainsFunc(all.GetListeners(), func(one *adminv1.ListenerStatus) bool {
			return strings.HasPrefix(one.GetListener().GetPath(), "/run/takt/cni/")
		})
	})
}
