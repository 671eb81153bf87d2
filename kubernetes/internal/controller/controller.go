package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/objects"
	"github.com/takt-dev/takt/kubernetes/internal/quote"
)

// Name is the controller's, in events and leases.
const Name = "takt-controller"

// DefaultLead is how long nodes have to take a schedule before it begins, beside what many nodes take.
const DefaultLead = 10 * time.Second

const (
	// settle is how long changes may gather before they are looked at: pods come and go together.
	settle = 100 * time.Millisecond
	// lookAgain is how often everything is looked at while nothing changes: instants pass.
	lookAgain = 2 * time.Second
	// writers are how many objects are written at a time.
	writers = 16
	// eachNode is what a node adds to the lead.
	eachNode = 40 * time.Millisecond
	// mostTold is how many warnings about pods are remembered.
	mostTold = 10_000
)

// recorder is what is used of an event recorder.
type recorder interface {
	Eventf(object runtime.Object, eventType, reason, message string, args ...any)
}

// Controller keeps the cluster's objects in step.
type Controller struct {
	client  *objects.Client
	events  recorder
	lead    time.Duration
	changed chan struct{}
	// KeyRotation is how old nodes' keys become before they are changed; 0: they are changed where it is asked for.
	KeyRotation time.Duration
	worded      map[string]time.Time
	// told are warnings about pods, so that none is told in every round.
	told map[string]bool

	networks, schedules, members, nodes, pods cache.SharedIndexInformer
}

// New makes a controller and starts nothing.
func New(kube kubernetes.Interface, client *objects.Client, events recorder, lead time.Duration) *Controller {
	c := &Controller{client: client, events: events, lead: lead, changed: make(chan struct{}, 1), told: map[string]bool{}, worded: map[string]time.Time{}}
	wake := func() {
		select {
		case c.changed <- struct{}{}:
		default:
		}
	}
	c.networks = client.Informer("taktnetworks", &network.TaktNetwork{}, wake)
	c.schedules = client.Informer("gateschedules", &network.GateSchedule{}, wake)
	c.members = client.Informer("taktnodes", &network.TaktNode{}, wake)
	core := kube.CoreV1().RESTClient()
	c.nodes = objects.Informer(cache.NewListWatchFromClient(core, "nodes", "", fields.Everything()), &corev1.Node{}, wake)
	c.pods = objects.Informer(cache.NewListWatchFromClient(core, "pods", "", fields.Everything()), &corev1.Pod{}, wake)
	// Nodes and pods are many: what is not looked at is not kept. It only fails once they run.
	_ = c.nodes.SetTransform(func(object any) (any, error) {
		if node, ok := object.(*corev1.Node); ok {
			ready := slices.DeleteFunc(slices.Clone(node.Status.Conditions), func(c corev1.NodeCondition) bool { return c.Type != corev1.NodeReady })
			return &corev1.Node{ObjectMeta: trimmed(&node.ObjectMeta), Status: corev1.NodeStatus{Addresses: node.Status.Addresses, Conditions: ready}}, nil
		}
		return object, nil
	})
	_ = c.pods.SetTransform(func(object any) (any, error) {
		if pod, ok := object.(*corev1.Pod); ok {
			meta := trimmed(&pod.ObjectMeta)
			meta.Labels = nil
			return &corev1.Pod{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: meta,
				Spec: corev1.PodSpec{NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork}, Status: corev1.PodStatus{Phase: pod.Status.Phase, PodIPs: pod.Status.PodIPs},
			}, nil
		}
		return object, nil
	})
	return c
}

func trimmed(of *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: of.Name, Namespace: of.Namespace, UID: of.UID, ResourceVersion: of.ResourceVersion, Labels: of.Labels, CreationTimestamp: of.CreationTimestamp}
}

// Run keeps the objects in step until the context ends.
func (c *Controller) Run(ctx context.Context) error {
	if err := objects.Run(ctx, c.networks, c.schedules, c.members, c.nodes, c.pods); err != nil {
		return nil // the context has ended
	}
	logger := klog.FromContext(ctx)
	logger.Info("Leading")
	for {
		if err := c.round(ctx); err != nil && ctx.Err() == nil {
			logger.Error(err, "Some objects could not be written: they are tried again")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.changed:
		case <-time.After(lookAgain):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(settle):
		}
	}
}

// world is what the informers have.
func (c *Controller) world() *World {
	w := &World{
		Networks: objects.All[*network.TaktNetwork](c.networks), Schedules: objects.All[*network.GateSchedule](c.schedules),
		Members: objects.All[*network.TaktNode](c.members), Nodes: map[string]*corev1.Node{}, Pods: map[string]*corev1.Pod{}, Now: time.Now(), KeyRotation: c.KeyRotation, Worded: c.worded,
	}
	w.Lead = c.lead + time.Duration(len(w.Members))*eachNode
	for _, node := range objects.All[*corev1.Node](c.nodes) {
		w.Nodes[node.Name] = node
	}
	for _, pod := range objects.All[*corev1.Pod](c.pods) {
		w.Pods[pod.Namespace+"/"+pod.Name] = pod
	}
	return w
}

// round looks at everything once. The statuses of schedules go first: which instant was chosen is known before any node
// is asked. What nodes have of a schedule whose status is not taken stays for this round; all else goes on.
func (c *Controller) round(ctx context.Context) error {
	w := c.world()
	p := w.Make()
	var mistakes []error
	held := map[types.UID]bool{}
	for _, one := range w.Schedules {
		if equality.Semantic.DeepEqual(one.Status, p.Schedules[one.Name]) {
			continue
		}
		now := one.DeepCopy()
		now.Status = p.Schedules[one.Name]
		if _, err := c.client.Schedules.UpdateStatus(ctx, now, metav1.UpdateOptions{}); err != nil {
			held[one.UID] = true
			mistakes = append(mistakes, named("GateSchedule", one.Name, err))
			continue
		}
		c.tell(p.became(one.UID))
	}
	p.hold(w.Members, held)
	c.tell(p.goesOn())
	var writes []func() error
	for _, one := range w.Members {
		if equality.Semantic.DeepEqual(one.Spec, p.Specs[one.Name]) {
			continue
		}
		now := one.DeepCopy()
		now.Spec = p.Specs[one.Name]
		writes = append(writes, func() error {
			_, err := c.client.Nodes.Update(ctx, now, metav1.UpdateOptions{})
			if err == nil {
				c.tell(p.became(now.UID))
			}
			return named("TaktNode", now.Name, err)
		})
	}
	for _, one := range w.Networks {
		if equality.Semantic.DeepEqual(one.Status, p.Networks[one.Name]) {
			continue
		}
		now := one.DeepCopy()
		now.Status = p.Networks[one.Name]
		writes = append(writes, func() error {
			_, err := c.client.Networks.UpdateStatus(ctx, now, metav1.UpdateOptions{})
			if err == nil {
				c.tell(p.became(now.UID))
			}
			return named("TaktNetwork", now.Name, err)
		})
	}
	return errors.Join(append(mistakes, parallel(writes))...)
}

// hold leaves nodes what they are assigned of these schedules.
func (p *Plan) hold(members []*network.TaktNode, schedules map[types.UID]bool) {
	if len(schedules) == 0 {
		return
	}
	for _, member := range members {
		var kept []network.Assignment
		for _, had := range member.Spec.Schedules {
			if schedules[had.UID] {
				kept = append(kept, had)
			}
		}
		spec := p.Specs[member.Name]
		for _, planned := range spec.Schedules {
			here := func(a network.Assignment) bool { return a.Datapath == planned.Datapath }
			if slices.ContainsFunc(kept, here) {
				continue
			}
			if !schedules[planned.UID] {
				kept = append(kept, planned)
			} else if at := slices.IndexFunc(member.Spec.Schedules, here); at >= 0 {
				kept = append(kept, member.Spec.Schedules[at]) // another schedule's, which would give way to it
			}
		}
		slices.SortFunc(kept, func(a, b network.Assignment) int { return cmp.Compare(a.Datapath, b.Datapath) })
		spec.Schedules = kept
		p.Specs[member.Name] = spec
	}
}

func named(kind, name string, err error) error {
	if err == nil {
		return nil
	}
	return harmless(fmt.Errorf("%s %s: %w", kind, name, err))
}

// harmless leaves out that an object has changed or gone: the next round sees that.
func harmless(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// parallel does some writes at a time, and returns when all are done.
func parallel(writes []func() error) error {
	var group sync.WaitGroup
	results, slots := make([]error, len(writes)), make(chan struct{}, writers)
	for at, write := range writes {
		slots <- struct{}{}
		group.Go(func() {
			results[at] = write()
			<-slots
		})
	}
	group.Wait()
	return errors.Join(results...)
}

// became is what has changed of an object. It is told when its status is taken: what is not is another one in the next round.
func (p *Plan) became(uid types.UID) []Event {
	return slices.DeleteFunc(slices.Clone(p.Events), func(e Event) bool { return e.Once || e.About.(metav1.Object).GetUID() != uid })
}

// goesOn is what each round has anew.
func (p *Plan) goesOn() []Event {
	return slices.DeleteFunc(slices.Clone(p.Events), func(e Event) bool { return !e.Once })
}

// tell tells what is new. Only what is told once is remembered: all else may be told from several goroutines.
func (c *Controller) tell(events []Event) {
	for _, event := range events {
		if object, is := event.About.(metav1.Object); is && event.Once {
			key := string(object.GetUID()) + event.Reason + event.Message
			if c.told[key] {
				continue
			}
			if len(c.told) >= mostTold {
				clear(c.told)
			}
			c.told[key] = true
		}
		kind := corev1.EventTypeNormal
		if event.Warning {
			kind = corev1.EventTypeWarning
		}
		c.events.Eventf(event.About, kind, event.Reason, "%s", quote.Text(event.Message))
	}
}
