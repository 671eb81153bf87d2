package controller

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/apitest"
	"github.com/takt-dev/takt/kubernetes/internal/objects"
)

const nodes, pods = 1000, 5

// thousandNodes are of a cluster with a real API server: the nodes only answer, with 5 attached pods each.
func thousandNodes(b *testing.B) (*rest.Config, *objects.Client) {
	b.Helper()
	config := apitest.Start(b, "../../../deploy/helm/takt-node/crds")
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		b.Fatal(err)
	}
	client, err := objects.New(config)
	if err != nil {
		b.Fatal(err)
	}
	vni := int32(42)
	if _, err := client.Networks.Create(ctx, &network.TaktNetwork{ObjectMeta: metav1.ObjectMeta{Name: "tsn"}, Spec: network.TaktNetworkSpec{VNI: &vni}}, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	all := func(do func(node int) error) {
		b.Helper()
		var group sync.WaitGroup
		slots := make(chan struct{}, 32)
		for node := range nodes {
			slots <- struct{}{}
			group.Go(func() {
				if err := do(node); err != nil {
					b.Error(err)
				}
				<-slots
			})
		}
		group.Wait()
	}
	since := metav1.NewTime(time.Now().Truncate(time.Second))
	all(func(node int) error {
		made, err := kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name(node)}}, metav1.CreateOptions{})
		if err == nil {
			made.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.1.%d.%d", node/250, node%250+1)}}
			_, err = kube.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{})
		}
		var member *network.TaktNode
		if err == nil {
			member, err = client.Nodes.Create(ctx, &network.TaktNode{ObjectMeta: metav1.ObjectMeta{Name: name(node)}}, metav1.CreateOptions{})
		}
		if err != nil {
			return err
		}
		s := &member.Status
		s.Runtime, s.Clock = &network.Runtime{Version: "test", Port: 7400, Key: "key-of-" + name(node), KeySince: &since}, &network.Clock{State: "Synchronised"}
		s.Networks = []network.ServedNetwork{serving("tsn")}
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: network.Ready, Status: metav1.ConditionTrue, Reason: "Serving"})
		for pod := range pods {
			one := fmt.Sprintf("pod-%d-%d", node, pod)
			s.Endpoints = append(s.Endpoints, endpoint(one, fmt.Sprintf("02:00:00:%02x:%02x:%02x", node/256, node%256, pod), fmt.Sprintf("10.%d.%d.%d/8", 64+node/256, node%256, pod+1)))
			if _, err := kube.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: one}, Spec: corev1.PodSpec{NodeName: name(node), Containers: []corev1.Container{{Name: "main", Image: "none"}}},
			}, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
		_, err = client.Nodes.UpdateStatus(ctx, member, metav1.UpdateOptions{})
		return err
	})
	if b.Failed() {
		b.FailNow()
	}
	return config, client
}

func name(node int) string { return fmt.Sprintf("node-%04d", node) }

// beginning is a controller of theirs that has told all nodes of all pods. Asking must not be what is measured.
func beginning(ctx context.Context, b *testing.B, config *rest.Config, client *objects.Client, running *sync.WaitGroup) *Controller {
	b.Helper()
	// Its own requests are bounded as in the command.
	own := *config
	own.QPS, own.Burst = 200, 400
	ownKube, err := kubernetes.NewForConfig(&own)
	if err != nil {
		b.Fatal(err)
	}
	ownClient, err := objects.New(&own)
	if err != nil {
		b.Fatal(err)
	}
	c := New(ownKube, ownClient, &events{}, DefaultLead)
	began := time.Now()
	running.Go(func() { _ = c.Run(ctx) })
	apitest.Until(b, "all stations are told", func() bool {
		time.Sleep(time.Second)
		found, err := client.Nodes.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			b.Fatal(err)
		}
		return !slices.ContainsFunc(found.Items, func(n network.TaktNode) bool { return len(n.Spec.Stations) != pods })
	})
	report(b, time.Since(began).Seconds(), "s/first-round")
	return c
}

// answering has the nodes do what takt-node does with keys and schedules, as soon as they hear of it, and counts what they write.
func answering(leading context.Context, b *testing.B, client *objects.Client, running *sync.WaitGroup) *atomic.Int64 {
	b.Helper()
	var written atomic.Int64
	heard := make(chan struct{}, 1)
	seen := client.Informer("taktnodes", &network.TaktNode{}, func() {
		select {
		case heard <- struct{}{}:
		default:
		}
	})
	if err := objects.Run(leading, seen); err != nil {
		b.Fatal(err)
	}
	running.Go(func() {
		for {
			select {
			case <-leading.Done():
				return
			case <-heard:
			}
			w := &World{Now: time.Now(), Members: objects.All[*network.TaktNode](seen)}
			next := map[string]string{}
			for _, member := range w.Members {
				if r := member.Spec.KeyRotation; r.GoesOn() && r.To != "" && member.Spec.Peer != nil && member.Spec.Peer.NextKey == r.To {
					next[member.Name] = r.To
				}
			}
			var writes []func() error
			for _, member := range w.Members {
				now := member.DeepCopy()
				r, runtime := now.Spec.KeyRotation, now.Status.Runtime
				if r.GoesOn() && r.From == runtime.Key {
					switch {
					case r.State == network.Preparing && runtime.NextKey == "":
						runtime.NextKey = "next-of-" + runtime.Key
					case r.State == network.Switching:
						at := metav1.NewTime(w.Now)
						runtime.Key, runtime.NextKey, runtime.KeySince = r.To, "", &at
					}
				}
				now.Status.NextKeys = nil
				for name, key := range next {
					if name != now.Name {
						now.Status.NextKeys = append(now.Status.NextKeys, key)
					}
				}
				now.Status.Schedules = nil
				if len(now.Spec.Schedules) > 0 {
					a := now.Spec.Schedules[0]
					now.Status.Schedules = []network.LinkState{{Datapath: a.Datapath, Name: a.Name, UID: a.UID, Generation: a.Generation, BeginsNanoseconds: a.BeginsNanoseconds, State: network.Pending}}
				}
				if equality.Semantic.DeepEqual(now.Status, member.Status) {
					continue
				}
				writes = append(writes, func() error {
					_, err := client.Nodes.UpdateStatus(leading, now, metav1.UpdateOptions{})
					if err == nil {
						written.Add(1)
					}
					return harmless(err)
				})
			}
			if err := parallel(writes); err != nil && leading.Err() == nil {
				b.Log(err)
			}
		}
	})
	return &written
}

// installEverywhere has a schedule installed on all nodes, and counts how often it is rolled back before: it is tried again when who
// was missed has answered.
func installEverywhere(b *testing.B, client *objects.Client) {
	b.Helper()
	began := time.Now()
	if _, err := client.Schedules.Create(ctx, gates("line", nil, 7, 0), metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	was, rolledBack := "", 0
	for state := was; state != network.Installed; was = state {
		apitest.Until(b, "the schedule is installed or rolled back", func() bool {
			time.Sleep(200 * time.Millisecond)
			found, err := client.Schedules.Get(ctx, "line", metav1.GetOptions{})
			if err != nil {
				b.Fatal(err)
			}
			state = found.Status.State
			if state == network.RolledBack && was != state {
				rolledBack++
				b.Logf("after %v: %+v", time.Since(began), found.Status.Conditions)
			}
			return state != was
		})
	}
	report(b, time.Since(began).Seconds(), "s/rollout")
	report(b, float64(rolledBack), "rolled-back")
}

// report also tells what was measured before something else fails.
func report(b *testing.B, value float64, unit string) {
	b.Helper()
	b.ReportMetric(value, unit)
	b.Logf("%.3g %s", value, unit)
}

// podGoes has a node say that it has a pod less, until the controller tells others so.
func podGoes(b *testing.B, client *objects.Client) {
	b.Helper()
	began := time.Now()
	apitest.Until(b, "the pod has gone from what its node says", func() bool {
		member, err := client.Nodes.Get(ctx, name(7), metav1.GetOptions{})
		if err != nil {
			b.Fatal(err)
		}
		member.Status.Endpoints = member.Status.Endpoints[1:]
		_, err = client.Nodes.UpdateStatus(ctx, member, metav1.UpdateOptions{})
		return err == nil
	})
	apitest.Until(b, "the pod is no station any more", func() bool {
		now, err := client.Nodes.Get(ctx, name(7), metav1.GetOptions{})
		return err == nil && len(now.Spec.Stations) == pods-1
	})
	report(b, time.Since(began).Seconds(), "s/pod")
}

// What a cluster of 1,000 nodes with 5 attached pods each costs: one round of the controller, and a schedule on all
// nodes. The API server is real, the nodes only answer.
//
//	go test ./internal/controller -run '^$' -bench 'ThousandNodes$' -benchtime 1x -timeout 30m
func BenchmarkAThousandNodes(b *testing.B) {
	config, client := thousandNodes(b)
	var running sync.WaitGroup
	defer running.Wait()
	leading, cancel := context.WithCancel(ctx)
	defer cancel()
	c := beginning(leading, b, config, client, &running)
	began := time.Now()
	w := c.world()
	w.Make()
	report(b, float64(time.Since(began).Milliseconds()), "ms/plan")

	answering(leading, b, client, &running)
	installEverywhere(b, client)
	podGoes(b, client)
}

// What the same cluster costs while one node after the other changes its key: how long a change takes, what nodes write for it, and what becomes of a
// schedule and of a pod meanwhile.
//
//	go test ./internal/controller -run '^$' -bench ThousandNodesWhoseKeysChange -benchtime 1x -timeout 30m
func BenchmarkAThousandNodesWhoseKeysChange(b *testing.B) {
	config, client := thousandNodes(b)
	var running sync.WaitGroup
	defer running.Wait()
	leading, cancel := context.WithCancel(ctx)
	defer cancel()
	beginning(leading, b, config, client, &running)
	written := answering(leading, b, client, &running)

	// All are asked for: one waits for the other.
	began, before, used := time.Now(), written.Load(), processorTime(b)
	for node := range nodes {
		if _, err := client.Nodes.Patch(ctx, name(node), types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+network.RotateKey+`":"2127-01-31T12:00:00Z"}}}`), metav1.PatchOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	rotated := func() (count int, took time.Duration) {
		time.Sleep(time.Second)
		found, err := client.Nodes.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			b.Fatal(err)
		}
		for _, one := range found.Items {
			if r := one.Spec.KeyRotation; r != nil && r.State == network.Rotated {
				count++
				took = max(took, r.Since.Sub(r.Began.Time))
			}
		}
		return count, took
	}
	changes, longest := 0, time.Duration(0)
	for changes < 3 {
		more := changes + 1
		apitest.Until(b, fmt.Sprintf("%d nodes have changed their keys", more), func() bool { changes, longest = rotated(); return changes >= more })
	}
	report(b, time.Since(began).Seconds()/float64(changes), "s/node")
	report(b, longest.Seconds(), "s/longest-change")
	report(b, float64(written.Load()-before)/float64(changes), "writes-of-nodes/change")
	report(b, (processorTime(b)-used).Seconds()/time.Since(began).Seconds(), "cores-of-controller-and-nodes")

	// A pod goes while a change is told to all nodes.
	apitest.Until(b, "a change goes on", func() bool {
		found, err := client.Nodes.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			b.Fatal(err)
		}
		return slices.ContainsFunc(found.Items, func(n network.TaktNode) bool { return n.Spec.KeyRotation.GoesOn() })
	})
	podGoes(b, client)
	installEverywhere(b, client)
}

// processorTime is what this process has used: controller and nodes, and not the API server.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
