package node

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/takt-dev/takt/kubernetes/internal/sched"
	"github.com/takt-dev/takt/kubernetes/internal/topology"
)

func (s *site) cpus() []int {
	s.t.Helper()
	cpus, err := topology.RootDomain("/")
	if err != nil {
		s.t.Fatal(err)
	}
	if len(cpus) < 2 {
		s.t.Skip("needs two CPUs")
	}
	return cpus
}

// confine puts the container into a cpuset of one CPU, as the static CPU manager does (cgroup v1).
func (b *box) confine() {
	t := b.s.t
	t.Helper()
	b.s.cpus()
	const root = "/sys/fs/cgroup/cpuset"
	dir := filepath.Join(root, "takt-test-"+b.ctr.Id)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("needs cpusets of cgroup v1: %v", err)
	}
	t.Cleanup(func() { b.kill(); os.Remove(dir) })
	mems, err := os.ReadFile(root + "/cpuset.mems")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range [][2]string{{"cpuset.cpus", "0"}, {"cpuset.mems", string(mems)}, {"cgroup.procs", strconv.Itoa(b.cmd.Process.Pid)}} {
		if err := os.WriteFile(filepath.Join(dir, file[0]), []byte(file[1]), 0); err != nil {
			t.Fatal(err)
		}
	}
}

// reserved is a container that runs under its reservation.
func (s *site) reserved(pod, program string) *box {
	s.t.Helper()
	response := s.prepare(s.claim("claim", plain, nil))
	if response.Error != "" {
		s.t.Fatal(response.Error)
	}
	return s.mustCreate(pod, "main", program, s.injected(response.Devices[0].CdiDeviceIds).Process.Env)
}

func TestAPodWithCPUsOfItsOwnDoesNotConfineAReservation(t *testing.T) {
	s := newSite(t)
	cpus := s.cpus()
	b := s.reserved("pod", "idle")
	if err := b.gate(); err != nil {
		t.Fatal(err)
	}
	confined := &api.LinuxResources{Cpu: &api.LinuxCPU{Cpus: "0"}}
	response, err := s.runtime.UpdateContainer(context.Background(), &adaptation.UpdateContainerRequest{Pod: b.pod, Container: b.ctr, LinuxResources: confined})
	if err != nil {
		t.Fatal(err)
	}
	if got := response.Update[len(response.Update)-1].GetLinux().GetResources().GetCpu().GetCpus(); got != topology.FormatCPUList(cpus) {
		t.Errorf("the container is confined to CPUs %q", got)
	}
	if told := s.events.of("pod", reasonNarrowed); len(told) != 1 || !strings.Contains(told[0], "confined to CPUs 0") {
		t.Errorf("the pod is told %q", told)
	}
	// A change of something else is let through.
	other := &api.LinuxResources{Cpu: &api.LinuxCPU{Shares: api.UInt64(100)}}
	if _, err := s.runtime.UpdateContainer(context.Background(), &adaptation.UpdateContainerRequest{Pod: b.pod, Container: b.ctr, LinuxResources: other}); err != nil {
		t.Fatal(err)
	}
	if told := s.events.of("pod", reasonNarrowed); len(told) != 1 {
		t.Errorf("the pod is told %q", told)
	}
}

func TestAContainerThatComesAfterAPodWithCPUsOfItsOwnIsNotConfinedEither(t *testing.T) {
	s := newSite(t)
	cpus := s.cpus()
	response := s.prepare(s.claim("claim", plain, nil))
	if response.Error != "" {
		t.Fatal(response.Error)
	}
	create := func(env []string, on string) string {
		created, err := s.runtime.CreateContainer(context.Background(), &adaptation.CreateContainerRequest{
			Pod: &api.PodSandbox{Id: "pod-sandbox", Namespace: "default", Name: "pod", Uid: "pod-uid"},
			Container: &api.Container{
				Id: "late-" + on, PodSandboxId: "pod-sandbox", Name: "main", Env: env, State: api.ContainerState_CONTAINER_CREATED,
				Linux: &api.LinuxContainer{Resources: &api.LinuxResources{Cpu: &api.LinuxCPU{Cpus: on}}},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		return created.GetAdjust().GetLinux().GetResources().GetCpu().GetCpus()
	}
	env := s.injected(response.Devices[0].CdiDeviceIds).Process.Env
	if got := create(env, "0"); got != topology.FormatCPUList(cpus) {
		t.Errorf("it may run on CPUs %q", got)
	}
	if told := s.events.of("pod", reasonNarrowed); len(told) != 1 || !strings.Contains(told[0], "confined to CPUs 0") {
		t.Errorf("the pod is told %q", told)
	}
	if got := create(env, topology.FormatCPUList(cpus)); got != "" {
		t.Errorf("one that is not confined is put on CPUs %q", got)
	}
	if got := create(nil, "0"); got != "" {
		t.Errorf("one without a claim is put on CPUs %q", got)
	}
}

func TestAThreadThatPinsItselfRunsUnderItsReservationAndItsPodIsTold(t *testing.T) {
	s := newSite(t)
	s.cpus()
	b := s.reserved("pod", "idle")
	if err := sched.Unpin(b.cmd.Process.Pid, []int{0}); err != nil {
		t.Fatal(err)
	}
	if err := b.gate(); err != nil {
		t.Fatal(err)
	}
	if got := b.policy(); got != reserved {
		t.Errorf("the container has %+v", got)
	}
	if told := s.events.of("pod", reasonUnpinned); len(told) != 1 || !strings.Contains(told[0], "deadline-partition") {
		t.Errorf("the pod is told %q", told)
	}
}

// headless is a container that runs on after its main thread has ended.
func (s *site) headless() *box {
	s.t.Helper()
	b := s.reserved("pod", "leave")
	if err := b.gate(); err != nil {
		s.t.Fatal(err)
	}
	if err := b.start(); err != nil {
		s.t.Fatal(err)
	}
	if _, err := b.in.Write([]byte("go\n")); err != nil {
		s.t.Fatal(err)
	}
	return b
}

func TestAContainerWithoutItsMainThreadEndsWithItsPod(t *testing.T) {
	for name, end := range map[string]func(*site, *corev1.Pod) error{
		"deleted": func(s *site, pod *corev1.Pod) error {
			return s.client.CoreV1().Pods("default").Delete(context.Background(), pod.Name, metav1.DeleteOptions{})
		},
		"its grace is over": func(s *site, pod *corev1.Pod) error {
			pod.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(-time.Second)}
			return s.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, "default")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.podOf("claim", "100m", nil)
			b := s.headless()
			first, err := sched.ReadProcess(b.cmd.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			s.until("its main thread has ended", first.Headless)
			pod, err := s.client.CoreV1().Pods("default").Get(context.Background(), "pod", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if err := end(s, pod); err != nil {
				t.Fatal(err)
			}
			s.until("the rest of it has ended", func() bool { return len(sched.Threads(b.cmd.Process.Pid)) == 0 })
		})
	}
}

func TestAContainerWithoutItsMainThreadIsNotTakenForEnded(t *testing.T) {
	s := newSite(t)
	s.podOf("claim", "100m", nil)
	b := s.headless()
	holder := func() (tid int) {
		c := s.agent.containers[b.ctr.Id]
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.running() {
			t.Fatal("the container is taken for ended")
		}
		if threads := c.tallies[0].state.Threads; len(threads) == 1 {
			tid = threads[0].TID
		}
		return tid
	}
	s.until("a worker has the reservation", func() bool { tid := holder(); return tid != 0 && tid != b.cmd.Process.Pid })
	attr, err := sched.Get(holder())
	if err != nil || attr != reserved {
		t.Errorf("the worker has %+v, %v", attr, err)
	}
	b.remove()
	s.until("its end is noticed", func() bool {
		s.agent.mu.Lock()
		defer s.agent.mu.Unlock()
		return len(s.agent.holders) == 0
	})
}
