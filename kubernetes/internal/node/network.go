package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/cni"
	"github.com/takt-dev/takt/kubernetes/internal/quote"
)

// Annotations of pods beside cni.Annotation. Preload and library are for all containers, with "." and a container's name
// behind them for that one.
const (
	annotationPreload   = "takt.dev/preload"
	annotationLibrary   = "takt.dev/library"
	annotationInterface = "takt.dev/interface"
	annotationPath      = "takt.dev/path"
	annotationClass     = "takt.dev/class"
	annotationOthers    = "takt.dev/other-traffic"
)

// cniConfigurations is where container runtimes look for networks if they are not told where.
const cniConfigurations = "/etc/cni/net.d"

// Where a container finds its runtime.
const (
	containerSockets = "/run/takt/pod"
	containerPreload = "/run/takt/libtakt_preload.so"
	// With the directory of libraries: the loader of each program finds its own there, glibc's by replacing $LIB
	// (ld.so(8)), musl's by taking it as it is written.
	containerLibraries = "/run/takt/takt-preload"
	librariesPreload   = containerLibraries + "/$LIB/libtakt_preload.so"
	// The library of the API, under the name that programs are linked with.
	containerLibrary = "/run/takt/lib/libtakt.so.0"
)

// What annotationPreload can be.
const (
	preloadOn       = "on"
	preloadRequired = "required"
	preloadOff      = "off"
)

// Path says where launch times of a pod's programs are taken.
type Path string

const (
	// PathPreload: in the programs, by the preload.
	PathPreload Path = "preload"
	// PathVeth: at the node's end of the pod's veth, by `takt veth attach`.
	PathVeth Path = "veth"
	// PathBoth: at the veth, what the preload has not taken.
	PathBoth Path = "both"
)

func (p Path) known() bool { return p == PathPreload || p == PathVeth || p == PathBoth }

// OtherTraffic says who sends what a pod emits without a launch time.
type OtherTraffic string

const (
	// OtherKernel: the kernel, beside any schedule.
	OtherKernel OtherTraffic = "kernel"
	// OtherRuntime: the runtime, inside it, as far as its network goes.
	OtherRuntime OtherTraffic = "runtime"
)

func (o OtherTraffic) known() bool { return o == OtherKernel || o == OtherRuntime }

// Unattached says what becomes of containers of a time-sensitive pod that no network has attached.
type Unattached string

const (
	// RefuseUnattached refuses them.
	RefuseUnattached Unattached = "refuse"
	// StartUnattached starts them without a runtime, and tells the pod.
	StartUnattached Unattached = "start"
)

// Unlisted says who may use a network, with Objects, of which there is no TaktNetwork.
type Unlisted string

const (
	// RefuseUnlisted: nobody.
	RefuseUnlisted Unlisted = "refuse"
	// AllowUnlisted: every pod that it has attached, in all classes of takt-cni's configuration.
	AllowUnlisted Unlisted = "allow"
)

// NetworkConfig is what containers of attached pods get.
type NetworkConfig struct {
	// Sockets is the directory of takt-cni.
	Sockets string `json:"sockets,omitempty"`
	// AdminSocket is taktd's.
	AdminSocket string `json:"adminSocket,omitempty"`
	// Plugins is where the container runtime looks for CNI plugins.
	Plugins string `json:"plugins,omitempty"`
	// Configurations is where it looks for the networks that they make.
	Configurations string `json:"configurations,omitempty"`
	// Preload is the host's directory takt-preload, with a library for each C library, or its libtakt_preload.so alone.
	Preload string `json:"preload"`
	// Library is the host's libtakt.so.0, for containers that ask for it.
	Library string `json:"library,omitempty"`
	// Takt is the host's program, which takes launch times at veths.
	Takt string `json:"takt,omitempty"`
	// Path is that of time-sensitive pods that do not say.
	Path Path `json:"path,omitempty"`
	// OtherTraffic is that of time-sensitive pods that do not say, of those that have launch times taken at their veths.
	OtherTraffic OtherTraffic `json:"otherTraffic,omitempty"`
	// Unattached is refuse or start.
	Unattached Unattached `json:"unattached,omitempty"`
	// Objects: the node is kept in step with the cluster's TaktNetworks, GateSchedules and TaktNodes.
	Objects bool `json:"objects,omitempty"`
	// Unlisted is refuse or allow.
	Unlisted Unlisted `json:"unlisted,omitempty"`
	// Claimed are traffic classes that pods have by a claim for gate time alone, whatever takt-cni's configuration gives.
	Claimed []uint32 `json:"claimed,omitempty"`
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
	if c.Configurations == "" {
		c.Configurations = cniConfigurations
	}
	if c.Takt == "" {
		c.Takt = "/usr/bin/takt"
	}
	if c.Library == "" {
		c.Library = "/usr/lib/x86_64-linux-gnu/libtakt.so.0"
	}
	if c.Path == "" {
		c.Path = PathBoth
	}
	if c.OtherTraffic == "" {
		c.OtherTraffic = OtherKernel
	}
	if c.Unattached == "" {
		c.Unattached = RefuseUnattached
	}
	if c.Unlisted == "" {
		c.Unlisted = RefuseUnlisted
	}
	for name, path := range map[string]string{"sockets": c.Sockets, "adminSocket": c.AdminSocket, "plugins": c.Plugins, "configurations": c.Configurations, "preload": c.Preload, "library": c.Library, "takt": c.Takt} {
		if !filepath.IsAbs(path) {
			mistakes = append(mistakes, fmt.Errorf("network.%s %q is not an absolute path", name, path))
		}
	}
	if !c.Path.known() {
		mistakes = append(mistakes, fmt.Errorf("network.path %q is not known: write %s, %s or %s", c.Path, PathPreload, PathVeth, PathBoth))
	}
	if !c.OtherTraffic.known() {
		mistakes = append(mistakes, fmt.Errorf("network.otherTraffic %q is not known: write %s or %s", c.OtherTraffic, OtherKernel, OtherRuntime))
	} else if c.OtherTraffic == OtherRuntime && c.Path == PathPreload {
		mistakes = append(mistakes, fmt.Errorf("network.otherTraffic %s is taken at veths, and network.path is %s: write %s or %s there", OtherRuntime, PathPreload, PathVeth, PathBoth))
	}
	if c.Unattached != RefuseUnattached && c.Unattached != StartUnattached {
		mistakes = append(mistakes, fmt.Errorf("network.unattached %q is not known: write %s or %s", c.Unattached, RefuseUnattached, StartUnattached))
	}
	if c.Unlisted != RefuseUnlisted && c.Unlisted != AllowUnlisted {
		mistakes = append(mistakes, fmt.Errorf("network.unlisted %q is not known: write %s or %s", c.Unlisted, RefuseUnlisted, AllowUnlisted))
	}
	for _, class := range c.Claimed {
		if class > 7 {
			mistakes = append(mistakes, fmt.Errorf("network.claimed: %d is no traffic class: write 0 to 7", class))
		}
	}
	if c.Peers && !c.Objects {
		mistakes = append(mistakes, errors.New("network.peers without network.objects: peers are known by the cluster's objects; write objects: true"))
	}
	return errors.Join(mistakes...)
}

// connect gives a container of an attached pod its socket and, where that is wanted, the preload.
func (n *Node) connect(ctx context.Context, sandbox *api.PodSandbox, ctr *api.Container, adjustment *api.ContainerAdjustment) error {
	if n.config.Network == nil {
		return n.withoutNetworks(sandbox, ctr)
	}
	if err := checkAnnotations(sandbox.GetAnnotations()); err != nil {
		return err
	}
	if err := n.checkNamed(ctx, sandbox, ctr); err != nil {
		return err
	}
	wish, err := n.wishes(sandbox.GetAnnotations(), ctr.GetName())
	if err != nil {
		return err
	}
	directory := filepath.Join(n.config.Network.Sockets, sandbox.GetId())
	attached, err := interfaces(directory)
	if err != nil {
		return fmt.Errorf("cannot see what the pod is attached to: %w", err)
	}
	if len(attached) == 0 {
		// A pod with gate time is refused by name.
		if err := n.gates.attach(ctx, sandbox, ctr); err != nil || !wish.timed() {
			return err
		}
		err := refuse(codeUnattached, "the pod asks for launch times by other annotations than %s, and no network has attached it: annotate it with %s: \"true\", or remove those", cni.Annotation, cni.Annotation)
		if wish.sensitive {
			// The annotation is all that such a pod needs where takt-cni is in the node's configuration.
			err = refusal{code: codeUnattached, ofTheNode: true,
				err: fmt.Errorf("the pod is time-sensitive (%s), and no network has attached it: put takt-cni into the CNI configuration of the node and delete the pod, so that it is made again, or remove the annotation", cni.Annotation)}
		}
		if hostsNetwork(sandbox) {
			err = refuse(codeUnattached, "the pod asks for launch times, and is in the node's own network (hostNetwork), where no network attaches it: remove hostNetwork, or its annotations takt.dev/*")
		}
		if n.config.Network.Unattached == RefuseUnattached {
			return err
		}
		n.event(podOf(sandbox), corev1.EventTypeWarning, reasonUnattached, "container %s starts without launch times: no network has attached the pod", ctr.GetName())
		return nil
	}
	chosen := attached[0]
	if wanted := sandbox.GetAnnotations()[annotationInterface]; wanted != "" {
		if !slices.Contains(attached, wanted) {
			return refuse(codeAnnotation, "%s is %s, and a network has attached %s: write one of these", annotationInterface, quote.Value(wanted), strings.Join(attached, ", "))
		}
		chosen = wanted
	}
	needs := wish.timed() || len(n.gates.all(podOf(sandbox).UID)) > 0
	unserved := n.allowed(ctx, sandbox, attached)
	if unserved != nil && needs {
		return unserved
	}
	if err := n.gates.attach(ctx, sandbox, ctr); err != nil {
		var known refusal
		if needs || !errors.As(err, &known) || known.code != codeNotAllowed {
			return err
		}
		unserved = errors.Join(unserved, err)
	}
	if unserved != nil {
		n.tell(podOf(sandbox), reasonUnattached, "container "+ctr.GetName()+" starts without the socket of its pod", unserved)
		return nil
	}
	if err := n.gates.hasClass(ctx, sandbox, wish, attached); err != nil {
		return err
	}
	if err := n.takeAtVeths(ctx, sandbox, wish, attached, true); err != nil {
		return err
	}
	n.served.Store(sandbox.GetId(), true)
	// The directory and not the socket: a taktd that starts again makes a new one.
	adjustment.AddMount(&api.Mount{
		Source: directory, Destination: containerSockets, Type: "bind", Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"},
	})
	if _, set := variable(ctr, "TAKT_SOCKET"); !set {
		adjustment.AddEnv("TAKT_SOCKET", filepath.Join(containerSockets, chosen, cni.SocketName))
	}
	if wish.library {
		if missingBelow(n.host, n.config.Network.Library) {
			return refuse(codeNoLibrary, "the node has no %s: install the package libtakt0 there, name its place in network.library, or leave out %s if the image has its own", n.config.Network.Library, annotationLibrary)
		}
		adjustment.AddMount(&api.Mount{
			Source: n.config.Network.Library, Destination: containerLibrary, Type: "bind", Options: []string{"bind", "ro", "nosuid", "nodev"},
		})
		places := filepath.Dir(containerLibrary)
		if others, _ := variable(ctr, "LD_LIBRARY_PATH"); others != "" {
			places += ":" + others
		}
		adjustment.AddEnv("LD_LIBRARY_PATH", places)
	}
	if wish.preload == preloadOff {
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
	if wish.preload == preloadRequired {
		adjustment.AddEnv("TAKT_PRELOAD", "required")
		if wish.deniesLaunchTimes() {
			adjustment.SetLinuxSeccompPolicy(withoutLaunchTimes(ctr.GetLinux().GetSeccompPolicy()))
			n.denials.add(podOf(sandbox), ctr, reasonNetwork, launchCalls)
			// Whether the runtime does so is seen by the gate, which containers without a claim do not have else.
			hook := n.records.hook()
			adjustment.AddHooks(&api.Hooks{CreateRuntime: []*api.Hook{{Path: hook.Path, Args: hook.Args}}})
		}
	}
	return nil
}

// hostsNetwork says that a pod is known to be in the node's network namespace: no container runtime calls a CNI plugin for it.
func hostsNetwork(sandbox *api.PodSandbox) bool {
	own := sandbox.GetLinux().GetNamespaces()
	return len(own) > 0 && !slices.ContainsFunc(own, func(one *api.LinuxNamespace) bool { return one.GetType() == "network" })
}

// noNetworks is what an agent without networks says of pods that are time-sensitive.
const noNetworks = "this node's takt-node serves no networks: set network.enabled=true of its chart, have the pod placed on another node, or remove its annotations takt.dev/*"

// withoutNetworks is for an agent without networks, where no other serves them: a pod that must not send without its launch times does
// not start, and a time-sensitive one is told.
func (n *Node) withoutNetworks(sandbox *api.PodSandbox, ctr *api.Container) error {
	wish, err := n.wishes(sandbox.GetAnnotations(), ctr.GetName())
	if err == nil && !wish.sensitive && !wish.insists() || n.othersServeNetworks() {
		return nil
	}
	if err == nil && wish.insists() {
		err = refuse(codeUnattached, "the pod requires its launch times, and "+noNetworks)
	}
	if err == nil {
		n.event(podOf(sandbox), corev1.EventTypeWarning, reasonUnattached, "container %s starts without launch times: %s", ctr.GetName(), noNetworks)
	}
	return err
}

// othersServeNetworks says that another agent of the node serves the kubelet for networks.
func (n *Node) othersServeNetworks() bool {
	connection, err := net.Dial("unix", filepath.Join(n.config.KubeletRegistry, reservation.NetworkDriver+"-reg.sock"))
	if err != nil {
		return false
	}
	connection.Close()
	return true
}

// tellOfNetworks tells of what is left of an agent with networks, which this one does not serve.
func (n *Node) tellOfNetworks(ctx context.Context, pods []*api.PodSandbox) {
	if n.config.Network != nil || n.othersServeNetworks() {
		return
	}
	if used, err := n.configured(); err == nil && used != "" {
		klog.FromContext(ctx).Info("A network configuration names takt-cni, and this agent serves no networks: take it out there, or set network.enabled=true of the chart", "file", used)
	}
	for _, pod := range pods {
		if wish, err := n.wishes(pod.GetAnnotations(), ""); err == nil && (wish.sensitive || wish.insists()) {
			n.event(podOf(pod), corev1.EventTypeWarning, reasonUnattached, "nobody sees to the pod's launch times any more, and containers that start have none: %s", noNetworks)
		}
	}
}

// gateTimeLeft names the pods with gate time that an agent with networks has left to one without: the kubelet cannot end them.
func (n *Node) gateTimeLeft() error {
	gates, _, err := n.records.loadGates()
	if err != nil || len(gates) == 0 {
		return err
	}
	var pods []string
	for _, c := range gates {
		pods = append(pods, c.Pod.Namespace+"/"+c.Pod.Name)
	}
	return fmt.Errorf("pods with gate time are on the node, which the kubelet cannot end without an agent that serves networks: set network.enabled=true of the chart, and delete %s before it is false again", strings.Join(pods, ", "))
}

// deniesLaunchTimes says that the kernel is to refuse a container launch times: nobody else is there to keep programs that
// the preload does not see from sending at once.
func (w wish) deniesLaunchTimes() bool { return w.preload == preloadRequired && !w.veth() }

// denyAgain remembers what a container that has yet to start is to be denied, and an agent before this one has asked for.
func (n *Node) denyAgain(sandbox *api.PodSandbox, ctr *api.Container) {
	if _, known := n.denials.of(ctr.GetId()); known || !n.hasSockets(ctr) {
		return
	}
	if wish, err := n.wishes(sandbox.GetAnnotations(), ctr.GetName()); err == nil && wish.deniesLaunchTimes() {
		n.denials.add(podOf(sandbox), ctr, reasonNetwork, launchCalls)
	}
}

// hasSockets says that a container was given the sockets of its pod by an agent. Whatever else is mounted there is the
// pod's own.
func (n *Node) hasSockets(ctr *api.Container) bool {
	return n.config.Network != nil && slices.ContainsFunc(ctr.GetMounts(), func(m *api.Mount) bool {
		return m.GetDestination() == containerSockets && m.GetSource() == filepath.Join(n.config.Network.Sockets, ctr.GetPodSandboxId())
	})
}

// missing says why a container that exists should not run as it does: it is of a pod with launch times, and was created
// while this agent was not there to give it its runtime, or to refuse it.
func (n *Node) missing(sandbox *api.PodSandbox, ctr *api.Container) error {
	if n.config.Network == nil || n.hasSockets(ctr) {
		return nil
	}
	wish, err := n.wishes(sandbox.GetAnnotations(), ctr.GetName())
	if !wish.timed() || err != nil {
		return err
	}
	attached, err := interfaces(filepath.Join(n.config.Network.Sockets, sandbox.GetId()))
	if err != nil || len(attached) == 0 && n.config.Network.Unattached == StartUnattached {
		// That is as good as it gets.
		return nil
	}
	return refuse(codeWithout, "it was created while takt-node was away, or slower than the container runtime waits, and has neither the socket of its pod nor the preload")
}

// wish is what a pod's annotations say for a container.
type wish struct {
	// sensitive: the pod is time-sensitive.
	sensitive bool
	// preload is the container's.
	preload string
	// library: the container is to have the node's libtakt.
	library bool
	path    Path
	// asked: the path is the pod's own word, or that other traffic is to be the runtime's.
	asked bool
	// required: what cannot be sent at its time must not leave, of any of the pod's containers.
	required bool
	// class of all packets that are taken at a veth; empty: by their DSCP.
	class string
	// all: what has no launch time is the runtime's as well, as far as its network goes.
	all bool
}

// veth says whether launch times are to be taken at the pod's veths.
func (w wish) veth() bool { return w.path == PathVeth || w.path == PathBoth }

// timed says that the pod asks for launch times: no container of it is to run as if it did not.
func (w wish) timed() bool { return w.sensitive || w.required || w.asked && w.veth() }

// strict says that no container of the pod may run while they are not.
func (w wish) strict() bool { return w.required || w.asked }

// insists says that the pod's containers do not start without launch times, be they taken at its veths or by the preload.
func (w wish) insists() bool { return w.required || w.asked && w.veth() }

// wishes are what a pod's annotations say for a container.
func (n *Node) wishes(annotations map[string]string, container string) (wish, error) {
	usual := n.config.Network
	if usual == nil {
		usual = &NetworkConfig{Path: PathBoth, OtherTraffic: OtherKernel}
	}
	w := wish{path: PathPreload}
	switch value := annotations[cni.Annotation]; value {
	case "true":
		w.sensitive, w.preload, w.path = true, preloadOn, usual.Path
	case "", "false":
		w.preload = preloadOff
	default:
		return wish{}, refuse(codeAnnotation, "%s is %s: write \"true\" or \"false\"", cni.Annotation, quote.Value(value))
	}
	if value, there := annotations[annotationPath]; there {
		if w.path, w.asked = Path(value), true; !w.path.known() {
			return wish{}, refuse(codeAnnotation, "%s is %s: write %q, %q or %q", annotationPath, quote.Value(value), PathPreload, PathVeth, PathBoth)
		}
	}
	for _, name := range []string{annotationPreload, annotationPreload + "." + container} {
		value, there := annotations[name]
		if !there {
			continue
		}
		if value != preloadOn && value != preloadRequired && value != preloadOff {
			return wish{}, refuse(codeAnnotation, "%s is %s: write %q, %q or %q", name, quote.Value(value), preloadOn, preloadRequired, preloadOff)
		}
		w.preload = value
	}
	for _, name := range []string{annotationLibrary, annotationLibrary + "." + container} {
		switch value := annotations[name]; value {
		case "on", "off":
			w.library = value == "on"
		case "":
		default:
			return wish{}, refuse(codeAnnotation, "%s is %s: write \"on\" or \"off\"", name, quote.Value(value))
		}
	}
	// A veth is all containers': what one of them requires holds there for all.
	for name, value := range annotations {
		if (name == annotationPreload || strings.HasPrefix(name, annotationPreload+".")) && value == preloadRequired {
			w.required = true
		}
	}
	if w.path == PathVeth {
		w.preload = preloadOff
	}
	if w.class = annotations[annotationClass]; w.class != "" && (len(w.class) != 1 || w.class < "0" || w.class > "7") {
		return wish{}, refuse(codeAnnotation, "%s is %s: write a traffic class from 0 to 7", annotationClass, quote.Value(w.class))
	}
	w.all = w.sensitive && w.veth() && usual.OtherTraffic == OtherRuntime
	if value, there := annotations[annotationOthers]; there {
		switch other := OtherTraffic(value); {
		case !other.known():
			return wish{}, refuse(codeAnnotation, "%s is %s: write %q or %q", annotationOthers, quote.Value(value), OtherKernel, OtherRuntime)
		case other == OtherRuntime && !w.veth():
			also := ""
			if !w.sensitive {
				also = fmt.Sprintf("%s: \"true\", and ", cni.Annotation)
			}
			return wish{}, refuse(codeAnnotation, "%s is %q, which is taken at the veth, and launch times of this pod are not: write %s%s: %q or %q", annotationOthers, value, also, annotationPath, PathVeth, PathBoth)
		default:
			w.all = other == OtherRuntime
			w.asked = w.asked || w.all
		}
	}
	return w, nil
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
