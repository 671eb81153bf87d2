package node

import (
	"context"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/admission"
	"github.com/takt-dev/takt/kubernetes/internal/enforce"
	"github.com/takt-dev/takt/kubernetes/internal/inventory"
	"github.com/takt-dev/takt/kubernetes/internal/quote"
)

func nodeDevice(name string) (int, error) { return inventory.ParseDeviceName(name) }

// PrepareResourceClaims implements kubeletplugin.DRAPlugin: it checks claims and writes their CDI files.
// Nothing is enforced yet, because there is no container yet.
func (n *Node) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	undo := undoing{n: n, driver: reservation.Driver}
	defer undo.done(ctx)
	for _, claim := range claims {
		began := time.Now()
		record, err := n.prepare(ctx, claim)
		n.metrics.prepare.Observe(time.Since(began).Seconds())
		if err != nil {
			err = quote.Error(err)
			klog.FromContext(ctx).Error(err, "Refused a claim", "claim", klog.KObj(claim))
			n.metrics.refused(atPrepare, err)
			pods := record.Pods[:min(len(record.Pods), mostPods)]
			for _, pod := range pods {
				n.tell(pod, reasonRefused, "reservation "+claim.Name, err)
			}
			undo.add(pods, claim, err)
			n.status.set(record, denied(reasonRefused, err), nil)
			results[claim.UID] = kubeletplugin.PrepareResult{Err: err}
			continue
		}
		n.status.set(record, condition{ready: true, reason: "Prepared", message: "the container gets its reservation when it starts"}, nil)
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices(record)}
	}
	return results, nil
}

func devices(record *Record) []kubeletplugin.Device {
	var all []kubeletplugin.Device
	for _, request := range record.Requests {
		// All cores of a request are one CDI device, which is named once.
		ids := []string{cdiID(record.Claim, request.Name)}
		for _, device := range request.Devices {
			all = append(all, kubeletplugin.Device{
				Requests: []string{request.Name}, PoolName: device.Pool, DeviceName: device.Name, ShareID: device.ShareID,
				CDIDeviceIDs: ids,
			})
			ids = nil
		}
	}
	return all
}

// prepare returns a record even with an error, as far as it goes.
func (n *Node) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) (*Record, error) {
	record, err := newRecord(claim, n.name, n.limits)
	if err != nil {
		return record, err
	}
	// Each is looked at, and all other pods of the node wait for that.
	if len(record.Pods) > mostPods {
		return record, refuse(codeShared, "claim %s is reserved for %d pods, and a reservation is one pod's: at most %d may wait for it one after the other, use a ResourceClaimTemplate to give each its own",
			record.Name, len(record.Pods), mostPods)
	}
	for _, request := range record.Requests {
		grant, _ := record.grant(request.Name)
		if err := n.backend.Accepts([]enforce.Grant{grant}); err != nil {
			return record, refuse(codeUnsupported, "request %q: %w", request.Name, err)
		}
		if n.guaranteed() && request.Parameters.OverrunRule() == reservation.OverrunReclaim {
			return record, refuse(codeUnsupported, "request %q: overrun %s is not available with admission %s: what is proven is proven of reservations that get no more than their runtime; leave overrun out, or have the node admit %s",
				request.Name, reservation.OverrunReclaim, admission.Guaranteed, admission.Soft)
		}
	}
	// What the machine gave a second ago may be no more.
	if _, err := n.remeasure(ctx); err != nil {
		return record, err
	}
	if err := n.fits(record); err != nil {
		return record, err
	}
	if err := n.checkPods(ctx, record); err != nil {
		return record, err
	}
	n.mu.Lock()
	old, known := n.claims[claim.UID]
	if known {
		record.keep(old.Record)
		old.Record = record // who it is reserved for may be new
	}
	n.mu.Unlock()
	if err := n.records.write(record); err != nil {
		return record, err
	}
	if known {
		return record, nil
	}
	return record, n.adopt(ctx, record)
}

// fits is the last line of defence: the scheduler has done the same sum.
func (n *Node) fits(record *Record) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	consumed := n.consumed()
	if old, ok := n.claims[record.Claim]; ok {
		if sameDevices(old.Record, record) {
			return nil // it holds them already: what the node has less of now its health says
		}
		for _, request := range old.Requests {
			for _, device := range request.Devices {
				consumed[device.CPU] -= device.PPM
			}
		}
	}
	held := n.densities(record.Claim)
	offered := map[int]bool{}
	for _, cpu := range n.offer.CPUs {
		offered[cpu.ID] = true
	}
	for _, request := range record.Requests {
		for _, device := range request.Devices {
			if !offered[device.CPU] {
				return refuse(codeNotOffered, "request %q was allocated CPU %d, which this node no longer offers: delete the pod to have it allocated again",
					request.Name, device.CPU)
			}
			if why := n.trouble[device.CPU]; why != "" {
				return refuse(codeUnkept, "request %q was allocated CPU %d: %s", request.Name, device.CPU, why)
			}
			if device.PPM > n.offer.Most {
				return refuse(codeDensity, "request %q takes %d parts per million of a core, and this node gives one reservation at most %d (maxDensity): delete the pod to have it allocated again",
					request.Name, device.PPM, n.offer.Most)
			}
			if consumed[device.CPU] += device.PPM; consumed[device.CPU] > n.offer.Capacity(device.CPU) {
				return refuse(codeBandwidth, "request %q takes CPU %d to %d parts per million of a core, above its capacity of %d: delete the pod to have it allocated again",
					request.Name, device.CPU, consumed[device.CPU], n.offer.Capacity(device.CPU))
			}
			held = append(held, device.PPM)
		}
	}
	// Claims of an earlier configuration may be there, which was for others, and threads of nobody's claim.
	held = append(held, n.drifts[everywhere].densities()...)
	if n.guaranteed() && !admission.Schedulable(n.offer.RootDomain, held) {
		return refuse(codeUnproven, "claim %s/%s and the %d reservations that are there may miss deadlines on %d cores: delete the pod to have it allocated again",
			record.Namespace, record.Name, len(held), n.offer.RootDomain)
	}
	return nil
}

// sameDevices says whether two records of a claim hold the same of the same cores.
func sameDevices(a, b *Record) bool {
	held := func(r *Record) (all []Device) {
		for _, request := range r.Requests {
			for _, device := range request.Devices {
				all = append(all, Device{CPU: device.CPU, PPM: device.PPM})
			}
		}
		return all
	}
	return slices.Equal(held(a), held(b))
}

// guaranteed says that what is admitted has to be proven schedulable under global EDF.
func (n *Node) guaranteed() bool {
	return n.offer.Roams && n.config.Admission == admission.Guaranteed
}

// densities are those of all prepared claims but one. Call with n.mu held.
func (n *Node) densities(but types.UID) []int64 {
	var all []int64
	for uid, claim := range n.claims {
		if uid == but {
			continue
		}
		for _, request := range claim.Requests {
			for _, device := range request.Devices {
				all = append(all, device.PPM)
			}
		}
	}
	return all
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin. The kubelet calls it when the pod's
// containers are gone.
func (n *Node) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		began := time.Now()
		err := n.unprepare(ctx, claim.UID)
		n.metrics.release.Observe(time.Since(began).Seconds())
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot give a claim back", "claim", klog.KRef(claim.Namespace, claim.Name))
			n.metrics.failed(atUnprepare)
		}
		results[claim.UID] = err
	}
	return results, nil
}

func (n *Node) unprepare(ctx context.Context, uid types.UID) error {
	n.mu.Lock()
	claim := n.claims[uid]
	var held []*container
	if claim != nil {
		for _, request := range claim.Requests {
			if c := n.holders[key(uid, request.Name)]; c != nil {
				held = append(held, c)
			}
		}
	}
	n.mu.Unlock()
	for _, c := range held {
		n.forget(ctx, c)
	}
	if claim != nil && claim.stop != nil {
		claim.stop()
	}
	// Also for a claim that is not known: an agent may have been killed half-way.
	if err := n.records.remove(uid); err != nil {
		return err
	}
	n.mu.Lock()
	delete(n.claims, uid)
	n.reorder()
	n.mu.Unlock()
	n.status.forget(uid, reservation.Driver)
	return nil
}
