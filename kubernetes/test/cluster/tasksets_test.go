package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
)

// taskSets is what `takt bench reservations plan` prints.
type taskSets struct {
	Setting json.RawMessage `json:"setting"`
	Sets    []taskSet       `json:"sets"`
}

type taskSet struct {
	Number       int   `json:"number"`
	ReservedPPM  int64 `json:"reserved_ppm"`
	Reservations []struct {
		Thread    string `json:"thread"`
		RuntimeNS int64  `json:"runtime_ns"`
		PeriodNS  int64  `json:"period_ns"`
	} `json:"reservations"`
}

// hogsPerCore are in a container beside the tasks', which requests no CPU.
const hogsPerCore = 2

// Figure 6 of kubedeadline-ecrts2025: random task sets in pods, with a claim that has a request for each thread and without one.
// It measures, and asserts nothing of what it measures: `make bench-figure-6` runs it.
func TestTaskSetsInPods(t *testing.T) {
	count, err := strconv.Atoi(os.Getenv("TAKT_BENCH_SETS"))
	if err != nil || count < 1 {
		t.Skip("a measurement: run make bench-figure-6")
	}
	out := os.Getenv("TAKT_BENCH_OUT")
	outcomes := filepath.Join(out, "outcomes")
	if err := os.RemoveAll(outcomes); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(outcomes, 0o755); err != nil {
		t.Fatal(err)
	}
	published := published(t)
	plan := takt(t, "bench", "reservations", "plan", "--sets", strconv.Itoa(count), "--seconds", "1.7", "--hogs", strconv.Itoa(hogsPerCore),
		"--admitted", fmt.Sprintf("%.6f", float64(published)/1e6), "--json")
	planned := filepath.Join(out, "plan.json")
	if err := os.WriteFile(planned, plan, 0o644); err != nil {
		t.Fatal(err)
	}
	var sets taskSets
	if err := json.Unmarshal(plan, &sets); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d sets, for the %.2f cores that the node's slice has", len(sets.Sets), float64(published)/1e6)
	for turn, set := range sets.Sets {
		ways := []string{"reserved", "ordinary"}
		if turn%2 == 1 {
			ways = []string{"ordinary", "reserved"}
		}
		for _, way := range ways {
			outcome, err := set.inPod(t, sets.Setting, way == "reserved")
			if err != nil {
				t.Logf("set %d, %s: left out: %v", set.Number, way, err)
				break
			}
			if err := os.WriteFile(filepath.Join(outcomes, fmt.Sprintf("%s-%d.json", way, set.Number)), outcome, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("[%d/%d] set %d: %d threads, reserved %.2f cores", turn+1, len(sets.Sets), set.Number, len(set.Reservations), float64(set.ReservedPPM)/1e6)
	}
	t.Logf("\n%s", takt(t, "bench", "reservations", "account", "--plan", planned, "--from", outcomes, "--out", out))
}

// takt runs the program of the machine's build.
func takt(t *testing.T, args ...string) []byte {
	t.Helper()
	said, err := exec.Command(filepath.Join(os.Getenv("TAKT_BUILT"), "takt"), args...).Output()
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			err = fmt.Errorf("%w: %s", err, failed.Stderr)
		}
		t.Fatalf("takt %v: %v", args, err)
	}
	return said
}

// published is the bandwidth of all cores together, in parts per million of one.
func published(t *testing.T) (sum int64) {
	t.Helper()
	until(t, "the node has published its cores", func() bool {
		slices, err := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.driver=" + reservation.Driver})
		if err != nil {
			return false
		}
		sum = 0
		for _, slice := range slices.Items {
			for _, device := range slice.Spec.Devices {
				bandwidth := device.Capacity[reservation.Bandwidth]
				sum += bandwidth.Value.Value()
			}
		}
		return sum > 0
	})
	return sum
}

// inPod runs the set once, and returns what `takt bench reservations set` has printed.
func (s taskSet) inPod(t *testing.T, setting json.RawMessage, reserved bool) ([]byte, error) {
	t.Helper()
	name, threads := fmt.Sprintf("set-%d", s.Number), "ordinary"
	if reserved {
		threads = "held"
	}
	p := onNodesFiles(unprivileged(name, "takt.test/guest:1", nil,
		"/built/takt", "bench", "reservations", "set", strconv.Itoa(s.Number), "--setting", string(setting), "--threads", threads, "--neighbour", "/beside/hogs", "--json"))
	mount(p, "built", os.Getenv("TAKT_BUILT"), "/built")
	// Where the two containers find each other.
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "beside", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "beside", MountPath: "/beside"})
	hogs := *p.Spec.Containers[0].DeepCopy()
	hogs.Name, hogs.Command = "hogs", []string{"/built/takt", "bench", "reservations", "hogs", "--socket", "/beside/hogs", "--count", strconv.Itoa(hogsPerCore * cores(t))}
	p.Spec.Containers = append(p.Spec.Containers, hogs)
	// The same for both, as an ordinary pod's only means.
	cpu := *resource.NewMilliQuantity((s.ReservedPPM+999)/1000, resource.DecimalSI)
	tasks := &p.Spec.Containers[0]
	tasks.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: cpu}
	if reserved {
		create(t, s.claim(name))
		defer remove(t, "", name)
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "reservation", ResourceClaimName: &name}}
		tasks.Resources.Claims = []corev1.ResourceClaim{{Name: "reservation"}}
	}
	if _, err := client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	defer remove(t, name, "")
	var failed error
	until(t, name+" has ended, or there is no room for it", func() bool {
		now, err := client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		for _, condition := range now.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse && condition.Reason == corev1.PodReasonUnschedulable {
				failed = errors.New(condition.Message)
				return true
			}
		}
		for _, container := range now.Status.ContainerStatuses {
			if ended := container.State.Terminated; container.Name == tasks.Name && ended != nil {
				if ended.ExitCode != 0 {
					failed = fmt.Errorf("it has ended with %d", ended.ExitCode)
				}
				return true
			}
		}
		return false
	})
	text, err := client.CoreV1().Pods("default").GetLogs(name, &corev1.PodLogOptions{Container: tasks.Name}).DoRaw(ctx)
	if failed != nil {
		return nil, fmt.Errorf("%w: %.1000s", failed, text)
	}
	return text, err
}

// claim has a request for each thread.
func (s taskSet) claim(name string) *resourcev1.ResourceClaim {
	all := claim(name, 1, 0, "")
	all.Spec.Devices.Requests, all.Spec.Devices.Config = nil, nil
	for _, of := range s.Reservations {
		// Rounded up, as admission has it.
		ppm := (of.RuntimeNS*1_000_000 + of.PeriodNS - 1) / of.PeriodNS
		one := claim(of.Thread, 1, ppm, fmt.Sprintf(`"runtime":"%dns","period":"%dns","threads":{"select":"name","name":"%s"}`, of.RuntimeNS, of.PeriodNS, of.Thread))
		one.Spec.Devices.Requests[0].Name = of.Thread
		one.Spec.Devices.Config[0].Requests = []string{of.Thread}
		all.Spec.Devices.Requests = append(all.Spec.Devices.Requests, one.Spec.Devices.Requests...)
		all.Spec.Devices.Config = append(all.Spec.Devices.Config, one.Spec.Devices.Config...)
	}
	return all
}

// cores are those of the machine.
func cores(t *testing.T) int {
	t.Helper()
	node, err := client.CoreV1().Nodes().Get(ctx, "node-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cpu := node.Status.Capacity[corev1.ResourceCPU]
	return int(cpu.Value())
}
