package node

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	validator "github.com/containerd/nri/plugins/default-validator/builtin"
	ocispec "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/enforce"
	"github.com/takt-dev/takt/kubernetes/internal/gate"
	"github.com/takt-dev/takt/kubernetes/internal/inventory"
)

// The first thread of the programs below is their main thread.
func init() { runtime.LockOSThread() }

// The test binary is also the program that runs in the containers of the tests.
func TestMain(m *testing.M) {
	// A busy machine keeps nobody from answering in time.
	adaptation.SetPluginRequestTimeout(time.Minute)
	adaptation.SetPluginRegistrationTimeout(time.Minute)
	vethPatience, hookPatience = 30*time.Second, time.Minute
	switch os.Getenv("TAKT_TEST_PROGRAM") {
	case "idle":
		fmt.Println("ready")
		bufio.NewReader(os.Stdin).ReadString('\n')
	case "leave":
		fmt.Println("ready")
		bufio.NewReader(os.Stdin).ReadString('\n')
		go func() { select {} }()
		unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0) // the main thread, as pthread_exit
	case "tell":
		tellTheKernel()
	case "talk":
		if err := talk(os.Getenv("TAKT_TEST_TO")); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	case "busy":
		fmt.Println("ready")
		for {
		}
	case "ask":
		fmt.Println("ready")
		in := bufio.NewReader(os.Stdin)
		for {
			if _, err := in.ReadString('\n'); err != nil {
				return
			}
			conn, err := net.Dial("unix", os.Getenv("TAKT_TEST_SOCKET"))
			if err != nil {
				fmt.Println(err)
				continue
			}
			fmt.Fprintf(conn, "reserve %d\n", unix.Gettid())
			line, _ := bufio.NewReader(conn).ReadString('\n')
			fmt.Print(line)
			conn.Close()
		}
	default:
		os.Exit(m.Run())
	}
}

const nodeName = "node-1"

// told is one event.
type told struct{ pod, eventType, reason, message string }

// events remembers what pods were told.
type events struct {
	mu  sync.Mutex
	all []told
}

func (e *events) Eventf(object apiruntime.Object, eventType, reason, message string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, told{object.(*corev1.ObjectReference).Name, eventType, reason, fmt.Sprintf(message, args...)})
}

func (e *events) of(pod, reason string) (messages []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, event := range e.all {
		if event.pod == pod && event.reason == reason {
			messages = append(messages, event.message)
		}
	}
	return messages
}

// site is a node of a cluster without the cluster: an agent, a kubelet that only prepares claims, a
// container runtime that only tells its plugins, an API server that only stores. All of them speak over
// the sockets that they have on a node.
type site struct {
	t       *testing.T
	dir     string
	config  Config
	client  *fake.Clientset
	events  *events
	backend enforce.Backend
	agent   *Node
	stop    func()
	runtime *adaptation.Adaptation
	relay   *cut
	// daemon is the process of the last taktd.
	daemon int
	// answer is what the API server says of a pod, if not what it stores: whoever asks may do so at any time.
	answer atomic.Pointer[clienttesting.ReactionFunc]

	mu         sync.Mutex
	pods       []*api.PodSandbox
	containers []*api.Container
}

func newSite(t *testing.T) *site { return newSiteWith(t, enforce.Deadline{}) }

func newSiteWith(t *testing.T, backend enforce.Backend) *site {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the kernel's reservations need root")
	}
	// Paths of sockets have at most 107 bytes, so not t.TempDir.
	dir, err := os.MkdirTemp("", "takt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &site{t: t, dir: dir, events: &events{}, config: DefaultConfig(), backend: backend}
	s.client = fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "node-uid"}})
	s.client.PrependReactor("get", "pods", func(action clienttesting.Action) (bool, apiruntime.Object, error) {
		if answer := s.answer.Load(); answer != nil {
			return (*answer)(action)
		}
		return false, nil, nil
	})
	// Before the agent asks it: a fake takes no more reactors while it answers.
	reviewing(s.client)
	s.config.Cores = "all"
	s.config.ScanInterval = reservation.Duration(10 * time.Millisecond)
	s.config.CDIDirectory = filepath.Join(dir, "cdi")
	s.config.KubeletPlugins = filepath.Join(dir, "plugins")
	s.config.KubeletRegistry = filepath.Join(dir, "registry")
	s.config.NRISocket = filepath.Join(dir, "nri.sock")
	s.config.RunDirectory = filepath.Join(dir, "run")
	s.config.Listen = "127.0.0.1:0"
	if err := os.MkdirAll(s.config.KubeletRegistry, 0o755); err != nil {
		t.Fatal(err)
	}
	s.startRuntime()
	s.startAgent()
	return s
}

func (s *site) startRuntime() {
	s.t.Helper()
	runtime, err := adaptation.New("test", "0", func(ctx context.Context, tell adaptation.SyncCB) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, err := tell(ctx, s.pods, s.containers)
		return err
	}, func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil },
		adaptation.WithSocketPath(s.config.NRISocket+".runtime"),
		adaptation.WithPluginPath(filepath.Join(s.dir, "none")), adaptation.WithPluginConfigPath(filepath.Join(s.dir, "none")),
		adaptation.WithDefaultValidator(&validator.DefaultValidatorConfig{Enable: true}),
	)
	if err == nil {
		err = runtime.Start()
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.runtime = runtime
	relay, err := net.Listen("unix", s.config.NRISocket)
	if err != nil {
		s.t.Fatal(err)
	}
	s.relay = &cut{listener: relay}
	go s.relay.serve(s.config.NRISocket + ".runtime")
	s.t.Cleanup(s.stopRuntime)
}

// stopRuntime ends the runtime as its process' end would: with all of its connections.
func (s *site) stopRuntime() {
	s.relay.end()
	s.runtime.Stop()
}

// cut is a relay before the runtime's socket: stopping an adaptation leaves its connections open.
type cut struct {
	listener net.Listener
	mu       sync.Mutex
	conns    []net.Conn
}

func (c *cut) serve(socket string) {
	for {
		from, err := c.listener.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("unix", socket)
		if err != nil {
			from.Close()
			continue
		}
		c.mu.Lock()
		c.conns = append(c.conns, from, to)
		c.mu.Unlock()
		for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
			go func() {
				io.Copy(pair[0], pair[1])
				pair[0].Close()
				pair[1].Close()
			}()
		}
	}
}

func (c *cut) end() {
	c.listener.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.Close()
	}
}

// says has the API server answer who asks for a pod.
func (s *site) says(answer clienttesting.ReactionFunc) { s.answer.Store(&answer) }

// startAgent begins an agent, as after an installation or a restart.
func (s *site) startAgent() {
	s.t.Helper()
	agent, err := New(nodeName, s.config, s.client, s.events, s.backend)
	if agent != nil {
		agent.host = "/"
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.agent = agent
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- agent.Run(ctx) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error("the agent ended with", err)
		}
	})
	s.t.Cleanup(func() { s.stop() })
	s.until("the kubelet's plugin is there", func() bool {
		agent.mu.Lock()
		defer agent.mu.Unlock()
		return agent.helper != nil
	})
	s.untilConnected()
}

// untilConnected waits until the runtime asks the agent, which it does some time after it has told it what runs.
func (s *site) untilConnected() {
	s.t.Helper()
	s.until("the runtime is connected", s.agent.isConnected)
	s.runtime.BlockPluginSync().Unblock()
}

func (n *Node) isConnected() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.connected
}

// until waits for what must come, however long it takes: the test's own limit ends it.
func (s *site) until(what string, holds func() bool) {
	s.t.Helper()
	for began := time.Now(); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			s.t.Fatalf("still not: %s", what)
		}
	}
}

// dial connects with a socket of the agent's, as the kubelet does.
func (s *site) dial(socket string) *grpc.ClientConn {
	s.t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	return conn
}

// kubelet registers the plugin and returns the way to it.
func (s *site) kubelet() drapb.DRAPluginClient {
	s.t.Helper()
	registration := registerapi.NewRegistrationClient(s.dial(filepath.Join(s.config.KubeletRegistry, reservation.Driver+"-reg.sock")))
	info, err := registration.GetInfo(context.Background(), &registerapi.InfoRequest{})
	if err != nil {
		s.t.Fatal(err)
	}
	if info.Type != registerapi.DRAPlugin || info.Name != reservation.Driver {
		s.t.Fatalf("plugin is %v", info)
	}
	if _, err := registration.NotifyRegistrationStatus(context.Background(), &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		s.t.Fatal(err)
	}
	return drapb.NewDRAPluginClient(s.dial(info.Endpoint))
}

func podReference(pod string) resourceapi.ResourceClaimConsumerReference {
	return resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod, UID: types.UID(pod + "-uid")}
}

const plain = `{"apiVersion":"cpu.takt.dev/v1alpha1","kind":"Reservation","runtime":"2ms","period":"20ms"}`

// claim is one that the scheduler has allocated on this node, for one core.
func (s *site) claim(name, parameters string, edit func(*resourceapi.ResourceClaim)) *resourceapi.ResourceClaim {
	s.t.Helper()
	share := types.UID("0b1f3a52-0000-4000-8000-" + fmt.Sprintf("%012x", len(name)))
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name + "-uid")},
		Status: resourceapi.ResourceClaimStatus{
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{podReference("pod")},
			Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{
					Request: "cpu", Driver: reservation.Driver, Pool: nodeName, Device: inventory.DeviceName(s.cpu()), ShareID: &share,
					ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{reservation.Bandwidth: resource.MustParse("100k")},
				}},
				Config: []resourceapi.DeviceAllocationConfiguration{{
					Source: resourceapi.AllocationConfigSourceClaim, Requests: []string{"cpu"},
					DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
						Driver: reservation.Driver, Parameters: apiruntime.RawExtension{Raw: []byte(parameters)},
					}},
				}},
			}},
		},
	}
	if edit != nil {
		edit(claim)
	}
	if _, err := s.client.ResourceV1().ResourceClaims("default").Create(context.Background(), claim, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	return claim
}

func (s *site) cpu() int { return s.agent.offer.CPUs[0].ID }

func (s *site) prepare(claim *resourceapi.ResourceClaim) *drapb.NodePrepareResourceResponse {
	s.t.Helper()
	response, err := s.kubelet().NodePrepareResources(context.Background(), &drapb.NodePrepareResourcesRequest{
		Claims: []*drapb.Claim{{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return response.Claims[string(claim.UID)]
}

func (s *site) unprepare(claim *resourceapi.ResourceClaim) {
	s.t.Helper()
	response, err := s.kubelet().NodeUnprepareResources(context.Background(), &drapb.NodeUnprepareResourcesRequest{
		Claims: []*drapb.Claim{{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}},
	})
	if err != nil || response.Claims[string(claim.UID)].GetError() != "" {
		s.t.Fatal(err, response)
	}
}

// injected is what the container runtime makes of CDI names, by the library that it uses for them.
func (s *site) injected(names []string) *ocispec.Spec {
	s.t.Helper()
	cache, err := cdi.NewCache(cdi.WithSpecDirs(s.config.CDIDirectory), cdi.WithAutoRefresh(false))
	if err != nil {
		s.t.Fatal(err)
	}
	spec := &ocispec.Spec{}
	if unresolved, err := cache.InjectDevices(spec, names...); err != nil {
		s.t.Fatal(unresolved, err)
	}
	return spec
}

// box is a container: a process in a cgroup that waits for its start.
type box struct {
	s    *site
	pod  *api.PodSandbox
	ctr  *api.Container
	cmd  *exec.Cmd
	in   interface{ Write([]byte) (int, error) }
	out  *bufio.Reader
	done bool
	// adjusted is what the plugins want of the container.
	adjusted *api.ContainerAdjustment
	// old says that the container runtime's NRI knows of no seccomp policies.
	old bool
}

// create asks the plugins and then makes the container's process; program idle, busy or ask.
func (s *site) create(pod, name, program string, env []string) (*box, error) {
	s.t.Helper()
	b := &box{s: s, pod: &api.PodSandbox{Id: pod + "-sandbox", Namespace: "default", Name: pod, Uid: pod + "-uid"}}
	now := time.Now().UnixNano()
	b.ctr = &api.Container{
		Id: fmt.Sprintf("%s-%s-%d", pod, name, now), CreatedAt: now, PodSandboxId: b.pod.Id, Name: name,
		Env: env, State: api.ContainerState_CONTAINER_CREATED,
	}
	response, err := s.runtime.CreateContainer(context.Background(), &adaptation.CreateContainerRequest{Pod: b.pod, Container: b.ctr})
	if err != nil {
		return nil, err
	}
	b.adjusted = response.Adjust
	b.begin(program)
	s.mu.Lock()
	s.pods, s.containers = append(s.pods, b.pod), append(s.containers, b.ctr)
	s.mu.Unlock()
	return b, nil
}

func (b *box) begin(program string) {
	t := b.s.t
	t.Helper()
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/cgroup.controllers"); err != nil {
		root += "/unified"
	}
	cgroup := filepath.Join(root, "takt-test-"+b.ctr.Id)
	if err := os.Mkdir(cgroup, 0o755); err != nil {
		t.Skipf("needs cgroup v2 somewhere: %v", err)
	}
	t.Cleanup(func() { b.kill(); os.Remove(cgroup) })
	dir, err := os.Open(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b.cmd = exec.Command(self)
	b.cmd.Env = append(os.Environ(), "TAKT_TEST_PROGRAM="+program, "GOMAXPROCS=1")
	if claim, _, err := parseKey(strings.Join(marks(b.ctr), "")); err == nil {
		b.cmd.Env = append(b.cmd.Env, "TAKT_TEST_SOCKET="+filepath.Join(b.s.agent.records.askDir(claim), askSocket))
	}
	b.cmd.SysProcAttr = &syscall.SysProcAttr{
		UseCgroupFD: true, CgroupFD: int(dir.Fd()), Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL,
	}
	in, err := b.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	b.in, b.out = in, bufio.NewReader(out)
	runtime.LockOSThread() // Pdeathsig is of the thread that forks
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := b.out.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("program said %q, %v", line, err)
	}
	b.ctr.Pid = uint32(b.cmd.Process.Pid)
}

// gate is what the OCI runtime runs: the hook of the CDI file, here without a process of its own.
func (b *box) gate() error {
	bundle := b.s.t.TempDir()
	config := ocispec.Spec{Linux: &ocispec.Linux{}}
	if policy := b.adjusted.GetLinux().GetSeccompPolicy(); policy != nil && !b.old {
		config.Linux.Seccomp = &ocispec.LinuxSeccomp{DefaultAction: ocispec.LinuxSeccompAction(policy.DefaultAction), Syscalls: api.ToOCILinuxSyscalls(policy.Syscalls)}
	}
	text, err := json.Marshal(config)
	if err == nil {
		err = os.WriteFile(filepath.Join(bundle, "config.json"), text, 0o600)
	}
	if err != nil {
		b.s.t.Fatal(err)
	}
	state, err := json.Marshal(map[string]any{
		"ociVersion": "1.2.0", "id": b.ctr.Id, "status": "created", "pid": b.cmd.Process.Pid, "bundle": bundle,
	})
	if err != nil {
		b.s.t.Fatal(err)
	}
	return gate.Pass(bytes.NewReader(state), gateSocket(b.s.config.RunDirectory))
}

// start asks the plugins, as the container runtime does before the program runs.
func (b *box) start() error {
	err := b.s.runtime.StartContainer(context.Background(), &adaptation.StartContainerRequest{Pod: b.pod, Container: b.ctr})
	if err == nil {
		b.s.mu.Lock()
		b.ctr.State = api.ContainerState_CONTAINER_RUNNING
		b.s.mu.Unlock()
	}
	return err
}

func (b *box) kill() {
	if b.cmd != nil && !b.done {
		b.done = true
		b.cmd.Process.Kill()
		b.cmd.Wait()
	}
}

// remove ends the container and tells the plugins.
func (b *box) remove() {
	b.s.t.Helper()
	b.kill()
	ctx := context.Background()
	if _, err := b.s.runtime.StopContainer(ctx, &adaptation.StopContainerRequest{Pod: b.pod, Container: b.ctr}); err != nil {
		b.s.t.Error(err)
	}
	if err := b.s.runtime.RemoveContainer(ctx, &adaptation.RemoveContainerRequest{Pod: b.pod, Container: b.ctr}); err != nil {
		b.s.t.Error(err)
	}
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	for i, ctr := range b.s.containers {
		if ctr == b.ctr {
			b.s.containers = append(b.s.containers[:i:i], b.s.containers[i+1:]...)
			return
		}
	}
}

// empty fails the test if the agent or its directories hold anything.
func (s *site) empty() {
	s.t.Helper()
	s.agent.mu.Lock()
	if len(s.agent.claims)+len(s.agent.containers)+len(s.agent.holders) > 0 {
		s.t.Errorf("left in memory: claims %v, containers %v, holders %v", s.agent.claims, s.agent.containers, s.agent.holders)
	}
	s.agent.mu.Unlock()
	for _, dir := range []string{s.config.CDIDirectory, filepath.Join(s.config.RunDirectory, "ask")} {
		entries, err := os.ReadDir(dir)
		if err != nil && !os.IsNotExist(err) {
			s.t.Error(err)
		}
		for _, entry := range entries {
			s.t.Errorf("left in %s: %s", dir, entry.Name())
		}
	}
}
