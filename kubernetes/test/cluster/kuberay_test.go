package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

// rayWorkers is how many of them the cluster has, and each worker's reservation, with which they fit on two cores.
const (
	rayWorkers = 4
	rayRuntime = "20ms"
	rayShare   = "200000"
)

// working has a classifier on every worker, as the manifest describes it, work until its standard input ends.
const working = `
import sys, threading, time
import ray

@ray.remote(num_cpus=0, resources={"worker": 1}, max_restarts=-1)
class Classifier:
    def where(self):
        return ray.get_runtime_context().get_node_id()

    def classify(self):
        end, sum = time.thread_time() + 0.02, 0
        while time.thread_time() < end:
            sum += 1
        return sum

ray.init(address="auto", log_to_driver=False)
classifiers = [Classifier.remote() for _ in range(int(sys.argv[1]))]
print("on", len(set(ray.get([c.where.remote() for c in classifiers]))), "nodes", flush=True)

def work(classifier):
    while True:
        try:
            ray.get(classifier.classify.remote())
        except ray.exceptions.RayActorError:
            time.sleep(1)

for classifier in classifiers:
    threading.Thread(target=work, args=(classifier,), daemon=True).start()
sys.stdin.read()
`

// TestKubeRayClusterHasItsReservations runs the example of deploy/manifests under KubeRay's own operator, with four workers: the image is the guest's, with
// the Ray of the machine's cache. See `make test-cluster-kuberay`.
func TestKubeRayClusterHasItsReservations(t *testing.T) {
	source, ray := os.Getenv("TAKT_KUBERAY"), os.Getenv("TAKT_RAY")
	if source == "" {
		t.Skip("KubeRay is not here: run make test-cluster-kuberay")
	}
	kubectl(t, "apply", "--server-side", "-f", filepath.Join(source, "config/crd/bases"))
	t.Cleanup(func() { kubectl(t, "delete", "--wait=false", "-f", filepath.Join(source, "config/crd/bases")) })
	kubectl(t, "create", "clusterrolebinding", "kuberay", "--clusterrole=cluster-admin", "--serviceaccount=default:default")
	t.Cleanup(func() { kubectl(t, "delete", "clusterrolebinding", "kuberay") })
	names(t)
	create(t, program("kuberay", "/programs/ray-operator"))

	objects := rayCluster(t, ray)
	applied := exec.Command("kube", "kubectl", "apply", "-f", "-")
	applied.Stdin = bytes.NewReader(objects)
	if out, err := applied.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() {
		kubectl(t, "delete", "raycluster", "inference", "--wait=false")
		kubectl(t, "delete", "resourceclaimtemplate", "ray-head", "ray-worker")
		until(t, "no claim is left", func() bool {
			claims, err := client.ResourceV1().ResourceClaims("default").List(ctx, metav1.ListOptions{})
			return err == nil && len(claims.Items) == 0
		})
	})
	until(t, "the Ray cluster is ready", func() bool {
		state, _ := exec.Command("kube", "kubectl", "get", "raycluster", "inference", "-o", "jsonpath={.status.state} {.status.readyWorkerReplicas}").Output()
		return string(state) == "ready "+strconv.Itoa(rayWorkers)
	})
	driver := exec.Command("kube", "kubectl", "exec", "-i", rayPods(t, "head")[0], "--", filepath.Join(ray, "bin/python3"), "-c", working, strconv.Itoa(rayWorkers))
	stdin, err := driver.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	driver.Stdout, driver.Stderr = &said, &said
	if err := driver.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		driver.Wait()
		t.Logf("the driver said: %s", said.String())
	})
	workers := sched.Attr{Policy: sched.Deadline, Flags: sched.ResetOnFork, Runtime: 20_000_000, Deadline: 100_000_000, Period: 100_000_000}
	until(t, "each worker's classifier has its reservation, and the head's server", func() bool {
		return held("ray::Classifier", workers) == rayWorkers && held("gcs_server", sched.Attr{
			Policy: sched.Deadline, Flags: sched.ResetOnFork, Runtime: 30_000_000, Deadline: 100_000_000, Period: 100_000_000,
		}) == 1
	})

	// A worker that is killed comes again, by another pod with a claim of its own.
	first := rayPods(t, "worker")
	kubectl(t, "delete", "pod", first[0], "--grace-period=0", "--force")
	until(t, "another worker has come, with its reservation", func() bool {
		now := rayPods(t, "worker")
		return len(now) == rayWorkers && !slices.Contains(now, first[0]) && held("ray::Classifier", workers) == rayWorkers
	})
	// What is scaled down gives its reservation back.
	kubectl(t, "patch", "raycluster", "inference", "--type=json", "-p",
		`[{"op": "replace", "path": "/spec/workerGroupSpecs/0/replicas", "value": 2}, {"op": "replace", "path": "/spec/workerGroupSpecs/0/minReplicas", "value": 2}]`)
	until(t, "two workers hold reservations", func() bool {
		claims, err := client.ResourceV1().ResourceClaims("default").List(ctx, metav1.ListOptions{})
		return err == nil && len(claims.Items) == 3 && len(rayPods(t, "worker")) == 2 && held("ray::Classifier", workers) == 2
	})
}

// names gives the cluster its DNS, where Ray's workers look for their head.
func names(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "Corefile"), []byte(".:53 {\n errors\n kubernetes cluster.local\n}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	dns := program("dns", "/programs/coredns", "-conf", "/cluster/Corefile")
	mount(dns, "cluster", dir, "/cluster")
	dns.Spec.HostNetwork = true
	create(t, dns)
}

// program is a pod that runs one of the cluster's own programs.
func program(name string, command ...string) *corev1.Pod {
	path, err := exec.LookPath("kube")
	if err != nil {
		panic(err) // it has been run
	}
	p := unprivileged(name, "takt.test/guest:1", nil, command...)
	p.Spec.Containers[0].SecurityContext = nil
	mount(p, "programs", filepath.Dir(path), "/programs")
	return p
}

// rayCluster is the example, with as many workers, on images that are here.
func rayCluster(t *testing.T, ray string) []byte {
	t.Helper()
	file, err := os.Open(filepath.Join(os.Getenv("TAKT_MANIFESTS"), "raycluster.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	list := map[string]any{"apiVersion": "v1", "kind": "List", "items": []any{}}
	for decoder := utilyaml.NewYAMLOrJSONDecoder(file, 4096); ; {
		var object map[string]any
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if object["kind"] == "RayCluster" {
			onThisMachine(t, object, ray)
		}
		list["items"] = append(list["items"].([]any), object)
	}
	text, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.ReplaceAll(bytes.ReplaceAll(text, []byte(`"600000"`), []byte(`"`+rayShare+`"`)), []byte(`"60ms"`), []byte(`"`+rayRuntime+`"`))
}

func onThisMachine(t *testing.T, object map[string]any, ray string) {
	t.Helper()
	set := func(value any, in map[string]any, fields ...string) {
		if err := unstructured.SetNestedField(in, value, fields...); err != nil {
			t.Fatal(err)
		}
	}
	spec := object["spec"].(map[string]any)
	worker := spec["workerGroupSpecs"].([]any)[0].(map[string]any)
	for _, field := range []string{"replicas", "minReplicas", "maxReplicas"} {
		worker[field] = int64(rayWorkers)
	}
	set(`"{\"worker\": 1}"`, worker, "rayStartParams", "resources")
	python, err := filepath.EvalSymlinks(filepath.Join(ray, "bin/python3"))
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range []map[string]any{spec["headGroupSpec"].(map[string]any), worker} {
		pod := group["template"].(map[string]any)["spec"].(map[string]any)
		container := pod["containers"].([]any)[0].(map[string]any)
		container["image"], container["imagePullPolicy"] = "takt.test/guest:1", "Never"
		container["env"] = []any{
			map[string]any{"name": "PATH", "value": filepath.Join(ray, "bin") + ":/usr/bin"},
			map[string]any{"name": "HOME", "value": "/tmp"}, map[string]any{"name": "USER", "value": "ray"},
		}
		set(map[string]any{"cpu": "300m", "memory": "2Gi"}, container, "resources", "requests")
		set(map[string]any{"memory": "2Gi"}, container, "resources", "limits")
		var volumes, mounts []any
		give := func(name, from, to string) {
			volumes = append(volumes, map[string]any{"name": name, "hostPath": map[string]any{"path": from}})
			mounts = append(mounts, map[string]any{"name": name, "mountPath": to, "readOnly": true})
		}
		for name, paths := range map[string][2]string{
			"usr": {"/usr", "/usr"}, "bin": {"/usr/bin", "/bin"}, "lib": {"/usr/lib", "/lib"}, "lib64": {"/usr/lib64", "/lib64"}, "ray": {ray, ray},
		} {
			give(name, paths[0], paths[1])
		}
		if base := filepath.Dir(filepath.Dir(python)); base != "/usr" {
			give("python", base, base)
		}
		volumes = append(volumes, map[string]any{"name": "tmp", "emptyDir": map[string]any{}})
		mounts = append(mounts, map[string]any{"name": "tmp", "mountPath": "/tmp"})
		pod["volumes"], container["volumeMounts"] = volumes, mounts
	}
}

// rayPods are the running pods of the head or of the workers.
func rayPods(t *testing.T, kind string) (found []string) {
	t.Helper()
	pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "ray.io/node-type=" + kind})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		if p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
			found = append(found, p.Name)
		}
	}
	return found
}

// held is how many threads of that name have exactly that from the kernel.
func held(name string, attr sched.Attr) (count int) {
	all, _ := sched.DeadlineThreads()
	for tid, has := range all {
		if thread, err := sched.ReadThread(tid, tid); err == nil && has == attr && thread.Name == name {
			count++
		}
	}
	return count
}
