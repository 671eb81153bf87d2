// Package cni tests takt-cni as container runtimes use it: as root, in throw-away network namespaces, beside the CNI
// project's own plugins and the real taktd.
package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
)

// programs is where the plugins, cnitool and takt-cni are; built is where taktd and the preload are.
var programs, built string

// patience is how long an event may take on a busy machine.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	built = os.Getenv("TAKT_BUILT")
	if built == "" {
		built, _ = filepath.Abs("../../../target/debug")
	}
	switch _, err := os.Stat(filepath.Join(built, "taktd")); {
	case os.Getuid() != 0:
		fmt.Println("skipped: plugins need root")
		return
	case err != nil:
		fmt.Println("skipped: there is no taktd, run `make build` first:", err)
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if programs, err = os.MkdirTemp("", "takt-cni-"); err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(programs)
	// As the image has them built.
	for _, of := range [][]string{{"."}, {"../.."}} {
		what := "tool"
		if of[0] != "." {
			what = "./cmd/takt-cni"
		}
		build := exec.Command("go", "build", "-trimpath", "-tags=grpcnotrace", "-ldflags=-s", "-o", programs+"/", what)
		build.Dir, build.Env = of[0], append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Printf("cannot build %s: %v\n%s", what, err, out)
			return 1
		}
	}
	return m.Run()
}

var names atomic.Int64

// namespace makes a network namespace for as long as the test.
func namespace(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("takt-cni-t%d-%d", os.Getpid(), names.Add(1))
	must(t, "ip", "netns", "add", name)
	t.Cleanup(func() { must(t, "ip", "netns", "del", name) })
	must(t, "ip", "-n", name, "link", "set", "lo", "up")
	// The bridge plugin waits for the detection of duplicate IPv6 addresses, and gives up where a machine is busy.
	must(t, "ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")
	return name
}

// must runs a command that has to succeed.
func must(t *testing.T, command string, args ...string) string {
	t.Helper()
	out, err := exec.Command(command, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", command, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// A node is a network namespace with a taktd.
type node struct {
	t         *testing.T
	namespace string
	directory string
	// One for all tests that the node is on: any of them may end it and start another one.
	daemon *atomic.Pointer[exec.Cmd]
	admin  adminv1.AdminClient
}

// newNode starts taktd in a namespace, with more behind its configuration.
func newNode(t *testing.T, namespace, more string) *node {
	t.Helper()
	// Short: a socket's path has 107 bytes.
	directory, err := os.MkdirTemp("", "tc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(directory) })
	// With an address of its own: a bridge that has none takes that of a port, which may be leaving.
	must(t, "ip", "-n", namespace, "link", "add", "br0", "address", "02:00:00:00:00:01", "mtu", "1450", "type", "bridge")
	n := &node{t: t, namespace: namespace, directory: directory, daemon: new(atomic.Pointer[exec.Cmd])}
	config := fmt.Sprintf("[node]\nname = %q\nstate = %q\n[security]\nkey_file = %q\n[admin]\nsocket = %q\n%s",
		namespace, n.path("state"), n.path("node.key"), n.path("admin.sock"), more)
	n.write("takt.toml", config)
	connection, err := grpc.NewClient("unix:"+n.path("admin.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	n.admin = adminv1.NewAdminClient(connection)
	t.Cleanup(func() {
		n.kill()
		connection.Close()
	})
	n.start()
	return n
}

// on is the node in a test below its own.
func (n *node) on(t *testing.T) *node {
	of := *n
	of.t = t
	return &of
}

// pods is a network over a VXLAN of which nothing is followed, and no listener of the configuration.
const pods = "[[network]]\nname = \"pods\"\ncarrier = \"vxlan:42\"\n"

func (n *node) path(name string) string { return filepath.Join(n.directory, name) }

func (n *node) write(name, text string) {
	n.t.Helper()
	if err := os.WriteFile(n.path(name), []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// start starts the daemon and waits until it answers.
func (n *node) start() {
	n.t.Helper()
	log, err := os.OpenFile(n.path("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	// The namespace's command is replaced by the daemon: one process.
	daemon := exec.Command("ip", "netns", "exec", n.namespace, filepath.Join(built, "taktd"), "--config", n.path("takt.toml"))
	daemon.Stdout, daemon.Stderr = log, log
	daemon.Env = append(os.Environ(), "TAKT_SOCKET="+n.path("takt.sock"))
	if err := daemon.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.daemon.Store(daemon)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		_, err := n.admin.GetStatus(ctx, &adminv1.GetStatusRequest{}, grpc.WaitForReady(true))
		if err == nil {
			return
		}
		// The connection with a daemon that was killed may end only now.
		if ctx.Err() != nil {
			said, _ := os.ReadFile(n.path("log"))
			n.t.Fatalf("taktd does not start: %v: %s", err, said)
		}
	}
}

// kill ends the daemon as a crash does.
func (n *node) kill() {
	if daemon := n.daemon.Swap(nil); daemon != nil {
		daemon.Process.Kill()
		daemon.Wait()
	}
}

// listeners are the sockets of pods that taktd has, by path below the directory of pods.
func (n *node) listeners() map[string]*adminv1.Listener {
	n.t.Helper()
	all, err := n.admin.ListListeners(context.Background(), &adminv1.ListListenersRequest{}, grpc.WaitForReady(true))
	if err != nil {
		n.t.Fatal(err)
	}
	found := map[string]*adminv1.Listener{}
	for _, one := range all.GetListeners() {
		if below, ok := strings.CutPrefix(one.GetListener().GetPath(), n.path("pods")+"/"); ok {
			found[below] = one.GetListener()
		}
	}
	return found
}

// nothingLeft fails if anything of an attachment is there.
func (n *node) nothingLeft(t *testing.T, when string) {
	t.Helper()
	if left := n.listeners(); len(left) > 0 {
		t.Errorf("%s: taktd still has %v", when, left)
	}
	n.noDirectories(t, when)
	if leases, _ := filepath.Glob(n.path("ipam/*/*.*.*.*")); len(leases) > 0 {
		holder, _ := os.ReadFile(leases[0])
		t.Errorf("%s: addresses are still taken: %v by %q", when, leases, holder)
	}
}

func (n *node) noDirectories(t *testing.T, when string) {
	t.Helper()
	left, _ := filepath.Glob(n.path("pods/[^.]*"))
	locks, _ := filepath.Glob(n.path("pods/.locks/*"))
	if len(left)+len(locks) > 0 {
		t.Errorf("%s: directories or locks are left: %v %v", when, left, locks)
	}
}

// object is a configuration or an answer.
type object = map[string]any

// conf is a configuration of the plugin on this node, with changes; nil removes a key.
func (n *node) conf(version string, changes object) object {
	conf := object{
		"cniVersion": version, "name": "tsn", "type": "takt-cni", "network": "pods", "classes": []int{0, 5},
		"adminSocket": n.path("admin.sock"), "directory": n.path("pods"),
	}
	for key, value := range changes {
		conf[key] = value
		if value == nil {
			delete(conf, key)
		}
	}
	return conf
}

// bridge is a configuration that makes a veth pair into a bridge.
func (n *node) bridge() object {
	return object{"type": "bridge", "bridge": "br0", "mtu": 1450, "isGateway": true, "ipam": n.ipam()}
}

func (n *node) ipam() object {
	return object{
		"type": "host-local", "dataDir": n.path("ipam"), "routes": []object{{"dst": "10.99.0.0/16"}},
		"ranges": [][]object{{{"subnet": "10.88.1.0/29"}}},
	}
}

// A pod is a network namespace with an identity.
type pod struct {
	id, ifname, namespace, args string
}

func newPod(t *testing.T) pod {
	name := namespace(t)
	return pod{
		id: strings.Repeat("0123456789abcdef", 4), ifname: "eth0", namespace: name,
		args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=line;K8S_POD_NAME=" + name,
	}
}

// call runs a plugin in the node's namespace.
func (n *node) call(command string, p pod, conf object) (object, *types.Error) {
	n.t.Helper()
	done := n.begin(command, p, conf)
	return done()
}

// begin starts a plugin and returns what waits for its answer.
func (n *node) begin(command string, p pod, conf object) func() (object, *types.Error) {
	n.t.Helper()
	run, out, input := n.command(command, p, conf)
	run.Stdin = bytes.NewReader(input)
	if err := run.Start(); err != nil {
		n.t.Fatal(err)
	}
	return func() (object, *types.Error) {
		n.t.Helper()
		err := run.Wait()
		if err != nil {
			told := &types.Error{}
			if json.Unmarshal(out.Bytes(), told) != nil {
				n.t.Fatalf("%s: %v: %s", command, err, out)
			}
			return nil, told
		}
		var answer object
		if out.Len() > 0 {
			if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
				n.t.Fatalf("%s: %v: %s", command, err, out)
			}
		}
		return answer, nil
	}
}

func (n *node) command(command string, p pod, conf object) (*exec.Cmd, *bytes.Buffer, []byte) {
	n.t.Helper()
	input, err := json.Marshal(conf)
	if err != nil {
		n.t.Fatal(err)
	}
	plugin := filepath.Join(programs, conf["type"].(string))
	run := exec.Command("ip", "netns", "exec", n.namespace, plugin)
	out := &bytes.Buffer{}
	run.Stdout = out
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	run.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID="+p.id, "CNI_IFNAME="+p.ifname,
		"CNI_PATH="+programs, "CNI_ARGS="+p.args)
	if p.namespace != "" {
		run.Env = append(run.Env, "CNI_NETNS=/run/netns/"+p.namespace)
	}
	return run, out, input
}

// alone waits until nothing is left of what a command has started: plugins that it called outlive it when it is killed.
func alone(t *testing.T, group int) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		files, _ := filepath.Glob("/proc/[0-9]*/stat")
		left := slices.ContainsFunc(files, func(file string) bool {
			text, _ := os.ReadFile(file)
			// State, parent and group follow the name, which may have anything in it.
			fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
			return len(fields) > 2 && fields[0] != "Z" && fields[2] == strconv.Itoa(group)
		})
		if !left {
			return
		}
		if time.Now().After(end) {
			t.Fatal("plugins do not end")
		}
	}
}

// works fails the test if a command does.
func (n *node) works(command string, p pod, conf object) object {
	n.t.Helper()
	answer, err := n.call(command, p, conf)
	if err != nil {
		n.t.Fatalf("%s: %v", command, err)
	}
	return answer
}

// with is a configuration with changes.
func with(conf object, changes object) object {
	changed := object{}
	for key, value := range conf {
		changed[key] = value
	}
	for key, value := range changes {
		changed[key] = value
	}
	return changed
}

// link is an interface as the kernel has it.
type link struct {
	Address  string `json:"address"`
	MTU      uint32 `json:"mtu"`
	Addrinfo []struct {
		Local     string `json:"local"`
		Prefixlen int    `json:"prefixlen"`
		Scope     string `json:"scope"`
	} `json:"addr_info"`
}

// interfaceOf is an interface in a namespace; nil if there is none.
func interfaceOf(t *testing.T, namespace, name string) *link {
	t.Helper()
	out, err := exec.Command("ip", "-n", namespace, "-json", "address", "show", "dev", name).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	var links []link
	if err := json.Unmarshal(out, &links); err != nil || len(links) != 1 {
		t.Fatalf("ip: %v: %s", err, out)
	}
	return &links[0]
}
