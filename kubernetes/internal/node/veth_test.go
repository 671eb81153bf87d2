package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/takt-dev/takt/kubernetes/internal/enforce"
)

// standIn is a program in the place of takt that writes its arguments down, and does what mode.DEVICE says.
const standIn = `#!/bin/sh
echo "$*" >> %[1]s/started
case "$(cat %[1]s/mode.$4 2>/dev/null)" in
fails) echo "takt: this kernel cannot tell" >&2; exit 1 ;;
silent) exec sleep infinity ;;
esac
echo "$4: taking launch times"
exec sleep infinity
`

// vethSite is a site whose pods have veths, and a stand-in for takt.
func vethSite(t *testing.T, path Path) *site {
	t.Helper()
	s := newSite(t)
	s.stop()
	s.config.Network = &NetworkConfig{Sockets: filepath.Join(s.dir, "cni"), Preload: s.library(), Takt: filepath.Join(s.dir, "takt"), Path: path}
	if err := s.config.Network.validate(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.config.Network.Takt, fmt.Appendf(nil, standIn, s.dir), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.stop()
		// What outlives an agent must not outlive its test.
		newVeths(s.agent).keep(context.Background(), nil)
	})
	s.startAgent()
	return s
}

// attach does what takt-cni does: without a device, it is no veth.
func (s *site) attach(sandbox, ifName, device string) {
	s.t.Helper()
	directory := filepath.Join(s.config.Network.Sockets, sandbox, ifName)
	if err := os.MkdirAll(directory, 0o755); err != nil {
		s.t.Fatal(err)
	}
	if device != "" {
		s.write(filepath.Join(directory, "device"), device)
	}
}

func (s *site) write(path, text string) {
	s.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// sensitivePod is a time-sensitive pod with more annotations, and a container of it.
func sensitivePod(name string, more ...string) (*api.PodSandbox, *api.Container) {
	annotations := map[string]string{"takt.dev/time-sensitive": "true"}
	for at := 0; at < len(more); at += 2 {
		annotations[more[at]] = more[at+1]
	}
	return &api.PodSandbox{Id: name, Namespace: "default", Name: name, Uid: name, Annotations: annotations},
		&api.Container{Id: name + "-main", PodSandboxId: name, Name: "main"}
}

func (s *site) createOf(pod *api.PodSandbox, ctr *api.Container) (*api.ContainerAdjustment, error) {
	created, err := s.runtime.CreateContainer(context.Background(), &adaptation.CreateContainerRequest{Pod: pod, Container: ctr})
	return created.GetAdjust(), err
}

// runs adds a created container to what the runtime tells an agent that connects.
func (s *site) runs(pod *api.PodSandbox, ctr *api.Container) {
	ctr.State = api.ContainerState_CONTAINER_RUNNING
	ctr.Mounts = []*api.Mount{{Source: filepath.Join(s.config.Network.Sockets, pod.GetId()), Destination: containerSockets}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods, s.containers = append(s.pods, pod), append(s.containers, ctr)
}

// started are the arguments of the programs that were started, in their order.
func (s *site) started() []string {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, "started"))
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// holder is the process that takes launch times of an interface of a sandbox; 0 if none does.
func (s *site) holder(sandbox, ifName string) int {
	s.t.Helper()
	one := &veth{set: newVeths(s.agent), key: vethKey(sandbox, ifName)}
	// While it is being started, the lock is the agent's.
	found, err := one.adopt()
	if err != nil || found == nil {
		return 0
	}
	return found.process.Pid
}

func TestLaunchTimesAreTakenAtTheVethOfATimeSensitivePod(t *testing.T) {
	s := vethSite(t, "")
	s.known()
	for name, tc := range map[string]struct {
		more      []string
		started   string
		preloaded bool
		refused   string
	}{
		"by default":          {started: " --socket SOCKET", preloaded: true},
		"by its veth alone":   {more: []string{"takt.dev/path", "veth"}, started: " --socket SOCKET"},
		"by both":             {more: []string{"takt.dev/path", "both"}, started: " --socket SOCKET", preloaded: true},
		"by the preload":      {more: []string{"takt.dev/path", "preload"}, preloaded: true},
		"without a preload":   {more: []string{"takt.dev/preload", "off"}, started: " --socket SOCKET"},
		"required":            {more: []string{"takt.dev/preload", "required"}, started: " --socket SOCKET --required", preloaded: true},
		"required of another": {more: []string{"takt.dev/preload.other", "required"}, started: " --socket SOCKET --required", preloaded: true},
		"required, no veth":   {more: []string{"takt.dev/preload", "required", "takt.dev/path", "preload"}, preloaded: true},
		"with a class":        {more: []string{"takt.dev/class", "5"}, started: " --socket SOCKET --class 5", preloaded: true},
		"with other traffic":  {more: []string{"takt.dev/other-traffic", "runtime"}, started: " --socket SOCKET --all", preloaded: true},
		"without it":          {more: []string{"takt.dev/other-traffic", "kernel"}, started: " --socket SOCKET", preloaded: true},
		"of it by no veth":    {more: []string{"takt.dev/other-traffic", "runtime", "takt.dev/path", "preload"}, refused: codeAnnotation},
		"of it, unmarked":     {more: []string{"takt.dev/time-sensitive", "false", "takt.dev/other-traffic", "runtime"}, refused: `write takt.dev/time-sensitive: "true", and takt.dev/path: "veth"`},
		"of it somewhere":     {more: []string{"takt.dev/other-traffic", "both"}, refused: codeAnnotation},
		"by another word":     {more: []string{"takt.dev/path", "bridge"}, refused: codeAnnotation},
		"of no class":         {more: []string{"takt.dev/class", "8"}, refused: codeAnnotation},
	} {
		t.Run(name, func(t *testing.T) {
			id := strings.NewReplacer(" ", "-", ",", "").Replace(name)
			s.attach(id, "eth0", "veth-"+id)
			adjusted, err := s.createOf(sensitivePod(id, tc.more...))
			if tc.refused != "" {
				if err == nil || !strings.Contains(err.Error(), tc.refused) {
					t.Errorf("created: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			preloaded := slices.ContainsFunc(adjusted.GetEnv(), func(e *api.KeyValue) bool { return e.Key == "LD_PRELOAD" })
			if preloaded != tc.preloaded {
				t.Errorf("preloaded: %v", preloaded)
			}
			var found []string
			for _, arguments := range s.started() {
				if strings.Contains(arguments, "veth-"+id+" ") {
					found = append(found, arguments)
				}
			}
			var wanted []string
			if tc.started != "" {
				socket := filepath.Join(s.config.Network.Sockets, id, "eth0/takt.sock")
				wanted = []string{"veth attach --device veth-" + id + strings.Replace(tc.started, "SOCKET", socket, 1)}
			}
			if !slices.Equal(found, wanted) {
				t.Errorf("started %q and not %q", found, wanted)
			}
			if told := s.events.of(id, reasonVeth); len(told) > 0 {
				t.Errorf("told %q", told)
			}
		})
	}
}

func TestOtherTrafficIsTheRuntimesWhereTheOperatorOrThePodSaysSo(t *testing.T) {
	for name, tc := range map[string]struct {
		operator    OtherTraffic
		more        []string
		all, strict bool
	}{
		"nobody":                       {operator: OtherKernel},
		"the operator":                 {operator: OtherRuntime, all: true},
		"the operator, and not at all": {operator: OtherRuntime, more: []string{"takt.dev/path", "preload"}, strict: true},
		"the pod does not":             {operator: OtherRuntime, more: []string{"takt.dev/other-traffic", "kernel"}},
		"the pod":                      {operator: OtherKernel, more: []string{"takt.dev/other-traffic", "runtime"}, all: true, strict: true},
		"of another pod":               {operator: OtherRuntime, more: []string{"takt.dev/time-sensitive", "false"}},
	} {
		n := &Node{config: Config{Network: &NetworkConfig{Path: PathBoth, OtherTraffic: tc.operator}}}
		pod, _ := sensitivePod("pod", tc.more...)
		w, err := n.wishes(pod.GetAnnotations(), "main")
		if err != nil || w.all != tc.all || w.strict() != tc.strict {
			t.Errorf("%s: %+v, %v", name, w, err)
		}
	}
}

func TestWhatTakesLaunchTimesIsStartedAgainAndEndsWithItsPod(t *testing.T) {
	s := vethSite(t, "")
	s.attach("pod", "eth0", "veth0")
	s.attach("pod", "net1", "veth1")
	pod, ctr := sensitivePod("pod")
	if _, err := s.createOf(pod, ctr); err != nil {
		t.Fatal(err)
	}
	first, other := s.holder("pod", "eth0"), s.holder("pod", "net1")
	if first == 0 || other == 0 {
		t.Fatalf("nothing takes launch times: %q", s.started())
	}
	// A second container of the pod has the same.
	ctr.Id, ctr.Name = "pod-second", "second"
	if _, err := s.createOf(pod, ctr); err != nil || len(s.started()) != 2 {
		t.Fatalf("%v, %q", err, s.started())
	}
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.until("it takes launch times again", func() bool { return len(s.events.of("pod", reasonVeth)) == 2 })
	told := s.events.of("pod", reasonVeth)
	if !strings.Contains(told[0], codeNoVeth+": ") || !strings.Contains(told[0], "eth0") || !strings.Contains(told[1], "again") {
		t.Errorf("told %q", told)
	}
	if now := s.holder("pod", "eth0"); now == 0 || now == first {
		t.Errorf("process %d after %d", now, first)
	}
	if s.holder("pod", "net1") != other {
		t.Error("the other veth's was started again, too")
	}
	if err := s.runtime.StopPodSandbox(context.Background(), &adaptation.StopPodSandboxRequest{Pod: pod}); err != nil {
		t.Fatal(err)
	}
	s.until("both have ended, and left nothing", func() bool {
		left, _ := filepath.Glob(filepath.Join(s.config.RunDirectory, "veth", "*"))
		return len(left) == 0
	})
	if syscall.Kill(other, 0) == nil {
		t.Errorf("process %d is left", other)
	}
}

func TestLaunchTimesAreTakenWhileTheAgentIsAway(t *testing.T) {
	s := vethSite(t, "")
	begun := map[string]int{}
	for _, name := range []string{"stays", "gone", "changed"} {
		s.attach(name, "eth0", "veth-"+name)
		pod, ctr := sensitivePod(name)
		if _, err := s.createOf(pod, ctr); err != nil {
			t.Fatal(err)
		}
		if begun[name] = s.holder(name, "eth0"); begun[name] == 0 {
			t.Fatalf("%s: nothing takes launch times", name)
		}
		if name == "changed" {
			pod.Annotations["takt.dev/class"] = "3"
		}
		if name != "gone" {
			s.runs(pod, ctr)
		}
	}
	s.stop()
	for name, process := range begun {
		if s.holder(name, "eth0") != process {
			t.Errorf("%s: it has ended with the agent", name)
		}
	}
	if err := os.RemoveAll(filepath.Join(s.config.Network.Sockets, "gone")); err != nil {
		t.Fatal(err)
	}
	// One that ended meanwhile is started again.
	if err := syscall.Kill(begun["changed"], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.until("it has ended", func() bool { return s.holder("changed", "eth0") == 0 })
	s.startAgent()
	s.until("that of the pod that has gone has ended", func() bool { return s.holder("gone", "eth0") == 0 })
	s.until("the other is started", func() bool { return s.holder("changed", "eth0") != 0 })
	s.until("the agent looks after both", func() bool { taking, not := s.agent.veths.counts(); return taking == 2 && not == 0 })
	if now := s.holder("stays", "eth0"); now != begun["stays"] {
		t.Errorf("it was started again: %d after %d", now, begun["stays"])
	}
	started := s.started()
	if len(started) != 4 || !strings.HasSuffix(started[3], "--class 3") {
		t.Errorf("started %q", started)
	}
	// What was found again is looked after as what was started.
	if err := syscall.Kill(begun["stays"], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.until("it is started again", func() bool { now := s.holder("stays", "eth0"); return now != 0 && now != begun["stays"] })
	// A pod's wish that has changed is not what runs.
	s.stop()
	s.mu.Lock()
	s.pods[0].Annotations["takt.dev/preload"] = "required"
	s.mu.Unlock()
	s.startAgent()
	s.until("it runs as it is wanted now", func() bool { last := s.started(); return strings.HasSuffix(last[len(last)-1], "--required") })
}

// Its containers had all ended when the agent came, and none was created since.
func TestThePodOfAnEarlierAgentIsForgottenWhenItEnds(t *testing.T) {
	s := vethSite(t, "")
	s.attach("waits", "eth0", "veth-waits")
	pod, ctr := sensitivePod("waits")
	if _, err := s.createOf(pod, ctr); err != nil {
		t.Fatal(err)
	}
	ctr.State = api.ContainerState_CONTAINER_STOPPED
	s.runs(pod, ctr)
	s.stop()
	s.startAgent()
	if _, err := os.Stat(filepath.Join(s.agent.veths.directory, "waits.eth0.lock")); err != nil {
		t.Fatalf("its record: %v", err)
	}
	s.agent.veths.forget("waits")
	if left, _ := filepath.Glob(filepath.Join(s.agent.veths.directory, "waits.*")); len(left) > 0 || s.holder("waits", "eth0") != 0 {
		t.Errorf("%q are left", left)
	}
}

// What is to end is known before the container runtime goes on: pods that come then are not among those that it has told of.
func TestAPodThatComesWhileOthersEndKeepsItsLaunchTimes(t *testing.T) {
	s := vethSite(t, "")
	create := func(name string) int {
		t.Helper()
		s.attach(name, "eth0", "veth-"+name)
		if _, err := s.createOf(sensitivePod(name)); err != nil {
			t.Fatal(err)
		}
		return s.holder(name, "eth0")
	}
	gone := create("gone")
	others := s.agent.veths.others(background, nil)
	came := create("came")
	s.agent.veths.end(background, others)
	if gone == 0 || s.holder("gone", "eth0") != 0 {
		t.Errorf("that of a pod that has gone is still there, process %d", gone)
	}
	if came == 0 || s.holder("came", "eth0") != came {
		t.Errorf("that of the pod that came has ended, process %d", came)
	}
}

func TestAPodThatRequiresItsVethDoesNotStartWithout(t *testing.T) {
	s := vethSite(t, "")
	for name, tc := range map[string]struct {
		device, mode string
		more         []string
		refused      bool
		told         string
	}{
		"fails":            {"veth-f", "fails", nil, false, "this kernel cannot tell"},
		"fails-required":   {"veth-fr", "fails", []string{"takt.dev/preload", "required"}, true, "this kernel cannot tell"},
		"fails-asked":      {"veth-fa", "fails", []string{"takt.dev/path", "veth"}, true, "this kernel cannot tell"},
		"silent-required":  {"veth-sr", "silent", []string{"takt.dev/preload", "required"}, true, "has not begun"},
		"no-veth":          {"", "", nil, false, "is no veth"},
		"no-veth-required": {"", "", []string{"takt.dev/preload", "required"}, true, "takt.dev/path"},
	} {
		t.Run(name, func(t *testing.T) {
			s.attach(name, "eth0", tc.device)
			if tc.mode == "silent" {
				vethPatience = time.Second
				defer func() { vethPatience = 30 * time.Second }()
			}
			if tc.mode != "" {
				s.write(filepath.Join(s.dir, "mode."+tc.device), tc.mode)
			}
			pod, ctr := sensitivePod(name, tc.more...)
			_, err := s.createOf(pod, ctr)
			if (err != nil) != tc.refused {
				t.Fatalf("created: %v", err)
			}
			reason := reasonVeth
			if tc.refused {
				reason = reasonNetwork
			}
			told := s.events.of(name, reason)
			if len(told) == 0 || !strings.Contains(told[0], codeNoVeth+": ") || !strings.Contains(told[0], tc.told) {
				t.Errorf("told %q", told)
			}
			if tc.mode != "fails" {
				return
			}
			s.write(filepath.Join(s.dir, "mode."+tc.device), "")
			// The kubelet's next try need not wait for the agent's.
			ctr.Id += "-again"
			if _, err := s.createOf(pod, ctr); err != nil {
				t.Errorf("not created: %v", err)
			}
			s.until("launch times are taken", func() bool { return s.holder(name, "eth0") != 0 })
		})
	}
	// Without the program: its name, and what to do.
	if err := os.Remove(s.config.Network.Takt); err != nil {
		t.Fatal(err)
	}
	s.attach("missing", "eth0", "veth-m")
	if _, err := s.createOf(sensitivePod("missing", "takt.dev/path", "both")); err == nil || !strings.Contains(err.Error(), "network.takt") {
		t.Errorf("created: %v", err)
	}
}

// The program runs in the mount namespace of the host, which the agent in its container sees by a process of it.
func TestItIsAProgramOfTheHost(t *testing.T) {
	s := vethSite(t, "")
	s.stop()
	host := exec.Command("unshare", "--mount", "sleep", "infinity")
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Process.Kill(); _ = host.Wait() })
	namespaceOf := func(process string) string {
		name, _ := os.Readlink(filepath.Join("/proc", process, "ns/mnt"))
		return name
	}
	s.until("the host has a mount namespace of its own", func() bool {
		return namespaceOf(fmt.Sprint(host.Process.Pid)) != namespaceOf("self")
	})
	s.startAgent()
	s.agent.host = fmt.Sprintf("/proc/%d/root", host.Process.Pid)
	s.attach("pod", "eth0", "veth0")
	if _, err := s.createOf(sensitivePod("pod", "takt.dev/path", "both")); err != nil {
		t.Fatal(err)
	}
	process := s.holder("pod", "eth0")
	if of := namespaceOf(fmt.Sprint(process)); of != namespaceOf(fmt.Sprint(host.Process.Pid)) {
		t.Errorf("process %d is in %s", process, of)
	}
	if of := namespaceOf("self"); of == namespaceOf(fmt.Sprint(process)) {
		t.Error("the agent has gone with it")
	}
	// In no hierarchy it is the agent's: it would be charged to that, and end with it. It has bounds of its own.
	cgroups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", process))
	if err != nil {
		t.Fatal(err)
	}
	bounds := map[string]string{}
	for line := range strings.Lines(string(cgroups)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		directory, want, controllers := filepath.Join("/sys/fs/cgroup", parts[1]), "/", []string{parts[1]}
		switch parts[1] {
		case "":
			if directory, err = enforce.Unified("/"); err != nil {
				continue
			}
			want = "/takt-veth/pod.eth0"
			text, err := os.ReadFile(filepath.Join(directory, "takt-veth/cgroup.controllers"))
			if err != nil {
				t.Fatal(err)
			}
			controllers = strings.Fields(string(text))
		case "memory", "pids":
			want = "/takt-veth/pod.eth0"
		}
		if parts[2] != want {
			t.Errorf("in hierarchy %q it is in %s", parts[1], parts[2])
		}
		for name := range vethBounds {
			text, err := os.ReadFile(filepath.Join(directory, want, name))
			if controller, _, _ := strings.Cut(name, "."); err == nil && slices.Contains(controllers, controller) {
				bounds[controller] = strings.TrimSpace(string(text))
			}
		}
		for _, controller := range controllers {
			if want := map[string]string{"memory": "67108864", "pids": "32"}[controller]; bounds[controller] != want {
				t.Errorf("its bound of %s is %q", controller, bounds[controller])
			}
		}
	}
	s.agent.veths.forget("pod")
	for _, group := range vethGroups("/") {
		if _, err := os.Stat(filepath.Join(group, "pod.eth0")); err == nil {
			t.Errorf("%s/pod.eth0 is left", group)
		}
		if err := os.Mkdir(filepath.Join(group, "gone.eth0"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.agent.veths.keep(context.Background(), nil)
	for _, group := range vethGroups("/") {
		if left := groupsIn(group); slices.Contains(left, "gone.eth0") {
			t.Errorf("%s has %q", group, left)
		}
	}
}

// talk sends 20 datagrams with launch times by system calls of its own, as programs in Go do, without any privilege: nothing
// can be preloaded.
func talk(to string) error {
	const lead, gap = 1_000_000_000, 5_000_000
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	clock := [8]byte{}
	binary.NativeEndian.PutUint32(clock[:], unix.CLOCK_MONOTONIC)
	if err := unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_TXTIME, string(clock[:])); err != nil {
		return err
	}
	var monotonic, tai unix.Timespec
	if err := errors.Join(unix.ClockGettime(unix.CLOCK_MONOTONIC, &monotonic), unix.ClockGettime(unix.CLOCK_TAI, &tai)); err != nil {
		return err
	}
	address := netip.MustParseAddr(to).As4()
	for number := range int64(20) {
		launch := monotonic.Nano() + lead + number*gap
		control := make([]byte, unix.CmsgSpace(8))
		header := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
		header.Level, header.Type = unix.SOL_SOCKET, unix.SCM_TXTIME
		header.SetLen(unix.CmsgLen(8))
		binary.NativeEndian.PutUint64(control[unix.CmsgLen(0):], uint64(launch))
		payload := binary.NativeEndian.AppendUint64(nil, uint64(launch-monotonic.Nano()+tai.Nano()))
		if err := unix.Sendmsg(fd, payload, control, &unix.SockaddrInet4{Port: 5001, Addr: address}, 0); err != nil {
			return err
		}
	}
	return nil
}

func addressOf(bytes []byte) uintptr { return uintptr(unsafe.Pointer(&bytes[0])) }

// built are programs of this repository; the test is skipped where they are not.
func built(t *testing.T, names ...string) (paths []string) {
	t.Helper()
	directory := os.Getenv("TAKT_BUILT")
	if directory == "" {
		directory = "../../../target/debug"
	}
	for _, name := range names {
		path, err := filepath.Abs(filepath.Join(directory, name))
		if err == nil {
			_, err = os.Stat(path)
		}
		if err != nil {
			t.Skipf("there is no %s, run `make build` first: %v", name, err)
		}
		paths = append(paths, path)
	}
	return paths
}

// inNamespace runs a function whose sockets are of a network namespace.
func inNamespace(t *testing.T, name string, do func() error) {
	t.Helper()
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends
		at, err := netns.GetFromName(name)
		if err == nil {
			err = netns.Set(at)
		}
		if err == nil {
			err = do()
		}
		failed <- err
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}

func ip(t *testing.T, arguments string) {
	t.Helper()
	if out, err := exec.Command("ip", strings.Fields(arguments)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", arguments, err, out)
	}
}

// The whole way: a program in Go, in a pod without privileges, with the real programs.
func TestAProgramThatCannotBePreloadedHasItsLaunchTimesKept(t *testing.T) {
	programs := built(t, "takt", "taktd")
	s := vethSite(t, "")
	s.stop()
	names := map[string]string{}
	for _, of := range []string{"node", "pod", "far"} {
		name := fmt.Sprintf("takt-veth-%s-%d", of, os.Getpid())
		ip(t, "netns add "+name)
		t.Cleanup(func() { ip(t, "netns del "+name) })
		ip(t, "-n "+name+" link set lo up")
		names[of] = name
	}
	for _, command := range []string{
		"-n NODE link add up0 type veth peer name up0 netns FAR",
		"-n NODE address add 192.168.7.1/24 dev up0", "-n FAR address add 192.168.7.2/24 dev up0",
		"-n NODE link set up0 up", "-n FAR link set up0 up",
		"-n NODE link add veth0 type veth peer name eth0 address 02:00:00:00:00:07 netns POD",
		"-n NODE link set veth0 up", "-n POD link set eth0 up", "-n POD address add 10.88.1.7/16 dev eth0",
		"-n POD neighbour add 10.88.2.7 lladdr 02:00:00:00:00:08 dev eth0 nud permanent",
	} {
		ip(t, strings.NewReplacer("NODE", names["node"], "POD", names["pod"], "FAR", names["far"]).Replace(command))
	}
	s.attach("pod", "eth0", "veth0")
	socket := filepath.Join(s.config.Network.Sockets, "pod/eth0/takt.sock")
	s.config.Network.AdminSocket = filepath.Join(s.dir, "admin.sock")
	s.write(filepath.Join(s.dir, "takt.toml"), fmt.Sprintf(`
[node]
name = "node"
[security]
protection = "none"
[admin]
socket = %q
[departure]
tolerance_us = 1000000
[[network]]
name = "pods"
carrier = "vxlan:1"
stations = [{ mac = "02:00:00:00:00:08", vtep = "192.168.7.2", addresses = ["10.88.2.7"] }]
[[listener]]
path = %q
identity = "default/pod/eth0"
mode = "0666"
[listener.endpoint]
network = "pods"
mac = "02:00:00:00:00:07"
addresses = ["10.88.1.7/16"]
`, s.config.Network.AdminSocket, socket))
	daemon := exec.Command("ip", "netns", "exec", names["node"], programs[1], "--config", filepath.Join(s.dir, "takt.toml"))
	daemon.Env = append(os.Environ(), "TAKT_SOCKET="+filepath.Join(s.dir, "takt.sock"))
	said := &bytes.Buffer{}
	daemon.Stdout, daemon.Stderr = said, said
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
		if t.Failed() {
			t.Log(said)
		}
	})
	s.until("taktd has the pod's socket", func() bool { _, err := os.Stat(socket); return err == nil })
	s.write(s.config.Network.Takt, fmt.Sprintf("#!/bin/sh\nexec ip netns exec %s %s \"$@\"\n", names["node"], programs[0]))
	s.startAgent()
	began := time.Now()
	if _, err := s.createOf(sensitivePod("pod", "takt.dev/preload", "required")); err != nil {
		t.Fatal(err)
	}
	t.Logf("the container was created within %v", time.Since(began))
	var far int
	inNamespace(t, names["far"], func() (err error) {
		if far, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0); err != nil {
			return err
		}
		if err := unix.SetsockoptTimeval(far, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60}); err != nil {
			return err
		}
		return unix.Bind(far, &unix.SockaddrInet4{Port: 4789})
	})
	defer unix.Close(far)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	talker := exec.Command("ip", "netns", "exec", names["pod"], "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--bounding-set=-all", "--no-new-privs", self)
	talker.Env = []string{"TAKT_TEST_PROGRAM=talk", "TAKT_TEST_TO=10.88.2.7", "PATH=" + os.Getenv("PATH")}
	if out, err := talker.CombinedOutput(); err != nil {
		t.Fatalf("the talker: %v: %s", err, out)
	}
	const headers = 8 + 14 + 20 + 8 // of VXLAN, Ethernet, IPv4, UDP
	for number := range 20 {
		frame := make([]byte, 2048)
		read, _, err := unix.Recvfrom(far, frame, 0)
		for err == unix.EINTR {
			// Go's own signals: with a timeout the call does not begin again by itself.
			read, _, err = unix.Recvfrom(far, frame, 0)
		}
		if err != nil || read != headers+8 {
			t.Fatalf("datagram %d: %v, %d octets", number, err, read)
		}
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_TAI, &now); err != nil {
			t.Fatal(err)
		}
		if launch := int64(binary.NativeEndian.Uint64(frame[headers:])); now.Nano() < launch {
			t.Errorf("datagram %d came %d ns before its launch time", number, launch-now.Nano())
		}
	}
	told := s.agent.podsNow(context.Background())
	if told.Networks == nil || len(told.Networks.Attached) != 1 || told.Networks.Problem != "" {
		t.Fatalf("told %+v", told.Networks)
	}
	of := told.Networks.Attached[0]
	if of.Pod != "pod" || of.Veth == nil || !of.Veth.Taking || !of.Veth.Required || of.Veth.Device != "veth0" || of.Programs != 0 {
		t.Errorf("told %+v, %+v", of, of.Veth)
	}
}

// In either place where the unified hierarchy is mounted, by the name that the host has for it.
func TestThePodsCgroupIsFoundWhereTheHostHasIt(t *testing.T) {
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		root, pod := t.TempDir(), "/kubepods.slice/kubepods-pod1.slice"
		if err := os.MkdirAll(filepath.Join(root, mount, pod), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"cgroup.controllers", pod + "/cgroup.procs"} {
			if err := os.WriteFile(filepath.Join(root, mount, file), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		wish := vethWish{Device: "veth0", Socket: "s", Cgroup: podCgroup(root, pod)}
		if got := strings.Join(wish.arguments(), " "); got != "veth attach --device veth0 --socket s --cgroup "+mount+pod {
			t.Errorf("takt %s", got)
		}
		for _, none := range []string{"", "/kubepods.slice/other"} {
			if found := podCgroup(root, none); found != "" {
				t.Errorf("%q has %s", none, found)
			}
		}
	}
	if found := podCgroup(t.TempDir(), "/"); found != "" {
		t.Errorf("without the hierarchy: %s", found)
	}
}
