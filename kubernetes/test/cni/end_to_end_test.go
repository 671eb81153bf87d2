package cni

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"

	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
)

// port is the listener's.
const port = 5001

// messages are how many datagrams a talker sends.
const messages = 20

// talker sends datagrams with launch times, as any program does that knows of SO_TXTIME and nothing of Takt.
const talker = `
import socket, struct, sys, time
talker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
talker.setsockopt(socket.SOL_SOCKET, 61, struct.pack("iI", 11, 0))
talker.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 5)
# Long enough for the next hop to be resolved on a busy machine.
base = time.clock_gettime_ns(11) + 1_000_000_000
for number in range(%d):
    launch = base + number * 5_000_000
    talker.sendmsg([struct.pack("=qI", launch, number)], [(socket.SOL_SOCKET, 61, struct.pack("Q", launch))], 0, (sys.argv[1], %d))
`

// departures are the node's words: late is what is later than a busy machine may be.
const departures = "[departure]\ntolerance_us = 1000000\n"

// site is two nodes with a link between them.
func site(t *testing.T) [2]string {
	t.Helper()
	nodes := [2]string{namespace(t), namespace(t)}
	must(t, "ip", "-n", nodes[0], "link", "add", "up0", "type", "veth", "peer", "name", "up0", "netns", nodes[1])
	for at, name := range nodes {
		in := func(text string) { t.Helper(); must(t, "ip", append([]string{"-n", name}, strings.Fields(text)...)...) }
		in(fmt.Sprintf("address add 192.168.7.%d/24 dev up0", at+1))
		in("link set up0 up")
		must(t, "ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv4.ip_forward=1")
	}
	return nodes
}

// flannel builds what flanneld builds on a node, as seen from node at: its VXLAN device and the way to the other's subnet.
func flannel(t *testing.T, node string, at int) {
	t.Helper()
	in := func(tool, text string) {
		t.Helper()
		must(t, tool, append([]string{"-n", node}, strings.Fields(text)...)...)
	}
	own, other := at+1, 2-at
	in("ip", fmt.Sprintf("link add flannel.1 address 02:f1:00:00:00:0%d mtu 1450 type vxlan id 1 dstport 8472 local 192.168.7.%d dev up0 nolearning", own, own))
	in("ip", fmt.Sprintf("address add 10.244.%d.0/32 dev flannel.1", own))
	in("ip", "link set flannel.1 up")
	in("ip", fmt.Sprintf("route add 10.244.%d.0/24 via 10.244.%d.0 dev flannel.1 onlink", other, other))
	in("ip", fmt.Sprintf("neighbour add 10.244.%d.0 lladdr 02:f1:00:00:00:0%d dev flannel.1 nud permanent", other, other))
	in("bridge", fmt.Sprintf("fdb append 02:f1:00:00:00:0%d dev flannel.1 dst 192.168.7.%d", other, other))
}

// list is a list of plugins as it is in /etc/cni/net.d.
func list(t *testing.T, name string, plugins ...object) []byte {
	t.Helper()
	text, err := json.Marshal(object{"cniVersion": "1.1.0", "name": name, "plugins": plugins})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// primary is the bridge that Flannel's plugin delegates to.
func primary(n *node, at int) object {
	return object{
		"type": "bridge", "bridge": "cni0", "mtu": 1450, "isDefaultGateway": true,
		"ipam": object{
			"type": "host-local", "dataDir": n.path("ipam"), "routes": []object{{"dst": "10.244.0.0/16"}},
			"ranges": [][]object{{{"subnet": fmt.Sprintf("10.244.%d.0/24", at+1)}}},
		},
	}
}

// cnitool runs the CNI project's tool on the node, whose directories are its own.
func (n *node) cnitool(command, network, namespace string) string {
	n.t.Helper()
	out, err := n.tool(command, network, namespace)
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

// tool is the same where it may fail.
func (n *node) tool(command, network, namespace string) (string, error) {
	n.t.Helper()
	script := `mkdir -p /var/lib/cni && mount --bind "$CACHE" /var/lib/cni && exec "$@"`
	run := exec.Command("ip", "netns", "exec", n.namespace, "sh", "-c", script, "sh",
		filepath.Join(programs, "cnitool"), command, network, "/run/netns/"+namespace)
	if err := os.MkdirAll(n.path("cache"), 0o700); err != nil {
		n.t.Fatal(err)
	}
	run.Env = append(os.Environ(), "CACHE="+n.path("cache"), "CNI_PATH="+programs, "NETCONFPATH="+n.path("net.d"))
	var said bytes.Buffer
	run.Stderr = &said
	out, err := run.Output()
	if err != nil {
		return "", fmt.Errorf("cnitool %s: %w: %s%s", command, err, out, said.String())
	}
	return string(out), nil
}

// multus makes the calls of Multus for a pod: the primary network, and one for each network attachment definition.
func (n *node) multus(add bool, p pod, networks ...[]byte) []*types100.Result {
	n.t.Helper()
	tool := libcni.NewCNIConfigWithCacheDir([]string{programs}, n.path("cache"), nil)
	at, err := ns.GetNS("/run/netns/" + n.namespace)
	if err != nil {
		n.t.Fatal(err)
	}
	defer at.Close()
	var results []*types100.Result
	for number, text := range networks {
		of, err := libcni.ConfListFromBytes(text)
		if err != nil {
			n.t.Fatal(err)
		}
		runtime := &libcni.RuntimeConf{
			ContainerID: p.id, NetNS: "/run/netns/" + p.namespace, IfName: []string{"eth0", "net1"}[number],
			Args: [][2]string{{"IgnoreUnknown", "true"}, {"K8S_POD_NAMESPACE", "line"}, {"K8S_POD_NAME", p.namespace}},
		}
		// The plugins inherit the namespace of the thread that starts them.
		err = at.Do(func(ns.NetNS) error {
			if !add {
				return tool.DelNetworkList(context.Background(), of, runtime)
			}
			made, err := tool.AddNetworkList(context.Background(), of, runtime)
			if err != nil {
				return err
			}
			result, err := types100.NewResultFromResult(made)
			results = append(results, result)
			return err
		})
		if err != nil {
			n.t.Fatal(err)
		}
	}
	return results
}

// talk runs the talker in the pod: as an ordinary user, with the sockets of the pod alone, as its container has them.
func (n *node) talk(namespace, container, ifname, to string) {
	n.t.Helper()
	script := `set -e
mount -t tmpfs tmpfs /mnt
mkdir /mnt/takt
mount --bind -o ro "$SOCKETS" /mnt/takt
cp "$LIBRARY" /mnt/libtakt_preload.so
exec setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set=-all --no-new-privs env \
	LD_PRELOAD=/mnt/libtakt_preload.so TAKT_SOCKET="/mnt/takt/$1/takt.sock" TAKT_PRELOAD=required python3 -c "$2" "$3"`
	run := exec.Command("ip", "netns", "exec", namespace, "sh", "-c", script, "sh", ifname, fmt.Sprintf(talker, messages, port), to)
	run.Env = append(os.Environ(), "SOCKETS="+n.path("pods/"+container), "LIBRARY="+filepath.Join(built, "libtakt_preload.so"))
	if out, err := run.CombinedOutput(); err != nil {
		log, _ := os.ReadFile(n.path("log"))
		n.t.Fatalf("the talker: %v: %s\ntaktd: %s", err, out, log)
	}
}

// capture is a packet socket in a namespace.
type capture struct {
	t    *testing.T
	file *os.File
	raw  syscall.RawConn
}

// capturing listens to all packets of an interface.
func capturing(t *testing.T, namespace, ifname string) *capture {
	t.Helper()
	at, err := ns.GetNS("/run/netns/" + namespace)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	c := &capture{t: t}
	err = at.Do(func(ns.NetNS) error {
		of, err := net.InterfaceByName(ifname)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(htons(unix.ETH_P_IP)))
		if err != nil {
			return err
		}
		c.file = os.NewFile(uintptr(fd), "capture")
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_IP), Ifindex: of.Index})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.file.Close() })
	if c.raw, err = c.file.SyscallConn(); err != nil {
		t.Fatal(err)
	}
	return c
}

func htons(value uint16) uint16 { return value<<8 | value>>8 }

// next is the next datagram to the port: its sender, its content, and when the kernel had it, in nanoseconds of TAI.
func (c *capture) next() (from net.IP, content []byte, at int64) {
	c.t.Helper()
	if err := c.file.SetReadDeadline(time.Now().Add(patience)); err != nil {
		c.t.Fatal(err)
	}
	packet, control := make([]byte, 2048), make([]byte, 256)
	for {
		var read, told int
		var failed error
		err := c.raw.Read(func(fd uintptr) bool {
			read, told, _, _, failed = unix.Recvmsg(int(fd), packet, control, 0)
			return failed != unix.EAGAIN
		})
		if err != nil || failed != nil {
			c.t.Fatalf("nothing arrives: %v %v", err, failed)
		}
		ip := packet[:read]
		if len(ip) < 28 || ip[9] != unix.IPPROTO_UDP || binary.BigEndian.Uint16(ip[22:]) != port {
			continue
		}
		parsed, err := unix.ParseSocketControlMessage(control[:told])
		if err != nil {
			c.t.Fatal(err)
		}
		for _, message := range parsed {
			if message.Header.Type == unix.SO_TIMESTAMPNS {
				seconds, nanoseconds := binary.NativeEndian.Uint64(message.Data), binary.NativeEndian.Uint64(message.Data[8:])
				at = int64(seconds)*1e9 + int64(nanoseconds) + ahead()
			}
		}
		return net.IP(ip[12:16]), ip[28:], at
	}
}

// ahead is how far CLOCK_TAI is ahead of CLOCK_REALTIME: whole seconds.
func ahead() int64 {
	var tai, real unix.Timespec
	unix.ClockGettime(unix.CLOCK_TAI, &tai)
	unix.ClockGettime(unix.CLOCK_REALTIME, &real)
	return (tai.Nano() - real.Nano() + 5e8) / 1e9 * 1e9
}

// arrive checks that all datagrams of the talker come, from the pod's own address, and none before its launch time.
func (c *capture) arrive(from string) {
	c.t.Helper()
	for number := range messages {
		source, content, at := c.next()
		var of struct {
			Launch int64
			Number uint32
		}
		if err := binary.Read(io.LimitReader(bytes.NewReader(content), 12), binary.NativeEndian, &of); err != nil {
			c.t.Fatal(err)
		}
		if source.String() != from || of.Number != uint32(number) {
			c.t.Errorf("number %d of %v, and not %d of %s", of.Number, source, number, from)
		}
		if at < of.Launch {
			c.t.Errorf("number %d came %d ns before its launch time", number, of.Launch-at)
		}
	}
}

// sent is what the lanes have sent of a network.
func (n *node) sent(network string) uint64 {
	n.t.Helper()
	all, err := n.admin.ListNetworks(context.Background(), &adminv1.ListNetworksRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, one := range all.GetNetworks() {
		if one.GetName() == network {
			return one.GetCounters().GetSent()
		}
	}
	n.t.Fatalf("there is no network %s", network)
	return 0
}

// ping tells whether the kernel's own way works.
func ping(t *testing.T, namespace, to string) {
	t.Helper()
	must(t, "ip", "netns", "exec", namespace, "ping", "-c", "1", "-W", "60", to)
}

func TestAFlannelNetworkBecomesTimeAwareByAChainedPlugin(t *testing.T) {
	t.Parallel()
	namespaces := site(t)
	more := "[[network]]\nname = \"pods\"\ncarrier = \"vxlan:1\"\nport = 8472\nfollow = \"flannel.1\"\n" + departures
	var nodes [2]*node
	var places [2]string
	var addresses [2]string
	for at, name := range namespaces {
		flannel(t, name, at)
		n := newNode(t, name, more)
		nodes[at], places[at] = n, namespace(t)
		if err := os.MkdirAll(n.path("net.d"), 0o700); err != nil {
			t.Fatal(err)
		}
		n.write("net.d/10-flannel.conflist", string(list(t, "cbr0", primary(n, at),
			object{"type": "takt-cni", "network": "pods", "vxlan": 1, "classes": []int{0, 5}, "adminSocket": n.path("admin.sock"), "directory": n.path("pods")})))
		var result types100.Result
		if err := json.Unmarshal([]byte(n.cnitool("add", "cbr0", places[at])), &result); err != nil {
			t.Fatal(err)
		}
		addresses[at] = result.IPs[0].Address.IP.String()
		n.cnitool("check", "cbr0", places[at])
	}
	ping(t, places[0], addresses[1])
	far := capturing(t, places[1], "eth0")
	container := filepath.Base(filepath.Dir(filepath.Dir(first(nodes[0].listeners()))))
	// The node's end of the pod's interface, for those who take launch times there.
	device, err := os.ReadFile(nodes[0].path("pods/" + container + "/eth0/device"))
	if err != nil {
		t.Fatal(err)
	}
	index := strings.TrimSpace(must(t, "ip", "netns", "exec", places[0], "cat", "/sys/class/net/eth0/iflink"))
	if of := must(t, "ip", "-n", namespaces[0], "link", "show", "dev", string(device)); !strings.HasPrefix(of, index+": ") {
		t.Errorf("the device is said to be %s, which is %s, and not number %s", device, of, index)
	}
	nodes[0].talk(places[0], container, "eth0", addresses[1])
	far.arrive(addresses[0])
	if sent := nodes[0].sent("pods"); sent != messages {
		t.Errorf("the runtime has sent %d", sent)
	}
	// The pod is served after a crash as before, and the primary network goes on without the runtime.
	nodes[0].kill()
	ping(t, places[0], addresses[1])
	nodes[0].start()
	nodes[0].talk(places[0], container, "eth0", addresses[1])
	far.arrive(addresses[0])
	for at, n := range nodes {
		n.cnitool("status", "cbr0", places[at])
		n.cnitool("del", "cbr0", places[at])
		n.nothingLeft(t, "after del")
	}
}

// first is a key of a map that has one.
func first(listeners map[string]*adminv1.Listener) string {
	for path := range listeners {
		return path
	}
	return ""
}

func TestASecondNetworkIsAttachedBesideThePrimaryOne(t *testing.T) {
	t.Parallel()
	namespaces := site(t)
	more := "[[network]]\nname = \"tsn\"\ncarrier = \"vxlan:42\"\nfollow = \"vxlan42\"\n" + departures
	var nodes [2]*node
	var pods [2]pod
	var networks [2][][]byte
	var addresses [2][2]string
	for at, name := range namespaces {
		flannel(t, name, at)
		in := func(text string) { t.Helper(); must(t, "ip", append([]string{"-n", name}, strings.Fields(text)...)...) }
		in("link add tsn0 mtu 1450 type bridge stp_state 0 forward_delay 0")
		in(fmt.Sprintf("link add vxlan42 mtu 1450 type vxlan id 42 dstport 4789 local 192.168.7.%d remote 192.168.7.%d dev up0", at+1, 2-at))
		in("link set vxlan42 master tsn0 up")
		in("link set tsn0 up")
		n := newNode(t, name, more)
		nodes[at], pods[at] = n, newPod(t)
		definition, config := attachment(t, object{
			"adminSocket": n.path("admin.sock"), "directory": n.path("pods"),
			// A range for each node, as the manifest says.
			"ipam": object{"type": "host-local", "dataDir": n.path("ipam"), "ranges": [][]object{{{
				"subnet": "10.50.0.0/16", "rangeStart": fmt.Sprintf("10.50.%d.1", at+1), "rangeEnd": fmt.Sprintf("10.50.%d.254", at+1)}}}},
		})
		networks[at] = [][]byte{list(t, "cbr0", primary(n, at)), config}
		results := n.multus(true, pods[at], networks[at]...)
		for number, result := range results {
			addresses[at][number] = result.IPs[0].Address.IP.String()
		}
		said := networkStatus(definition.Metadata.Namespace+"/"+definition.Metadata.Name, results[1])
		link := interfaceOf(t, pods[at].namespace, "net1")
		if said.Name != "default/tsn" || said.Interface != "net1" || said.MAC != link.Address || !slices.Equal(said.IPs, []string{fmt.Sprintf("10.50.%d.1", at+1)}) {
			t.Errorf("the pod's network-status is %+v, and its interface %+v", said, link)
		}
	}
	for number := range addresses[1] {
		ping(t, pods[0].namespace, addresses[1][number])
	}
	far := capturing(t, pods[1].namespace, "net1")
	nodes[0].talk(pods[0].namespace, pods[0].id, "net1", addresses[1][1])
	far.arrive(addresses[0][1])
	if sent := nodes[0].sent("tsn"); sent != messages {
		t.Errorf("the runtime has sent %d", sent)
	}
	for at, n := range nodes {
		n.multus(false, pods[at], networks[at]...)
		n.nothingLeft(t, "after DEL")
		if interfaceOf(t, pods[at].namespace, "net1") != nil {
			t.Error("the interface is left")
		}
	}
}
