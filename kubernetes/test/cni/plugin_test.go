package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
)

var versions = []string{"0.4.0", "1.0.0", "1.1.0"}

func TestAPodIsAttachedAndDetachedInEveryVersion(t *testing.T) {
	t.Parallel()
	n := newNode(t, namespace(t), pods)
	must(t, "ip", "-n", n.namespace, "link", "add", "up0", "type", "veth", "peer", "name", "up1")
	must(t, "ip", "-n", n.namespace, "link", "set", "up0", "up")
	for _, version := range versions {
		own := n.conf(version, object{"delegate": n.bridge()})
		macvlan := n.conf(version, object{"vxlan": 42, "delegate": object{"type": "macvlan", "master": "up0", "mode": "bridge", "ipam": n.ipam()}})
		for name, conf := range map[string]object{"own interface": own, "macvlan": macvlan, "chained": nil} {
			t.Run(version+" "+name, func(t *testing.T) {
				n := n.on(t)
				p := newPod(t)
				chain := with(n.bridge(), object{"cniVersion": version, "name": "tsn"})
				var first object
				if conf == nil {
					first = n.works("ADD", p, chain)
					// Another plugin of the chain gives it an IPv6 address.
					must(t, "ip", "netns", "exec", p.namespace, "sysctl", "-qw", "net.ipv6.conf.eth0.disable_ipv6=0")
					must(t, "ip", "-n", p.namespace, "address", "add", "fd88:1::5/64", "dev", "eth0", "nodad")
					six := object{"version": "6", "address": "fd88:1::5/64", "interface": 2}
					if version != "0.4.0" {
						delete(six, "version")
					}
					first["ips"] = append(first["ips"].([]any), six)
					conf = n.conf(version, object{"prevResult": first})
				}
				result := n.works("ADD", p, conf)
				if first != nil && !same(t, result, first) {
					t.Errorf("the result of the plugin before is passed on: %v, not %v", first, result)
				}
				if result["cniVersion"] != version {
					t.Errorf("the result has version %v", result["cniVersion"])
				}
				attached(t, n, p)
				checked := with(conf, object{"prevResult": result})
				n.works("CHECK", p, checked)
				// Once more changes nothing.
				if first != nil {
					n.works("ADD", p, conf)
					attached(t, n, p)
				}
				// Without its namespace, as after the pod's end.
				gone := p
				gone.namespace = ""
				n.works("DEL", gone, checked)
				if first != nil {
					n.works("DEL", p, with(chain, object{"prevResult": first}))
				}
				n.nothingLeft(t, "after DEL")
				if _, err := n.call("CHECK", p, checked); err == nil {
					t.Error("CHECK after DEL is content")
				}
				n.works("DEL", gone, checked)
				n.nothingLeft(t, "after another DEL")
			})
		}
	}
}

// same says whether two answers are the same JSON.
func same(t *testing.T, a, b object) bool {
	t.Helper()
	one, err1 := json.Marshal(a)
	two, err2 := json.Marshal(b)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	return bytes.Equal(one, two)
}

// attached fails unless taktd has the endpoint that the kernel has.
func attached(t *testing.T, n *node, p pod) {
	t.Helper()
	of := interfaceOf(t, p.namespace, p.ifname)
	if of == nil {
		t.Fatal("the pod has no interface")
	}
	var addresses []string
	for _, address := range of.Addrinfo {
		if address.Scope == "global" {
			addresses = append(addresses, fmt.Sprintf("%s/%d", address.Local, address.Prefixlen))
		}
	}
	all := n.listeners()
	is := all[p.id+"/"+p.ifname+"/takt.sock"]
	if is == nil || len(all) != 1 {
		t.Fatalf("taktd has %v", all)
	}
	at := is.GetEndpoint()
	slices.Sort(addresses)
	slices.Sort(at.Addresses)
	if at.GetNetwork() != "pods" || at.GetMac() != of.Address || at.GetMtu() != of.MTU || len(addresses) == 0 || !slices.Equal(at.GetAddresses(), addresses) {
		t.Errorf("taktd has %v, the kernel %v", at, of)
	}
	if is.GetIdentity() != "line/"+p.namespace+"/"+p.ifname || !slices.Equal(is.GetClasses(), []uint32{0, 5}) || len(is.GetWrite()) > 0 {
		t.Errorf("the listener is %v", is)
	}
	// taktd's own default is half of the machine's memory: two pods would have all of it.
	if total := is.GetTotalMemoryBytes(); total != 512<<20 {
		t.Errorf("the pod's sessions may have %d bytes", total)
	}
	about, err := os.Stat(is.GetPath())
	if err != nil || about.Mode() != os.ModeSocket|0o666 {
		t.Errorf("the socket is %v, %v", about, err)
	}
}

func TestOtherVersionsAreRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t, namespace(t), pods)
	p := newPod(t)
	for _, version := range []string{"0.3.1", "2.0.0"} {
		if _, err := n.call("ADD", p, n.conf(version, object{"delegate": n.bridge()})); err == nil || err.Code != types.ErrIncompatibleCNIVersion {
			t.Errorf("%s: %v", version, err)
		}
	}
	n.nothingLeft(t, "afterwards")
}

func TestWhatFailsLeavesNothingAndSaysWhatToDo(t *testing.T) {
	t.Parallel()
	n := newNode(t, namespace(t), pods)
	inChain := func(p pod) object {
		return n.works("ADD", p, with(n.bridge(), object{"cniVersion": "1.1.0", "name": "tsn"}))
	}
	own := func(changes object) func(pod) object {
		return func(pod) object { return n.conf("1.1.0", with(object{"delegate": n.bridge()}, changes)) }
	}
	small := n.ipam()
	small["ranges"] = [][]object{{{"subnet": "10.88.2.0/30", "rangeStart": "10.88.2.2", "rangeEnd": "10.88.2.2"}}}
	bridged := func(changes object) object { return with(n.bridge(), changes) }
	for name, fails := range map[string]struct {
		conf func(pod) object
		code uint
		said string
	}{
		"unknown network":     {own(object{"network": "other"}), types.ErrInvalidNetworkConfig, "takt"},
		"no network":          {own(object{"network": ""}), types.ErrInvalidNetworkConfig, "takt network list"},
		"other VNI":           {own(object{"vxlan": 43}), types.ErrInvalidNetworkConfig, "vxlan:42"},
		"VLAN":                {own(object{"vlan": 42}), types.ErrInvalidNetworkConfig, "correct one"},
		"VLAN and VNI":        {own(object{"vlan": 42, "vxlan": 42}), types.ErrInvalidNetworkConfig, "remove the other"},
		"no class":            {own(object{"classes": []int{8}}), types.ErrInvalidNetworkConfig, "0 to 7"},
		"classes as text":     {own(object{"classes": "5"}), types.ErrDecodingFailure, "classes"},
		"unknown key":         {own(object{"clases": []int{5}}), types.ErrUnsupportedField, "clases"},
		"channels":            {own(object{"write": []string{"9-1"}}), types.ErrInvalidNetworkConfig, "9-1"},
		"EtherType":           {own(object{"etherTypes": []int{0x8809}}), 100, "0x8809"},
		"VLAN in frames":      {own(object{"vlans": []int{4095}}), 7, "4095"},
		"pods":                {own(object{"pods": "some"}), types.ErrInvalidNetworkConfig, "annotated"},
		"runtime":             {own(object{"runtime": "maybe"}), types.ErrInvalidNetworkConfig, "preferred"},
		"relative directory":  {own(object{"directory": "pods"}), types.ErrInvalidNetworkConfig, "absolute"},
		"long directory":      {own(object{"directory": "/tmp/" + strings.Repeat("d", 30)}), types.ErrInvalidNetworkConfig, "shorter"},
		"no annotations":      {own(object{"pods": "annotated"}), types.ErrInvalidNetworkConfig, "capabilities"},
		"odd annotation":      {own(object{"pods": "annotated", "runtimeConfig": object{"io.kubernetes.cri.pod-annotations": object{"takt.dev/time-sensitive": "yes"}}}), types.ErrInvalidNetworkConfig, "\"true\""},
		"no interface":        {func(pod) object { return n.conf("1.1.0", nil) }, types.ErrInvalidNetworkConfig, "delegate"},
		"two makers":          {func(p pod) object { return n.conf("1.1.0", object{"prevResult": inChain(p), "delegate": n.bridge()}) }, types.ErrInvalidNetworkConfig, "remove delegate"},
		"delegate of no type": {own(object{"delegate": object{}}), types.ErrInvalidNetworkConfig, "macvlan"},
		"unknown delegate":    {own(object{"delegate": object{"type": "none"}}), types.ErrInternal, "none"},
		"delegate fails":      {own(object{"delegate": bridged(object{"vlan": 9999})}), types.ErrInternal, "9999"},
		"no IPAM":             {own(object{"delegate": bridged(object{"ipam": object{}})}), types.ErrInvalidNetworkConfig, "IPAM"},
		"memory":              {own(object{"memoryBytes": 1}), 100, "memory"},
		"no taktd":            {own(object{"adminSocket": n.path("other.sock")}), types.ErrTryAgainLater, "start it"},
		"interface is gone": {func(p pod) object {
			result := inChain(p)
			must(t, "ip", "-n", p.namespace, "link", "del", p.ifname)
			return n.conf("1.1.0", object{"prevResult": result})
		}, types.ErrInvalidNetworkConfig, "no interface"},
		"address is gone": {func(p pod) object {
			result := inChain(p)
			must(t, "ip", "-n", p.namespace, "address", "flush", "dev", p.ifname)
			return n.conf("1.1.0", object{"prevResult": result})
		}, types.ErrInvalidNetworkConfig, "removed"},
		"address taken": {func(p pod) object {
			result := inChain(p)
			of := interfaceOf(t, p.namespace, p.ifname)
			_, err := n.admin.SetListener(context.Background(), &adminv1.SetListenerRequest{Listener: &adminv1.Listener{
				Path: n.path("other.sock"), Identity: "other", Classes: []uint32{0},
				Endpoint: &adminv1.Endpoint{Network: "pods", Mac: of.Address, Addresses: []string{"10.77.0.1/24"}},
			}})
			if err != nil {
				t.Fatal(err)
			}
			return n.conf("1.1.0", object{"prevResult": result})
		}, 100, "tenant `other`"},
		"a file in the way": {func(p pod) object {
			if err := os.MkdirAll(n.path("way"), 0o700); err != nil {
				t.Fatal(err)
			}
			n.write("way/"+p.id, "")
			return n.conf("1.1.0", object{"delegate": n.bridge(), "directory": n.path("way")})
		}, types.ErrIOFailure, "directory"},
		"something on the socket's path": {func(p pod) object {
			if err := os.MkdirAll(n.path("pods/"+p.id+"/eth0/takt.sock"), 0o700); err != nil {
				t.Fatal(err)
			}
			return n.conf("1.1.0", object{"delegate": n.bridge()})
		}, 100, "no socket"},
	} {
		t.Run(name, func(t *testing.T) {
			n := n.on(t)
			p := newPod(t)
			conf := fails.conf(p)
			before := interfaceOf(t, p.namespace, p.ifname) != nil
			_, err := n.call("ADD", p, conf)
			if err == nil || err.Code != fails.code || !strings.Contains(err.Msg+err.Details, fails.said) {
				t.Errorf("%v, and not code %d and %q", err, fails.code, fails.said)
			}
			if conf["prevResult"] == nil && interfaceOf(t, p.namespace, p.ifname) != nil {
				t.Error("the interface is left")
			}
			if conf["prevResult"] != nil && before != (interfaceOf(t, p.namespace, p.ifname) != nil) {
				t.Error("the interface of another plugin has gone")
			}
			n.works("DEL", p, with(n.bridge(), object{"cniVersion": "1.1.0", "name": "tsn"}))
			n.admin.RemoveListener(context.Background(), &adminv1.RemoveListenerRequest{Path: n.path("other.sock")})
			n.nothingLeft(t, "afterwards")
		})
	}
	t.Run("no address is left", func(t *testing.T) {
		n := n.on(t)
		conf := n.conf("1.1.0", object{"delegate": bridged(object{"isGateway": false, "ipam": small})})
		first, second := newPod(t), newPod(t)
		second.id = "second"
		n.works("ADD", first, conf)
		_, err := n.call("ADD", second, conf)
		for _, said := range []string{"10.88.2.2", "every address that the ipam of network tsn has for this node is a pod's: delete pods", "a larger range", "/var/lib/cni/networks/tsn"} {
			if err == nil || !strings.Contains(err.Msg, said) {
				t.Errorf("%v does not say %q", err, said)
			}
		}
		if interfaceOf(t, second.namespace, "eth0") != nil || len(n.listeners()) != 1 {
			t.Error("it is half made")
		}
		n.works("DEL", first, conf)
		n.nothingLeft(t, "afterwards")
	})
	t.Run("no namespace", func(t *testing.T) {
		n := n.on(t)
		p := newPod(t)
		conf := n.conf("1.1.0", object{"prevResult": inChain(p)})
		n.write("file", "")
		for _, path := range []string{"none", "../.." + n.path("file")} {
			odd := p
			odd.namespace = path
			if _, err := n.call("ADD", odd, conf); err == nil || err.Code != types.ErrInvalidNetNS {
				t.Errorf("%s: %v", path, err)
			}
		}
		n.works("DEL", p, with(n.bridge(), object{"cniVersion": "1.1.0", "name": "tsn"}))
		n.nothingLeft(t, "afterwards")
	})
}

func TestCHECKTakesWhatTheAgentHasChanged(t *testing.T) {
	t.Parallel()
	n := newNode(t, namespace(t), pods)
	p := newPod(t)
	conf := n.conf("1.1.0", object{"delegate": n.bridge()})
	checked := with(conf, object{"prevResult": n.works("ADD", p, conf)})
	stream := &adminv1.DeclaredStream{Name: "claim:line/talker/gate", TrafficClass: 6, Destination: "10.88.1.6:4000", PeriodNs: 1_000_000, WindowNs: 1_000, Frame: 170}
	for name, is := range map[string]struct {
		classes []uint32
		streams []*adminv1.DeclaredStream
		good    bool
	}{
		"a class that its namespace may not use is taken": {[]uint32{0}, nil, true},
		"a class comes with a claim":                      {[]uint32{0, 5, 6}, []*adminv1.DeclaredStream{stream}, true},
		"a class that nobody gave":                        {[]uint32{0, 5, 6}, nil, false},
		"another one beside a claim":                      {[]uint32{0, 5, 6, 7}, []*adminv1.DeclaredStream{stream}, false},
	} {
		listener := n.listeners()[p.id+"/eth0/takt.sock"]
		listener.Classes, listener.Streams = is.classes, is.streams
		if _, err := n.admin.SetListener(context.Background(), &adminv1.SetListenerRequest{Listener: listener, Keep: true}); err != nil {
			t.Fatal(err)
		}
		if _, err := n.call("CHECK", p, checked); (err == nil) != is.good {
			t.Errorf("%s: %v", name, err)
		}
	}
	n.works("DEL", p, conf)
	n.nothingLeft(t, "after DEL")
}

func TestAnotherADDUndoesNothingOfTheFirst(t *testing.T) {
	t.Parallel()
	n := newNode(t, namespace(t), pods)
	leases := func() int {
		all, _ := filepath.Glob(n.path("ipam/*/*.*.*.*"))
		return len(all)
	}
	t.Run("with a delegate", func(t *testing.T) {
		n := n.on(t)
		p := newPod(t)
		conf := n.conf("1.1.0", object{"delegate": n.bridge()})
		result := n.works("ADD", p, conf)
		if _, err := n.call("ADD", p, conf); err == nil || err.Code != types.ErrInvalidEnvironmentVariables || !strings.Contains(err.Msg, "DEL first") {
			t.Errorf("another ADD: %v", err)
		}
		attached(t, n, p)
		n.works("CHECK", p, with(conf, object{"prevResult": result}))
		n.works("DEL", p, conf)
		n.nothingLeft(t, "after DEL")
		// It can be added again then.
		n.works("ADD", p, conf)
		n.works("DEL", p, conf)
		n.nothingLeft(t, "after another DEL")
	})
	t.Run("of a pod that is not annotated", func(t *testing.T) {
		n := n.on(t)
		p := newPod(t)
		conf := n.conf("1.1.0", object{"pods": "annotated", "delegate": n.bridge(), "runtimeConfig": object{"io.kubernetes.cri.pod-annotations": object{}}})
		n.works("ADD", p, conf)
		if _, err := n.call("ADD", p, conf); err == nil || !strings.Contains(err.Msg, "DEL first") {
			t.Errorf("another ADD: %v", err)
		}
		if interfaceOf(t, p.namespace, p.ifname) == nil || leases() != 1 {
			t.Errorf("the interface has gone, or its address: %d leases", leases())
		}
		n.works("DEL", p, conf)
		n.nothingLeft(t, "after DEL")
	})
	t.Run("chained", func(t *testing.T) {
		n := n.on(t)
		p := newPod(t)
		chain := with(n.bridge(), object{"cniVersion": "1.1.0", "name": "tsn"})
		conf := n.conf("1.1.0", object{"prevResult": n.works("ADD", p, chain)})
		n.works("ADD", p, conf)
		if _, err := n.call("ADD", p, with(conf, object{"etherTypes": []int{0x8809}})); err == nil || err.Code != 100 {
			t.Errorf("an ADD that taktd refuses: %v", err)
		}
		attached(t, n, p)
		n.kill()
		if _, err := n.call("ADD", p, conf); err == nil || err.Code != types.ErrTryAgainLater {
			t.Errorf("ADD without taktd: %v", err)
		}
		n.works("ADD", p, with(conf, object{"runtime": "preferred"}))
		n.start()
		attached(t, n, p)
		n.works("CHECK", p, conf)
		n.works("DEL", p, conf)
		n.works("DEL", p, chain)
		n.nothingLeft(t, "after DEL")
	})
	t.Run("after one that was killed", func(t *testing.T) {
		n := n.on(t)
		p := newPod(t)
		conf := n.conf("1.1.0", object{"delegate": n.bridge()})
		began := func() {
			if err := os.MkdirAll(n.path("pods/"+p.id+"/eth0"), 0o755); err != nil {
				t.Fatal(err)
			}
			n.write("pods/"+p.id+"/eth0/network", "tsn")
		}
		began()
		n.works("ADD", p, conf)
		attached(t, n, p)
		n.works("DEL", p, conf)
		n.nothingLeft(t, "after DEL")
		// What fails now takes along what the other one left.
		began()
		if _, err := n.call("ADD", p, with(conf, object{"etherTypes": []int{0x8809}})); err == nil || err.Code != 100 {
			t.Errorf("an ADD that taktd refuses: %v", err)
		}
		n.nothingLeft(t, "after an ADD that failed")
	})
}

func TestAttachmentsOutliveTaktd(t *testing.T) {
	t.Parallel()
	n := newNode(t, namespace(t), pods)
	conf := n.conf("1.1.0", object{"delegate": n.bridge()})
	stays, leaves := newPod(t), newPod(t)
	leaves.id = "leaves"
	result := n.works("ADD", stays, conf)
	n.works("ADD", leaves, conf)
	n.kill()
	n.start()
	if len(n.listeners()) != 2 {
		t.Fatalf("taktd has %v", n.listeners())
	}
	n.works("CHECK", stays, with(conf, object{"prevResult": result}))
	n.kill()
	n.works("DEL", leaves, conf)
	if _, err := n.call("CHECK", stays, with(conf, object{"prevResult": result})); err == nil || err.Code != types.ErrTryAgainLater {
		t.Errorf("CHECK without taktd: %v", err)
	}
	n.start()
	attached(t, n, stays)
	n.kill()
	n.works("GC", pod{}, with(conf, object{"cni.dev/valid-attachments": []object{}}))
	n.noDirectories(t, "after GC")
	n.start()
	if len(n.listeners()) != 0 {
		t.Errorf("taktd still has %v", n.listeners())
	}
	// Whoever gives out addresses collects them, or not: host-local does not.
	n.works("DEL", stays, conf)
	n.nothingLeft(t, "after DEL")
}

func TestGarbageIsCollected(t *testing.T) {
	t.Parallel()
	n := newNode(t, namespace(t), pods)
	conf := n.conf("1.1.0", object{"delegate": n.bridge()})
	var all []pod
	for _, id := range []string{"valid", "stale", "other"} {
		p := newPod(t)
		p.id = id
		all = append(all, p)
	}
	n.works("ADD", all[0], conf)
	n.works("ADD", all[1], conf)
	apart := n.ipam()
	apart["ranges"] = [][]object{{{"subnet": "10.88.3.0/29"}}}
	other := n.conf("1.1.0", object{"name": "other", "delegate": with(n.bridge(), object{"isGateway": false, "ipam": apart})})
	n.works("ADD", all[2], other)
	// What a killed ADD leaves, and the same interface name of another pod.
	if err := os.MkdirAll(n.path("pods/killed/eth0"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := n.call("GC", pod{}, conf); err == nil || err.Code != types.ErrInvalidNetworkConfig || !strings.Contains(err.Msg, "cni.dev/valid-attachments") || len(n.listeners()) != 3 {
		t.Errorf("GC that is not told what is valid: %v, and left are %v", err, n.listeners())
	}
	valid := []object{{"containerID": "valid", "ifname": "eth0"}, {"containerID": "stale", "ifname": "eth1"}}
	for range 2 {
		n.works("GC", pod{}, with(conf, object{"cni.dev/valid-attachments": valid}))
		var left []string
		for path := range n.listeners() {
			left = append(left, filepath.Dir(path))
		}
		slices.Sort(left)
		if !slices.Equal(left, []string{"other/eth0", "valid/eth0"}) {
			t.Errorf("left are %v", left)
		}
		directories, _ := filepath.Glob(n.path("pods/[^.]*"))
		if len(directories) != 2 {
			t.Errorf("left are %v", directories)
		}
	}
	n.works("DEL", all[1], conf)
	n.works("DEL", all[0], conf)
	n.works("DEL", all[2], other)
	n.nothingLeft(t, "afterwards")
}

func TestOnlyAnnotatedPodsAreAttached(t *testing.T) {
	t.Parallel()
	n := newNode(t, namespace(t), pods)
	for annotation, wanted := range map[string]bool{"true": true, "false": false, "": false} {
		p := newPod(t)
		of := object{"other": "x"}
		if annotation != "" {
			of["takt.dev/time-sensitive"] = annotation
		}
		conf := n.conf("1.1.0", object{"pods": "annotated", "delegate": n.bridge(), "runtimeConfig": object{"io.kubernetes.cri.pod-annotations": of}})
		if !wanted {
			// It is not asked.
			conf["adminSocket"] = n.path("none.sock")
		}
		result := n.works("ADD", p, conf)
		if (len(n.listeners()) == 1) != wanted || interfaceOf(t, p.namespace, "eth0") == nil {
			t.Errorf("%q: taktd has %v", annotation, n.listeners())
		}
		n.works("CHECK", p, with(conf, object{"prevResult": result}))
		n.works("DEL", p, conf)
		n.nothingLeft(t, annotation)
	}
}

func TestWithoutARuntimeAPodIsAttachedOnlyIfThatIsPreferred(t *testing.T) {
	t.Parallel()
	n := newNode(t, namespace(t), pods)
	p := newPod(t)
	preferred := n.conf("1.1.0", object{"runtime": "preferred", "delegate": n.bridge()})
	required := with(preferred, object{"runtime": "required"})
	n.works("STATUS", pod{}, required)
	_, err := n.call("STATUS", pod{}, with(required, object{"network": "other"}))
	if err == nil || err.Code != types.ErrPluginNotAvailable {
		t.Errorf("STATUS of an unknown network: %v", err)
	}
	n.kill()
	if _, err := n.call("STATUS", pod{}, required); err == nil || err.Code != types.ErrPluginNotAvailable {
		t.Errorf("STATUS: %v", err)
	}
	n.works("STATUS", pod{}, preferred)
	// In a chain, a node whose STATUS fails starts no pod at all: not for those few that are annotated.
	some := n.conf("1.1.0", object{"pods": "annotated"})
	n.works("STATUS", pod{}, some)
	for name, conf := range map[string]object{"all pods": n.conf("1.1.0", nil), "with a delegate": with(some, object{"delegate": n.bridge()})} {
		if _, err := n.call("STATUS", pod{}, conf); err == nil || err.Code != types.ErrPluginNotAvailable {
			t.Errorf("STATUS of %s: %v", name, err)
		}
	}
	if _, err := n.call("ADD", p, required); err == nil || err.Code != types.ErrTryAgainLater {
		t.Errorf("ADD: %v", err)
	}
	if interfaceOf(t, p.namespace, "eth0") != nil {
		t.Error("the interface is left")
	}
	n.works("ADD", p, preferred)
	if interfaceOf(t, p.namespace, "eth0") == nil {
		t.Error("the pod has no interface")
	}
	n.noDirectories(t, "without a runtime")
	n.works("DEL", p, preferred)
	n.start()
	n.nothingLeft(t, "afterwards")
}

func TestConcurrentCommandsLeaveAllOrNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t, namespace(t), pods)
	conf := n.conf("1.1.0", object{"delegate": n.bridge()})
	p := newPod(t)
	for range 6 {
		var ends []func() (object, *types.Error)
		for at := range 6 {
			command := []string{"ADD", "DEL"}[at%2]
			ends = append(ends, n.begin(command, p, conf))
		}
		for at, end := range ends {
			// Of several ADDs all but one may be refused: the interface is there.
			if _, err := end(); err != nil && at%2 == 1 {
				t.Errorf("DEL: %v", err)
			}
		}
		directory, err := os.Stat(n.path("pods/" + p.id + "/eth0"))
		if there := err == nil && directory.IsDir(); there != (len(n.listeners()) == 1) {
			t.Errorf("the directory is there: %v, and taktd has %v", there, n.listeners())
		}
		n.works("DEL", p, conf)
		n.nothingLeft(t, "after the last DEL")
	}
}

func TestAKilledCommandLeavesNothingAfterDEL(t *testing.T) {
	t.Parallel()
	n := newNode(t, namespace(t), pods)
	conf := n.conf("1.1.0", object{"delegate": n.bridge()})
	p := newPod(t)
	for at := range 20 {
		run, _, input := n.command("ADD", p, conf)
		write, err := run.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := run.Start(); err != nil {
			t.Fatal(err)
		}
		write.Write(input)
		write.Close()
		// When it has locked, made the pod's interface, begun to record it, or registered the pod; or shortly afterwards.
		marks := []string{"pods/.locks/" + p.id + ".eth0", "ipam/tsn/10.88.1.*", "pods/" + p.id + "/eth0", "pods/" + p.id + "/eth0/takt.sock"}
		ended := make(chan struct{})
		go func() {
			run.Wait()
			close(ended)
		}()
		for came := false; !came; {
			there, _ := filepath.Glob(n.path(marks[at%len(marks)]))
			select {
			case <-ended:
				came = true
			default:
				came = len(there) > 0
			}
		}
		for range at / len(marks) * 200 {
			os.Stat(n.directory)
		}
		run.Process.Kill()
		<-ended
		alone(t, run.Process.Pid)
		n.works("DEL", p, conf)
		n.nothingLeft(t, "after DEL")
	}
}

// theft sends a frame with the address of another station, as a pod with CAP_NET_RAW may.
const theft = `
import socket, sys
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
raw.bind(("eth0", 0))
raw.send(b"\xff" * 6 + bytes.fromhex(sys.argv[1].replace(":", "")) + b"\x88\xb5" + bytes(46))
`

func TestAnotherPodDoesNotGetWhatIsForAnAttachedOne(t *testing.T) {
	t.Parallel()
	n := newNode(t, namespace(t), pods)
	conf := n.conf("1.1.0", object{"delegate": n.bridge()})
	victim, thief := newPod(t), newPod(t)
	thief.id = "thief"
	result := n.works("ADD", victim, conf)
	n.works("ADD", thief, with(n.bridge(), object{"cniVersion": "1.1.0", "name": "tsn"}))
	port, err := os.ReadFile(n.path("pods/" + victim.id + "/eth0/device"))
	if err != nil {
		t.Fatal(err)
	}
	of := interfaceOf(t, victim.namespace, "eth0")
	// where is the port that the bridge has for the victim's address.
	where := func() string {
		t.Helper()
		var all []struct{ MAC, Ifname string }
		if err := json.Unmarshal([]byte(must(t, "bridge", "-n", n.namespace, "-json", "fdb", "show", "br", "br0")), &all); err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, entry := range all {
			if entry.MAC == of.Address {
				found = append(found, entry.Ifname)
			}
		}
		return strings.Join(found, " ")
	}
	steal := func() {
		t.Helper()
		must(t, "ip", "netns", "exec", thief.namespace, "python3", "-c", theft, of.Address)
	}
	steal()
	if at := where(); at != string(port) {
		t.Errorf("the bridge has the pod at %q and not at %s", at, port)
	}
	ping(t, n.namespace, of.Addrinfo[0].Local)
	n.works("CHECK", victim, with(conf, object{"prevResult": result}))
	// Chained, another ADD of a pod of before enters it too, where another one has its address by then.
	must(t, "bridge", "-n", n.namespace, "fdb", "del", of.Address, "dev", string(port), "master")
	steal()
	if at := where(); at == string(port) || at == "" {
		t.Fatalf("without an entry the pod is at %q", at)
	}
	n.works("CHECK", victim, with(conf, object{"prevResult": result}))
	for range 2 {
		n.works("ADD", victim, n.conf("1.1.0", object{"prevResult": result}))
	}
	steal()
	if at := where(); at != string(port) {
		t.Errorf("after another ADD the bridge has the pod at %q and not at %s", at, port)
	}
	n.works("DEL", victim, conf)
	if at := where(); at != "" {
		t.Errorf("after DEL the bridge has the pod at %q", at)
	}
	n.works("DEL", thief, with(n.bridge(), object{"cniVersion": "1.1.0", "name": "tsn"}))
	n.nothingLeft(t, "afterwards")
}
