package controller

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/apitest"
	"github.com/takt-dev/takt/kubernetes/internal/objects"
)

// What a cluster of 1,000 nodes with 5 attached pods each costs: one round of the controller, and a schedule on all
// nodes. The API server is real, the nodes only answer.
//
//	go test ./internal/controller -run '^$' -bench ThousandNodes -benchtime 1x -timeout 30m
func BenchmarkAThousandNodes(b *testing.B) {
	const nodes, pods = 1000, 5
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
	name := func(node int) string { return fmt.Sprintf("node-%04d", node) }
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
		s.Runtime, s.Clock = &network.Runtime{Version: "test", Port: 7400, Key: "key"}, &network.Clock{State: "Synchronised"}
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
		return
	}
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
	var running sync.WaitGroup
	defer running.Wait()
	stop := make(chan struct{})

	leading, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now()
	running.Go(func() { _ = c.Run(leading) })
	// Asking must not be what is measured.
	list := func() []network.TaktNode {
		time.Sleep(time.Second)
		found, err := client.Nodes.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			b.Fatal(err)
		}
		return found.Items
	}
	apitest.Until(b, "all stations are told", func() bool {
		return !slices.ContainsFunc(list(), func(n network.TaktNode) bool { return len(n.Spec.Stations) != pods })
	})
	b.ReportMetric(time.Since(began).Seconds(), "s/first-round")
	began = time.Now()
	w := c.world()
	w.Make()
	b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms/plan")

	// Nodes answer as soon as they hear.
	var answered atomic.Int64
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
			case <-stop:
				return
			case <-heard:
			}
			var writes []func() error
			for _, member := range objects.All[*network.TaktNode](seen) {
				if len(member.Spec.Schedules) == 0 || len(member.Status.Schedules) > 0 {
					continue
				}
				writes = append(writes, func() error {
					a, now := member.Spec.Schedules[0], member.DeepCopy()
					now.Status.Schedules = []network.LinkState{{Datapath: a.Datapath, Name: a.Name, UID: a.UID, Generation: a.Generation, BeginsNanoseconds: a.BeginsNanoseconds, State: network.Pending}}
					_, err := client.Nodes.UpdateStatus(ctx, now, metav1.UpdateOptions{})
					if err == nil {
						answered.Add(1)
					}
					return harmless(err)
				})
			}
			if err := parallel(writes); err != nil {
				b.Log(err)
			}
		}
	})
	defer close(stop)
	began = time.Now()
	if _, err := client.Schedules.Create(ctx, gates("line", nil, 7, 0), metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	apitest.Until(b, "the schedule is installed or rolled back", func() bool {
		time.Sleep(200 * time.Millisecond)
		found, err := client.Schedules.Get(ctx, "line", metav1.GetOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if found.Status.State == network.RolledBack {
			b.Fatalf("%+v after %d answers", found.Status.Conditions, answered.Load())
		}
		return found.Status.State == network.Installed
	})
	b.ReportMetric(time.Since(began).Seconds(), "s/rollout")
	// A pod that comes.
	began = time.Now()
	member, err := client.Nodes.Get(ctx, name(7), metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	member.Status.Endpoints = member.Status.Endpoints[1:]
	if _, err := client.Nodes.UpdateStatus(ctx, member, metav1.UpdateOptions{}); err != nil {
		b.Logf("the pod's node was changed meanwhile: %v", err)
	}
	apitest.Until(b, "the pod is no station any more", func() bool {
		now, err := client.Nodes.Get(ctx, name(7), metav1.GetOptions{})
		return err == nil && len(now.Spec.Stations) == pods-1
	})
	b.ReportMetric(time.Since(began).Seconds(), "s/pod")
}
