package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/enforce"
	"github.com/takt-dev/takt/kubernetes/internal/quote"
)

// Pod is one that a claim is reserved for.
type Pod struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

// Device is one core that a request was allocated.
type Device struct {
	Pool    string     `json:"pool"`
	Name    string     `json:"name"`
	ShareID *types.UID `json:"shareID,omitempty"`
	CPU     int        `json:"cpu"`
	// PPM is the bandwidth that the scheduler set aside, in parts per million.
	PPM int64 `json:"ppm"`
}

// Request is one reservation of a claim: m cores under one set of parameters.
type Request struct {
	Name       string                 `json:"name"`
	Parameters reservation.Parameters `json:"parameters"`
	Devices    []Device               `json:"devices"`
	// Restored is how often its reservations were changed from inside and restored, over all of its containers.
	Restored int `json:"restored,omitempty"`
}

// Record is what a prepared claim leaves on the node. It lives in the claim's CDI file, which the container
// runtime needs anyway: there is no other state, and it goes when the node restarts, as it must.
type Record struct {
	// Version is recordVersion of the agent that wrote it; 0 before there was one.
	Version  int       `json:"version,omitempty"`
	Claim    types.UID `json:"claim"`
	Pods     []Pod     `json:"pods"`
	Name     string    `json:"name"`
	Requests []Request `json:"requests"`
	// Namespace is the claim's and that of its pods.
	Namespace string `json:"namespace"`

	// newer says that an agent of a later version wrote it, which may mean more than this one reads: what runs is kept,
	// and nothing is begun by it.
	newer bool
}

// recordVersion changes when an older agent would misread a record.
const recordVersion = 1

const (
	cdiKind = reservation.Driver + "/reservation"
	// recordAnnotation carries the record in the CDI file.
	recordAnnotation = reservation.Driver + "/record"
	// cdiPrefix and cdiSuffix surround the claim's UID in the name of its CDI file.
	cdiPrefix, cdiSuffix = reservation.Driver + "-", ".json"
	// grantVariable begins the name of the environment variable by which a container with a reservation
	// is known. A pod may forge it, so it is believed only together with the pod's UID.
	grantVariable = "TAKT_GRANT_"
	// tuneVariable begins the name of the one that says from what to what, in nanoseconds, the runtime may be set.
	tuneVariable = "TAKT_TUNE_"
	// socketVariable tells a program where its threads ask.
	socketVariable = "TAKT_RESERVATION_SOCKET"
	// askSocket is the name of that socket.
	askSocket = "ask.sock"
)

// key names one request of a claim on the node.
func key(claim types.UID, request string) string { return string(claim) + "/" + request }

// parseKey is the claim of a key; the rest is the request.
func parseKey(text string) (claim types.UID, request string, err error) {
	uid, request, ok := strings.Cut(text, "/")
	if !ok || uid == "" || request == "" {
		return "", "", fmt.Errorf("%s is not a reservation: CLAIM-UID/REQUEST expected", quote.Value(text))
	}
	return types.UID(uid), request, nil
}

func (r *Record) grant(request string) (enforce.Grant, bool) {
	for _, q := range r.Requests {
		if q.Name != request {
			continue
		}
		g := enforce.Grant{Key: key(r.Claim, q.Name), Name: fmt.Sprintf("request %s of claim %s", q.Name, r.Name), Parameters: q.Parameters, Restored: q.Restored}
		for _, device := range q.Devices {
			g.Cores = append(g.Cores, device.CPU)
		}
		return g, true
	}
	return enforce.Grant{}, false
}

// keep takes over from an older record of the claim what the cluster does not know.
func (r *Record) keep(old *Record) {
	for i := range r.Requests {
		for _, was := range old.Requests {
			if was.Name == r.Requests[i].Name {
				r.Requests[i].Restored = was.Restored
			}
		}
	}
}

// restored is the record after one of its reservations was restored for so many times.
func (r *Record) restored(request string, times int) *Record {
	next := *r
	next.Requests = slices.Clone(r.Requests)
	for i := range next.Requests {
		if next.Requests[i].Name == request {
			next.Requests[i].Restored = times
		}
	}
	return &next
}

// asks is how many reservations there are for threads that ask.
func (r *Record) asks() (reservations int) {
	for _, q := range r.Requests {
		if q.Parameters.Selection() == reservation.SelectAsk {
			reservations += len(q.Devices)
		}
	}
	return reservations
}

// deviceName is the CDI name of a request. A request of a prioritised list has a slash, a CDI name may not.
func deviceName(claim types.UID, request string) string {
	return string(claim) + "-" + strings.ReplaceAll(request, "/", ".")
}

func cdiID(claim types.UID, request string) string { return cdiKind + "=" + deviceName(claim, request) }

func variableName(prefix string, claim types.UID, request string) string {
	return prefix + strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, key(claim, request))
}

// records are the CDI files in one directory.
type records struct {
	dir, run, gate string
}

func (s records) path(claim types.UID) string {
	return filepath.Join(s.dir, cdiPrefix+string(claim)+cdiSuffix)
}

// askDir is what a container of the claim sees as insideDir.
func (s records) askDir(claim types.UID) string { return filepath.Join(s.run, "ask", string(claim)) }

func insideDir(claim types.UID) string { return "/run/takt-reservation/" + string(claim) }

// spec is the CDI file of a record: containers get the marks that the agent knows them by, the gate that
// keeps them from starting without it, and the socket that their threads ask.
func (s records) spec(r *Record) (*cdispec.Spec, error) {
	written := *r
	written.Version = recordVersion
	text, err := json.Marshal(written)
	if err != nil {
		return nil, fmt.Errorf("cannot write the record of claim %s: %w", r.Claim, err)
	}
	spec := &cdispec.Spec{
		Version: "0.6.0", Kind: cdiKind, Annotations: map[string]string{recordAnnotation: string(text)},
	}
	for _, q := range r.Requests {
		edits := cdispec.ContainerEdits{
			Env:   []string{variableName(grantVariable, r.Claim, q.Name) + "=" + key(r.Claim, q.Name)},
			Hooks: []*cdispec.Hook{s.hook()},
		}
		if least, most := q.Parameters.RuntimeRange(); least != most {
			edits.Env = append(edits.Env, fmt.Sprintf("%s=%d %d", variableName(tuneVariable, r.Claim, q.Name), least.Nanoseconds(), most.Nanoseconds()))
		}
		if q.Parameters.Selection() == reservation.SelectAsk {
			edits.Env = append(edits.Env, socketVariable+"="+filepath.Join(insideDir(r.Claim), askSocket))
			edits.Mounts = []*cdispec.Mount{{
				HostPath: s.askDir(r.Claim), ContainerPath: insideDir(r.Claim), Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"},
			}}
		}
		spec.Devices = append(spec.Devices, cdispec.Device{Name: deviceName(r.Claim, q.Name), ContainerEdits: edits})
	}
	return spec, nil
}

// hook runs the gate before a container's program.
func (s records) hook() *cdispec.Hook {
	return &cdispec.Hook{HookName: "createRuntime", Path: s.gate, Args: []string{filepath.Base(s.gate), gateSocket(s.run)}}
}

// write puts the record on disk, all of it or nothing.
func (s records) write(r *Record) error {
	spec, err := s.spec(r)
	if err != nil {
		return err
	}
	return s.put(s.path(r.Claim), spec, r.Claim)
}

// put writes a claim's CDI file, all of it or nothing.
func (s records) put(path string, spec *cdispec.Spec, claim types.UID) error {
	text, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot write the CDI file of claim %s: %w", claim, err)
	}
	// The runtime takes any *.json for a CDI file.
	file, err := os.CreateTemp(s.dir, "."+cdiPrefix+"*.tmp")
	if err != nil {
		return fmt.Errorf("cannot write the CDI file of claim %s: %w", claim, err)
	}
	defer os.Remove(file.Name())
	_, err = file.Write(text)
	err = errors.Join(err, file.Chmod(0o644), file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("cannot write the CDI file of claim %s: %w", claim, err)
	}
	return nil
}

// remove takes the record and the socket directory away; it is no error if they are gone.
func (s records) remove(claim types.UID) error {
	err := os.Remove(s.path(claim))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err := errors.Join(err, os.RemoveAll(s.askDir(claim))); err != nil {
		return fmt.Errorf("cannot remove what claim %s left: %w", claim, err)
	}
	return nil
}

// load reads all records. What cannot be read is reported and left out: its containers are then refused.
func (s records) load() ([]*Record, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list CDI files: %w", err)
	}
	var failed []error
	for _, entry := range entries {
		name := entry.Name()
		if strings.HasPrefix(name, "."+cdiPrefix) && strings.HasSuffix(name, ".tmp") {
			// Left by an agent that was killed while it wrote.
			failed = append(failed, os.Remove(filepath.Join(s.dir, name)))
		}
	}
	all, err := loadFiles(s.dir, entries, cdiPrefix, readRecord, func(r *Record) types.UID { return r.Claim })
	return all, errors.Join(append(failed, err)...)
}

// loadFiles reads the CDI files whose names begin so, each of one claim. What cannot be read is reported and left out.
func loadFiles[T any](dir string, entries []os.DirEntry, prefix string, read func(path string) (T, error), claim func(T) types.UID) (all []T, err error) {
	var failed []error
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasPrefix(name, prefix) || !strings.HasSuffix(name, cdiSuffix) {
			continue
		}
		one, err := read(filepath.Join(dir, name))
		if err == nil && prefix+string(claim(one))+cdiSuffix != name {
			err = fmt.Errorf("it is of claim %s", claim(one))
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("cannot read CDI file %s: %w", name, err))
			continue
		}
		all = append(all, one)
	}
	return all, errors.Join(failed...)
}

// readAnnotation reads what a CDI file has in an annotation.
func readAnnotation(path, annotation string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var spec cdispec.Spec
	if err := json.Unmarshal(text, &spec); err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(spec.Annotations[annotation]), into); err != nil {
		return fmt.Errorf("annotation %s: %w", annotation, err)
	}
	return nil
}

func readRecord(path string) (*Record, error) {
	r := &Record{}
	if err := readAnnotation(path, recordAnnotation, r); err != nil {
		return nil, err
	}
	r.newer = r.Version > recordVersion
	if r.Claim == "" || len(r.Requests) == 0 {
		return nil, fmt.Errorf("annotation %s names no claim or no request", recordAnnotation)
	}
	for _, q := range r.Requests {
		if len(q.Devices) == 0 || q.Parameters.Period == 0 {
			return nil, fmt.Errorf("request %q has no devices or no period", q.Name)
		}
	}
	return r, nil
}

// reservedFor are the pods that a claim is reserved for.
func reservedFor(claim *resourceapi.ResourceClaim) (pods []Pod) {
	for _, consumer := range claim.Status.ReservedFor {
		if consumer.APIGroup == "" && consumer.Resource == "pods" {
			pods = append(pods, Pod{Namespace: claim.Namespace, Name: consumer.Name, UID: consumer.UID})
		}
	}
	return pods
}

// newRecord reads what the scheduler allocated and what the claim says about it, and checks that they go
// together.
func newRecord(claim *resourceapi.ResourceClaim, pool string, limits reservation.Limits) (*Record, error) {
	r := &Record{Claim: claim.UID, Namespace: claim.Namespace, Name: claim.Name}
	r.Pods = reservedFor(claim)
	if claim.Status.Allocation == nil {
		return r, refuse(codeAllocation, "claim %s/%s is not allocated", claim.Namespace, claim.Name)
	}
	byRequest := map[string]*Request{}
	var order []string
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != reservation.Driver || result.Pool != pool {
			continue
		}
		if result.AdminAccess != nil && *result.AdminAccess {
			return r, refuse(codeAllocation, "request %q has admin access, which reserves nothing: leave adminAccess out", result.Request)
		}
		cpu, err := nodeDevice(result.Device)
		if err != nil {
			return r, refuse(codeAllocation, "%w", err)
		}
		q := byRequest[result.Request]
		if q == nil {
			q = &Request{Name: result.Request}
			byRequest[result.Request] = q
			order = append(order, result.Request)
		}
		for _, other := range q.Devices {
			if other.CPU == cpu {
				return r, refuse(codeAllocation, "request %q was allocated CPU %d twice", result.Request, cpu)
			}
		}
		consumed := result.ConsumedCapacity[reservation.Bandwidth]
		q.Devices = append(q.Devices, Device{Pool: result.Pool, Name: result.Device, ShareID: result.ShareID, CPU: cpu, PPM: consumed.Value()})
	}
	if len(order) == 0 {
		return r, refuse(codeAllocation, "claim %s/%s has no device of %s on this node", claim.Namespace, claim.Name, reservation.Driver)
	}
	for _, name := range order {
		q := byRequest[name]
		r.Requests = append(r.Requests, *q)
		parameters, err := parametersOf(claim.Status.Allocation.Devices.Config, name)
		if err == nil {
			err = parameters.Validate(limits, len(q.Devices))
		}
		for _, device := range q.Devices {
			if err == nil {
				err = parameters.FitsCapacity(device.PPM)
			}
		}
		if err != nil {
			return r, refuse(codeParameters, "request %q: %w", name, err)
		}
		r.Requests[len(r.Requests)-1].Parameters = *parameters
	}
	if len(r.Pods) == 0 {
		return r, refuse(codeShared, "the claim is reserved for no pod: a reservation is one pod's, use a ResourceClaimTemplate rather than a claim of a group")
	}
	return r, nil
}

// parametersOf finds the parameters of a request.
func parametersOf(configs []resourceapi.DeviceAllocationConfiguration, request string) (*reservation.Parameters, error) {
	found := opaqueOf(configs, reservation.Driver, request)
	if found == nil {
		return nil, fmt.Errorf("no parameters: add config with opaque.driver %s and parameters with runtime and period", reservation.Driver)
	}
	return reservation.Decode(found.Parameters.Raw)
}

// opaqueOf finds what a driver is told of a request; nil if nothing is: the parameters of the claim go before those of its
// class, and of several the last one counts.
func opaqueOf(configs []resourceapi.DeviceAllocationConfiguration, driver, request string) (found *resourceapi.OpaqueDeviceConfiguration) {
	main, _, _ := strings.Cut(request, "/")
	var source resourceapi.AllocationConfigSource
	for i := range configs {
		config := &configs[i]
		if config.Opaque == nil || config.Opaque.Driver != driver {
			continue
		}
		applies := len(config.Requests) == 0
		for _, name := range config.Requests {
			applies = applies || name == request || name == main
		}
		if !applies || (found != nil && source == resourceapi.AllocationConfigSourceClaim && config.Source == resourceapi.AllocationConfigSourceClass) {
			continue
		}
		found, source = config.Opaque, config.Source
	}
	return found
}
