package cni

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/quote"
)

// Annotation marks a pod as time-sensitive, with the value "true", where Config.Pods is "annotated".
const Annotation = reservation.TimeSensitive

// annotations is the capability by which container runtimes pass a pod's annotations (containerd, CRI-O).
const annotations = "io.kubernetes.cri.pod-annotations"

// longestSocket is what sun_path of unix(7) holds, without its closing zero.
const longestSocket = 107

// Which pods of the network are attached to the runtime.
const (
	PodsAll       = "all"
	PodsAnnotated = "annotated"
)

// What becomes of a pod when there is no runtime.
const (
	RuntimeRequired  = "required"
	RuntimePreferred = "preferred"
)

// defaultTotal is most shared memory of all sessions of a pod, where nothing else is said: taktd's own default is half of the node's
// memory, and two pods would have all that there is for pods. A program that asks for no size has 136 MiB, one behind the preload 24 MiB; what
// takes launch times at the veth has 10 MiB twice. So there is room for two programs of the first kind while what one of them had before is still sent.
const defaultTotal = 512 << 20

// besideOne is how much more all sessions may have, where one of them may have more than that.
const besideOne = 64 << 20

// Config is the network configuration that the plugin takes, beside what the CNI specification has.
type Config struct {
	types.PluginConf
	// Network is the `[[network]]` of taktd that the pod's endpoint is in.
	Network string `json:"network"`
	// VXLAN and VLAN are what that network must be; nothing is demanded if absent.
	VXLAN *uint32 `json:"vxlan,omitempty"`
	VLAN  *uint32 `json:"vlan,omitempty"`
	// Classes are the traffic classes that the pod may use; class 0 alone if absent.
	Classes []uint32 `json:"classes,omitempty"`
	// MessagesPerSecond and BytesPerSecond bound what the pod sends; no bound if 0.
	MessagesPerSecond uint64 `json:"messagesPerSecond,omitempty"`
	BytesPerSecond    uint64 `json:"bytesPerSecond,omitempty"`
	// Write and Read are the channels that the pod may use, as in "1-99" or "*"; none if absent.
	Write []string `json:"write,omitempty"`
	Read  []string `json:"read,omitempty"`
	// EtherTypes are those that the pod may send besides IP.
	EtherTypes []uint32 `json:"etherTypes,omitempty"`
	// VLANs are those whose tags the pod's frames may have; 0: tags with a priority alone.
	VLANs []uint32 `json:"vlans,omitempty"`
	// MemoryBytes bounds each session's shared memory, TotalMemoryBytes that of all of them, Sessions their number;
	// taktd's defaults if 0, but for TotalMemoryBytes: defaultTotal.
	MemoryBytes      uint64 `json:"memoryBytes,omitempty"`
	TotalMemoryBytes uint64 `json:"totalMemoryBytes,omitempty"`
	Sessions         uint32 `json:"sessions,omitempty"`
	// Pods is "all", or "annotated": those with the annotation alone.
	Pods string `json:"pods,omitempty"`
	// Runtime is "required": a pod is not attached without its runtime; or "preferred".
	Runtime string `json:"runtime,omitempty"`
	// Delegate is the configuration of the plugin that makes the pod's interface; absent: the plugins before this one
	// have made it.
	Delegate map[string]any `json:"delegate,omitempty"`
	// AdminSocket is taktd's.
	AdminSocket string `json:"adminSocket,omitempty"`
	// Directory is where the pods' sockets are.
	Directory string `json:"directory,omitempty"`

	RuntimeConfig map[string]json.RawMessage `json:"runtimeConfig,omitempty"`
	Args          map[string]any             `json:"args,omitempty"`

	previous     *types100.Result
	read, write  []*adminv1.ChannelRange
	delegateType string
}

// known are the keys of a configuration; others are refused, but for those of the specification's own name space.
var known = []string{
	"cniVersion", "cniVersions", "name", "type", "capabilities", "ipam", "dns", "args", "runtimeConfig", "prevResult",
	"network", "vxlan", "vlan", "classes", "messagesPerSecond", "bytesPerSecond", "write", "read", "etherTypes", "vlans",
	"memoryBytes", "totalMemoryBytes", "sessions", "pods", "runtime", "delegate", "adminSocket", "directory",
}

func invalid(format string, args ...any) *types.Error {
	return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf(format, args...), "")
}

// decode reads what every command needs: also a configuration that is refused today may have been in force when the
// pod was attached.
func decode(stdin []byte) (*Config, error) {
	c := &Config{
		Pods: PodsAll, Runtime: RuntimeRequired,
		AdminSocket: "/run/takt/admin.sock", Directory: "/run/takt/cni",
	}
	if err := json.Unmarshal(stdin, c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the network configuration cannot be read: "+err.Error(), "")
	}
	for key, path := range map[string]string{"adminSocket": c.AdminSocket, "directory": c.Directory} {
		if !filepath.IsAbs(path) {
			return nil, invalid("%s %s: write an absolute path", key, quote.Value(path))
		}
	}
	if c.Delegate != nil {
		delegate, _ := c.Delegate["type"].(string)
		if delegate == "" {
			return nil, invalid("delegate.type is missing: name the plugin that makes the interface, such as \"bridge\" or \"macvlan\"")
		}
		c.delegateType = delegate
	}
	return c, nil
}

// load reads and checks a configuration.
func load(stdin []byte) (*Config, error) {
	c, err := decode(stdin)
	if err != nil {
		return nil, err
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(stdin, &keys); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the network configuration cannot be read: "+err.Error(), "")
	}
	for key, value := range keys {
		if !slices.Contains(known, key) && !strings.HasPrefix(key, "cni.dev/") {
			return nil, types.NewError(types.ErrUnsupportedField, fmt.Sprintf("%s: %s is not known: remove it, or correct its name", quote.Value(key), quote.Value(string(value))), "")
		}
	}
	if err := version.ParsePrevResult(&c.PluginConf); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, err.Error(), "")
	}
	if c.PrevResult != nil {
		if c.previous, err = types100.NewResultFromResult(c.PrevResult); err != nil {
			return nil, types.NewError(types.ErrDecodingFailure, "prevResult cannot be read: "+err.Error(), "")
		}
	}
	if c.Network == "" {
		return nil, invalid("network is missing: name a [[network]] of taktd's configuration; `takt network list` shows them")
	}
	if c.VXLAN != nil && c.VLAN != nil {
		return nil, invalid("vxlan and vlan: a network is one of both, remove the other")
	}
	if c.TotalMemoryBytes == 0 {
		c.TotalMemoryBytes = max(defaultTotal, c.MemoryBytes+besideOne)
	}
	if len(c.Classes) == 0 {
		c.Classes = []uint32{0}
	}
	for _, class := range c.Classes {
		if class > 7 {
			return nil, invalid("classes: %d is no traffic class: write numbers from 0 to 7", class)
		}
	}
	for _, id := range c.VLANs {
		if id > 4094 {
			return nil, invalid("vlans: %d is no VLAN: write 1 to 4094, or 0 for tags with a priority alone", id)
		}
	}
	if c.Pods != PodsAll && c.Pods != PodsAnnotated {
		return nil, invalid("pods %s is not known: write %q or %q", quote.Value(c.Pods), PodsAll, PodsAnnotated)
	}
	if c.Runtime != RuntimeRequired && c.Runtime != RuntimePreferred {
		return nil, invalid("runtime %s is not known: write %q or %q", quote.Value(c.Runtime), RuntimeRequired, RuntimePreferred)
	}
	if c.write, err = ranges("write", c.Write); err != nil {
		return nil, err
	}
	if c.read, err = ranges("read", c.Read); err != nil {
		return nil, err
	}
	return c, nil
}

// ranges reads channels as taktd's configuration has them.
func ranges(key string, texts []string) ([]*adminv1.ChannelRange, error) {
	var found []*adminv1.ChannelRange
	for _, text := range texts {
		first, last, isRange := strings.Cut(text, "-")
		if !isRange {
			last = first
		}
		if text == "*" {
			first, last = "0", "18446744073709551615"
		}
		from, err1 := strconv.ParseUint(first, 10, 64)
		to, err2 := strconv.ParseUint(last, 10, 64)
		if err1 != nil || err2 != nil || from > to {
			return nil, invalid("%s: %s is no range of channels: write \"1-99\", a number or \"*\"", key, quote.Value(text))
		}
		found = append(found, &adminv1.ChannelRange{First: from, Last: to})
	}
	return found, nil
}

// selects says whether the pod is attached to the runtime.
func (c *Config) selects() (bool, error) {
	if c.Pods == PodsAll {
		return true, nil
	}
	raw, passed := c.RuntimeConfig[annotations]
	if !passed {
		return false, invalid("pods \"annotated\": the container runtime passes no annotations: add \"capabilities\": {%q: true} to the plugin's configuration", annotations)
	}
	var of map[string]string
	if err := json.Unmarshal(raw, &of); err != nil {
		return false, invalid("runtimeConfig.%s cannot be read: %v", annotations, err)
	}
	switch value := of[Annotation]; value {
	case "true":
		return true, nil
	case "", "false":
		return false, nil
	default:
		return false, invalid("the pod's annotation %s is %s: write \"true\" or \"false\"", Annotation, quote.Value(value))
	}
}

// delegated is the configuration for the plugin that makes the interface. It has what it is not told from this one.
func (c *Config) delegated(stdin []byte) ([]byte, error) {
	var own map[string]any
	if err := json.Unmarshal(stdin, &own); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the network configuration cannot be read: "+err.Error(), "")
	}
	conf := map[string]any{}
	for key, value := range own {
		if slices.Contains([]string{"cniVersion", "name", "ipam", "dns", "args", "runtimeConfig", "prevResult"}, key) || strings.HasPrefix(key, "cni.dev/") {
			conf[key] = value
		}
	}
	for key, value := range c.Delegate {
		conf[key] = value
	}
	conf["cniVersion"], conf["name"] = c.CNIVersion, c.Name
	return json.Marshal(conf)
}
