package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/enforce"
	"github.com/takt-dev/takt/kubernetes/internal/gate"
)

// newNetworkSite is a site whose agent preloads programs of attached pods.
func newNetworkSite(t *testing.T) *site {
	t.Helper()
	s := newSite(t)
	s.stop()
	s.config.Network = &NetworkConfig{Sockets: filepath.Join(s.dir, "cni"), Preload: s.library(), Path: PathPreload}
	if err := s.config.Network.validate(); err != nil {
		t.Fatal(err)
	}
	s.startAgent()
	return s
}

func TestAPodIsServedFromItsFirstContainerToItsEnd(t *testing.T) {
	s := newNetworkSite(t)
	s.known()
	s.attach("talker", "eth0", "")
	served := func() bool { _, is := s.agent.served.Load("talker"); return is }
	pod, ctr := sensitivePod("talker")
	if served() {
		t.Error("before it has a container")
	}
	if _, err := s.createOf(pod, ctr); err != nil || !served() {
		t.Errorf("created: %v, served: %v", err, served())
	}
	ctr.Mounts = []*api.Mount{{Source: filepath.Join(s.config.Network.Sockets, "talker"), Destination: containerSockets}}
	s.runs(pod, ctr)
	s.stop()
	s.startAgent()
	s.until("another agent knows it", served)
	if err := (&nriPlugin{n: s.agent}).StopPodSandbox(background, pod); err != nil || served() {
		t.Errorf("stopped: %v, served: %v", err, served())
	}
}

func TestContainersOfAttachedPodsGetTheirRuntime(t *testing.T) {
	s := newNetworkSite(t)
	s.known()
	for _, name := range []string{"chained/eth0", "both/eth0", "both/net1"} {
		if err := os.MkdirAll(filepath.Join(s.config.Network.Sockets, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sensitive := map[string]string{"takt.dev/time-sensitive": "true"}
	with := func(more ...string) map[string]string {
		all := map[string]string{"takt.dev/time-sensitive": "true"}
		for at := 0; at < len(more); at += 2 {
			all[more[at]] = more[at+1]
		}
		return all
	}
	preloaded := []string{"LD_PRELOAD=/run/takt/libtakt_preload.so", "TAKT_SOCKET=/run/takt/pod/eth0/takt.sock"}
	for name, tc := range map[string]struct {
		sandbox     string
		annotations map[string]string
		env         []string
		want        []string
		refused     string
	}{
		"time-sensitive":            {"chained", sensitive, nil, preloaded, ""},
		"required":                  {"chained", with("takt.dev/preload", "required"), nil, append(slices.Clone(preloaded), "TAKT_PRELOAD=required"), ""},
		"another container is not":  {"chained", with("takt.dev/preload.other", "off"), nil, preloaded, ""},
		"this container is not":     {"chained", with("takt.dev/preload", "required", "takt.dev/preload.main", "off"), nil, preloaded[1:], ""},
		"attached, not marked":      {"both", nil, nil, preloaded[1:], ""},
		"second interface":          {"both", with("takt.dev/interface", "net1"), nil, []string{preloaded[0], "TAKT_SOCKET=/run/takt/pod/net1/takt.sock"}, ""},
		"its own environment":       {"chained", sensitive, []string{"LD_PRELOAD=/a.so:/b.so", "TAKT_SOCKET=/x"}, []string{preloaded[0] + ":/a.so:/b.so"}, ""},
		"neither":                   {"none", nil, nil, nil, ""},
		"marked as not":             {"none", map[string]string{"takt.dev/time-sensitive": "false"}, nil, nil, ""},
		"marked, not attached":      {"none", sensitive, nil, nil, codeUnattached},
		"marked by another word":    {"chained", map[string]string{"takt.dev/time-sensitive": "yes"}, nil, nil, codeAnnotation},
		"preload by another word":   {"chained", with("takt.dev/preload", "true"), nil, nil, codeAnnotation},
		"a key that is not known":   {"chained", with("takt.dev/prelaod", "required"), nil, nil, codeAnnotation},
		"marked by another key":     {"none", map[string]string{"takt.dev/timesensitive": "true"}, nil, nil, codeAnnotation},
		"required, not attached":    {"none", map[string]string{"takt.dev/preload": "required"}, nil, nil, codeUnattached},
		"required of one container": {"none", map[string]string{"takt.dev/preload.other": "required"}, nil, nil, codeUnattached},
		"by the veth, not attached": {"none", map[string]string{"takt.dev/path": "veth"}, nil, nil, codeUnattached},
		"off, not attached":         {"none", map[string]string{"takt.dev/preload": "off"}, nil, nil, ""},
		"interface that is not one": {"chained", with("takt.dev/interface", "../eth0"), nil, nil, codeAnnotation},
	} {
		t.Run(name, func(t *testing.T) {
			created, err := s.runtime.CreateContainer(context.Background(), &adaptation.CreateContainerRequest{
				Pod:       &api.PodSandbox{Id: tc.sandbox, Namespace: "default", Name: name, Uid: name, Annotations: tc.annotations},
				Container: &api.Container{Id: name, PodSandboxId: tc.sandbox, Name: "main", Env: tc.env},
			})
			if tc.refused != "" {
				if told := s.events.of(name, reasonNetwork); err == nil || len(told) != 1 || !strings.HasPrefix(told[0], tc.refused+": ") {
					t.Errorf("%v, told %q", err, told)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var env, mounts []string
			for _, one := range created.GetAdjust().GetEnv() {
				env = append(env, one.Key+"="+one.Value)
			}
			for _, one := range created.GetAdjust().GetMounts() {
				if !slices.Contains(one.Options, "ro") || !slices.Contains(one.Options, "nosuid") {
					t.Errorf("mount %v may be changed", one)
				}
				mounts = append(mounts, one.Source+" "+one.Destination)
			}
			slices.Sort(env)
			slices.Sort(tc.want)
			var wanted []string
			if tc.sandbox != "none" {
				wanted = append(wanted, filepath.Join(s.config.Network.Sockets, tc.sandbox)+" /run/takt/pod")
			}
			if len(env) > 0 && strings.HasPrefix(env[0], "LD_PRELOAD=") {
				wanted = append(wanted, s.config.Network.Preload+" /run/takt/libtakt_preload.so")
			}
			if !slices.Equal(env, tc.want) || !slices.Equal(mounts, wanted) {
				t.Errorf("environment %q and mounts %q, and not %q and %q", env, mounts, tc.want, wanted)
			}
			// Where the kernel is not to be told of launch times, the gate sees whether the container runtime has set the policy: not here.
			strict := slices.Contains(env, "TAKT_PRELOAD=required")
			if hooks := created.GetAdjust().GetHooks().GetCreateRuntime(); (len(hooks) == 1 && hooks[0].Path == s.config.Gate) != strict {
				t.Errorf("hooks %v", hooks)
			}
			told := gate.Pass(strings.NewReader(fmt.Sprintf(`{"id":%q,"pid":1}`, name)), gateSocket(s.config.RunDirectory))
			if refused := told != nil && strings.Contains(told.Error(), codeNoSeccomp+": "); refused != strict {
				t.Errorf("the gate says %v", told)
			}
			if told := s.events.of(name, reasonNetwork); (len(told) == 1 && strings.HasPrefix(told[0], codeNoSeccomp+": ")) != strict {
				t.Errorf("the pod is told %q", told)
			}
		})
	}
	// Of a pod of the node's own network, which is without one of its own.
	for name, namespaces := range map[string][]string{"hostnetwork": {"ipc", "uts"}, "own-network": {"ipc", "uts", "network"}} {
		pod := &api.PodSandbox{Id: "none", Namespace: "default", Name: name, Uid: name, Annotations: sensitive, Linux: &api.LinuxPodSandbox{}}
		for _, kind := range namespaces {
			pod.Linux.Namespaces = append(pod.Linux.Namespaces, &api.LinuxNamespace{Type: kind})
		}
		_, err := s.runtime.CreateContainer(context.Background(), &adaptation.CreateContainerRequest{
			Pod: pod, Container: &api.Container{Id: name, PodSandboxId: "none", Name: "main"},
		})
		told := strings.Join(s.events.of(name, reasonNetwork), "\n")
		if err == nil || !strings.HasPrefix(told, codeUnattached+": ") || strings.Contains(told, "remove hostNetwork") == slices.Contains(namespaces, "network") ||
			strings.Contains(told, "put takt-cni into") != slices.Contains(namespaces, "network") {
			t.Errorf("%s: %v, told %q", name, err, told)
		}
	}
	s.stop()
	s.config.Network.Unattached = StartUnattached
	s.startAgent()
	_, err := s.runtime.CreateContainer(context.Background(), &adaptation.CreateContainerRequest{
		Pod:       &api.PodSandbox{Id: "none", Namespace: "default", Name: "started", Uid: "started", Annotations: sensitive},
		Container: &api.Container{Id: "started", PodSandboxId: "none", Name: "main"},
	})
	if told := s.events.of("started", reasonUnattached); err != nil || len(told) != 1 {
		t.Errorf("%v, told %q", err, told)
	}
}

// A backend that cannot be opened here.
type unopened struct{ enforce.Deadline }

func (unopened) Open() error { return errors.New("the kernel has no SCHED_DEADLINE") }

func TestAnAgentOfNetworksOnlyNeedsNoReservations(t *testing.T) {
	s := newSite(t)
	s.stop()
	s.config.Cores, s.backend = NoCores, unopened{}
	s.config.Network = &NetworkConfig{Sockets: filepath.Join(s.dir, "cni"), Preload: s.library(), Path: PathPreload}
	if err := s.config.Network.validate(); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(s.config.Network.Sockets, "pod/eth0"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.startAgent()
	created, err := s.runtime.CreateContainer(context.Background(), &adaptation.CreateContainerRequest{
		Pod:       &api.PodSandbox{Id: "pod", Namespace: "default", Name: "pod", Uid: "pod", Annotations: map[string]string{"takt.dev/time-sensitive": "true"}},
		Container: &api.Container{Id: "main", PodSandboxId: "pod", Name: "main"},
	})
	if err != nil || len(created.GetAdjust().GetMounts()) != 2 {
		t.Errorf("%v, %v", created, err)
	}
	s.until("no cores are published any more", func() bool {
		slices, err := s.client.ResourceV1().ResourceSlices().List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		devices := 0
		for _, slice := range slices.Items {
			if slice.Spec.Driver == reservation.Driver {
				devices += len(slice.Spec.Devices)
			}
		}
		return len(slices.Items) > 0 && devices == 0
	})
}

// What started while the agent was away is ended when it is back, where it would have been refused or given a runtime.
func TestAContainerThatStartedWithoutItsRuntimeIsEnded(t *testing.T) {
	s := newSite(t)
	s.stop()
	s.config.Network = &NetworkConfig{Sockets: filepath.Join(s.dir, "cni"), Preload: s.library(), Path: PathPreload}
	if err := s.config.Network.validate(); err != nil {
		t.Fatal(err)
	}
	sensitive := map[string]string{"takt.dev/time-sensitive": "true"}
	has := func(sandbox string) []*api.Mount {
		return []*api.Mount{{Source: filepath.Join(s.config.Network.Sockets, sandbox), Destination: containerSockets}}
	}
	cases := map[string]struct {
		attached    bool
		annotations map[string]string
		mounts      []*api.Mount
		code        string
		startsTold  bool
	}{
		"created-by-the-agent": {true, sensitive, has("created-by-the-agent"), "", false},
		"detached-since":       {false, sensitive, has("detached-since"), "", false},
		"with-its-own-mount":   {true, sensitive, []*api.Mount{{Source: "/anywhere", Destination: containerSockets}}, codeWithout, true},
		"not-time-sensitive":   {true, nil, nil, "", false},
		"without-its-runtime":  {true, sensitive, nil, codeWithout, true},
		"never-attached":       {false, sensitive, nil, codeWithout, false},
		"required":             {true, map[string]string{"takt.dev/preload": "required"}, nil, codeWithout, true},
		"by-a-key-unknown":     {true, map[string]string{"takt.dev/timesensitive": "true"}, nil, "", false},
		"by-a-word-unknown":    {true, map[string]string{"takt.dev/time-sensitive": "yes"}, nil, codeAnnotation, true},
	}
	run := func(unattached Unattached, check func(name string, refused, told []string)) {
		s.config.Network.Unattached = unattached
		s.events = &events{}
		var pods []*api.PodSandbox
		var containers []*api.Container
		programs := map[string]*exec.Cmd{}
		for name, tc := range cases {
			program := exec.Command("sleep", "infinity")
			if err := program.Start(); err != nil {
				t.Fatal(err)
			}
			programs[name] = program
			if tc.attached {
				if err := os.MkdirAll(filepath.Join(s.config.Network.Sockets, name, "eth0"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			pods = append(pods, &api.PodSandbox{Id: name, Namespace: "default", Name: name, Uid: name, Annotations: tc.annotations})
			containers = append(containers, &api.Container{
				Id: name, PodSandboxId: name, Name: "main", Pid: uint32(program.Process.Pid), Mounts: tc.mounts,
				State: api.ContainerState_CONTAINER_RUNNING,
			})
		}
		s.mu.Lock()
		s.pods, s.containers = pods, containers
		s.mu.Unlock()
		s.startAgent()
		for name, program := range programs {
			ended := func() bool {
				pid, err := syscall.Wait4(program.Process.Pid, nil, syscall.WNOHANG, nil)
				if err != nil {
					t.Fatal(err)
				}
				return pid != 0
			}
			refused := s.events.of(name, reasonNetwork)
			if len(refused) > 0 {
				s.until("a container that is to end has ended", ended)
			} else if ended() {
				t.Errorf("%s was ended, and nobody told", name)
			}
			check(name, refused, s.events.of(name, reasonUnattached))
			_ = program.Process.Kill()
			_ = program.Wait()
		}
		s.stop()
	}
	run(RefuseUnattached, func(name string, refused, told []string) {
		code := cases[name].code
		if len(told) > 0 || (len(refused) == 1) != (code != "") || code != "" && !strings.Contains(refused[0], code+": ") {
			t.Errorf("%s: refused %q, told %q", name, refused, told)
		}
	})
	run(StartUnattached, func(name string, refused, told []string) {
		if len(refused) > 0 || (len(told) == 1) != cases[name].startsTold {
			t.Errorf("%s: refused %q, told %q", name, refused, told)
		}
	})
}

// One that containerd has no process for yet cannot be ended: it is kept from its start.
func TestAContainerThatWasCreatedWithoutItsRuntimeDoesNotStart(t *testing.T) {
	s := networked(t)
	pod := &api.PodSandbox{Id: "pod", Namespace: "default", Name: "pod", Uid: "pod", Annotations: map[string]string{"takt.dev/time-sensitive": "true"}}
	other := &api.PodSandbox{Id: "other", Namespace: "default", Name: "other", Uid: "other"}
	unasked := &api.Container{Id: "unasked", PodSandboxId: "pod", Name: "main", State: api.ContainerState_CONTAINER_CREATED}
	asked := &api.Container{Id: "asked", PodSandboxId: "pod", Name: "main", State: api.ContainerState_CONTAINER_CREATED,
		Mounts: []*api.Mount{{Source: filepath.Join(s.config.Network.Sockets, "pod"), Destination: containerSockets}}}
	untimed := &api.Container{Id: "untimed", PodSandboxId: "other", Name: "main", State: api.ContainerState_CONTAINER_CREATED}
	s.mu.Lock()
	s.pods, s.containers = []*api.PodSandbox{pod, other}, []*api.Container{unasked, asked, untimed}
	s.mu.Unlock()
	start := func(pod *api.PodSandbox, ctr *api.Container) error {
		return s.runtime.StartContainer(background, &adaptation.StartContainerRequest{Pod: pod, Container: ctr})
	}
	s.startAgent()
	if err := start(pod, unasked); err == nil || !strings.Contains(err.Error(), codeWithout) {
		t.Errorf("one that no agent has seen: %v", err)
	}
	if told := s.events.of("pod", reasonNetwork); len(told) != 1 || !strings.HasPrefix(told[0], codeWithout+": ") || strings.Contains(told[0], "is ended") {
		t.Errorf("the pod is told %q", told)
	}
	created := &api.Container{Id: "created", PodSandboxId: "pod", Name: "main"}
	if _, err := s.createOf(pod, created); err != nil {
		t.Fatal(err)
	}
	for _, one := range []struct {
		pod *api.PodSandbox
		ctr *api.Container
	}{{pod, asked}, {other, untimed}, {pod, created}} {
		if err := start(one.pod, one.ctr); err != nil {
			t.Errorf("%s does not start: %v", one.ctr.Id, err)
		}
	}
	s.stop()
	s.config.Network.Unattached = StartUnattached
	s.startAgent()
	if err := start(pod, unasked); err != nil {
		t.Errorf("where it may: %v", err)
	}
}

// library is a preload on the host.
func (s *site) library() string {
	path := filepath.Join(s.dir, "libtakt_preload.so")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		s.t.Fatal(err)
	}
	return path
}

func TestAMissingPreloadIsRefusedByName(t *testing.T) {
	s := newSite(t)
	s.stop()
	// A link whose target is not there is as good as nothing; one that leads from the host's root to it is not.
	missing := filepath.Join(s.dir, "missing")
	s.config.Network = &NetworkConfig{Sockets: filepath.Join(s.dir, "cni"), Preload: filepath.Join(s.dir, "link"), Path: PathPreload}
	if err := s.config.Network.validate(); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(missing, s.config.Network.Preload); err != nil {
		t.Fatal(err)
	}
	s.startAgent()
	if err := os.MkdirAll(filepath.Join(s.config.Network.Sockets, "pod/eth0"), 0o755); err != nil {
		t.Fatal(err)
	}
	create := func(preload string) error {
		_, err := s.runtime.CreateContainer(context.Background(), &adaptation.CreateContainerRequest{
			Pod: &api.PodSandbox{Id: "pod", Namespace: "default", Name: "pod", Uid: "pod", Annotations: map[string]string{
				"takt.dev/time-sensitive": "true", "takt.dev/preload": preload,
			}},
			Container: &api.Container{Id: "pod-" + preload, PodSandboxId: "pod", Name: "main"},
		})
		return err
	}
	if err := create("on"); err == nil || !strings.Contains(err.Error(), codeNoPreload) {
		t.Errorf("the container is created without the preload: %v", err)
	}
	if told := s.events.of("pod", reasonNetwork); len(told) != 1 || !strings.Contains(told[0], codeNoPreload+": ") || !strings.Contains(told[0], "takt-preload") {
		t.Errorf("the pod is told %q", told)
	}
	if err := create("off"); err != nil {
		t.Errorf("one that does without is refused: %v", err)
	}
	if err := os.Mkdir(missing, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := create("on"); err != nil {
		t.Errorf("it is refused although the preload is there: %v", err)
	}
}

func TestContainersGetALibraryForEachLoader(t *testing.T) {
	s := newSite(t)
	s.stop()
	libraries := filepath.Join(s.dir, "takt-preload")
	if err := os.Mkdir(libraries, 0o755); err != nil {
		t.Fatal(err)
	}
	s.config.Network = &NetworkConfig{Sockets: filepath.Join(s.dir, "cni"), Preload: libraries, Path: PathPreload}
	if err := s.config.Network.validate(); err != nil {
		t.Fatal(err)
	}
	s.startAgent()
	if err := os.MkdirAll(filepath.Join(s.config.Network.Sockets, "alpine/eth0"), 0o755); err != nil {
		t.Fatal(err)
	}
	created, err := s.runtime.CreateContainer(context.Background(), &adaptation.CreateContainerRequest{
		Pod:       &api.PodSandbox{Id: "alpine", Namespace: "default", Name: "alpine", Uid: "alpine", Annotations: map[string]string{"takt.dev/time-sensitive": "true"}},
		Container: &api.Container{Id: "alpine", PodSandboxId: "alpine", Name: "main", Env: []string{"LD_PRELOAD=/a.so"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var preload string
	for _, one := range created.GetAdjust().GetEnv() {
		if one.Key == "LD_PRELOAD" {
			preload = one.Value
		}
	}
	if preload != "/run/takt/takt-preload/$LIB/libtakt_preload.so:/a.so" {
		t.Errorf("LD_PRELOAD is %q", preload)
	}
	mounted := slices.ContainsFunc(created.GetAdjust().GetMounts(), func(one *api.Mount) bool {
		return one.Source == libraries && one.Destination == "/run/takt/takt-preload" && slices.Contains(one.Options, "ro")
	})
	if !mounted {
		t.Errorf("mounts are %v", created.GetAdjust().GetMounts())
	}
}

func TestTheNetworkOfAConfigurationIsChecked(t *testing.T) {
	for text, want := range map[string]string{
		"cores: all\nnetwork: {preload: /l.so}":                                       "",
		"cores: none\nnetwork: {preload: /l.so}":                                      "",
		"cores: none":                                                                 "nothing is left to serve",
		"cores: all\nnetwork: {}":                                                     "network.preload",
		"cores: all\nnetwork: {preload: /l.so, sockets: run}":                         "network.sockets",
		"cores: all\nnetwork: {preload: /l.so, unattached: perhaps}":                  "network.unattached",
		"cores: all\nnetwork: {preload: /l.so, path: bridge}":                         "network.path",
		"cores: all\nnetwork: {preload: /l.so, takt: takt}":                           "network.takt",
		"cores: all\nnetwork: {preload: /l.so, otherTraffic: runtime}":                "",
		"cores: all\nnetwork: {preload: /l.so, otherTraffic: both}":                   "network.otherTraffic",
		"cores: all\nnetwork: {preload: /l.so, otherTraffic: runtime, path: preload}": "network.path is preload",
		"cores: all\nnetwork: {preload: /l.so, peers: true}":                          "network.objects",
		"cores: all\nnetwork: {preload: /l.so, sockts: /run/takt/cni}":                "sockts",
	} {
		file := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		config, err := LoadConfig(file)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
		if err == nil && (config.Network.Sockets != "/run/takt/cni" || config.Network.Unattached != RefuseUnattached || config.Network.Path != PathBoth) {
			t.Errorf("%+v", config.Network)
		}
	}
}

func TestContainersThatAskForItGetTheNodesLibrary(t *testing.T) {
	s := networked(t)
	s.known()
	s.config.Network.Library = filepath.Join(s.dir, "libtakt.so.0")
	s.startAgent()
	create := func(id string, env []string, annotations map[string]string) ([]string, []string, error) {
		made, err := s.createOf(&api.PodSandbox{Id: "pod", Namespace: "default", Name: "pod", Uid: "pod", Annotations: annotations},
			&api.Container{Id: id, PodSandboxId: "pod", Name: "main", Env: env})
		var variables, mounts []string
		for _, one := range made.GetEnv() {
			if one.GetKey() == "LD_LIBRARY_PATH" {
				variables = append(variables, one.GetValue())
			}
		}
		for _, one := range made.GetMounts() {
			if one.GetDestination() == containerLibrary {
				mounts = append(mounts, one.GetSource())
			}
		}
		return variables, mounts, err
	}
	on := map[string]string{"takt.dev/library": "on"}
	if _, _, err := create("missing", nil, on); err == nil || !strings.Contains(err.Error(), codeNoLibrary) {
		t.Errorf("without a library: %v", err)
	}
	if err := os.WriteFile(s.config.Network.Library, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		env         []string
		annotations map[string]string
		path        string
	}{
		"asked":            {nil, on, "/run/takt/lib"},
		"with-its-own":     {[]string{"LD_LIBRARY_PATH=/a:/b"}, on, "/run/takt/lib:/a:/b"},
		"not-asked":        {nil, map[string]string{"takt.dev/time-sensitive": "true"}, ""},
		"not-this":         {nil, map[string]string{"takt.dev/library": "on", "takt.dev/library.main": "off"}, ""},
		"this-alone":       {nil, map[string]string{"takt.dev/library.main": "on"}, "/run/takt/lib"},
		"another-is-asked": {nil, map[string]string{"takt.dev/library.other": "on"}, ""},
	} {
		variables, mounts, err := create(name, tc.env, tc.annotations)
		if err != nil || (tc.path != "") != slices.Equal(mounts, []string{s.config.Network.Library}) || strings.Join(variables, " ") != tc.path {
			t.Errorf("%s: %q, %q, %v", name, variables, mounts, err)
		}
	}
	if _, _, err := create("a word", nil, map[string]string{"takt.dev/library": "true"}); err == nil || !strings.Contains(err.Error(), codeAnnotation) {
		t.Errorf("another word: %v", err)
	}
}

func TestAnAgentWithoutNetworksSaysSoToPodsThatNeedThem(t *testing.T) {
	s := newSite(t)
	create := func(name string, more ...string) (told, refused []string) {
		t.Helper()
		pod, ctr := sensitivePod(name, more...)
		_, err := s.createOf(pod, ctr)
		told, refused = s.events.of(name, reasonUnattached), s.events.of(name, reasonNetwork)
		if (err != nil) != (len(refused) > 0) {
			t.Errorf("%s: %v, told %q", name, err, refused)
		}
		return told, refused
	}
	for name, more := range map[string][]string{"talker": nil, "preloaded": {"takt.dev/path", "preload"}} {
		if told, refused := create(name, more...); len(refused) > 0 || len(told) != 1 || !strings.Contains(told[0], "main starts without launch times: this node's takt-node serves no networks: set network.enabled=true") {
			t.Errorf("%s: told %q, refused %q", name, told, refused)
		}
	}
	for _, more := range [][]string{{"takt.dev/preload", "required"}, {"takt.dev/path", "veth"}, {"takt.dev/other-traffic", "runtime"}} {
		if _, refused := create(more[1], more...); len(refused) != 1 || !strings.HasPrefix(refused[0], codeUnattached+": ") || !strings.Contains(refused[0], "network.enabled=true") {
			t.Errorf("%q: refused %q", more, refused)
		}
	}
	pod, ctr := sensitivePod("another")
	pod.Annotations = nil
	if _, err := s.createOf(pod, ctr); err != nil || len(s.events.of("another", reasonUnattached)) > 0 {
		t.Errorf("a pod without annotations: %v", err)
	}
	running, _ := sensitivePod("runs", "takt.dev/preload", "required")
	s.mu.Lock()
	s.pods = append(s.pods, running)
	s.mu.Unlock()
	gates, err := reservation.DecodeGateTime([]byte(frameOfPods))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.agent.records.writeGate(&gateClaim{Claim: "gate", Pod: Pod{Namespace: "default", Name: "gated"}, Requests: []gateRequest{{Name: "gate", Device: Device{Name: "tsn"}, Parameters: *gates}}}); err != nil {
		t.Fatal(err)
	}
	s.stop()
	s.startAgent()
	s.untilConnected()
	if told := s.events.of("runs", reasonUnattached); len(told) != 1 || !strings.Contains(told[0], "nobody sees to the pod's launch times") {
		t.Errorf("a pod that runs was told %q", told)
	}
	if err := s.agent.ready(); err == nil || !strings.Contains(err.Error(), "network.enabled=true of the chart, and delete default/gated") {
		t.Errorf("with a claim for gate time: %v", err)
	}

	// Another agent of the node may serve them.
	other, err := net.Listen("unix", filepath.Join(s.config.KubeletRegistry, "network.takt.dev-reg.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if told, refused := create("others", "takt.dev/preload", "required"); len(told)+len(refused) > 0 {
		t.Errorf("with another agent: told %q, refused %q", told, refused)
	}
	if err := s.agent.ready(); err != nil && strings.Contains(err.Error(), "default/gated") {
		t.Errorf("with another agent: %v", err)
	}
}

// The kubelet tries again for as long as the pod is there, and each time what is said is kept: in events, statuses and logs.
func TestWhatAPodSaysIsToldInBounds(t *testing.T) {
	s := newNetworkSite(t)
	if err := os.MkdirAll(filepath.Join(s.config.Network.Sockets, "pod/eth0"), 0o755); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("\x01", 250_000)
	cases := map[string]struct {
		annotation, env, remedy, reason string
	}{
		"time-sensitive":  {"takt.dev/time-sensitive", "", `write "true" or "false"`, reasonNetwork},
		"path":            {"takt.dev/path", "", `write "preload", "veth" or "both"`, reasonNetwork},
		"preload":         {"takt.dev/preload", "", `write "on", "required" or "off"`, reasonNetwork},
		"library":         {"takt.dev/library.main", "", `write "on" or "off"`, reasonNetwork},
		"class":           {"takt.dev/class", "", "write a traffic class from 0 to 7", reasonNetwork},
		"other-traffic":   {"takt.dev/other-traffic", "", `write "kernel" or "runtime"`, reasonNetwork},
		"interface":       {"takt.dev/interface", "", "a network has attached eth0: write one of these", reasonNetwork},
		"gate-time":       {"", gateVariable + "X=", "leave them out of the container", reasonNetwork},
		"claim-of-gates":  {"", gateVariable + "X=a/", "is not prepared on this node", reasonNetwork},
		"reservation":     {"", grantVariable + "X=", "leave them out of the container", reasonRefused},
		"claim-of-a-core": {"", grantVariable + "X=a/", "is not prepared on this node", reasonRefused},
	}
	for name, tc := range cases {
		annotations := map[string]string{"takt.dev/time-sensitive": "true"}
		var env []string
		if tc.annotation != "" {
			annotations[tc.annotation] = long
		} else if key, found := strings.CutSuffix(tc.env, "a/"); found {
			env = []string{key + strings.Repeat("u", 250_000) + "/x"}
		} else {
			env = []string{tc.env + long}
		}
		_, err := s.runtime.CreateContainer(context.Background(), &adaptation.CreateContainerRequest{
			Pod:       &api.PodSandbox{Id: "pod", Namespace: "default", Name: name, Uid: name, Annotations: annotations},
			Container: &api.Container{Id: name, PodSandboxId: "pod", Name: "main", Env: env},
		})
		if err == nil || len(err.Error()) > 1500 || !strings.Contains(err.Error(), tc.remedy) {
			t.Errorf("%s: the runtime is told %.2000v", name, err)
		}
		if told := s.events.of(name, tc.reason); len(told) != 1 || len(told[0]) > 1024 || strings.HasPrefix(told[0], codeAgent) || !strings.Contains(told[0], tc.remedy) {
			t.Errorf("%s: the pod is told %.2000q", name, told)
		}
	}
	s.agent.event(Pod{Name: "any"}, "Normal", "Any", "%s", long)
	if told := s.events.of("any", "Any"); len(told) != 1 || len(told[0]) > 1024 {
		t.Errorf("an event is of %d bytes", len(told[0]))
	}
	if said := denied("Any", errors.New(long)).message; len(said) > 1024 {
		t.Errorf("a condition is of %d bytes", len(said))
	}
}

// What a tenant writes wakes no administrator; what the node lacks does.
func TestWhatAPodAsksForInVainIsNoFailureOfTheNode(t *testing.T) {
	s := newNetworkSite(t)
	if err := os.MkdirAll(filepath.Join(s.config.Network.Sockets, "pod/eth0"), 0o755); err != nil {
		t.Fatal(err)
	}
	refused := func(name string, sandbox *api.PodSandbox) {
		t.Helper()
		sandbox.Namespace, sandbox.Name, sandbox.Uid = "default", name, name
		if _, err := s.createOf(sandbox, &api.Container{Id: name, PodSandboxId: sandbox.Id, Name: "main"}); err == nil {
			t.Errorf("%s is not refused", name)
		}
	}
	create := func(name, value string) {
		t.Helper()
		refused(name, &api.PodSandbox{Id: "pod", Annotations: map[string]string{"takt.dev/time-sensitive": value}})
	}
	counted := func(lines ...string) {
		t.Helper()
		page := httptest.NewRecorder()
		s.agent.metrics.handler().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		for _, line := range lines {
			if !strings.Contains(page.Body.String(), "\n"+line+"\n") {
				t.Errorf("%s is not counted", line)
			}
		}
	}
	create("by-another-word", "yes")
	counted(`takt_node_failures_total{where="create"} 0`, `takt_node_refusals_total{code="InvalidAnnotation",where="create"} 1`)
	if err := os.RemoveAll(s.config.Network.Preload); err != nil {
		t.Fatal(err)
	}
	create("without-its-preload", "true")
	counted(`takt_node_failures_total{where="create"} 1`, `takt_node_refusals_total{code="InvalidAnnotation",where="create"} 1`)
	// A pod that is not attached has asked for launch times by another word, or its node has lost takt-cni.
	refused("by-required-alone", &api.PodSandbox{Id: "unattached", Annotations: map[string]string{"takt.dev/preload": "required"}})
	counted(`takt_node_failures_total{where="create"} 1`, `takt_node_refusals_total{code="NotAttached",where="create"} 1`)
	refused("not-attached", &api.PodSandbox{Id: "unattached", Annotations: map[string]string{"takt.dev/time-sensitive": "true"}})
	counted(`takt_node_failures_total{where="create"} 2`, `takt_node_refusals_total{code="NotAttached",where="create"} 1`)
}
