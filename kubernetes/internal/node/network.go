package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"

	"github.com/takt-dev/takt/kubernetes/internal/cni"
)

// Annotations of pods beside cni.Annotation. Preload is for all containers, with "." and a container's name behind it
// for that one.
const (
	annotationPreload   = "takt.dev/preload"
	annotationInterface = "takt.dev/interface"
)

// Where a container finds its runtime.
const (
	containerSockets = "/run/takt/pod"
	containerPreload = "/run/takt/libtakt_preload.so"
	// With the directory of libraries: the loader of each program finds its own there, glibc's by replacing $LIB
	// (ld.so(8)), musl's by taking it as it is written.
	containerLibraries = "/run/takt/takt-preload"
	librariesPreload   = containerLibraries + "/$LIB/libtakt_preload.so"
)

// What annotationPreload can be.
const (
	preloadOn       = "on"
	preloadRequired = "required"
	preloadOff      = "off"
)

// Unattached says what becomes of containers of a time-sensitive pod that no network has attached.
type Unattached string

const (
	// RefuseUnattached refuses them.
	RefuseUnattached Unattached = "refuse"
	// StartUnattached starts them without a runtime, and tells the pod.
	StartUnattached Unattached = "start"
)

// NetworkConfig is what containers of attached pods get.
type NetworkConfig struct {
	// Sockets is the directory of takt-cni.
	Sockets string `json:"sockets,omitempty"`
	// AdminSocket is taktd's.
	AdminSocket string `json:"adminSocket,omitempty"`
	// Plugins is where the container runtime looks for CNI plugins.
	Plugins string `json:"plugins,omitempty"`
	// Preload is the host's directory takt-preload, with a library for each C library, or its libtakt_preload.so alone.
	Preload string `json:"preload"`
	// Unattached is refuse or start.
	Unattached Unattached `json:"unattached,omitempty"`
	// Objects: the node is kept in step with the cluster's TaktNetworks, GateSchedules and TaktNodes.
	Objects bool `json:"objects,omitempty"`
	// Peers: with Objects, its taktd and those of other nodes have channels with each other.
	Peers bool `json:"peers,omitempty"`
}

func (c *NetworkConfig) validate() error {
	var mistakes []error
	if c.Sockets == "" {
		c.Sockets = "/run/takt/cni"
	}
	if c.AdminSocket == "" {
		c.AdminSocket = "/run/takt/admin.sock"
	}
	if c.Plugins == "" {
		c.Plugins = "/opt/cni/bin"
	}
	if c.Unattached == "" {
		c.Unattached = RefuseUnattached
	}
	for name, path := range map[string]string{"sockets": c.Sockets, "adminSocket": c.AdminSocket, "plugins": c.Plugins, "preload": c.Preload} {
		if !filepath.IsAbs(path) {
			mistakes = append(mistakes, fmt.Errorf("network.%s %q is not an absolute path", name, path))
		}
	}
	if c.Unattached != RefuseUnattached && c.Unattached != StartUnattached {
		mistakes = append(mistakes, fmt.Errorf("network.unattached %q is not known: write %s or %s", c.Unattached, RefuseUnattached, StartUnattached))
	}
	if c.Peers && !c.Objects {
		mistakes = append(mistakes, errors.New("network.peers without network.objects: peers are known by the cluster's objects; write objects: true"))
	}
	return errors.Join(mistakes...)
}

// connect gives a container of an attached pod its socket and, where that is wanted, the preload.
func (n *Node) connect(sandbox *api.PodSandbox, ctr *api.Container, adjustment *api.ContainerAdjustment) error {
	if n.config.Network == nil {
		return nil
	}
	sensitive, preload, err := wishes(sandbox.GetAnnotations(), ctr.GetName())
	if err != nil {
		return err
	}
	directory := filepath.Join(n.config.Network.Sockets, sandbox.GetId())
	attached, err := interfaces(directory)
	if err != nil {
		return fmt.Errorf("cannot see what the pod is attached to: %w", err)
	}
	if len(attached) == 0 {
		if !sensitive {
			return nil
		}
		err := refuse(codeUnattached, "the pod is time-sensitive (%s), and no network has attached it: put takt-cni into the CNI configuration of the node, or remove the annotation", cni.Annotation)
		if n.config.Network.Unattached == RefuseUnattached {
			return err
		}
		n.event(podOf(sandbox), corev1.EventTypeWarning, reasonUnattached, "container %s starts without launch times: no network has attached the pod", ctr.GetName())
		return nil
	}
	chosen := attached[0]
	if wanted := sandbox.GetAnnotations()[annotationInterface]; wanted != "" {
		if !slices.Contains(attached, wanted) {
			return refuse(codeAnnotation, "%s is %q, and a network has attached %s: write one of these", annotationInterface, wanted, strings.Join(attached, ", "))
		}
		chosen = wanted
	}
	if err := n.allowed(sandbox, attached); err != nil {
		if sensitive {
			return err
		}
		n.tell(podOf(sandbox), reasonUnattached, "container "+ctr.GetName()+" starts without the socket of its pod", err)
		return nil
	}
	// The directory and not the socket: a taktd that starts again makes a new one.
	adjustment.AddMount(&api.Mount{
		Source: directory, Destination: containerSockets, Type: "bind", Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"},
	})
	if _, set := variable(ctr, "TAKT_SOCKET"); !set {
		adjustment.AddEnv("TAKT_SOCKET", filepath.Join(containerSockets, chosen, cni.SocketName))
	}
	if preload == preloadOff {
		return nil
	}
	if missingBelow(n.host, n.config.Network.Preload) {
		return refuse(codeNoPreload, "the node has no %s: install the package takt-preload there, name its place in network.preload, or write %s: \"off\" if the program does without", n.config.Network.Preload, annotationPreload)
	}
	place, libraries := containerLibraries, librariesPreload
	if strings.HasSuffix(n.config.Network.Preload, ".so") {
		place, libraries = containerPreload, containerPreload
	}
	adjustment.AddMount(&api.Mount{
		Source: n.config.Network.Preload, Destination: place, Type: "bind", Options: []string{"bind", "ro", "nosuid", "nodev"},
	})
	if others, _ := variable(ctr, "LD_PRELOAD"); others != "" {
		libraries += ":" + others
	}
	adjustment.AddEnv("LD_PRELOAD", libraries)
	if preload == preloadRequired {
		adjustment.AddEnv("TAKT_PRELOAD", "required")
	}
	return nil
}

// missing says why a container that exists should not run as it does: it is of a time-sensitive pod, and was created
// while this agent was not there to give it its runtime, or to refuse it.
func (n *Node) missing(sandbox *api.PodSandbox, ctr *api.Container) error {
	if n.config.Network == nil || slices.ContainsFunc(ctr.GetMounts(), func(m *api.Mount) bool { return m.GetDestination() == containerSockets }) {
		return nil
	}
	sensitive, _, err := wishes(sandbox.GetAnnotations(), ctr.GetName())
	if !sensitive || err != nil {
		return err
	}
	attached, err := interfaces(filepath.Join(n.config.Network.Sockets, sandbox.GetId()))
	if err != nil || len(attached) == 0 && n.config.Network.Unattached == StartUnattached {
		// That is as good as it gets.
		return nil
	}
	return refuse(codeWithout, "it was started while takt-node was away, and has neither the socket of its pod nor the preload")
}

// wishes are what a pod's annotations say for a container: whether the pod is time-sensitive, and its preload.
func wishes(annotations map[string]string, container string) (sensitive bool, preload string, err error) {
	switch value := annotations[cni.Annotation]; value {
	case "true":
		sensitive, preload = true, preloadOn
	case "", "false":
		preload = preloadOff
	default:
		return false, "", refuse(codeAnnotation, "%s is %q: write \"true\" or \"false\"", cni.Annotation, value)
	}
	for _, name := range []string{annotationPreload, annotationPreload + "." + container} {
		value, there := annotations[name]
		if !there {
			continue
		}
		if value != preloadOn && value != preloadRequired && value != preloadOff {
			return false, "", refuse(codeAnnotation, "%s is %q: write %q, %q or %q", name, value, preloadOn, preloadRequired, preloadOff)
		}
		preload = value
	}
	return sensitive, preload, nil
}

// interfaces are those of a pod that takt-cni has attached, by name.
func interfaces(directory string) ([]string, error) {
	entries, err := os.ReadDir(directory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, err
}

// variable is one of a container's environment.
func variable(ctr *api.Container, name string) (value string, set bool) {
	for _, one := range ctr.GetEnv() {
		if key, text, _ := strings.Cut(one, "="); key == name {
			value, set = text, true
		}
	}
	return value, set
}
