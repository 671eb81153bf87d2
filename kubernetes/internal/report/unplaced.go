package report

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/quote"
)

const (
	// mostUnplaced is of how many pods without a node it is looked what they lack, and mostLooking for how long, but for the last one: each asks
	// every node.
	mostUnplaced = 20
	mostLooking  = 5 * time.Second
	// mostNamed is how many nodes are named.
	mostNamed = 3
)

// notPlaced is all that is known of a pod without a node.
const notPlaced = "not placed yet: kubectl describe pod"

// unseen is what is told of a pod with claims to who may not see what the scheduler sees.
const unseen = notPlaced + "; which of its claims has room where is told to who may list nodes, resourceclaims, resourceslices and deviceclasses"

// features are those that the scheduler of Kubernetes 1.36 has by default.
var features = structured.Features{
	AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, DeviceBindingAndStatus: true, ConsumableCapacity: true,
}

// cluster is what the scheduler gives devices by.
type cluster struct {
	nodes   []corev1.Node
	claims  map[string]*resourceapi.ResourceClaim
	classes map[string]*resourceapi.DeviceClass
	alloc   structured.Allocator
	// empty allocates as if no claim had anything yet.
	empty structured.Allocator
}

// List and Get are the classes that the allocator asks for.
func (c *cluster) List() (all []*resourceapi.DeviceClass, err error) {
	for _, class := range c.classes {
		all = append(all, class)
	}
	return all, nil
}

func (c *cluster) Get(name string) (*resourceapi.DeviceClass, error) {
	if class := c.classes[name]; class != nil {
		return class, nil
	}
	return nil, fmt.Errorf("there is no DeviceClass %s", name)
}

// newCluster reads it.
func newCluster(ctx context.Context, client kubernetes.Interface) (*cluster, error) {
	all := metav1.ListOptions{}
	nodes, err := client.CoreV1().Nodes().List(ctx, all)
	if err != nil {
		return nil, err
	}
	claims, err := client.ResourceV1().ResourceClaims("").List(ctx, all)
	if err != nil {
		return nil, err
	}
	classes, err := client.ResourceV1().DeviceClasses().List(ctx, all)
	if err != nil {
		return nil, err
	}
	pools, err := client.ResourceV1().ResourceSlices().List(ctx, all)
	if err != nil {
		return nil, err
	}
	c := &cluster{nodes: nodes.Items, claims: map[string]*resourceapi.ResourceClaim{}, classes: map[string]*resourceapi.DeviceClass{}}
	for at := range classes.Items {
		c.classes[classes.Items[at].Name] = &classes.Items[at]
	}
	state := nothing()
	for at := range claims.Items {
		claim := &claims.Items[at]
		c.claims[claim.Namespace+"/"+claim.Name] = claim
		if claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			device := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			switch {
			case result.AdminAccess != nil && *result.AdminAccess:
			case result.ShareID != nil:
				state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(device, result.ShareID))
				state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(device, result.ConsumedCapacity))
			default:
				state.AllocatedDevices.Insert(device)
			}
		}
	}
	var offered []*resourceapi.ResourceSlice
	for at := range pools.Items {
		offered = append(offered, &pools.Items[at])
	}
	expressions := cel.NewCache(100, cel.Features{EnableConsumableCapacity: true})
	if c.alloc, err = structured.NewAllocator(ctx, features, state, c, offered, expressions); err != nil {
		return nil, err
	}
	c.empty, err = structured.NewAllocator(ctx, features, nothing(), c, offered, expressions)
	return c, err
}

// nothing is allocated in it.
func nothing() structured.AllocatedState {
	return structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
}

// claimed is a claim of a pod, by its name and, in brackets, the pod's for it.
type claimed struct {
	name  string
	claim *resourceapi.ResourceClaim
}

// claimsOf are those of a pod that are made already.
func (c *cluster) claimsOf(pod *corev1.Pod) (all []claimed) {
	for _, reference := range pod.Spec.ResourceClaims {
		name := reference.ResourceClaimName
		for _, made := range pod.Status.ResourceClaimStatuses {
			if made.Name == reference.Name && made.ResourceClaimName != nil {
				name = made.ResourceClaimName
			}
		}
		if name == nil {
			continue
		}
		if claim := c.claims[pod.Namespace+"/"+*name]; claim != nil {
			called := claim.Name
			if called != reference.Name {
				called += " (" + reference.Name + ")"
			}
			all = append(all, claimed{called, claim})
		}
	}
	return all
}

// ours says whether a claim asks for devices of Takt: by its class, or by the driver that is to get its parameters.
func (c *cluster) ours(claim *resourceapi.ResourceClaim) bool {
	takts := func(text string) bool {
		return strings.Contains(text, reservation.Driver) || strings.Contains(text, reservation.NetworkDriver)
	}
	of := func(name string, selectors []resourceapi.DeviceSelector) bool {
		if class := c.classes[name]; class != nil {
			selectors = append(selectors[:len(selectors):len(selectors)], class.Spec.Selectors...)
		}
		for _, selector := range selectors {
			if selector.CEL != nil && takts(selector.CEL.Expression) {
				return true
			}
		}
		return takts(name)
	}
	for _, request := range claim.Spec.Devices.Requests {
		if request.Exactly != nil && of(request.Exactly.DeviceClassName, request.Exactly.Selectors) {
			return true
		}
		for _, alternative := range request.FirstAvailable {
			if of(alternative.DeviceClassName, alternative.Selectors) {
				return true
			}
		}
	}
	return false
}

// room are the nodes that have the devices of all these claims.
func (c *cluster) room(ctx context.Context, alloc structured.Allocator, claims ...*resourceapi.ResourceClaim) (names []string, err error) {
	for at := range c.nodes {
		results, err := alloc.Allocate(ctx, &c.nodes[at], claims)
		if err != nil {
			return nil, err
		}
		if len(results) == len(claims) {
			names = append(names, c.nodes[at].Name)
		}
	}
	return names, nil
}

// impossible names the requests of a claim that no node has the devices for by itself, and says of one for whole cores which nodes would.
func (c *cluster) impossible(ctx context.Context, claim *resourceapi.ResourceClaim) string {
	var names []string
	whole := ""
	for _, request := range claim.Spec.Devices.Requests {
		alone := claim.DeepCopy()
		alone.Spec.Devices.Requests, alone.Spec.Devices.Constraints = []resourceapi.DeviceRequest{request}, nil
		if nodes, err := c.room(ctx, c.empty, alone); err == nil && len(nodes) == 0 {
			names = append(names, request.Name)
			if wholeCores(request) {
				whole = ", where whole cores are only of nodes with the backend whole-core"
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	return ", for its request " + strings.Join(names, " and ") + whole
}

// wholeCores says whether a request asks for all of a core, as a runtime does that is as long as its period.
func wholeCores(request resourceapi.DeviceRequest) bool {
	if request.Exactly == nil || request.Exactly.Capacity == nil {
		return false
	}
	ppm, found := request.Exactly.Capacity.Requests[reservation.Bandwidth]
	return found && ppm.Value() == reservation.WholeCore
}

// where are some of these nodes, and how many more there are.
func where(names []string) string {
	switch more := len(names) - mostNamed; {
	case len(names) == 0:
		return "no node"
	case more > 0:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:mostNamed], ", "), more)
	}
	return strings.Join(names, ", ")
}

// lacking is what keeps a pod from a node, if it is one of its claims.
func (c *cluster) lacking(ctx context.Context, claims []claimed) string {
	var each []string
	var waiting []*resourceapi.ResourceClaim
	nowhere, held := false, ""
	for _, one := range claims {
		if allocation := one.claim.Status.Allocation; allocation != nil {
			for _, result := range allocation.Devices.Results {
				if result.Driver == reservation.Driver || result.Driver == reservation.NetworkDriver {
					// Their pools are nodes.
					held = result.Pool
					each = append(each, fmt.Sprintf("claim %s is on %s", one.name, held))
					break
				}
			}
			continue
		}
		nodes, err := c.room(ctx, c.alloc, one.claim)
		if err != nil {
			return fmt.Sprintf("not placed yet: claim %s cannot be met: %v", one.name, err)
		}
		says := fmt.Sprintf("claim %s has room on %s", one.name, where(nodes))
		if len(nodes) == 0 {
			nowhere = true
			if ever, err := c.room(ctx, c.empty, one.claim); err == nil && len(ever) == 0 {
				says += ", also if all were empty" + c.impossible(ctx, one.claim) + " (see what it asks for, its selectors, and whether a node offers that)"
			}
		}
		each = append(each, says)
		waiting = append(waiting, one.claim)
	}
	if len(waiting) == 0 {
		return "not placed yet: its claims have their devices already; kubectl describe pod"
	}
	if nowhere {
		return "not placed yet: " + strings.Join(each, ", ")
	}
	together, err := c.room(ctx, c.alloc, waiting...)
	if held != "" {
		together = slices.DeleteFunc(together, func(name string) bool { return name != held })
	}
	switch {
	case err != nil:
		return notPlaced
	case len(together) == 0:
		return "not placed yet: no node has room for all of its claims; " + strings.Join(each, ", ")
	}
	return "not placed yet, though its claims have room on " + where(together) + ": kubectl describe pod"
}

// unplaced says of the pods that have no node, and claim devices of Takt, which of the claims no node has room for: by namespace and name.
// What else a pod asks of its node is not looked at. Who may not see all that the scheduler sees is told that of time-sensitive ones.
func unplaced(ctx context.Context, client kubernetes.Interface, pods []corev1.Pod) (map[string]string, error) {
	told := map[string]string{}
	var c *cluster
	began := time.Now()
	for at := range pods {
		pod := &pods[at]
		if pod.Spec.NodeName != "" || len(pod.Spec.ResourceClaims) == 0 || ended(pod) || len(told) == mostUnplaced || time.Since(began) > mostLooking {
			continue
		}
		if c == nil {
			var err error
			c, err = newCluster(ctx, client)
			if apierrors.IsForbidden(err) {
				return unseenOf(pods), nil
			}
			if apierrors.IsNotFound(err) {
				return nil, nil
			}
			if err != nil {
				return nil, fmt.Errorf("cannot see what pods without a node lack: %w", err)
			}
		}
		claims := c.claimsOf(pod)
		for _, one := range claims {
			if c.ours(one.claim) {
				told[pod.Namespace+"/"+pod.Name] = quote.Printable(c.lacking(ctx, claims))
				break
			}
		}
	}
	return told, nil
}

// unseenOf are the time-sensitive pods that have claims and no node.
func unseenOf(pods []corev1.Pod) map[string]string {
	told := map[string]string{}
	for at := range pods {
		if pod := &pods[at]; pod.Spec.NodeName == "" && len(pod.Spec.ResourceClaims) > 0 && !ended(pod) && timed(pod.Annotations) {
			told[pod.Namespace+"/"+pod.Name] = unseen
		}
	}
	return told
}
