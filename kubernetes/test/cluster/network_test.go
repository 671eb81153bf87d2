package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

// listening says which of 20 datagrams came before their launch time, and from where they came.
const listening = `
import socket, struct, time
listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
listener.bind(("", 5001))
print("listening", flush=True)
early, senders = 0, set()
for _ in range(20):
    data, sender = listener.recvfrom(64)
    early += time.clock_gettime_ns(time.CLOCK_TAI) < struct.unpack("Q", data)[0]
    senders.add(sender[0])
print(early, "early from", *senders, flush=True)
time.sleep(1000000)
`

// sender sends, as any program does that knows of SO_TXTIME and nothing of Takt: datagrams with their launch times in them.
const sender = `
import itertools, os, socket, struct, sys, time
talker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
talker.setsockopt(socket.SOL_SOCKET, 61, struct.pack("iI", 11, 0))
talker.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 5)
def send(launch, data=None, port=5001, flags=0):
    talker.sendmsg([data or struct.pack("Q", launch)], [(socket.SOL_SOCKET, 61, struct.pack("Q", launch))], flags, (sys.argv[1], port))
`

// talking sends the 20 of them.
const talking = sender + `
base = time.clock_gettime_ns(11) + 1_000_000_000
for number in range(20):
    launch = base + number * 5_000_000
    send(launch)
print("sent by user", os.getuid(), flush=True)
time.sleep(1000000)
`

// timeSensitive are the annotations of a talker that is told what cannot be sent at its time, receiving those of one that others
// are to reach.
var (
	timeSensitive = map[string]string{"takt.dev/time-sensitive": "true", "takt.dev/preload": "required"}
	receiving     = map[string]string{"takt.dev/time-sensitive": "true", "takt.dev/preload": "off"}
)

// unprivileged is a pod that runs a program of an image without any privilege.
func unprivileged(name, image string, annotations map[string]string, command ...string) *corev1.Pod {
	no, yes, user, grace := false, true, int64(65534), int64(0)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: annotations},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace, RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name: "main", Image: image, ImagePullPolicy: corev1.PullNever, Command: command,
				SecurityContext: &corev1.SecurityContext{
					RunAsUser: &user, RunAsNonRoot: &yes, AllowPrivilegeEscalation: &no,
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

// mount gives a pod what the node has at a path.
func mount(p *corev1.Pod, name, from, to string) {
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: from}}})
	p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: to, ReadOnly: true})
}

// python is such a pod that runs a script. Its image is the guest's, with the node's own Python.
func python(name string, annotations map[string]string, script string, args ...string) *corev1.Pod {
	return onNodesFiles(unprivileged(name, "takt.test/guest:1", annotations, append([]string{"/usr/bin/python3", "-c", script}, args...)...))
}

// onNodesFiles gives a pod the node's programs and libraries.
func onNodesFiles(p *corev1.Pod) *corev1.Pod {
	for at, paths := range [][2]string{{"/usr", "/usr"}, {"/usr/lib", "/lib"}, {"/usr/lib64", "/lib64"}} {
		mount(p, "v"+strconv.Itoa(at), paths[0], paths[1])
	}
	return p
}

// logOf is what a pod has printed.
func logOf(name string) string {
	log, _ := client.CoreV1().Pods("default").GetLogs(name, &corev1.PodLogOptions{}).DoRaw(ctx)
	return string(log)
}

// says waits until a pod has printed a line, and returns it.
func says(t *testing.T, name, text string) (line string) {
	t.Helper()
	until(t, name+" says "+text, func() bool {
		for line = range strings.Lines(logOf(name)) {
			if strings.Contains(line, text) {
				return true
			}
		}
		return false
	})
	return strings.TrimSpace(line)
}

func sentBy(t *testing.T) (sent uint64, listeners int) {
	t.Helper()
	connection, err := grpc.NewClient("unix:/run/takt/admin.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	admin := adminv1.NewAdminClient(connection)
	networks, err := admin.ListNetworks(context.Background(), &adminv1.ListNetworksRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	all, err := admin.ListListeners(context.Background(), &adminv1.ListListenersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all.GetListeners() {
		if strings.HasPrefix(one.GetListener().GetPath(), "/run/takt/cni/") {
			listeners++
		}
	}
	return networks.GetNetworks()[0].GetCounters().GetSent(), listeners
}

func TestATimeSensitivePodHasItsDatagramsSentAtTheirLaunchTimes(t *testing.T) {
	create(t, python("listener", nil, listening))
	says(t, "listener", "listening")
	create(t, python("talker", timeSensitive, talking, addressOf(t, "listener")))
	if line := says(t, "talker", "sent by"); line != "sent by user 65534" {
		t.Error(line)
	}
	if line := says(t, "listener", "early"); line != "0 early from "+addressOf(t, "talker") {
		t.Error(line)
	}
	// The listener is not attached: it is not annotated.
	if sent, listeners := sentBy(t); sent != 20 || listeners != 1 {
		t.Errorf("taktd has sent %d for %d pods", sent, listeners)
	}
	// A taktd that was killed serves the pod again.
	process := taktdOf("node-1")
	if err := syscall.Kill(process, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "the pod has its socket again", func() bool {
		_, listeners := sentBy(t)
		return listeners == 1
	})
	remove(t, "talker", "")
	until(t, "the pod's socket has gone", func() bool {
		_, listeners := sentBy(t)
		left, _ := filepath.Glob("/run/takt/cni/[^.]*")
		return listeners == 0 && len(left) == 0
	})
	remove(t, "listener", "")
}

// onNetwork is a claim for a network of the node.
func onNetwork(name, network string) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "network", Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: reservation.NetworkDriver,
				Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{
					Expression: fmt.Sprintf("device.attributes[%q].name == %q", reservation.NetworkDriver, network),
				}}},
			},
		}}}},
	}
}

func TestATimeSensitivePodHasNetworkAndCPUTimeOrStaysPending(t *testing.T) {
	both := func(name, network, cpu string) *corev1.Pod {
		p := pod(name, cpu, "idle")
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "network", ResourceClaimName: &network})
		return p
	}
	create(t, onNetwork("served", "pods"), onNetwork("elsewhere", "other"),
		claim("cpu-1", 1, 100_000, `"runtime":"2ms","period":"20ms"`), claim("cpu-2", 1, 100_000, `"runtime":"2ms","period":"20ms"`))
	create(t, both("has-both", "served", "cpu-1"))
	running(t, "has-both")
	// A network can be claimed by many, and what is missing of one is not made good by the other.
	create(t, both("no-network", "elsewhere", "cpu-2"))
	until(t, "it is unschedulable", func() bool { return unschedulable("no-network") })
	for _, name := range []string{"has-both", "no-network"} {
		remove(t, name, "")
	}
}

func TestATimeSensitivePodThatIsAttachedNowhereIsRefused(t *testing.T) {
	apart := python("apart", map[string]string{"takt.dev/time-sensitive": "true"}, listening)
	apart.Spec.HostNetwork = true
	create(t, apart)
	told(t, "apart", "NetworkRefused", "NotAttached")
	remove(t, "apart", "")
}

// inPhase sends 20 datagrams in the window of its claim, and then 10 outside.
const inPhase = sender + `
period, offset = 10_000_000, 100_000
base = (time.clock_gettime_ns(11) // period + 400) * period + offset
for number in range(30):
    launch = base + number * period + (5_000_000 if number >= 20 else 0)
    send(launch)
print("sent by user", os.getuid(), flush=True)
time.sleep(1000000)
`

// bits is what gateTime claims of class 5: frames of 256 octets, every 10 ms.
const bits = 8 * (256 + 28) * 100

// gate is a claim for gate time of class 5: so many bits per second, for the frames that the other parameters say.
func gate(name string, perSecond int64, parameters string) *resourcev1.ResourceClaim {
	c := onNetwork(name, "pods")
	request := &c.Spec.Devices.Requests[0]
	request.Name = "gate"
	request.Exactly.Capacity = &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{
		resourcev1.QualifiedName(reservation.ClassCapacity(5)): *resource.NewQuantity(perSecond, resource.DecimalSI),
	}}
	c.Spec.Devices.Config = []resourcev1.DeviceClaimConfiguration{{
		Requests: []string{"gate"}, DeviceConfiguration: resourcev1.DeviceConfiguration{Opaque: &resourcev1.OpaqueDeviceConfiguration{
			Driver: reservation.NetworkDriver, Parameters: runtime.RawExtension{Raw: []byte(fmt.Sprintf(
				`{"apiVersion":%q,"kind":%q,"class":5,%s}`, reservation.NetworkAPIVersion, reservation.GateTimeKind, parameters))},
		}},
	}}
	return c
}

// gateTime is a claim for CPU time and for gate time of class 5, launched so long after the begin of each period.
func gateTime(name, runtimePart string, ppm int64, offset, destination string) *resourcev1.ResourceClaim {
	c := claim(name, 1, ppm, runtimePart)
	of := gate(name, bits, fmt.Sprintf(`"period":"10ms","bytes":256,"offset":%q,"destination":"%s:5001"`, offset, destination)).Spec.Devices
	c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, of.Requests...)
	c.Spec.Devices.Config = append(c.Spec.Devices.Config, of.Config...)
	return c
}

// readiness is the reason of condition Ready of a claim's device of a driver; empty: there is none.
func readiness(claim, driver string) string {
	c, err := client.ResourceV1().ResourceClaims("default").Get(ctx, claim, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	for _, device := range c.Status.Devices {
		if ready := meta.FindStatusCondition(device.Conditions, "Ready"); device.Driver == driver && ready != nil {
			return ready.Reason
		}
	}
	return ""
}

func TestATimeSensitivePodHasGateTimeAndCPUTimeOrNeither(t *testing.T) {
	create(t, python("listener", nil, listening))
	says(t, "listener", "listening")
	destination := addressOf(t, "listener")
	controller := func(name string) *corev1.Pod {
		p := python(name, map[string]string{"takt.dev/time-sensitive": "true", "takt.dev/preload": "required"}, inPhase, destination)
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "time", ResourceClaimName: &name}}
		p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "time"}}
		return p
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, what := range [][]string{{"listener", "list", "--json"}, {"schedule", "status"}, {"network", "list"}} {
				out, _ := exec.Command(filepath.Join(os.Getenv("TAKT_BUILT"), "takt"), what...).CombinedOutput()
				t.Logf("takt %s: %s", strings.Join(what, " "), out)
			}
		}
	})
	// Gates that are open for ever give nobody a share of them.
	create(t, gateTime("both", twoInTwenty, 100_000, "100us", destination), controller("both"))
	until(t, "without a schedule there is no gate time", func() bool { return unschedulable("both") })
	of := admin(t, "node-1")
	_, err := of.InstallSchedule(ctx, &adminv1.InstallScheduleRequest{Datapath: "udp", LinkRateBps: 1_000_000_000, Schedule: &adminv1.GateSchedule{
		CycleTimeNs: 1_000_000, Entries: []*adminv1.GateEntry{{Gates: 0x20, IntervalNs: 250_000}, {Gates: 0xdf, IntervalNs: 750_000}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = of.RemoveSchedule(ctx, &adminv1.RemoveScheduleRequest{Datapath: "udp"}) })
	if line := says(t, "both", "sent by"); line != "sent by user 65534" {
		t.Error(line)
	}
	if line := says(t, "listener", "early"); line != "0 early from "+addressOf(t, "both") {
		t.Error(line)
	}
	// What is outside of its window has not left.
	until(t, "taktd has counted what passed and what did not", func() bool {
		all, err := of.ListListeners(ctx, &adminv1.ListListenersRequest{})
		if err != nil {
			return false
		}
		var passed, refused uint64
		for _, one := range all.GetListeners() {
			for _, stream := range one.GetStreams() {
				passed, refused = passed+stream.GetPassed(), refused+stream.GetRefusedWindow()
			}
		}
		return passed == 20 && refused == 10
	})
	until(t, "the claim's status says that it has both", func() bool {
		return readiness("both", reservation.NetworkDriver) == "Reserved" && readiness("both", reservation.Driver) != ""
	})
	shows(t, "both", 0, map[string]string{"NAMESPACE": "default", "NODE": "node-1", "NETWORK": "pods (eth0)", "PROGRAMS": "1", "VETH": "taking, required",
		"LAUNCHED": "20 (10 missed, 10 refused: window)", "AROUND": "-", "SCHEDULE": "udp 1ms", "RESERVED": "main 2ms/20ms", "GATE TIME": "class 5 1x256B/10ms", "STATE": "ok"})
	pid := scriptOf(t, "both")
	until(t, "the kernel keeps its CPU time", func() bool { attr, err := sched.Get(pid); return err == nil && attr == reserved })

	// The gate is closed then: it waits, is told, and holds no CPU time.
	create(t, gateTime("closed", twoInTwenty, 100_000, "400us", destination), controller("closed"))
	told(t, "closed", "GateTimeRefused", "GateTimeExceeded: ")
	until(t, "it holds neither", func() bool {
		return readiness("closed", reservation.NetworkDriver) == "GateTimeRefused" && readiness("closed", reservation.Driver) == "ReservationRefused"
	})
	shows(t, "closed", 3, map[string]string{"NODE": "node-1", "PROGRAMS": "-", "LAUNCHED": "-", "RESERVED": "-", "GATE TIME": "class 5 1x256B/10ms (waits)", "STATE": "GateTimeExceeded"})
	// No core has so much left: the gate's share is not taken either.
	create(t, gateTime("large", `"runtime":"19ms","period":"20ms"`, 950_000, "100us", destination), controller("large"))
	until(t, "it is unschedulable", func() bool { return unschedulable("large") })
	if c, err := client.ResourceV1().ResourceClaims("default").Get(ctx, "large", metav1.GetOptions{}); err != nil || c.Status.Allocation != nil {
		t.Errorf("it has %+v, %v", c.Status.Allocation, err)
	}
	for _, name := range []string{"closed", "large"} {
		remove(t, name, name)
	}

	// A schedule that would leave it without is refused; without one, it is told and runs on.
	_, err = of.InstallSchedule(ctx, &adminv1.InstallScheduleRequest{Datapath: "udp", LinkRateBps: 1_000_000_000, Schedule: &adminv1.GateSchedule{
		CycleTimeNs: 1_000_000, Entries: []*adminv1.GateEntry{{Gates: 0xdf, IntervalNs: 750_000}, {Gates: 0x20, IntervalNs: 250_000}},
	}})
	if err == nil {
		t.Error("a schedule that has the gate closed when a pod was promised that it is open")
	}
	if _, err := of.RemoveSchedule(ctx, &adminv1.RemoveScheduleRequest{Datapath: "udp"}); err != nil {
		t.Fatal(err)
	}
	told(t, "both", "GateTimeLost", "")
	until(t, "its claim says so", func() bool { return readiness("both", reservation.NetworkDriver) == "GateTimeLost" })
	if attr, err := sched.Get(pid); err != nil || attr != reserved {
		t.Errorf("its CPU time is %+v, %v", attr, err)
	}
	remove(t, "both", "both")
	remove(t, "listener", "")
	until(t, "nothing of it is left in taktd", func() bool {
		all, err := of.ListListeners(ctx, &adminv1.ListListenersRequest{})
		return err == nil && !slices.ContainsFunc(all.GetListeners(), func(one *adminv1.ListenerStatus) bool {
			return strings.HasPrefix(one.GetListener().GetPath(), "/run/takt/cni/")
		})
	})
}

// shows waits until kubectl takt shows a pod with these words in its columns, and ends with this status.
func shows(t *testing.T, pod string, status int, columns map[string]string) {
	t.Helper()
	out, ended, row := "", 0, map[string]string{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("kubectl takt ended with %d; of %s it showed %q:\n%s", ended, pod, row, out)
		}
	})
	until(t, fmt.Sprintf("kubectl takt shows of %s %v, and ends with %d", pod, columns, status), func() bool {
		command := exec.Command("kube", "kubectl", "takt")
		text, _ := command.Output()
		out, ended = string(text), command.ProcessState.ExitCode()
		// Columns begin below their titles.
		lines := strings.Split(strings.TrimSpace(out), "\n")
		begins := regexp.MustCompile(`\S+( \S+)*`).FindAllStringIndex(lines[0], -1)
		for _, line := range lines[1:] {
			for i, at := range begins {
				end := len(line)
				if i+1 < len(begins) {
					end = begins[i+1][0]
				}
				row[lines[0][at[0]:at[1]]] = strings.TrimSpace(line[at[0]:end])
			}
			if row["POD"] == pod {
				break
			}
		}
		for column, text := range columns {
			// STATE says more of what is wrong than can be known here.
			if has := row[column]; row["POD"] != pod || has != text && (column != "STATE" || status == 0 || !strings.Contains(has, text)) {
				return false
			}
		}
		return ended == status
	})
}

// scriptOf is the process of a pod of a script.
func scriptOf(t *testing.T, name string) int {
	t.Helper()
	p, err := client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// As systemd has it a slice's name is a path by its dashes, so that those of a pod's number are something else.
	uid := strings.ReplaceAll(string(p.UID), "-", "_")
	pid := processWhich(func(proc string, words []string) bool {
		groups, err := os.ReadFile(filepath.Join(proc, "cgroup"))
		return err == nil && words[0] == "/usr/bin/python3" && strings.Contains(strings.ReplaceAll(string(groups), "-", "_"), uid)
	})
	if pid == 0 {
		t.Fatalf("pod %s has no process of its script", name)
	}
	return pid
}
