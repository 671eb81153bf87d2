package node

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	metaapply "k8s.io/client-go/applyconfigurations/meta/v1"
	resourceapply "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/takt-dev/takt/kubernetes/pkg/enforce"
	"github.com/takt-dev/takt/kubernetes/pkg/reservation"
)

// ConditionReady is the condition of a device in a claim's status.
const ConditionReady = "Ready"

// condition is what a claim's status says of all of its devices.
type condition struct {
	ready           bool
	reason, message string
}

// DeviceData is what a claim's status says of one core, as its devices' data.
type DeviceData struct {
	Backend string `json:"backend"`
	CPU     int    `json:"cpu"`
	// Bandwidth is in parts per million of the core.
	Bandwidth int64 `json:"bandwidth"`
	// Threads hold the reservations of the request, Free is how many nobody holds. Both are with the
	// request's first device.
	Threads []ThreadData `json:"threads,omitempty"`
	Free    *int         `json:"free,omitempty"`
}

// ThreadData is one thread under reservation.
type ThreadData struct {
	// TID is the number that the container knows the thread by.
	TID  int    `json:"tid"`
	Name string `json:"name"`
}

// statusWriter writes claims' statuses behind the agent's back: the kubelet and the container runtime must
// not wait for the API server. Of several states of a claim only the last one is written.
type statusWriter struct {
	client kubernetes.Interface
	n      *Node

	mu      sync.Mutex
	pending map[types.UID]claimStatus
	wake    chan struct{}
}

type claimStatus struct {
	record    *Record
	condition condition
	states    map[string]enforce.State
	tries     int
}

// pace is the least time between two rounds of writing; a claim that cannot be written is tried mostTries
// times.
const (
	pace      = time.Second
	mostTries = 10
)

func newStatusWriter(client kubernetes.Interface, n *Node) *statusWriter {
	return &statusWriter{client: client, n: n, pending: map[types.UID]claimStatus{}, wake: make(chan struct{}, 1)}
}

// set replaces what is to be written of a claim.
func (w *statusWriter) set(record *Record, c condition, states map[string]enforce.State) {
	w.put(claimStatus{record: record, condition: c, states: states})
}

func (w *statusWriter) put(s claimStatus) {
	w.mu.Lock()
	w.pending[s.record.Claim] = s
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *statusWriter) forget(claim types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pending, claim)
}

func (w *statusWriter) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		w.mu.Lock()
		batch := w.pending
		w.pending = map[types.UID]claimStatus{}
		w.mu.Unlock()
		for uid, status := range batch {
			err := w.write(ctx, status)
			if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
				continue
			}
			klog.FromContext(ctx).Error(err, "Cannot write a claim's status", "claim", klog.KRef(status.record.Namespace, status.record.Name))
			w.n.metrics.failures.WithLabelValues("status").Inc()
			if status.tries++; status.tries < mostTries {
				w.mu.Lock()
				_, newer := w.pending[uid]
				w.mu.Unlock()
				if !newer {
					w.put(status)
				}
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pace):
		}
	}
}

func (w *statusWriter) write(ctx context.Context, s claimStatus) error {
	apply := resourceapply.ResourceClaimStatus()
	state := metav1.ConditionFalse
	if s.condition.ready {
		state = metav1.ConditionTrue
	}
	for _, request := range s.record.Requests {
		for i, device := range request.Devices {
			data := DeviceData{Backend: w.n.backend.Name(), CPU: device.CPU, Bandwidth: device.PPM}
			if known, ok := s.states[request.Name]; ok && i == 0 {
				data.Free = &known.Free
				for _, thread := range known.Threads {
					data.Threads = append(data.Threads, ThreadData{TID: thread.Inner, Name: thread.Name})
				}
			}
			text, err := json.Marshal(data)
			if err != nil {
				return err
			}
			entry := resourceapply.AllocatedDeviceStatus().
				WithDriver(reservation.Driver).WithPool(device.Pool).WithDevice(device.Name).
				WithData(runtime.RawExtension{Raw: text}).
				WithConditions(metaapply.Condition().
					WithType(ConditionReady).WithStatus(state).WithReason(s.condition.reason).
					WithMessage(s.condition.message).WithLastTransitionTime(metav1.Now()))
			if device.ShareID != nil {
				entry = entry.WithShareID(string(*device.ShareID))
			}
			apply = apply.WithDevices(entry)
		}
	}
	if len(apply.Devices) == 0 {
		return nil // refused before anything was known of its devices: the event says why
	}
	claim := resourceapply.ResourceClaim(s.record.Name, s.record.Namespace).WithUID(s.record.Claim).WithStatus(apply)
	_, err := w.client.ResourceV1().ResourceClaims(s.record.Namespace).ApplyStatus(ctx, claim,
		metav1.ApplyOptions{FieldManager: PluginName, Force: true})
	return err
}

// report writes what is known of a container into the statuses of its claims. Call with c.mu held.
func (n *Node) report(c *container, what condition) {
	states := map[types.UID]map[string]enforce.State{}
	for i, grant := range c.grants {
		uid, request, err := parseKey(grant.Key)
		if err != nil {
			continue
		}
		if states[uid] == nil {
			states[uid] = map[string]enforce.State{}
		}
		if i < len(c.tallies) {
			states[uid][request] = c.tallies[i].state
		}
	}
	for uid, ofClaim := range states {
		n.mu.Lock()
		claim := n.claims[uid]
		n.mu.Unlock()
		if claim != nil {
			n.status.set(claim.Record, what, ofClaim)
		}
	}
}

// exists says whether the claim is still in the cluster; true if that cannot be known.
func (n *Node) exists(ctx context.Context, record *Record) bool {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	claim, err := n.client.ResourceV1().ResourceClaims(record.Namespace).Get(ctx, record.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false
	}
	return err != nil || claim.UID == record.Claim
}
