package node

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/quote"
)

// gateClaim is a prepared claim for gate time. As a Record it lives in the claim's CDI file.
type gateClaim struct {
	Version   int       `json:"version"`
	Claim     types.UID `json:"claim"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	// Pod is the one that it is reserved for.
	Pod      Pod           `json:"pod"`
	Requests []gateRequest `json:"requests"`
	// Place is the socket of the pod's interface whose listener has the streams; empty before the pod is attached.
	Place string `json:"place,omitempty"`
	// Granted are the claimed classes that the listener there had: it has them back with its streams.
	Granted []uint32 `json:"granted,omitempty"`
	// Withdrawn is why its streams are not declared, with its code: its pod could not have them when its last container was to be
	// created. Empty: they are.
	Withdrawn string `json:"withdrawn,omitempty"`
}

// gateRequest is one stream on a network. Name is the request's, that of its device the network's.
type gateRequest struct {
	Name       string               `json:"name"`
	Device     Device               `json:"device"`
	Parameters reservation.GateTime `json:"parameters"`
	// Consumed is what the scheduler has set aside for it, in bits per second; absent: what it needs.
	Consumed int64 `json:"consumed,omitempty"`
	// Needs is what it took of the class when it was prepared, in bits per second; absent: what it sends.
	Needs int64 `json:"needs,omitempty"`
}

// GateData is what a claim's status says of one stream, as its device's data.
type GateData struct {
	Network string `json:"network"`
	Class   int    `json:"class"`
	// Frames of at most Frame octets every Period.
	Frames int64  `json:"frames"`
	Frame  int64  `json:"frame"`
	Period string `json:"period"`
	// BitsPerSecond is what it takes of the class.
	BitsPerSecond int64 `json:"bitsPerSecond"`
}

func (r gateRequest) class() int { return int(*r.Parameters.Class) }

func (r gateRequest) needs() int64 { return cmp.Or(r.Needs, r.Parameters.BitsPerSecond()) }

func (r gateRequest) consumed() int64 { return cmp.Or(r.Consumed, r.needs()) }

// consumed is what the scheduler has set aside for a claim, by network and class.
func (c *gateClaim) consumed() map[string]classes {
	var sum classes
	for _, request := range c.Requests {
		sum[request.class()] += request.consumed()
	}
	return map[string]classes{c.network(): sum}
}

// consumedBy is the same of whatever claim, as its status has it.
func consumedBy(claim *resourceapi.ResourceClaim, pool string) map[string]classes {
	sum := map[string]classes{}
	if claim.Status.Allocation == nil {
		return sum
	}
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != reservation.NetworkDriver || result.Pool != pool {
			continue
		}
		of := sum[result.Device]
		for class := range of {
			consumed := result.ConsumedCapacity[resourceapi.QualifiedName(reservation.ClassCapacity(class))]
			of[class] += consumed.Value()
		}
		sum[result.Device] = of
	}
	return sum
}

// sameFrames says whether two requests are for frames of the same class and flow.
func (r gateRequest) sameFrames(other gateRequest) bool {
	a, b := &r.Parameters, &other.Parameters
	if r.class() != other.class() || (a.Channel == nil) != (b.Channel == nil) {
		return false
	}
	if a.Channel != nil {
		return *a.Channel == *b.Channel
	}
	to, err := netip.ParseAddrPort(a.Destination)
	toOther, mistake := netip.ParseAddrPort(b.Destination)
	return err == nil && mistake == nil && to == toOther
}

func (r gateRequest) data() GateData {
	p := &r.Parameters
	return GateData{Network: r.Device.Name, Class: r.class(), Frames: p.Frames(), Frame: p.LargestFrame(), Period: p.Period.String(), BitsPerSecond: r.needs()}
}

func (c *gateClaim) withdrawn() bool { return c.Withdrawn != "" }

func (c *gateClaim) network() string { return c.Requests[0].Device.Name }

// record is what of it a claim's status and events need.
func (c *gateClaim) record() *Record {
	return &Record{Claim: c.Claim, Namespace: c.Namespace, Name: c.Name, Pods: []Pod{c.Pod}}
}

const (
	// gateVersion changes when an older agent would misread a record of gate time.
	gateVersion    = 1
	gateKind       = reservation.NetworkDriver + "/gate-time"
	gateAnnotation = reservation.NetworkDriver + "/record"
	gatePrefix     = reservation.NetworkDriver + "-"
	// gateVariable begins the name of the environment variable by which a container with a claim for gate time is known.
	gateVariable = "TAKT_GATE_TIME_"
	// streamPrefix begins the names of streams that are a claim's.
	streamPrefix = "claim:"
	// longestName is what taktd takes of a stream and of a tenant.
	longestName = 128
)

// newGateClaim reads what the scheduler allocated of networks on this node and what the claim says of gate time there; nil
// if it claims networks alone. With an error it is as far as it goes.
func newGateClaim(claim *resourceapi.ResourceClaim, pool string) (*gateClaim, error) {
	c := &gateClaim{Version: gateVersion, Claim: claim.UID, Namespace: claim.Namespace, Name: claim.Name}
	if claim.Status.Allocation == nil {
		return c, refuse(codeAllocation, "claim %s/%s is not allocated", claim.Namespace, claim.Name)
	}
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != reservation.NetworkDriver || result.Pool != pool {
			continue
		}
		config := opaqueOf(claim.Status.Allocation.Devices.Config, reservation.NetworkDriver, result.Request)
		if config == nil {
			for name, consumed := range result.ConsumedCapacity {
				if consumed.Sign() > 0 {
					return c, refuse(codeParameters, "request %q takes %s of capacity %s and has no parameters: add config with opaque.driver %s and kind %s, or leave capacity out",
						result.Request, consumed.String(), name, reservation.NetworkDriver, reservation.GateTimeKind)
				}
			}
			continue
		}
		parameters, err := reservation.DecodeGateTime(config.Parameters.Raw)
		if err == nil {
			err = parameters.Validate()
		}
		if err != nil {
			return c, refuse(codeParameters, "request %q: %w", result.Request, err)
		}
		if result.AdminAccess != nil && *result.AdminAccess {
			return c, refuse(codeAllocation, "request %q has admin access, which sets no gate time aside: leave adminAccess out", result.Request)
		}
		if slices.ContainsFunc(c.Requests, func(r gateRequest) bool { return r.Name == result.Request }) {
			return c, refuse(codeAllocation, "request %q has several networks: gate time is of one, write count: 1", result.Request)
		}
		consumed := result.ConsumedCapacity[resourceapi.QualifiedName(reservation.ClassCapacity(int(*parameters.Class)))]
		request := gateRequest{Name: result.Request, Device: Device{Pool: result.Pool, Name: result.Device, ShareID: result.ShareID}, Parameters: *parameters, Consumed: consumed.Value()}
		if at := slices.IndexFunc(c.Requests, request.sameFrames); at >= 0 {
			return c, refuse(codeParameters, "requests %q and %q are for the same frames: claim them once, with all of their bytes", c.Requests[at].Name, request.Name)
		}
		c.Requests = append(c.Requests, request)
		if result.Device != c.network() {
			return c, refuse(codeAllocation, "the claim is for gate time of networks %q and %q: give each a claim of its own", c.network(), result.Device)
		}
		for name, more := range result.ConsumedCapacity {
			if string(name) != reservation.ClassCapacity(request.class()) && more.Sign() > 0 {
				return c, refuse(codeParameters, "request %q takes %s of capacity %s, and its parameters are for class %d: make a request of its own for each class", result.Request, more.String(), name, request.class())
			}
		}
	}
	if len(c.Requests) == 0 {
		return nil, nil
	}
	pods := reservedFor(claim)
	if len(pods) != 1 {
		return c, refuse(codeShared, "the claim is reserved for %d pods: gate time is one pod's, use a ResourceClaimTemplate", len(pods))
	}
	c.Pod = pods[0]
	return c, nil
}

// streamName names a request's stream in taktd.
func (c *gateClaim) streamName(request string) string {
	return shortName(streamPrefix + c.Namespace + "/" + c.Name + "/" + request)
}

// shortName is a name as taktd takes it.
func shortName(name string) string {
	if len(name) > longestName {
		sum := fmt.Sprintf("~%x", sha256.Sum256([]byte(name)))[:17]
		name = name[:longestName-len(sum)] + sum
	}
	return name
}

// streams are what the claim declares.
func (c *gateClaim) streams() (all []*adminv1.DeclaredStream) {
	for _, request := range c.Requests {
		p := &request.Parameters
		one := &adminv1.DeclaredStream{
			Name: c.streamName(request.Name), TrafficClass: uint32(request.class()), PeriodNs: p.Period.Nanoseconds(), OffsetNs: p.Offset.Nanoseconds(),
			WindowNs: p.Window.Nanoseconds(), Frame: uint32(p.LargestFrame()), Frames: uint32(p.Frames()), Channel: p.Channel,
		}
		if to, err := netip.ParseAddrPort(p.Destination); err == nil {
			one.Destination = to.String()
		}
		all = append(all, one)
	}
	return all
}

// gateCDI is the CDI device of a request: one that marks its container, and keeps it from starting without the agent.
func gateCDI(claim types.UID, request string) string {
	return gateKind + "=" + deviceName(claim, request)
}

func (s records) gatePath(claim types.UID) string {
	return filepath.Join(s.dir, gatePrefix+string(claim)+cdiSuffix)
}

// writeGate puts the claim on disk, all of it or nothing.
func (s records) writeGate(c *gateClaim) error {
	text, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("cannot write the record of claim %s: %w", c.Claim, err)
	}
	spec := &cdispec.Spec{Version: "0.6.0", Kind: gateKind, Annotations: map[string]string{gateAnnotation: string(text)}}
	for _, request := range c.Requests {
		spec.Devices = append(spec.Devices, cdispec.Device{Name: deviceName(c.Claim, request.Name), ContainerEdits: cdispec.ContainerEdits{
			Env:   []string{variableName(gateVariable, c.Claim, request.Name) + "=" + key(c.Claim, request.Name)},
			Hooks: []*cdispec.Hook{s.hook()},
		}})
	}
	return s.put(s.gatePath(c.Claim), spec, c.Claim)
}

func (s records) removeGate(claim types.UID) error {
	if err := os.Remove(s.gatePath(claim)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove what claim %s left: %w", claim, err)
	}
	return nil
}

// loadGates reads all of them. What cannot be read is reported, and its claim named.
func (s records) loadGates() (all []*gateClaim, unread []types.UID, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("cannot list CDI files: %w", err)
	}
	all, err = loadFiles(s.dir, entries, gatePrefix, readGate, func(c *gateClaim) types.UID { return c.Claim })
	for _, entry := range entries {
		name, is := strings.CutPrefix(entry.Name(), gatePrefix)
		uid, ends := strings.CutSuffix(name, cdiSuffix)
		if is && ends && !slices.ContainsFunc(all, func(c *gateClaim) bool { return string(c.Claim) == uid }) {
			unread = append(unread, types.UID(uid))
		}
	}
	return all, unread, err
}

func readGate(path string) (*gateClaim, error) {
	c := &gateClaim{}
	if err := readAnnotation(path, gateAnnotation, c); err != nil {
		return nil, err
	}
	if c.Claim == "" || len(c.Requests) == 0 || c.Version > gateVersion {
		return nil, fmt.Errorf("annotation %s names no claim or no request, or is of a later version of the agent", gateAnnotation)
	}
	for _, request := range c.Requests {
		if err := request.Parameters.Validate(); err != nil && !errors.Is(err, reservation.ErrToNobody) {
			return nil, fmt.Errorf("request %q: %w", request.Name, err)
		}
	}
	return c, nil
}

// gateMarks are the claims for gate time that a container's environment names.
func gateMarks(ctr *api.Container) (claims []types.UID, err error) {
	for _, variable := range ctr.GetEnv() {
		name, value, ok := strings.Cut(variable, "=")
		if !ok || !strings.HasPrefix(name, gateVariable) {
			continue
		}
		uid, _, err := parseKey(value)
		if err != nil {
			return nil, refuse(codeNotPrepared, "variable %s: %w: variables %s* are set by this agent alone, leave them out of the container", quote.Value(name), err, gateVariable)
		}
		claims = append(claims, uid)
	}
	slices.Sort(claims)
	return slices.Compact(claims), nil
}
