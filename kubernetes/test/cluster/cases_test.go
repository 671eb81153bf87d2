package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
	"github.com/takt-dev/takt/kubernetes/internal/topology"
)

// What only a whole cluster shows of what was once wrong (each case was).

func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("kube", append([]string{"kubectl"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// holders are how many threads of a process have the attribute.
func holders(process int, attr sched.Attr) int {
	count := 0
	for _, tid := range sched.ThreadIDs(process) {
		if got, err := sched.Get(tid); err == nil && got == attr {
			count++
		}
	}
	return count
}

// ready is the condition of a claim's first device.
func ready(name string) (metav1.ConditionStatus, string) {
	c, err := client.ResourceV1().ResourceClaims("default").Get(ctx, name, metav1.GetOptions{})
	if err != nil || len(c.Status.Devices) == 0 || len(c.Status.Devices[0].Conditions) == 0 {
		return metav1.ConditionUnknown, ""
	}
	return c.Status.Devices[0].Conditions[0].Status, c.Status.Devices[0].Conditions[0].Reason
}

// A program that wants all that there is gets twice of what it has, as far as its claim allows, and the agent leaves it so.
func TestAPodIsTunedWithinWhatItsClaimAllows(t *testing.T) {
	takt := filepath.Join(os.Getenv("TAKT_BUILT"), "takt")
	if _, err := os.Stat(takt); os.Getenv("TAKT_BUILT") == "" || err != nil {
		t.Skip("the program takt has not been built: make build")
	}
	tune := func(name string) string {
		out, err := exec.Command(takt, "reserve", "tune", "--process", strconv.Itoa(running(t, name)), "--seconds", "2", "--set").CombinedOutput()
		if err != nil && name == "tuned" {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	create(t, claim("tuned", 1, 350_000, `"runtime":"4ms","minRuntime":"1ms","maxRuntime":"7ms","period":"20ms"`), pod("tuned", "tuned", "busy"),
		claim("fixed", 1, 200_000, `"runtime":"4ms","period":"20ms"`), pod("fixed", "fixed", "busy"))
	attr := sched.Attr{Policy: sched.Deadline, Flags: sched.ResetOnFork, Runtime: 4_000_000, Deadline: 20_000_000, Period: 20_000_000}
	pid := running(t, "tuned")
	until(t, "it has the claim's runtime", func() bool { return holders(pid, attr) == 1 })
	said := tune("tuned")
	attr.Runtime = 7_000_000
	for range 20 {
		if holders(pid, attr) != 1 {
			t.Fatalf("the thread has not been given the most that its claim allows, or not kept it:\n%s", said)
		}
		time.Sleep(100 * time.Millisecond) // as often as the agent looks
	}
	if said := tune("fixed"); !strings.Contains(said, "add minRuntime and maxRuntime") {
		t.Errorf("of a claim that allows nothing it says %s", said)
	}
}

func TestAProgramWhoseMainThreadEndsKeepsItsReservationsAndIsDrained(t *testing.T) {
	create(t, claim("leaver", 2, 100_000, twoInTwenty), pod("leaver", "leaver", "leave"))
	pid := running(t, "leaver")
	until(t, "both reservations are held", func() bool { return holders(pid, reserved) == 2 })
	until(t, "the main thread is a zombie", func() bool {
		// Again: the program may not have got to where it waits for it.
		if err := syscall.Kill(pid, syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err == nil && strings.Contains(string(status), ") Z ")
	})
	until(t, "two other threads hold the reservations", func() bool { return holders(pid, reserved) == 2 })
	until(t, "the claim says so", func() bool { status, _ := ready("leaver"); return status == metav1.ConditionTrue })
	if p, err := client.CoreV1().Pods("default").Get(ctx, "leaver", metav1.GetOptions{}); err != nil || p.Status.Phase != corev1.PodRunning {
		t.Errorf("the pod is %+v, %v", p.Status, err)
	}
	defer kubectl(t, "uncordon", "node-1")
	// runc takes such a container for stopped: the agent ends it.
	kubectl(t, "drain", "node-1", "--ignore-daemonsets", "--force", "--grace-period=1", "--timeout=120s")
	until(t, "the process has ended", func() bool { return len(sched.ThreadIDs(pid)) == 0 })
}

func TestThreadsAskInTheContainerThatNamesTheirRequest(t *testing.T) {
	two := claim("two", 1, 100_000, twoInTwenty+`,"threads":{"select":"ask"}`)
	second := two.Spec.Devices.Requests[0].DeepCopy()
	second.Name = "other"
	second.Exactly.Capacity.Requests[reservation.Bandwidth] = *resource.NewQuantity(50_000, resource.DecimalSI)
	two.Spec.Devices.Requests = append(two.Spec.Devices.Requests, *second)
	two.Spec.Devices.Config = append(two.Spec.Devices.Config, resourcev1.DeviceClaimConfiguration{
		Requests: []string{"other"}, DeviceConfiguration: resourcev1.DeviceConfiguration{Opaque: &resourcev1.OpaqueDeviceConfiguration{
			Driver: reservation.Driver, Parameters: parameters(`"runtime":"2ms","period":"40ms","threads":{"select":"ask"}`),
		}},
	})
	p := pod("two", "two", "ask")
	other := *p.Spec.Containers[0].DeepCopy()
	p.Spec.Containers[0].Resources.Claims[0].Request = "cpu"
	other.Name, other.Command[2], other.Resources.Claims[0].Request = "other", "two-other", "other"
	p.Spec.Containers = append(p.Spec.Containers, other)
	create(t, two, p)
	slow := reserved
	slow.Deadline, slow.Period = 40_000_000, 40_000_000
	running(t, "two")
	until(t, "each container's thread has what its request says", func() bool {
		found := guests()
		return holders(found["two"], reserved) == 1 && holders(found["two-other"], slow) == 1
	})
}

func TestAThreadThatPinsItselfIsLetGo(t *testing.T) {
	create(t, claim("pin", 1, 100_000, twoInTwenty+`,"threads":{"select":"name","name":"pinned"}`), pod("pin", "pin", "pin"))
	pid := running(t, "pin")
	told(t, "pin", "ReservationUnpinned", "pinned")
	until(t, "it holds the reservation", func() bool { return holders(pid, reserved) == 1 })
}

func TestAProgramCannotLeaveItsClassWhereTheClaimDeniesIt(t *testing.T) {
	plain := pod("stays", "stays", "change")
	strict := pod("strict", "strict", "change")
	strict.Spec.SecurityContext = &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
	for _, p := range []*corev1.Pod{plain, strict} {
		create(t, claim(p.Name, 1, 100_000, twoInTwenty+`,"changes":"deny"`), p)
		if containerRuntime == "crio" {
			// It does not set the policy, so that the container does not start.
			told(t, p.Name, "ReservationRefused", "SeccompNotSet")
			continue
		}
		pid := running(t, p.Name)
		until(t, p.Name+" has been told", func() bool {
			name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			return err == nil && string(name) == "operation not p\n" // as much as a name holds of EPERM
		})
		if attr, err := sched.Get(pid); err != nil || attr != reserved {
			t.Errorf("%s has %+v, %v", p.Name, attr, err)
		}
	}
	// Without that, it gets its reservation back.
	create(t, claim("leaves", 1, 100_000, twoInTwenty), pod("leaves", "leaves", "change"))
	pid := running(t, "leaves")
	told(t, "leaves", "ReservationRestored", "changed the policy")
	until(t, "it has its reservation again", func() bool { return holders(pid, reserved) == 1 })
}

func TestKubectlShowsWhatAClaimHasInColumns(t *testing.T) {
	create(t, claim("shown", 1, 100_000, twoInTwenty), pod("shown", "shown", "idle"))
	running(t, "shown")
	var words []string
	until(t, "the claim says that it is held", func() bool {
		out := kubectl(t, "get", "resourceclaim", "shown", "-o", "custom-columns-file="+os.Getenv("TAKT_COLUMNS"))
		words = strings.Fields(strings.SplitN(out, "\n", 2)[1])
		return slices.Contains(words, "guest")
	})
	for _, want := range []string{"shown", "node-1", "2ms", "20ms", "100000", "Reserved"} {
		if !slices.Contains(words, want) {
			t.Errorf("%q is not in %q", want, words)
		}
	}
}

func TestAContainerHasTimeToBegin(t *testing.T) {
	create(t, claim("begin", 1, 100_000, twoInTwenty+`,"startup":"3s"`), pod("begin", "begin", "idle"))
	pid := running(t, "begin")
	until(t, "the claim is told of the beginning", func() bool { _, reason := ready("begin"); return reason == "Starting" || reason == "Reserved" })
	until(t, "it has its reservation in the end", func() bool { return holders(pid, reserved) == 1 })
	until(t, "and the claim says so", func() bool { status, _ := ready("begin"); return status == metav1.ConditionTrue })
}

// fill takes what the kernel still admits, in a thread of this process, until the function that it returns is called.
func fill(t *testing.T) (free func()) {
	t.Helper()
	const period = 100_000_000
	type hold struct{ stop, stopped chan struct{} }
	var holds []hold
	for share := uint64(period * 4 / 5); share >= period/1000; {
		h, result := hold{make(chan struct{}), make(chan struct{})}, make(chan error)
		go func() {
			defer close(h.stopped)
			runtime.LockOSThread() // never unlocked: the thread ends here
			err := sched.Set(unix.Gettid(), sched.Attr{Policy: sched.Deadline, Flags: sched.ResetOnFork, Runtime: share, Deadline: period, Period: period})
			result <- err
			if err == nil {
				<-h.stop
				if err := sched.Drop(unix.Gettid()); err != nil {
					t.Error(err)
				}
			}
		}()
		switch err := <-result; {
		case err == nil:
			holds = append(holds, h)
		case errors.Is(err, syscall.EBUSY):
			share /= 2
		default:
			t.Fatal(err)
		}
	}
	return func() {
		for _, h := range holds {
			close(h.stop)
			<-h.stopped
		}
	}
}

func TestTheAgentRestartsOnAFullNode(t *testing.T) {
	create(t, claim("kept", 1, 100_000, twoInTwenty), pod("kept", "kept", "idle"))
	pid := running(t, "kept")
	free := fill(t)
	before := agent()
	if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "another agent is ready", func() bool {
		set, err := client.AppsV1().DaemonSets("kube-system").Get(ctx, "takt-node", metav1.GetOptions{})
		return err == nil && agent() != 0 && agent() != before && set.Status.NumberReady == 1
	})
	if attr, err := sched.Get(pid); err != nil || attr != reserved {
		t.Errorf("the pod that was there has %+v, %v", attr, err)
	}
	free()
	create(t, claim("later", 1, 100_000, twoInTwenty), pod("later", "later", "idle"))
	until(t, "another pod has its reservation", func() bool { return holders(guests()["later"], reserved) == 1 })
}

func TestAnAgentIsReplacedUnderPodsThatKeepTheirReservations(t *testing.T) {
	create(t, claim("rolled", 1, 100_000, twoInTwenty), pod("rolled", "rolled", "idle"))
	pid := running(t, "rolled")
	stop, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		for {
			select {
			case <-stop:
				return
			default:
				if attr, err := sched.Get(pid); err != nil || attr != reserved {
					t.Errorf("the pod has %+v, %v", attr, err)
					return
				}
			}
		}
	}()
	before := agent()
	kubectl(t, "-n", "kube-system", "rollout", "restart", "daemonset/takt-node")
	kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/takt-node", "--timeout=240s")
	if now := agent(); now == 0 || now == before {
		t.Errorf("the agent was %d and is %d", before, now)
	}
	create(t, claim("new", 1, 100_000, twoInTwenty), pod("new", "new", "idle"))
	until(t, "the new agent reserves", func() bool { return holders(guests()["new"], reserved) == 1 })
	close(stop)
	<-watched
}

// The other tests' agents only warn.
func TestAPodThatRequestsLessCPUThanItReservesIsRefused(t *testing.T) {
	write := func(from, to string) {
		t.Helper()
		maps := client.CoreV1().ConfigMaps("kube-system")
		config, err := maps.Get(ctx, "takt-node", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		text := config.Data["config.yaml"]
		if config.Data["config.yaml"] = strings.Replace(text, from, to, 1); config.Data["config.yaml"] == text {
			t.Fatalf("%q is not in %s", from, text)
		}
		if _, err := maps.Update(ctx, config, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		kubectl(t, "-n", "kube-system", "rollout", "restart", "daemonset/takt-node")
		kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/takt-node", "--timeout=240s")
	}
	requesting := func(name, cpu string) *corev1.Pod {
		p := pod(name, name, "idle")
		if cpu != "" {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
		}
		return p
	}
	write("podRequests: warn", "podRequests: refuse")
	t.Cleanup(func() { write("podRequests: refuse", "podRequests: warn") })
	for name, cpu := range map[string]string{"requests-none": "", "requests-half": "50m"} {
		create(t, claim(name, 1, 100_000, twoInTwenty), requesting(name, cpu))
		told(t, name, "ReservationRefused", "CPUNotRequested: ")
		until(t, "the claim says so", func() bool {
			status, reason := ready(name)
			return status == metav1.ConditionFalse && reason == "ReservationRefused"
		})
		if guests()[name] > 0 {
			t.Errorf("%s runs", name)
		}
	}
	create(t, claim("requests-all", 1, 100_000, twoInTwenty), requesting("requests-all", "100m"))
	pid := running(t, "requests-all")
	until(t, "who requests what is reserved has it", func() bool { return holders(pid, reserved) == 1 })
}

func TestAReleaseForOtherNodesSharesTheDeviceClass(t *testing.T) {
	class := func() string {
		return kubectl(t, "get", "deviceclass", reservation.Driver, "-o", "jsonpath={.metadata.uid} {.metadata.resourceVersion}")
	}
	before := class()
	second := os.Getenv("TAKT_SECOND_CHART")
	kubectl(t, "apply", "-f", second)
	kubectl(t, "-n", "kube-system", "get", "daemonset", "takt-node-other")
	kubectl(t, "delete", "-f", second)
	if now := class(); now != before {
		t.Errorf("the device class was %s and is %s", before, now)
	}
	create(t, claim("one", 1, 100_000, twoInTwenty), pod("one", "one", "idle"))
	until(t, "the first release goes on", func() bool { return holders(guests()["one"], reserved) == 1 })
}

// Two nodes on one machine, of which each gives a core of its own, by a release of its own. They are namespaces on one kernel, which schedules both
// cores as one root domain: this is of who is given what, not of two kernels that keep it.
func TestEachNodeGivesItsCore(t *testing.T) {
	if os.Getenv("TAKT_EACH") == "" {
		t.Skip("a cluster of its own: make test-cluster-nodes")
	}
	kubectl(t, "apply", "-f", os.Getenv("TAKT_SECOND_CHART"))
	kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/takt-node-other", "--timeout=2m")
	place := func(name string) string {
		p, err := client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return p.Spec.NodeName
	}
	most := `"runtime":"12ms","period":"20ms"`
	has := func(name string) {
		t.Helper()
		pid := running(t, name)
		until(t, name+" is under its reservation", func() bool {
			attr, err := sched.Get(pid)
			return err == nil && attr.Runtime == 12_000_000
		})
	}
	nodes := map[string]string{}
	for _, name := range []string{"one", "two"} {
		create(t, claim(name, 1, 600_000, most), pod(name, name, "idle"))
		has(name)
		nodes[place(name)] = name
	}
	if nodes["node-1"] == "" || nodes["node-2"] == "" {
		t.Fatalf("each node has room for one of both: %v", nodes)
	}
	// There is no room for two cores of one node, nor for a third of this size, until one has gone: then where that was.
	create(t, claim("wide", 2, 100_000, twoInTwenty), pod("wide", "wide", "idle"))
	create(t, claim("three", 1, 600_000, most), pod("three", "three", "idle"))
	for _, name := range []string{"wide", "three"} {
		until(t, name+" is found not to fit", func() bool { return unschedulable(name) })
	}
	remove(t, nodes["node-2"], nodes["node-2"])
	has("three")
	if at := place("three"); at != "node-2" {
		t.Errorf("the third pod is on %s", at)
	}
	if !unschedulable("wide") {
		t.Error("a claim for two cores has been given those of two nodes")
	}
}

// With the static CPU manager, which the other tests are not run with.
func TestAPodWithExclusiveCPUsDoesNotConfineReservations(t *testing.T) {
	if !strings.Contains(os.Getenv("TAKT_KUBELET"), "cpuManagerPolicy: static") {
		t.Skip("the kubelet has another policy")
	}
	domain, err := topology.RootDomain("/")
	if err != nil {
		t.Fatal(err)
	}
	create(t, claim("shared", 1, 100_000, twoInTwenty), pod("shared", "shared", "idle"))
	pid := running(t, "shared")
	exclusive := pod("exclusive", "", "idle")
	exclusive.Spec.ResourceClaims = nil
	needs := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("64Mi")}
	exclusive.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: needs, Limits: needs}
	create(t, exclusive)
	other := running(t, "exclusive")
	until(t, "the other pod has a CPU of its own", func() bool {
		missing, err := sched.Missing(other, domain)
		return err == nil && len(missing) > 0
	})
	told(t, "shared", "ReservationNarrowed", "stays on all")
	if missing, err := sched.Missing(pid, domain); err != nil || len(missing) > 0 {
		t.Errorf("the reserved thread may not run on CPUs %v, %v", missing, err)
	}
	if attr, err := sched.Get(pid); err != nil || attr != reserved {
		t.Errorf("the pod has %+v, %v", attr, err)
	}
	// One that comes later is not confined either: it could not have a reservation.
	create(t, claim("later", 1, 100_000, twoInTwenty), pod("later", "later", "idle"))
	until(t, "a later pod has its reservation", func() bool { return holders(guests()["later"], reserved) == 1 })
	for _, tid := range sched.ThreadIDs(guests()["later"]) {
		if missing, err := sched.Missing(tid, domain); err == nil && len(slices.Compact(missing)) > 0 {
			t.Errorf("thread %d of the later pod may not run on CPUs %v", tid, missing)
		}
	}
}
