// Package cluster tests takt-node in a real Kubernetes of one node, which node.sh makes around the test:
// scheduler, kubelet, containerd, runc and kernel are those that a user has. `make test-cluster` runs it.
package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
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

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/enforce"
	"github.com/takt-dev/takt/kubernetes/internal/node"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

var (
	client *kubernetes.Clientset
	// dir is where node.sh keeps logs and process numbers.
	dir = os.Getenv("TAKT_CLUSTER")
	ctx = context.Background()
	// containerRuntime is the program's name.
	containerRuntime = cmp.Or(os.Getenv("TAKT_RUNTIME"), "containerd")
	// manual: nothing is installed, for who does what the manual says.
	manual = os.Getenv("TAKT_MANUAL") != ""
)

func TestMain(m *testing.M) {
	if dir == "" {
		fmt.Println("not in a cluster: run make test-cluster")
		return
	}
	if err := install(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// install applies the chart and waits for the agent.
func install() error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 200, 400
	if client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if manual {
		return nil
	}
	if out, err := exec.Command("kube", "kubectl", "apply", "-f", os.Getenv("TAKT_CHART")).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot apply the chart: %w: %s", err, out)
	}
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		set, err := client.AppsV1().DaemonSets("kube-system").Get(ctx, "takt-node", metav1.GetOptions{})
		if err == nil && set.Status.NumberReady > 0 && set.Status.NumberReady == set.Status.DesiredNumberScheduled {
			break
		}
		if time.Since(began) > 2*time.Minute {
			out, _ := exec.Command("kube", "kubectl", "-n", "kube-system", "describe", "pods").CombinedOutput()
			return fmt.Errorf("the agent is not ready: %s", out)
		}
	}
	// The service account that pods run under.
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(100 * time.Millisecond) {
		if _, err = client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{}); err == nil {
			break
		}
	}
	return err
}

// until waits for what must come; the limit is for a machine that is busy with other things.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for began := time.Now(); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Since(began) > 4*time.Minute {
			events, _ := exec.Command("kube", "kubectl", "get", "events,pods", "-A").CombinedOutput()
			claims, _ := exec.Command("kube", "kubectl", "get", "resourceclaims", "-o", "jsonpath={range .items[*]}{.metadata.name} {.status}{\"\\n\"}{end}").CombinedOutput()
			agent, _ := exec.Command("kube", "kubectl", "-n", "kube-system", "logs", "ds/takt-node", "--tail=20").CombinedOutput()
			t.Fatalf("still not: %s\n%s\n%s\n%s", what, events, claims, agent)
		}
	}
}

func parameters(fields string) runtime.RawExtension {
	return runtime.RawExtension{Raw: []byte(`{"apiVersion":"` + reservation.APIVersion + `","kind":"` + reservation.Kind + `",` + fields + `}`)}
}

// claim is for so many cores at so many parts per million.
func claim(name string, cores, ppm int64, fields string) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{{Name: "cpu", Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: reservation.Driver, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: cores,
				Capacity: &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{
					reservation.Bandwidth: *resource.NewQuantity(ppm, resource.DecimalSI),
				}},
			}}},
			Config: []resourcev1.DeviceClaimConfiguration{{Requests: []string{"cpu"}, DeviceConfiguration: resourcev1.DeviceConfiguration{
				Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: reservation.Driver, Parameters: parameters(fields)},
			}}},
		}},
	}
}

// pod runs the guest under a claim; its name is in its command line.
func pod(name, claimName, mode string) *corev1.Pod {
	grace := int64(0)
	return claiming(claimName, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "main", Image: "takt.test/guest:1", ImagePullPolicy: corev1.PullNever,
				Command: []string{"/guest", mode, name},
			}},
		},
	})
}

// claiming gives a pod's container what a claim has.
func claiming(claimName string, p *corev1.Pod) *corev1.Pod {
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "reservation", ResourceClaimName: &claimName}}
	p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "reservation"}}}
	return p
}

func create(t *testing.T, objects ...any) {
	t.Helper()
	for _, object := range objects {
		var err error
		switch o := object.(type) {
		case *corev1.Pod:
			_, err = client.CoreV1().Pods(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
			t.Cleanup(func() { remove(t, o.Name, "") })
		case *resourcev1.ResourceClaim:
			_, err = client.ResourceV1().ResourceClaims(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
			t.Cleanup(func() { remove(t, "", o.Name) })
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// remove deletes a pod and a claim and waits until they have gone.
func remove(t *testing.T, podName, claimName string) {
	t.Helper()
	if podName != "" {
		_ = client.CoreV1().Pods("default").Delete(ctx, podName, metav1.DeleteOptions{})
		until(t, "pod "+podName+" has gone", func() bool {
			_, err := client.CoreV1().Pods("default").Get(ctx, podName, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	}
	if claimName != "" {
		_ = client.ResourceV1().ResourceClaims("default").Delete(ctx, claimName, metav1.DeleteOptions{})
		until(t, "claim "+claimName+" has gone", func() bool {
			_, err := client.ResourceV1().ResourceClaims("default").Get(ctx, claimName, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	}
}

// guests are the first threads of running guests, by the names of their pods.
func guests() map[string]int {
	found := map[string]int{}
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		words := strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
		if len(words) == 3 && words[0] == "/guest" {
			found[words[2]], _ = strconv.Atoi(filepath.Base(filepath.Dir(file)))
		}
	}
	return found
}

func running(t *testing.T, name string) int {
	t.Helper()
	until(t, "pod "+name+" runs", func() bool {
		p, err := client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		return err == nil && p.Status.Phase == corev1.PodRunning && guests()[name] > 0
	})
	return guests()[name]
}

// told waits for an event of a pod.
func told(t *testing.T, name, reason, text string) {
	t.Helper()
	until(t, "pod "+name+" is told "+text, func() bool {
		events, err := client.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
		if err != nil {
			return false
		}
		for _, event := range events.Items {
			if event.Reason == reason && strings.Contains(event.Message, text) {
				return true
			}
		}
		return false
	})
}

// budgets are all non-zero real-time budgets of the cluster's pods, by the first letters of their cgroups.
func budgets() map[string]string {
	found := map[string]string{}
	_ = filepath.WalkDir("/sys/fs/cgroup/cpu/takt-cluster", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != "cpu.rt_runtime_us" {
			return nil // a cgroup that has just ended
		}
		runtime, _ := os.ReadFile(path)
		period, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cpu.rt_period_us"))
		if budget := strings.Fields(string(runtime) + " " + string(period)); len(budget) == 2 && budget[0] != "0" {
			found[filepath.Base(filepath.Dir(path))[:3]] = strings.Join(budget, "/")
		}
		return nil
	})
	return found
}

// With the backend rt-group, which the other tests are not run with.
func TestAGroupHasItsBudgetInEveryCgroupAboveItAndGivesItBack(t *testing.T) {
	if os.Getenv("TAKT_BACKEND") != "rt-group" {
		t.Skip("the agent has another backend")
	}
	create(t, claim("group", 1, 300_000, `"runtime":"3ms","period":"10ms"`), pod("group", "group", "idle"))
	pid := running(t, "group")
	for _, thread := range sched.Threads(pid) {
		if attr, err := sched.Get(thread.TID); err == nil && (attr.Policy != sched.FIFO || attr.Priority != 1) {
			t.Errorf("thread %q has %+v", thread.Name, attr)
		}
	}
	got := budgets()
	if got["tak"] != "300000/1000000" || got["kub"] != "300000/1000000" || got["pod"] != "300000/1000000" || len(got) != 5 {
		t.Errorf("budgets are %v", got)
	}
	remove(t, "group", "group")
	until(t, "all budgets are given back", func() bool { return len(budgets()) == 0 })
}

// With the backend deadline-partition, which cuts core 1 out of the whole machine: make test-cluster PARTITION=1.
func TestAPartitionedNodeGivesPodsTheirCoreAndTheMachineGetsItBack(t *testing.T) {
	if os.Getenv("TAKT_BACKEND") != enforce.PartitionName {
		t.Skip("it changes where all processes of this machine may run: make test-cluster PARTITION=1")
	}
	const root = "/sys/fs/cgroup/cpuset/"
	says := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(string(text))
	}
	before := says(root + "takt-cluster/cpuset.cpus")
	if before != "0" {
		t.Fatalf("with core 1 given away the cluster may run on %s", before)
	}
	create(t, claim("own", 1, 600_000, `"runtime":"12ms","period":"20ms"`), pod("own", "own", "busy"))
	pid := running(t, "own")
	if attr, err := sched.Get(pid); err != nil || attr.Policy != sched.Deadline || attr.Runtime != 12_000_000 {
		t.Errorf("the first thread has %+v, %v", attr, err)
	}
	if got := says(fmt.Sprintf("/proc/%d/cpuset", pid)); got != "/takt/cpu1" {
		t.Errorf("the first thread is in cpuset %s", got)
	}
	// Its other threads begin where it is, and everybody else is where the rest of the machine is.
	until(t, "threads without a reservation have left the core", func() bool {
		for _, thread := range sched.Threads(pid)[1:] {
			if strings.HasPrefix(says(fmt.Sprintf("/proc/%d/task/%d/cpuset", pid, thread.TID)), "/takt/") {
				return false
			}
		}
		return true
	})
	plain := pod("plain", "", "idle")
	plain.Spec.ResourceClaims, plain.Spec.Containers[0].Resources = nil, corev1.ResourceRequirements{}
	create(t, plain)
	status := says(fmt.Sprintf("/proc/%d/status", running(t, "plain")))
	if !strings.Contains(status, "Cpus_allowed_list:\t0\n") {
		t.Errorf("a pod without a claim may run on core 1:\n%s", status)
	}
	// The core is full, and there is no other one.
	create(t, claim("second", 1, 400_000, `"runtime":"8ms","period":"20ms"`), pod("second", "second", "idle"))
	until(t, "the second pod is found not to fit", func() bool { return unschedulable("second") })
	remove(t, "own", "own")
	pid = running(t, "second")
	if got := says(fmt.Sprintf("/proc/%d/cpuset", pid)); got != "/takt/cpu1" {
		t.Errorf("the second pod's first thread is in cpuset %s", got)
	}
	remove(t, "second", "second")
	remove(t, "plain", "")
	// The agent's orderly end gives the core back to everybody, once no container needs it: the pods have no
	// grace, so that their objects may go before them.
	until(t, "the containers have ended", func() bool { return len(guests()) == 0 })
	if out, err := exec.Command("kube", "kubectl", "-n", "kube-system", "delete", "daemonset", "takt-node").CombinedOutput(); err != nil {
		t.Fatalf("%s", out)
	}
	until(t, "the agent has gone", func() bool { return agent() == 0 })
	until(t, "the machine is as it was", func() bool {
		_, err := os.Stat(root + "takt")
		_, err2 := os.Stat(root + "takt-rest")
		return os.IsNotExist(err) && os.IsNotExist(err2) && says(root+"cpuset.sched_load_balance") == "1" &&
			says(root+"takt-cluster/cpuset.cpus") == says(root+"cpuset.cpus")
	})
}

const twoInTwenty = `"runtime":"2ms","period":"20ms"`

var reserved = sched.Attr{Policy: sched.Deadline, Flags: sched.ResetOnFork, Runtime: 2_000_000, Deadline: 20_000_000, Period: 20_000_000}

func TestAPodRunsUnderItsReservationAndItsProbesDoNot(t *testing.T) {
	p := pod("plain", "plain", "idle")
	p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/guest", "probe"}}}, PeriodSeconds: 1,
	}
	create(t, claim("plain", 1, 100_000, twoInTwenty), p)
	pid := running(t, "plain")
	if attr, err := sched.Get(pid); err != nil || attr != reserved {
		t.Errorf("the first thread has %+v, %v", attr, err)
	}
	until(t, "the probe has run as an ordinary process", func() bool {
		p, err := client.CoreV1().Pods("default").Get(ctx, "plain", metav1.GetOptions{})
		return err == nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].Ready
	})
	until(t, "the claim's status says so", func() bool {
		c, err := client.ResourceV1().ResourceClaims("default").Get(ctx, "plain", metav1.GetOptions{})
		if err != nil || len(c.Status.Devices) != 1 || c.Status.Devices[0].Data == nil || len(c.Status.Devices[0].Conditions) != 1 {
			return false
		}
		var data node.DeviceData
		return json.Unmarshal(c.Status.Devices[0].Data.Raw, &data) == nil && data.Bandwidth == 100_000 &&
			data.Backend == "deadline" && len(data.Threads) == 1 && data.Threads[0].TID == 1 &&
			c.Status.Devices[0].Conditions[0].Status == metav1.ConditionTrue
	})
	until(t, "the pod's status says that its core is well", func() bool {
		p, err := client.CoreV1().Pods("default").Get(ctx, "plain", metav1.GetOptions{})
		if err != nil || len(p.Status.ContainerStatuses) != 1 {
			return false
		}
		for _, resource := range p.Status.ContainerStatuses[0].AllocatedResourcesStatus {
			for _, device := range resource.Resources {
				if device.Health == corev1.ResourceHealthStatusHealthy {
					return true
				}
			}
		}
		return false
	})
}

// unschedulable says that the scheduler has found no room for a pod.
func unschedulable(name string) bool {
	p, err := client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false
	}
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonUnschedulable {
			return true
		}
	}
	return false
}

func TestAPodThatDoesNotFitIsPendingUntilThereIsRoom(t *testing.T) {
	create(t, claim("half", 2, 500_000, `"runtime":"10ms","period":"20ms"`), pod("half", "half", "idle"))
	running(t, "half")
	create(t, claim("more", 1, 600_000, `"runtime":"12ms","period":"20ms"`), pod("more", "more", "idle"))
	until(t, "the second pod is found not to fit", func() bool { return unschedulable("more") })
	if guests()["more"] > 0 {
		t.Error("the pod that does not fit runs")
	}
	remove(t, "half", "half")
	pid := running(t, "more")
	if attr, err := sched.Get(pid); err != nil || attr.Runtime != 12_000_000 {
		t.Errorf("the pod that had to wait has %+v, %v", attr, err)
	}
}

func TestHostileClaimsAreRefused(t *testing.T) {
	for name, fields := range map[string]string{
		"less-than-needed": `"runtime":"3ms","period":"20ms"`,
		"no-period":        `"runtime":"2ms"`,
		"no-unit":          `"runtime":2,"period":"20ms"`,
		"too-often":        `"runtime":"1.7us","period":"17us"`,
		"typo":             twoInTwenty + `,"deadlin":"5ms"`,
		"too-fine":         `"runtime":"0.0000000002s","period":"20ms"`,
	} {
		_, err := client.ResourceV1().ResourceClaims("default").Create(ctx, claim(name, 1, 100_000, fields), metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "InvalidParameters: ") && !strings.Contains(err.Error(), "BandwidthTooSmall: ") {
			t.Errorf("%s: the API server says %v", name, err)
			remove(t, "", name)
		} else if lines := strings.Count(err.Error(), "\n"); lines > 0 {
			t.Errorf("%s: the API server says it in %d lines:\n%v", name, lines+1, err)
		}
	}
	// What the policy does not look at, the node does.
	create(t, claim("groups", 1, 100_000, twoInTwenty+`,"policy":"fifo"`), pod("groups", "groups", "idle"))
	told(t, "groups", "ReservationRefused", "NotSupportedByBackend: ")
	// A container that does not name its pod's claim would run without.
	careless := pod("careless", "careless", "idle")
	careless.Spec.Containers[0].Resources.Claims = nil
	create(t, claim("careless", 1, 100_000, twoInTwenty), careless)
	told(t, "careless", "ReservationRefused", "ClaimUnused: ")
	if found := guests(); found["groups"]+found["careless"] > 0 {
		t.Error("a refused pod runs")
	}
}

func TestAClaimIsOnePodsAtATime(t *testing.T) {
	create(t, claim("shared", 1, 100_000, twoInTwenty), pod("first", "shared", "idle"))
	running(t, "first")
	create(t, pod("second", "shared", "idle"))
	told(t, "second", "ReservationRefused", "ResourceClaimTemplate")
	if guests()["second"] > 0 {
		t.Error("the second pod runs")
	}
	remove(t, "first", "")
	pid := running(t, "second")
	if attr, err := sched.Get(pid); err != nil || attr != reserved {
		t.Errorf("the second pod has %+v, %v", attr, err)
	}
}

func TestOverrunsAreTold(t *testing.T) {
	create(t, claim("busy", 1, 100_000, twoInTwenty), pod("busy", "busy", "busy"))
	running(t, "busy")
	told(t, "busy", "ReservationOverrun", "2ms every 20ms")
	// Missed deadlines are counted in the agent's pod, too.
	metrics := scrape(t, agentMetrics(t))
	if counted := metrics["takt_node_misses_counted"]; counted == nil || counted.GetMetric()[0].GetGauge().GetValue() != 1 {
		t.Errorf("missed deadlines are not counted: %v", counted)
	}
	if metrics["takt_reservation_missed_deadlines_total"] == nil {
		t.Error("the claim's missed deadlines are not told")
	}
}

// agent is the process number of takt-node, 0 if it is not there.
func agent() int {
	out, err := exec.Command("pidof", "/takt-node").Output()
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.Fields(string(out))[0])
	return pid
}

// processOf is a process to end without notice.
func processOf(name string) int {
	if name == "takt-node" {
		return agent()
	}
	text, err := os.ReadFile(filepath.Join(dir, name+".pid"))
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid
}

func TestAHundredPodsThroughCrashesAreNeverUnreservedAndLeaveNothing(t *testing.T) {
	const rounds, width = 20, 5
	// All the while: a guest that runs has a reservation.
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
			for name, pid := range guests() {
				if attr, err := sched.Get(pid); err == nil && strings.HasPrefix(name, "cycle-") && attr.Policy != sched.Deadline {
					t.Errorf("%s runs with %s", name, sched.PolicyName(attr.Policy))
				}
			}
		}
	})
	// In most rounds one of those who matter is killed, at any moment. The kubelet waits longer before every
	// restart of the agent, so that this cannot be done as often as with the others.
	kills := slices.Concat(slices.Repeat([]string{"takt-node"}, 3), slices.Repeat([]string{containerRuntime}, 6), slices.Repeat([]string{"kubelet"}, 6))
	rand.Shuffle(len(kills), func(i, j int) { kills[i], kills[j] = kills[j], kills[i] })
	for round := range rounds {
		for i := range width {
			name := fmt.Sprintf("cycle-%d-%d", round, i)
			_, err := client.ResourceV1().ResourceClaims("default").Create(ctx, claim(name, 1, 20_000, `"runtime":"1ms","period":"50ms"`), metav1.CreateOptions{})
			if err == nil {
				_, err = client.CoreV1().Pods("default").Create(ctx, pod(name, name, "idle"), metav1.CreateOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if round < len(kills) {
			watching.Go(func() {
				time.Sleep(time.Duration(rand.IntN(2000)) * time.Millisecond)
				if pid := processOf(kills[round]); pid > 1 {
					t.Logf("round %d: killing %s: %v", round, kills[round], syscall.Kill(pid, syscall.SIGKILL))
				}
			})
		}
		// Some are deleted before they have started.
		for i := range width - 1 {
			running(t, fmt.Sprintf("cycle-%d-%d", round, i))
		}
		for i := range width {
			name := fmt.Sprintf("cycle-%d-%d", round, i)
			_ = client.CoreV1().Pods("default").Delete(ctx, name, metav1.DeleteOptions{})
			_ = client.ResourceV1().ResourceClaims("default").Delete(ctx, name, metav1.DeleteOptions{})
		}
	}
	until(t, "all pods and claims have gone", func() bool {
		pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		claims, err2 := client.ResourceV1().ResourceClaims("default").List(ctx, metav1.ListOptions{})
		return err == nil && err2 == nil && len(pods.Items)+len(claims.Items) == 0
	})
	close(stop)
	watching.Wait()
	for _, pattern := range []string{"/run/cdi/cpu.takt.dev-*", "/run/cdi/.cpu.takt.dev-*", "/run/takt-node/ask/*"} {
		until(t, "nothing is left of "+pattern, func() bool {
			left, err := filepath.Glob(pattern)
			return err == nil && len(left) == 0
		})
	}
	if left := guests(); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
	// All of the kernel's bandwidth is there again: a pod that needs nearly all that is published gets it.
	create(t, claim("all", 2, 660_000, `"runtime":"13.2ms","period":"20ms"`), pod("all", "all", "idle"))
	running(t, "all")
}
