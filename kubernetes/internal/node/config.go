package node

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"sigs.k8s.io/yaml"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/admission"
	"github.com/takt-dev/takt/kubernetes/internal/enforce"
	"github.com/takt-dev/takt/kubernetes/internal/inventory"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
	"github.com/takt-dev/takt/kubernetes/internal/topology"
)

// BackendAuto takes hcbs where the kernel has it, and deadline otherwise.
const BackendAuto = "auto"

// NoCores offers no CPU: the agent then serves networks only, and needs no SCHED_DEADLINE.
const NoCores = "none"

// Config is what an operator says of a node. Every path is the host's.
type Config struct {
	// Cores are the CPUs offered for reservations, as "2-7" or "1,3"; or "all"; or, with Network, "none".
	Cores string `json:"cores"`
	// Bound is how many parts per million of each core may be reserved; the kernel's bound if 0.
	Bound int64 `json:"bound,omitempty"`
	// Admission is guaranteed or soft: of the backend deadline, where the kernel admits more than is
	// schedulable.
	Admission admission.Policy `json:"admission,omitempty"`
	// MaxDensity is the greatest share of a core, in parts per million, that one reservation may have with
	// guaranteed admission: the greater it is, the less can be admitted in all. If 0, the greatest with
	// which every offered core has room for one such reservation.
	MaxDensity int64 `json:"maxDensity,omitempty"`
	// Order is best-fit or worst-fit.
	Order inventory.Order `json:"order,omitempty"`
	// Backend is auto, deadline, deadline-partition, whole-core, rt-group or hcbs.
	Backend string `json:"backend,omitempty"`
	// PodRequests says what happens to pods that request less CPU than they reserve: warn or refuse.
	PodRequests PodRequests `json:"podRequests,omitempty"`
	// ScanInterval is how often threads are looked at: a thread born later has its reservation within
	// this time.
	ScanInterval reservation.Duration `json:"scanInterval,omitempty"`
	// CDIDirectory is where the container runtime looks for devices.
	CDIDirectory string `json:"cdiDirectory,omitempty"`
	// KubeletPlugins is the kubelet's directory for plugins, KubeletRegistry the one it watches for new
	// ones.
	KubeletPlugins  string `json:"kubeletPlugins,omitempty"`
	KubeletRegistry string `json:"kubeletRegistry,omitempty"`
	// NRISocket is the container runtime's.
	NRISocket string `json:"nriSocket,omitempty"`
	// RunDirectory holds the agent's own sockets.
	RunDirectory string `json:"runDirectory,omitempty"`
	// Gate is the program that the container runtime asks before it starts a container with a claim.
	Gate string `json:"gate,omitempty"`
	// Listen is the address of metrics and health; none if empty.
	Listen string `json:"listen,omitempty"`
	// Viewer is the user who may see there, by a token, what the agent says of pods; nobody if empty.
	Viewer string `json:"viewer,omitempty"`
	// Network gives containers of pods in a network of Takt their runtime; none if absent.
	Network *NetworkConfig `json:"network,omitempty"`
}

// DefaultConfig is what a field that is absent means.
func DefaultConfig() Config {
	return Config{
		Order:           inventory.BestFit,
		Admission:       admission.Guaranteed,
		Backend:         BackendAuto,
		PodRequests:     RefuseRequests,
		ScanInterval:    reservation.Duration(100 * time.Millisecond),
		CDIDirectory:    "/var/run/cdi",
		KubeletPlugins:  "/var/lib/kubelet/plugins",
		KubeletRegistry: "/var/lib/kubelet/plugins_registry",
		NRISocket:       "/var/run/nri/nri.sock",
		RunDirectory:    "/run/takt-node",
		Gate:            "/var/lib/takt-node/takt-gate",
		Listen:          ":9464",
	}
}

// LoadConfig reads and checks a configuration. All mistakes are reported at once.
func LoadConfig(path string) (Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("cannot read configuration: %w", err)
	}
	config := DefaultConfig()
	if err := yaml.UnmarshalStrict(text, &config); err != nil {
		return Config{}, fmt.Errorf("cannot read configuration %s: %w", path, err)
	}
	if err := config.validate(); err != nil {
		return Config{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	return config, nil
}

func (c *Config) validate() error {
	var mistakes []error
	mistake := func(format string, args ...any) { mistakes = append(mistakes, fmt.Errorf(format, args...)) }
	if c.Cores == "" {
		mistake("cores is missing: name the CPUs to offer, as in \"2-7\", or \"all\"; \"none\" for an agent of networks only")
	} else if c.Cores == NoCores {
		if c.Network == nil {
			mistake("cores is none, and there is no network: nothing is left to serve")
		}
	} else if c.Cores != "all" {
		if _, err := topology.ParseCPUList(c.Cores); err != nil {
			mistake("cores: %w", err)
		}
	}
	if c.Bound < 0 || c.Bound > reservation.WholeCore {
		mistake("bound %d is not from 1 to %d parts per million; leave it out for the kernel's", c.Bound, reservation.WholeCore)
	}
	if c.Admission != admission.Guaranteed && c.Admission != admission.Soft {
		mistake("admission %q is not known: write %s or %s", c.Admission, admission.Guaranteed, admission.Soft)
	}
	if c.MaxDensity < 0 || c.MaxDensity > reservation.WholeCore {
		mistake("maxDensity %d is not from 1 to %d parts per million; leave it out for the greatest that every core has room for", c.MaxDensity, reservation.WholeCore)
	}
	if c.MaxDensity > 0 && c.Admission == admission.Soft {
		mistake("maxDensity %d has no effect with admission soft: leave one of them out", c.MaxDensity)
	}
	if c.PodRequests != WarnOfRequests && c.PodRequests != RefuseRequests {
		mistake("podRequests %q is not known: write %s or %s", c.PodRequests, WarnOfRequests, RefuseRequests)
	}
	if c.Order != inventory.BestFit && c.Order != inventory.WorstFit {
		mistake("order %q is not known: write %s or %s", c.Order, inventory.BestFit, inventory.WorstFit)
	}
	if !slices.Contains(append([]string{BackendAuto}, enforce.Names...), c.Backend) {
		mistake("backend %q is not known: write %s or one of %v", c.Backend, BackendAuto, enforce.Names)
	}
	if interval := time.Duration(c.ScanInterval); interval < time.Millisecond || interval > 10*time.Second {
		mistake("scanInterval %s is not from 1ms to 10s", c.ScanInterval)
	}
	for name, path := range map[string]string{
		"cdiDirectory": c.CDIDirectory, "kubeletPlugins": c.KubeletPlugins, "kubeletRegistry": c.KubeletRegistry,
		"nriSocket": c.NRISocket, "runDirectory": c.RunDirectory, "gate": c.Gate,
	} {
		if !filepath.IsAbs(path) {
			mistake("%s %q is not an absolute path", name, path)
		}
	}
	if c.Network != nil {
		mistakes = append(mistakes, c.Network.validate())
	}
	return errors.Join(mistakes...)
}

// Offer is what the machine below root gives under this configuration.
func (c *Config) Offer(root string, backend enforce.Backend) (inventory.Offer, error) {
	if c.Cores == NoCores {
		return inventory.Offer{Order: c.Order, Backend: backend.Name()}, nil
	}
	offered, err := c.offered(root, backend.Roams())
	if err != nil {
		return inventory.Offer{}, err
	}
	bound, err := kernelBound(root, backend)
	if err != nil {
		return inventory.Offer{}, err
	}
	if c.Bound > 0 && backend.Name() == enforce.WholeName {
		return inventory.Offer{}, fmt.Errorf("bound %d has no effect: backend %s gives whole cores; leave it out", c.Bound, backend.Name())
	}
	if c.Bound > bound {
		return inventory.Offer{}, fmt.Errorf("bound %d is above the kernel's %d: lower it, or raise kernel.sched_rt_runtime_us", c.Bound, bound)
	}
	if c.Bound > 0 {
		bound = c.Bound
	}
	if bound /= int64(backend.Shared(len(offered))); bound == 0 {
		return inventory.Offer{}, fmt.Errorf("backend %s shares one core's bandwidth among %d cores, which leaves none: offer fewer cores", backend.Name(), len(offered))
	}
	offer := inventory.Offer{CPUs: offered, Bound: bound, Most: bound, Order: c.Order, Backend: backend.Name(), Roams: backend.Roams(), Whole: backend.Name() == enforce.WholeName}
	domain, err := topology.RootDomain(root)
	if err != nil {
		return inventory.Offer{}, err
	}
	offer.RootDomain = len(domain)
	switch {
	case !offer.Roams && c.Admission == admission.Soft:
		return inventory.Offer{}, fmt.Errorf("admission soft is not available: backend %s admits per core, exactly; leave admission out", backend.Name())
	case !offer.Roams && c.MaxDensity > 0:
		return inventory.Offer{}, fmt.Errorf("maxDensity %d has no effect: backend %s admits per core, exactly; leave it out", c.MaxDensity, backend.Name())
	case offer.Roams && c.Admission == admission.Guaranteed:
		if c.MaxDensity > bound {
			return inventory.Offer{}, fmt.Errorf("maxDensity %d is above the bound %d of a core: lower it", c.MaxDensity, bound)
		}
		offer.Most = cmp.Or(c.MaxDensity, admission.Widest(offer.RootDomain, len(offered), bound))
		offer.Capacities = admission.Capacities(offer.RootDomain, len(offered), offer.Most, bound)
	default:
		offer.Capacities = slices.Repeat([]int64{bound}, len(offered))
	}
	return offer, nil
}

// kernelBound is how many parts per million of each core a backend has to give: where it gives cores away, all.
func kernelBound(root string, backend enforce.Backend) (int64, error) {
	if backend.Name() == enforce.WholeName {
		return reservation.WholeCore, nil
	}
	return sched.Bound(root)
}

// offered are the CPUs that cores names.
func (c *Config) offered(root string, roams bool) ([]topology.CPU, error) {
	all, err := topology.Read(root)
	if err != nil {
		return nil, err
	}
	if roams {
		// The kernel runs reservations nowhere else.
		domain, err := topology.RootDomain(root)
		if err != nil {
			return nil, err
		}
		isolated := slices.DeleteFunc(slices.Clone(all), func(cpu topology.CPU) bool { return slices.Contains(domain, cpu.ID) })
		all = slices.DeleteFunc(all, func(cpu topology.CPU) bool { return !slices.Contains(domain, cpu.ID) })
		if wanted, err := topology.ParseCPUList(c.Cores); err == nil {
			for _, cpu := range isolated {
				if slices.Contains(wanted, cpu.ID) {
					return nil, fmt.Errorf("cores %q names CPU %d, which the kernel's isolcpus, or a cpuset partition, keeps apart from the others: offer others, boot without it, or end the partition", c.Cores, cpu.ID)
				}
			}
		}
	}
	if c.Cores == "all" {
		return all, nil
	}
	wanted, err := topology.ParseCPUList(c.Cores)
	if err != nil {
		return nil, err
	}
	var offered []topology.CPU
	for _, id := range wanted {
		at := slices.IndexFunc(all, func(cpu topology.CPU) bool { return cpu.ID == id })
		if at < 0 {
			return nil, fmt.Errorf("cores %q names CPU %d, which this machine does not have online", c.Cores, id)
		}
		offered = append(offered, all[at])
	}
	return offered, nil
}

// NewBackend is the backend that the configuration names, or the best one that this machine has.
func (c *Config) NewBackend() (enforce.Backend, error) {
	// Without cores none is used.
	if c.Backend == BackendAuto || c.Cores == NoCores {
		return enforce.Auto()
	}
	offered, err := c.offered("/", false)
	if err != nil {
		return nil, err
	}
	var cores []int
	for _, cpu := range offered {
		cores = append(cores, cpu.ID)
	}
	return enforce.New(c.Backend, cores, c.RunDirectory)
}
