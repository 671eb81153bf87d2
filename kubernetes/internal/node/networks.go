package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/quote"
)

const (
	// askTaktd is how long taktd may take for an answer.
	askTaktd = 5 * time.Second
	// seekTaktd is how often it is looked whether one that has gone is back: what it does not keep over a restart is missing until then.
	seekTaktd = 100 * time.Millisecond
)

// lookAtTaktd is how often it is asked what it serves.
var lookAtTaktd = 2 * time.Second

// networks is the DRA driver for the networks that the node's taktd serves: a pod with a claim for one is placed only
// where it is served. A network may be claimed any number of times: what a pod may do there is its listener's. Gate time of
// a class, a capacity of the device, is claimed as long as there is some.
type networks struct {
	n          *Node
	admin      adminv1.AdminClient
	connection *grpc.ClientConn
}

func (n *Node) networks() (d *networks, disconnect func() error, err error) {
	connection, err := grpc.NewClient("unix:"+n.config.Network.AdminSocket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)),
		// One that comes back after a long time is noticed as soon.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: seekTaktd, Multiplier: 1, MaxDelay: seekTaktd}, MinConnectTimeout: askTaktd}))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot use the socket of taktd: %w", err)
	}
	return &networks{n, adminv1.NewAdminClient(connection), connection}, connection.Close, nil
}

// connected calls back whenever taktd is there, or there again, until the context ends.
func connected(ctx context.Context, connection *grpc.ClientConn, back func()) {
	for {
		state := connection.GetState()
		switch state {
		case connectivity.Ready:
			back()
		case connectivity.Idle:
			connection.Connect()
		}
		if !connection.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// runNetworks publishes the networks and serves the kubelet until the context ends.
func (n *Node) runNetworks(ctx context.Context) error {
	d, disconnect, err := n.networks()
	if err != nil {
		return err
	}
	defer disconnect()
	plugins := filepath.Join(n.config.KubeletPlugins, reservation.NetworkDriver)
	if err := os.MkdirAll(plugins, 0o750); err != nil {
		return fmt.Errorf("cannot make the plugin's directory: %w", err)
	}
	if err := n.records.writeNetworkCDI(); err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, d,
		kubeletplugin.DriverName(reservation.NetworkDriver),
		kubeletplugin.NodeName(n.name),
		kubeletplugin.KubeClient(n.client),
		kubeletplugin.PluginDataDirectoryPath(plugins),
		kubeletplugin.RegistrarDirectoryPath(n.config.KubeletRegistry),
	)
	if err != nil {
		return fmt.Errorf("cannot serve the kubelet: %w", err)
	}
	defer helper.Stop()
	d.publish(ctx, helper)
	return nil
}

// publish says what taktd serves, at once and whenever that has changed.
func (d *networks) publish(ctx context.Context, to publisher) {
	logger := klog.FromContext(ctx)
	var last []resourceapi.Device
	published, away := false, false
	for {
		now, err := d.devices(ctx)
		if ctx.Err() != nil {
			return
		}
		if (err != nil) != away {
			away = err != nil
			logger.Info("Asked taktd for its networks", "socket", d.n.config.Network.AdminSocket, "err", err)
		}
		if !published || !equality.Semantic.DeepEqual(now, last) {
			pool := resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: now}}}
			err := to.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{d.n.name: pool}})
			if published = err == nil; published {
				last = now
			} else {
				logger.Error(err, "Cannot publish the node's networks")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(lookAtTaktd):
		}
	}
}

// devices are the networks that taktd serves now: none while it does not answer or takes no more applications.
func (d *networks) devices(ctx context.Context) ([]resourceapi.Device, error) {
	ctx, cancel := context.WithTimeout(ctx, askTaktd)
	defer cancel()
	status, err := d.admin.GetStatus(ctx, &adminv1.GetStatusRequest{})
	if err != nil {
		return nil, err
	}
	if status.GetNode().GetDraining() {
		return nil, nil
	}
	all, err := d.admin.ListNetworks(ctx, &adminv1.ListNetworksRequest{})
	if err != nil {
		return nil, err
	}
	datapaths, err := d.admin.ListDatapaths(ctx, &adminv1.ListDatapathsRequest{})
	if err != nil {
		return nil, err
	}
	clock, err := d.admin.GetClock(ctx, &adminv1.GetClockRequest{})
	if err != nil {
		return nil, err
	}
	schedules, err := d.admin.ListSchedules(ctx, &adminv1.ListSchedulesRequest{})
	if err != nil {
		return nil, err
	}
	listeners, err := d.admin.ListListeners(ctx, &adminv1.ListListenersRequest{})
	if err != nil {
		return nil, err
	}
	d.n.lately.note(time.Now(), listeners.GetListeners())
	free, timed := left(schedules.GetLinks(), streamsOf(listeners.GetListeners()))
	consumed := d.n.gates.consumed()
	accelerated := slices.ContainsFunc(datapaths.GetDatapaths(), func(p *adminv1.Datapath) bool { return p.GetAvailable() && p.GetAccelerated() })
	kinds, state := available(datapaths.GetDatapaths()), clockState(clock.GetClock())
	synchronised := state == "Synchronised"
	scheduled := slices.ContainsFunc(schedules.GetLinks(), func(l *adminv1.LinkSchedule) bool { return l.GetOperational() != nil })
	var found []resourceapi.Device
	for _, one := range all.GetNetworks() {
		name := one.GetName()
		// One that a device cannot be named after is not claimed; one that taktd cannot follow is not served.
		if len(validation.IsDNS1123Label(name)) > 0 || one.GetProblem() != "" {
			continue
		}
		// Nor one that is not what its TaktNetwork says. Of one that has none, who may use it says so better.
		if reason, _ := d.n.cluster.unserved(name); reason != "" && reason != network.UnknownNetwork {
			continue
		}
		shared, carrier, may := true, one.Carrier(), d.n.cluster.classesOf(name)
		var capacity map[resourceapi.QualifiedName]resourceapi.DeviceCapacity
		if timed {
			capacity = gateCapacity(free, consumed[name])
		}
		found = append(found, resourceapi.Device{
			Name: name, AllowMultipleAllocations: &shared, Capacity: capacity,
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"name": {StringValue: &name}, "carrier": {StringValue: &carrier}, "accelerated": {BoolValue: &accelerated},
				"synchronised": {BoolValue: &synchronised}, "scheduled": {BoolValue: &scheduled},
				"clock": {StringValue: &state}, "datapaths": {StringValue: &kinds}, "classes": {StringValue: &may},
			},
		})
	}
	slices.SortFunc(found, func(a, b resourceapi.Device) int { return strings.Compare(a.Name, b.Name) })
	// What is left is of no use: a node with so many networks shows the first ones.
	return found[:min(len(found), resourceapi.ResourceSliceMaxDevices)], nil
}

// available are the names of the datapaths that streams can get, with commas between: as many as an attribute has room for. An attribute
// for each would be missing on some nodes, and a selector that asks for one that is missing fails instead of choosing another node.
func available(all []*adminv1.Datapath) string {
	var names []string
	for _, one := range all {
		if one.GetAvailable() {
			names = append(names, one.GetName())
		}
	}
	slices.Sort(names)
	text := strings.Join(names, ",")
	for len(text) > resourceapi.DeviceAttributeMaxValueLength {
		text = text[:max(strings.LastIndexByte(text, ','), 0)]
	}
	return text
}

// gateCapacity is the gate time of each class that has some, in bits per second of the link: what is left of it, and what
// is set aside for claims for this network that are here, which the scheduler takes off by itself. What streams take that are of other networks or of
// no claim is left out: a link's time is there once.
func gateCapacity(free, held classes) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	capacity := map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}
	for class := range free {
		if free[class]+held[class] == 0 {
			continue // a claim for it finds no capacity of that name
		}
		none, one := resource.NewQuantity(0, resource.DecimalSI), resource.NewQuantity(1, resource.DecimalSI)
		capacity[resourceapi.QualifiedName(reservation.ClassCapacity(class))] = resourceapi.DeviceCapacity{
			Value: *resource.NewQuantity(free[class]+held[class], resource.DecimalSI),
			// A claim for the network alone takes none.
			RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: none, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: none, Step: one}},
		}
	}
	return capacity
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin: a pod does not start where its network is not served any
// more, or has no gate time for it. One that is refused holds nothing: the kubelet asks for all of its claims again.
func (d *networks) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	served, asked := d.devices(ctx)
	results := map[types.UID]kubeletplugin.PrepareResult{}
	undo := undoing{n: d.n, driver: reservation.NetworkDriver}
	defer undo.done(ctx)
	for _, claim := range claims {
		prepared, timed, err := d.prepare(ctx, claim, served, asked)
		if err != nil {
			err = quote.Error(err)
			klog.FromContext(ctx).Error(err, "Refused a claim", "claim", klog.KObj(claim))
			d.n.metrics.refused(atPrepare, err)
			reason := reasonNetwork
			if timed != nil {
				reason = reasonGateRefused
				d.n.status.put(claimStatus{record: timed.record(), gates: timed.Requests, condition: denied(reason, err)})
			}
			for _, pod := range reservedFor(claim) {
				d.n.tell(pod, reason, "claim "+claim.Name, err)
			}
			undo.add(reservedFor(claim), claim, err)
			results[claim.UID] = kubeletplugin.PrepareResult{Err: err}
			continue
		}
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: prepared}
	}
	return results, nil
}

func (d *networks) prepare(ctx context.Context, claim *resourceapi.ResourceClaim, served []resourceapi.Device, asked error) (prepared []kubeletplugin.Device, timed *gateClaim, err error) {
	for _, allocated := range claim.Status.Allocation.Devices.Results {
		if allocated.Driver != reservation.NetworkDriver || allocated.Pool != d.n.name {
			continue
		}
		if !slices.ContainsFunc(served, func(device resourceapi.Device) bool { return device.Name == allocated.Device }) {
			return nil, nil, refuse(codeNoNetwork, "the node's taktd does not serve network %q (%v): start it, or delete the pod to have it placed again", allocated.Device, asked)
		}
		prepared = append(prepared, kubeletplugin.Device{
			Requests: []string{allocated.Request}, PoolName: allocated.Pool, DeviceName: allocated.Device, ShareID: allocated.ShareID,
			CDIDeviceIDs: []string{networkCDI()},
		})
	}
	timed, err = d.n.gates.prepare(ctx, claim)
	if err != nil || timed == nil {
		return prepared, timed, err
	}
	for _, request := range timed.Requests {
		for at := range prepared {
			if prepared[at].Requests[0] == request.Name {
				prepared[at].CDIDeviceIDs = []string{gateCDI(claim.UID, request.Name)}
			}
		}
	}
	return prepared, timed, nil
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *networks) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		err := d.n.gates.release(ctx, claim.UID)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot give a claim back", "claim", klog.KRef(claim.Namespace, claim.Name))
			d.n.metrics.failed(atUnprepare)
		}
		results[claim.UID] = err
	}
	return results, nil
}

// HandleError implements kubeletplugin.DRAPlugin.
func (d *networks) HandleError(ctx context.Context, err error, msg string) {
	d.n.HandleError(ctx, err, msg)
}
