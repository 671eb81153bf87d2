package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

func TestAPodHasWhatIsAskedFor(t *testing.T) {
	t.Parallel()
	name := namespace(t)
	must(t, "ip", "-n", name, "link", "add", "up0", "type", "veth", "peer", "name", "up1")
	must(t, "ip", "-n", name, "link", "set", "up0", "up")
	n := newNode(t, name, pods+"[[network]]\nname = \"line\"\ncarrier = \"vlan:7\"\ninterface = \"up0\"\n")
	static := object{"type": "bridge", "bridge": "br0", "mtu": 1400, "ipam": object{"type": "static", "routes": []object{{"dst": "10.99.0.0/16", "gw": "10.88.1.1"}}}}
	for network, changes := range map[string]object{"pods": {"vxlan": 42}, "line": {"vlan": 7}} {
		p := newPod(t)
		p.ifname = "net7"
		conf := n.conf("1.1.0", with(changes, object{
			"network": network, "messagesPerSecond": 1000, "bytesPerSecond": 125_000, "delegate": static,
			"capabilities":  object{"ips": true, "mac": true, "CNIDeviceInfoFile": true},
			"runtimeConfig": object{"ips": []string{"10.88.1.77/24"}, "mac": "02:00:00:00:77:01", "CNIDeviceInfoFile": n.path("device-info")},
		}))
		result := n.works("ADD", p, conf)
		of := interfaceOf(t, p.namespace, "net7")
		if of == nil || of.Address != "02:00:00:00:77:01" || of.MTU != 1400 || of.Addrinfo[0].Local != "10.88.1.77" {
			t.Errorf("the pod has %+v", of)
		}
		if route := must(t, "ip", "-n", p.namespace, "route", "show", "10.99.0.0/16"); !strings.Contains(route, "via 10.88.1.1 dev net7") {
			t.Errorf("the route is %q", route)
		}
		is := n.listeners()[p.id+"/net7/takt.sock"]
		at := is.GetEndpoint()
		if at.GetNetwork() != network || at.GetMac() != "02:00:00:00:77:01" || at.GetMtu() != 1400 || !slices.Equal(at.GetAddresses(), []string{"10.88.1.77/24"}) ||
			is.GetMessagesPerSecond() != 1000 || is.GetBytesPerSecond() != 125_000 {
			t.Errorf("taktd has %v", is)
		}
		// None of the kinds of that specification is what the pod has.
		if _, err := os.Stat(n.path("device-info")); !os.IsNotExist(err) {
			t.Errorf("the file of a device is there: %v", err)
		}
		n.works("CHECK", p, with(conf, object{"prevResult": result}))
		n.works("DEL", p, conf)
		n.nothingLeft(t, network)
	}
}

func TestVERSIONNamesTheVersions(t *testing.T) {
	t.Parallel()
	n := &node{t: t, namespace: namespace(t), directory: t.TempDir()}
	said := n.works("VERSION", pod{}, object{"type": "takt-cni", "cniVersion": "1.1.0"})
	if text, _ := json.Marshal(said["supportedVersions"]); string(text) != `["0.4.0","1.0.0","1.1.0"]` {
		t.Errorf("it says %v", said)
	}
}

func TestAnEnvironmentThatNamesNoAttachmentIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t, namespace(t), pods)
	good := newPod(t)
	conf := n.conf("1.1.0", object{"delegate": n.bridge()})
	for what, p := range map[string]pod{
		"no container":          {"", good.ifname, good.namespace, good.args},
		"a container's path":    {"../x", good.ifname, good.namespace, good.args},
		"a hidden container":    {".locks", good.ifname, good.namespace, good.args},
		"no interface":          {good.id, "", good.namespace, good.args},
		"an interface's path":   {good.id, "../eth0", good.namespace, good.args},
		"the directory's name":  {good.id, "..", good.namespace, good.args},
		"a long interface name": {good.id, "an-interface-name", good.namespace, good.args},
	} {
		for _, command := range []string{"ADD", "DEL", "CHECK"} {
			if _, err := n.call(command, p, conf); err == nil || err.Code != types.ErrInvalidEnvironmentVariables {
				t.Errorf("%s, %s: %v", command, what, err)
			}
		}
	}
	nowhere := good
	nowhere.namespace = ""
	if _, err := n.call("ADD", nowhere, conf); err == nil || err.Code != types.ErrInvalidEnvironmentVariables {
		t.Errorf("ADD without a network namespace: %v", err)
	}
	n.nothingLeft(t, "afterwards")
}

// Whichever file it is that cannot be made or written.
func TestAFullDirectoryLeavesNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t, namespace(t), pods)
	p := newPod(t)
	conf := n.conf("1.1.0", object{"delegate": n.bridge()})
	for _, bound := range []string{"nr_inodes=%d", "size=%dk"} {
		failed := 0
		for room := 1; ; room++ {
			if room > 30 {
				t.Fatalf("%s: it never works", bound)
			}
			// taktd sees what was mounted before it was started.
			n.kill()
			if err := os.MkdirAll(n.path("pods"), 0o700); err != nil {
				t.Fatal(err)
			}
			must(t, "mount", "-t", "tmpfs", "-o", fmt.Sprintf(bound, room), "none", n.path("pods"))
			n.start()
			_, err := n.call("ADD", p, conf)
			if err == nil {
				attached(t, n, p)
				n.works("DEL", p, conf)
			} else {
				failed++
				if err.Code != types.ErrIOFailure && err.Code != 100 {
					t.Errorf("%s: %v", fmt.Sprintf(bound, room), err)
				}
				if interfaceOf(t, p.namespace, p.ifname) != nil {
					t.Errorf("%s: the interface is left", fmt.Sprintf(bound, room))
				}
			}
			n.nothingLeft(t, fmt.Sprintf(bound, room))
			n.kill()
			must(t, "umount", n.path("pods"))
			if err == nil {
				break
			}
		}
		if failed < 2 {
			t.Errorf("%s: it has failed %d times", bound, failed)
		}
	}
	n.start()
}

// DEL gives no address away that frames may still leave with.
func TestATaktdThatHangsIsToldAndLeavesNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t, namespace(t), pods)
	conf := n.conf("1.1.0", object{"delegate": n.bridge()})
	stays, late, preferred := newPod(t), newPod(t), newPod(t)
	late.id, preferred.id = "late", "preferred"
	result := n.works("ADD", stays, conf)
	send := func(signal syscall.Signal) {
		t.Helper()
		if err := n.daemon.Load().Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
	}
	send(syscall.SIGSTOP)
	ends := map[string]func() (object, *types.Error){
		"ADD": n.begin("ADD", late, conf), "DEL": n.begin("DEL", stays, conf),
		// It is no runtime that is not there.
		"ADD preferred": n.begin("ADD", preferred, with(conf, object{"runtime": "preferred"})),
	}
	for command, end := range ends {
		if _, err := end(); err == nil || err.Code != types.ErrTryAgainLater || !strings.Contains(err.Msg, "see its log, or restart it") {
			t.Errorf("%s: %v", command, err)
		}
	}
	for _, p := range []pod{late, preferred} {
		if interfaceOf(t, p.namespace, "eth0") != nil {
			t.Errorf("the interface of pod %s, which was refused, is left", p.id)
		}
	}
	if of := interfaceOf(t, stays.namespace, "eth0"); of == nil || of.Addrinfo[0].Local != "10.88.1.2" {
		t.Errorf("of the pod whose DEL has failed is left %+v", of)
	}
	leases, _ := filepath.Glob(n.path("ipam/tsn/10.88.1.*"))
	if len(leases) != 1 || filepath.Base(leases[0]) != "10.88.1.2" {
		t.Errorf("addresses are taken: %v", leases)
	}
	send(syscall.SIGCONT)
	n.works("CHECK", stays, with(conf, object{"prevResult": result}))
	n.works("ADD", late, conf)
	n.works("DEL", late, conf)
	n.works("DEL", stays, conf)
	n.nothingLeft(t, "when it goes on")
}

func TestManyPodsComeAndGoBesideGC(t *testing.T) {
	t.Parallel()
	n := newNode(t, namespace(t), pods)
	ipam := n.ipam()
	ipam["ranges"] = [][]object{{{"subnet": "10.88.4.0/26"}}}
	conf := n.conf("1.1.0", object{"delegate": with(n.bridge(), object{"ipam": ipam})})
	stale := newPod(t)
	stale.id = "stale"
	n.works("ADD", stale, conf)
	var all []pod
	valid := []object{}
	for at := range 8 {
		p := newPod(t)
		p.id = fmt.Sprintf("pod-%d", at)
		all, valid = append(all, p), append(valid, object{"containerID": p.id, "ifname": "eth0"})
	}
	each := func(command string, of []pod) {
		t.Helper()
		var ends []func() (object, *types.Error)
		for _, p := range of {
			ends = append(ends, n.begin(command, p, conf))
		}
		for range 3 {
			n.works("GC", pod{}, with(conf, object{"cni.dev/valid-attachments": valid}))
		}
		for at, end := range ends {
			if _, err := end(); err != nil {
				t.Errorf("%s of pod %d: %v", command, at, err)
			}
		}
	}
	are := func(when string, of []pod) {
		t.Helper()
		addresses := map[string]bool{}
		there := n.listeners()
		for _, p := range of {
			is := there[p.id+"/eth0/takt.sock"].GetEndpoint()
			link := interfaceOf(t, p.namespace, "eth0")
			if is == nil || link == nil || link.Address != is.GetMac() || addresses[is.GetAddresses()[0]] {
				t.Errorf("%s: of %s taktd has %v, the kernel %+v", when, p.id, is, link)
				continue
			}
			addresses[is.GetAddresses()[0]] = true
		}
		if len(there) != len(of) {
			t.Errorf("%s: taktd has %d and not %d", when, len(there), len(of))
		}
	}
	each("ADD", all)
	are("all have come", all)
	each("DEL", all[:4])
	are("half has gone", all[4:])
	each("DEL", all[4:])
	n.works("DEL", stale, conf)
	n.nothingLeft(t, "all have gone")
}

// cnitool says nothing of what is valid: it calls DEL for what it has added, and takt-cni takes nothing else away.
func TestTheProjectsToolCollectsItsOwnGarbage(t *testing.T) {
	t.Parallel()
	n := newNode(t, namespace(t), pods)
	if err := os.MkdirAll(n.path("net.d"), 0o700); err != nil {
		t.Fatal(err)
	}
	own := n.conf("1.1.0", nil)
	delete(own, "cniVersion")
	delete(own, "name")
	n.write("net.d/10-tsn.conflist", string(list(t, "tsn", n.bridge(), own)))
	place, other := namespace(t), newPod(t)
	n.works("ADD", other, n.conf("1.1.0", object{"delegate": with(n.bridge(), nil)}))
	n.cnitool("add", "tsn", place)
	n.cnitool("check", "tsn", place)
	if len(n.listeners()) != 2 {
		t.Fatalf("taktd has %v", n.listeners())
	}
	if _, err := n.tool("gc", "tsn", place); err == nil || !strings.Contains(err.Error(), "cni.dev/valid-attachments is missing") {
		t.Errorf("cnitool gc: %v", err)
	}
	attached(t, n, other)
	if interfaceOf(t, place, "eth0") != nil {
		t.Error("the interface that cnitool has added is left")
	}
	// As a container runtime calls it.
	text, err := os.ReadFile(n.path("net.d/10-tsn.conflist"))
	if err != nil {
		t.Fatal(err)
	}
	of, err := libcni.ConfListFromBytes(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := libcni.NewCNIConfigWithCacheDir([]string{programs}, n.path("other-cache"), nil).GCNetworkList(context.Background(), of, &libcni.GCArgs{}); err != nil {
		t.Errorf("GC: %v", err)
	}
	if left := n.listeners(); len(left) > 0 {
		t.Errorf("after GC taktd has %v", left)
	}
	n.works("DEL", other, n.conf("1.1.0", object{"delegate": n.bridge()}))
	n.nothingLeft(t, "afterwards")
}
