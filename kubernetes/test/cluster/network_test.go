package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
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

// talking sends them, as any program does that knows of SO_TXTIME and nothing of Takt.
const talking = `
import os, socket, struct, sys, time
talker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
talker.setsockopt(socket.SOL_SOCKET, 61, struct.pack("iI", 11, 0))
talker.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 5)
base = time.clock_gettime_ns(11) + 1_000_000_000
for number in range(20):
    launch = base + number * 5_000_000
    talker.sendmsg([struct.pack("Q", launch)], [(socket.SOL_SOCKET, 61, struct.pack("Q", launch))], 0, (sys.argv[1], 5001))
print("sent by user", os.getuid(), flush=True)
time.sleep(1000000)
`

// python is a pod that runs a script without any privilege. Its image is the guest's, with the node's own Python.
func python(name string, annotations map[string]string, script string, args ...string) *corev1.Pod {
	no, yes, user, grace := false, true, int64(65534), int64(0)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: annotations},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace, RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name: "main", Image: "takt.test/guest:1", ImagePullPolicy: corev1.PullNever,
				Command: append([]string{"/usr/bin/python3", "-c", script}, args...),
				SecurityContext: &corev1.SecurityContext{
					RunAsUser: &user, RunAsNonRoot: &yes, AllowPrivilegeEscalation: &no,
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
	for at, paths := range [][2]string{{"/usr", "/usr"}, {"/usr/lib", "/lib"}, {"/usr/lib64", "/lib64"}} {
		volume := "v" + strconv.Itoa(at)
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: paths[0]}}})
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: paths[1], ReadOnly: true})
	}
	return p
}

// says waits until a pod has printed a line, and returns it.
func says(t *testing.T, name, text string) (line string) {
	t.Helper()
	until(t, name+" says "+text, func() bool {
		log, _ := client.CoreV1().Pods("default").GetLogs(name, &corev1.PodLogOptions{}).DoRaw(ctx)
		for line = range strings.Lines(string(log)) {
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
	sensitive := map[string]string{"takt.dev/time-sensitive": "true", "takt.dev/preload": "required"}
	create(t, python("listener", nil, listening))
	says(t, "listener", "listening")
	address := func(name string) string {
		p, err := client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return p.Status.PodIP
	}
	create(t, python("talker", sensitive, talking, address("listener")))
	if line := says(t, "talker", "sent by"); line != "sent by user 65534" {
		t.Error(line)
	}
	if line := says(t, "listener", "early"); line != "0 early from "+address("talker") {
		t.Error(line)
	}
	// The listener is not attached: it is not annotated.
	if sent, listeners := sentBy(t); sent != 20 || listeners != 1 {
		t.Errorf("taktd has sent %d for %d pods", sent, listeners)
	}
	// A taktd that was killed serves the pod again.
	number, err := os.ReadFile(filepath.Join(dir, "taktd.pid"))
	if err != nil {
		t.Fatal(err)
	}
	process, err := strconv.Atoi(strings.TrimSpace(string(number)))
	if err != nil {
		t.Fatal(err)
	}
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
