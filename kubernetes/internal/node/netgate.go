package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/containerd/nri/pkg/api"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
)

// A container that names a claim for a network does not start while this agent is away, whatever the container runtime
// does with its plugins: the claim's CDI device has the gate run before the program, as reservations have it.

const (
	networkKind = reservation.NetworkDriver + "/container"
	// attendedDevice is the one CDI device of the kind.
	attendedDevice = "attended"
)

// networkCDI is the CDI device that containers with a claim for a network get.
func networkCDI() string { return networkKind + "=" + attendedDevice }

// networkCDIFile is where it is described. It stays while the agent is away.
func networkCDIFile(directory string) string {
	return filepath.Join(directory, reservation.NetworkDriver+cdiSuffix)
}

// writeNetworkCDI describes the device, all of it or nothing.
func (s records) writeNetworkCDI() error {
	text, err := json.MarshalIndent(&cdispec.Spec{Version: "0.6.0", Kind: networkKind, Devices: []cdispec.Device{{
		Name: attendedDevice, ContainerEdits: cdispec.ContainerEdits{Hooks: []*cdispec.Hook{s.hook()}},
	}}}, "", "  ")
	path := networkCDIFile(s.dir)
	// The runtime takes any *.json for a CDI file.
	unfinished := path + ".tmp"
	if err == nil {
		err = os.WriteFile(unfinished, text, 0o644)
	}
	if err == nil {
		err = os.Rename(unfinished, path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cannot write the CDI file of networks: %w", err), os.RemoveAll(unfinished))
	}
	return nil
}

// attended are the containers that have passed this agent when they were created, or one before it: what they were to be
// given they have.
type attended struct {
	mu  sync.Mutex
	all map[string]bool
}

func (a *attended) add(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all == nil {
		a.all = map[string]bool{}
	}
	a.all[id] = true
}

func (a *attended) remove(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.all, id)
}

func (a *attended) has(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all[id]
}

// reset leaves these alone.
func (a *attended) reset(containers []*api.Container) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = map[string]bool{}
	for _, ctr := range containers {
		a.all[ctr.GetId()] = true
	}
}
