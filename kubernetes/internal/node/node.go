// Package node is the agent that runs on every node: DRA driver for the kubelet, NRI plugin for the
// container runtime, and the one that calls a backend of package enforce in between. Its rule is that no
// container of a claim runs without the reservation; all else gives way to that.
//
// It keeps no state of its own. What it knows is in the claims' CDI files (record.go) and in the container
// runtime, and both are read again after a restart.
package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/enforce"
	"github.com/takt-dev/takt/kubernetes/internal/inventory"
	"github.com/takt-dev/takt/kubernetes/internal/misses"
	"github.com/takt-dev/takt/kubernetes/internal/objects"
	"github.com/takt-dev/takt/kubernetes/internal/quote"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

// recorder is what is used of an event recorder.
type recorder interface {
	Eventf(object runtime.Object, eventType, reason, message string, args ...any)
}

// Node is the agent.
type Node struct {
	health.UnimplementedDRAResourceHealthServer

	name    string
	config  Config
	client  kubernetes.Interface
	events  recorder
	backend enforce.Backend
	// host is the root of the node's own file system: the agent is in a container that sees the node's processes.
	host string
	// root is the file system in which the kernel says what it has: "/" but in tests.
	root    string
	limits  reservation.Limits
	records records
	metrics *metrics
	status  *statusWriter
	viewers *viewers
	// cluster is the node's part in the cluster's networks; nil if it has none.
	cluster *member
	// veths and gates are nil without networks.
	veths *veths
	gates *gateTimes
	// lately is what taktd has counted in the last minute.
	lately lately
	// misses counts missed deadlines; nil where nobody has any, or they cannot be counted.
	misses *misses.Counter
	// attended are the containers that may start without a reservation, denials what others are to be denied.
	attended attended
	denials  denials
	// named are the sandboxes of pods that have the containers which their annotations name.
	named sync.Map
	// served are the sandboxes of pods that have, or had, a container with their sockets.
	served sync.Map

	// order wakes the one who publishes the cores in their new order.
	order chan struct{}

	mu sync.Mutex
	// offer is what is published. CPUs, Roams, Order and Backend stay as they were in the beginning.
	offer inventory.Offer
	// drifts are those of root domains, by key; trouble says of CPUs why they cannot keep what is reserved of them.
	drifts  map[int]drift
	trouble map[int]string
	// reclaimed counts how often what the kernel had lost came back. unreadable says that it does not tell what it has
	// admitted: then threads outside of claims are looked for at lookedAt, and were seen.
	reclaimed  int
	unreadable bool
	lookedAt   time.Time
	seen       map[int]sched.Attr

	claims     map[types.UID]*prepared
	containers map[string]*container
	// holders are the containers that hold a request, by key.
	holders map[string]*container

	// fail ends the agent with an error; nil before it runs.
	fail      context.CancelCauseFunc
	helper    *kubeletplugin.Helper
	connected bool
}

// prepared is a claim that the kubelet has asked for.
type prepared struct {
	*Record
	// stop ends the service of the ask socket; nil if there is none.
	stop func()
}

// New makes an agent from a valid configuration and starts nothing.
func New(name string, config Config, client kubernetes.Interface, events recorder, backend enforce.Backend) (*Node, error) {
	offer, err := config.Offer("/", backend)
	if err != nil {
		return nil, err
	}
	n := &Node{
		name: name, config: config, client: client, events: events, backend: backend,
		host: "/proc/1/root", root: "/", limits: sched.Limits("/"),
		records: records{dir: config.CDIDirectory, run: config.RunDirectory, gate: config.Gate},
		order:   make(chan struct{}, 1),
		offer:   offer, drifts: map[int]drift{}, trouble: map[int]string{},
		claims: map[types.UID]*prepared{}, containers: map[string]*container{}, holders: map[string]*container{},
	}
	if config.Network != nil {
		n.veths = newVeths(n)
		if n.gates, err = newGateTimes(n); err != nil {
			return nil, err
		}
	}
	n.metrics = newMetrics(n)
	n.status = newStatusWriter(client, n)
	n.viewers = newViewers(n)
	return n, nil
}

// Join has the agent keep its node in step with the cluster's networks, once it runs. The returned function is to be
// called after that.
func (n *Node) Join(client *objects.Client) (leave func() error, err error) {
	d, disconnect, err := n.networks()
	if err != nil {
		return nil, err
	}
	n.cluster = n.member(client, d)
	return disconnect, nil
}

// Run serves until the context ends; then it stops in an order that leaves containers under their
// reservations. It returns nil after an orderly end.
func (n *Node) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	if n.config.Cores == NoCores {
		return n.serve(ctx, logger)
	}
	if err := n.backend.Open(); err != nil {
		return err
	}
	if name := n.backend.Name(); name == enforce.DeadlineName || name == enforce.PartitionName {
		counter, err := misses.New()
		if err != nil {
			logger.Error(err, "The metrics of missed deadlines are not there")
		} else {
			n.misses = counter
		}
	}
	err := errors.Join(n.serve(ctx, logger), n.backend.Close())
	if n.misses != nil {
		err = errors.Join(err, n.misses.Close())
	}
	return err
}

// missed is what a thread has missed, as far as that is known.
func (n *Node) missed(tid int) misses.Count {
	if n.misses == nil {
		return misses.Count{}
	}
	count, err := n.misses.Of(tid)
	if err != nil {
		klog.Background().Error(err, "Missed deadlines are not known")
	}
	return count
}

func (n *Node) serve(ctx context.Context, logger klog.Logger) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	n.mu.Lock()
	n.fail = cancel
	n.mu.Unlock()
	if err := n.recover(ctx); err != nil {
		return err
	}
	var background sync.WaitGroup
	if n.veths != nil {
		defer n.veths.close()
		defer n.gates.disconnect()
	}
	defer background.Wait()
	defer cancel(nil)

	gate, err := listenGate(n.config.RunDirectory)
	if err != nil {
		return err
	}
	background.Go(func() { n.serveGate(ctx, gate) })
	background.Go(func() { n.watch(ctx) })
	background.Go(func() { n.check(ctx) })
	background.Go(func() { n.endHeadless(ctx) })
	background.Go(func() { n.status.run(ctx) })
	if n.config.Listen != "" {
		server, err := n.listenHTTP()
		if err != nil {
			return err
		}
		background.Go(func() { server.serve(ctx) })
	}
	// The runtime first: a container that the kubelet starts must not come before those who watch it.
	background.Go(func() {
		if err := n.runNRI(ctx); err != nil {
			cancel(err)
		}
	})
	plugins := filepath.Join(n.config.KubeletPlugins, reservation.Driver)
	if err := os.MkdirAll(plugins, 0o750); err != nil {
		return fmt.Errorf("cannot make the plugin's directory: %w", err)
	}
	helper, err := kubeletplugin.Start(ctx, n,
		kubeletplugin.DriverName(reservation.Driver),
		kubeletplugin.NodeName(n.name),
		kubeletplugin.KubeClient(n.client),
		kubeletplugin.PluginDataDirectoryPath(plugins),
		kubeletplugin.RegistrarDirectoryPath(n.config.KubeletRegistry),
	)
	if err != nil {
		return fmt.Errorf("cannot serve the kubelet: %w", err)
	}
	defer helper.Stop()
	n.mu.Lock()
	n.helper = helper
	n.mu.Unlock()
	background.Go(func() { n.publishOrders(ctx, helper) })
	if n.config.Network != nil {
		background.Go(func() {
			if err := n.runNetworks(ctx); err != nil {
				cancel(err)
			}
		})
		background.Go(func() { n.gates.run(ctx) })
	}
	if n.cluster != nil {
		background.Go(func() { n.cluster.run(ctx) })
	}
	logger.Info("Serving", "node", n.name, "backend", n.backend.Name(), "cores", n.config.Cores, "bound", n.offer.Bound)

	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// recover reads what an earlier agent left and opens the sockets of its claims.
func (n *Node) recover(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	if err := os.MkdirAll(n.config.RunDirectory, 0o711); err != nil {
		return fmt.Errorf("cannot make the agent's directory: %w", err)
	}
	if err := os.MkdirAll(n.memoryDir(), 0o700); err != nil {
		return fmt.Errorf("cannot make the agent's directory: %w", err)
	}
	if err := os.MkdirAll(n.config.CDIDirectory, 0o755); err != nil {
		return fmt.Errorf("cannot make the CDI directory: %w", err)
	}
	found, err := n.records.load()
	if err != nil {
		logger.Error(err, "Some records of prepared claims are lost, their containers will be refused")
	}
	for _, record := range found {
		if err := n.adopt(ctx, record); err != nil {
			return err
		}
		logger.Info("Found a prepared claim", "claim", klog.KRef(record.Namespace, record.Name), "uid", record.Claim)
	}
	if n.gates != nil {
		if err := n.gates.load(); err != nil {
			logger.Error(err, "Some records of claims for gate time are lost, their containers will be refused")
		}
	}
	return nil
}

// adopt takes a record into memory and serves its socket.
func (n *Node) adopt(ctx context.Context, record *Record) error {
	p := &prepared{Record: record}
	if reservations := record.asks(); reservations > 0 {
		stop, err := n.serveAsks(ctx, record.Claim, reservations)
		if err != nil {
			return err
		}
		p.stop = stop
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.claims[record.Claim] = p
	n.reorder()
	return nil
}

// reorder says that what is left on the cores has changed. Call with n.mu held.
func (n *Node) reorder() {
	select {
	case n.order <- struct{}{}:
	default:
	}
}

// consumed is what prepared claims hold of each core. Call with n.mu held.
func (n *Node) consumed() map[int]int64 {
	sum := map[int]int64{}
	for _, claim := range n.claims {
		for _, request := range claim.Requests {
			for _, device := range request.Devices {
				sum[device.CPU] += device.PPM
			}
		}
	}
	return sum
}

// publisher is what is used of a kubeletplugin.Helper.
type publisher interface {
	PublishResources(ctx context.Context, resources resourceslice.DriverResources) error
}

// APIRate is how often in a second the agent asks the API server in the long run, and APIBurst how often at once: what fifty pods
// need that start together, two requests for each claim to be prepared and two for each of its two statuses. With client-go's
// default, 5 and 10, they would wait for a minute. The API server's own fairness bounds the rest.
const (
	APIRate  = 100
	APIBurst = 400
)

// settle is how long claims may come and go before the cores are published in a new order: a late order
// costs a worse placement, a write for every claim costs the API server.
const settle = 500 * time.Millisecond

// publishOrders publishes the node's cores, at once and whenever their order has changed.
func (n *Node) publishOrders(ctx context.Context, to publisher) {
	var last []string
	for {
		n.mu.Lock()
		n.offer.Consumed = n.consumed()
		pool := inventory.Pool(n.offer)
		n.mu.Unlock()
		if order := deviceOrder(pool); !slices.Equal(order, last) || last == nil {
			err := to.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{n.name: pool}})
			if err != nil {
				klog.FromContext(ctx).Error(err, "Cannot publish the node's cores")
			} else {
				last = order
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-n.order:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(settle):
		}
	}
}

// deviceOrder is what of a pool changes: the order of its devices, and what they have to give.
func deviceOrder(pool resourceslice.Pool) []string {
	order := []string{}
	for _, slice := range pool.Slices {
		for _, device := range slice.Devices {
			capacity := device.Capacity[reservation.Bandwidth]
			line := device.Name + " " + capacity.Value.String() + " " + capacity.RequestPolicy.ValidRange.Max.String()
			for _, taint := range device.Taints {
				line += " " + taint.Key + "=" + taint.Value
			}
			order = append(order, line)
		}
	}
	return order
}

// HandleError implements kubeletplugin.DRAPlugin.
// What cannot be recovered from ends the agent, which is then started again: one that does not serve must not look
// as if it did.
func (n *Node) HandleError(ctx context.Context, err error, msg string) {
	klog.FromContext(ctx).Error(err, msg)
	n.metrics.failed(atPublish)
	if errors.Is(err, kubeletplugin.ErrRecoverable) {
		return
	}
	n.mu.Lock()
	fail := n.fail
	n.mu.Unlock()
	if fail != nil {
		fail(fmt.Errorf("%s: %w", msg, err))
	}
}

// event tells the users of a pod, in as many words as an event has room for.
func (n *Node) event(pod Pod, eventType, reason, message string, args ...any) {
	n.events.Eventf(&corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
	}, eventType, reason, "%s", quote.Text(fmt.Sprintf(message, args...)))
}
