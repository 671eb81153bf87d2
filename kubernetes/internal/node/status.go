package node

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/enforce"
	"github.com/takt-dev/takt/kubernetes/internal/quote"
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
	pending map[statusKey]claimStatus
	wake    chan struct{}
}

// statusKey is what is written at once: the devices of one driver.
type statusKey struct {
	claim  types.UID
	driver string
}

type claimStatus struct {
	record *Record
	// gates, of a claim for gate time, are its devices instead of the record's.
	gates []gateRequest
	// condition is that of all devices but those of requests that have one of their own.
	condition condition
	own       map[string]condition
	states    map[string]enforce.State
	// tries is how often it could not be written, due when it is tried again.
	tries int
	due   time.Time
}

func (s claimStatus) key() statusKey {
	if s.gates != nil {
		return statusKey{s.record.Claim, reservation.NetworkDriver}
	}
	return statusKey{s.record.Claim, reservation.Driver}
}

// of is the condition of a request's devices.
func (s claimStatus) of(request string) condition {
	if own, ok := s.own[request]; ok {
		return own
	}
	return s.condition
}

// pace is the least time between two rounds of writing; a claim that could not be written is tried again after a
// pause that doubles each time, up to mostPause: the API server may be away for long, and nobody else says it later.
const (
	pace      = time.Second
	mostPause = time.Minute
)

func newStatusWriter(client kubernetes.Interface, n *Node) *statusWriter {
	return &statusWriter{client: client, n: n, pending: map[statusKey]claimStatus{}, wake: make(chan struct{}, 1)}
}

// set replaces what is to be written of a claim.
func (w *statusWriter) set(record *Record, c condition, states map[string]enforce.State) {
	w.put(claimStatus{record: record, condition: c, states: states})
}

// setOwn is set with conditions of single requests.
func (w *statusWriter) setOwn(record *Record, c condition, own map[string]condition, states map[string]enforce.State) {
	w.put(claimStatus{record: record, condition: c, own: own, states: states})
}

func (w *statusWriter) put(s claimStatus) {
	w.mu.Lock()
	w.pending[s.key()] = s
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// forget leaves out what was to be written of a driver's devices.
func (w *statusWriter) forget(claim types.UID, driver string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pending, statusKey{claim, driver})
}

func (w *statusWriter) run(ctx context.Context) {
	for {
		var later <-chan time.Time
		if wait, any := w.next(); any {
			later = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-later:
		}
		for _, status := range w.take(time.Now()) {
			err := w.write(ctx, status)
			if err == nil || apierrors.IsNotFound(err) {
				continue
			}
			klog.FromContext(ctx).Error(err, "Cannot write a claim's status", "claim", klog.KRef(status.record.Namespace, status.record.Name))
			w.n.metrics.failed(atStatus)
			w.again(status, time.Now())
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pace):
		}
	}
}

// next is how long it is until something has to be written; false if nothing has.
func (w *statusWriter) next() (wait time.Duration, any bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, status := range w.pending {
		if left := max(time.Until(status.due), 0); !any || left < wait {
			wait, any = left, true
		}
	}
	return wait, any
}

// take is what has to be written now; what waits for another try stays.
func (w *statusWriter) take(now time.Time) (batch []claimStatus) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, status := range w.pending {
		if !status.due.After(now) {
			batch = append(batch, status)
			delete(w.pending, key)
		}
	}
	return batch
}

// again has what could not be written tried later, unless there is something newer.
func (w *statusWriter) again(status claimStatus, now time.Time) {
	status.due = now.Add(min(pace<<min(status.tries, 10), mostPause))
	status.tries++
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, newer := w.pending[status.key()]; !newer {
		w.pending[status.key()] = status
	}
}

// write replaces this driver's devices in the claim's status. It is an update of the whole: what applies or
// patches has the API server write the claim's parameters anew, with their fields in another order, which is
// then refused as a change of the allocation.
func (w *statusWriter) write(ctx context.Context, s claimStatus) error {
	if len(s.record.Requests)+len(s.gates) == 0 {
		return nil // refused before anything was known of its devices: the event says why
	}
	claims := w.client.ResourceV1().ResourceClaims(s.record.Namespace)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		claim, err := claims.Get(ctx, s.record.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if claim.UID != s.record.Claim || claim.Status.Allocation == nil {
			return nil // it is another one now, or has been given back
		}
		devices, err := w.devices(s, claim.Status.Devices)
		if err != nil {
			return err
		}
		if apiequality.Semantic.DeepEqual(claim.Status.Devices, devices) {
			return nil
		}
		claim.Status.Devices = devices
		_, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{FieldManager: PluginName})
		return err
	})
}

// devices are the claim's devices as they shall be: those of other drivers as they are.
func (w *statusWriter) devices(s claimStatus, now []resourceapi.AllocatedDeviceStatus) ([]resourceapi.AllocatedDeviceStatus, error) {
	before := map[string][]metav1.Condition{}
	devices := slices.DeleteFunc(slices.Clone(now), func(d resourceapi.AllocatedDeviceStatus) bool {
		ours := d.Driver == s.key().driver && d.Pool == w.n.name
		if ours {
			before[d.Device+share(d.ShareID)] = slices.Clone(d.Conditions) // which are changed below
		}
		return ours
	})
	add := func(device Device, is condition, data any) error {
		text, err := json.Marshal(data)
		if err != nil {
			return err
		}
		state := metav1.ConditionFalse
		if is.ready {
			state = metav1.ConditionTrue
		}
		entry := resourceapi.AllocatedDeviceStatus{
			Driver: s.key().driver, Pool: device.Pool, Device: device.Name, ShareID: (*string)(device.ShareID),
			Data: &runtime.RawExtension{Raw: text},
		}
		entry.Conditions = before[device.Name+share(entry.ShareID)]
		meta.SetStatusCondition(&entry.Conditions, metav1.Condition{
			Type: ConditionReady, Status: state, Reason: is.reason, Message: quote.Text(is.message),
		})
		devices = append(devices, entry)
		return nil
	}
	for _, request := range s.gates {
		if err := add(request.Device, s.condition, request.data()); err != nil {
			return nil, err
		}
	}
	if s.gates != nil {
		return devices, nil
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
			if err := add(device, s.of(request.Name), data); err != nil {
				return nil, err
			}
		}
	}
	return devices, nil
}

func share(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

// report writes what is known of a container into the statuses of its claims. Call with c.mu held.
func (n *Node) report(c *container, what condition) {
	states := map[types.UID]map[string]enforce.State{}
	own := map[types.UID]map[string]condition{}
	for i, grant := range c.grants {
		uid, request, err := parseKey(grant.Key)
		if err != nil {
			continue
		}
		if states[uid] == nil {
			states[uid], own[uid] = map[string]enforce.State{}, map[string]condition{}
		}
		if i < len(c.tallies) {
			states[uid][request] = c.tallies[i].state
			if code, why := unheld(c.tallies[i].state); what.ready && code != "" {
				own[uid][request] = condition{reason: code, message: why}
			}
		}
	}
	for uid, ofClaim := range states {
		n.mu.Lock()
		claim := n.claims[uid]
		n.mu.Unlock()
		if claim != nil {
			n.status.setOwn(claim.Record, what, own[uid], ofClaim)
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
