package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/enforce"
	"github.com/takt-dev/takt/kubernetes/internal/report"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

// ready prepares a claim and returns the environment of its container.
func (s *site) ready(claim *resourceapi.ResourceClaim) []string {
	s.t.Helper()
	response := s.prepare(claim)
	if response.Error != "" {
		s.t.Fatal(response.Error)
	}
	return s.injected(response.Devices[0].CdiDeviceIds).Process.Env
}

func (s *site) mustCreate(pod, name, program string, env []string) *box {
	s.t.Helper()
	b, err := s.create(pod, name, program, env)
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

func (b *box) policy() sched.Attr {
	b.s.t.Helper()
	attr, err := sched.Get(b.cmd.Process.Pid)
	if err != nil {
		b.s.t.Fatal(err)
	}
	return attr
}

func (b *box) dead() bool {
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(b.cmd.Process.Pid, &status, syscall.WNOHANG, nil)
	return pid == b.cmd.Process.Pid || errors.Is(err, syscall.ECHILD)
}

// deviceStatus is what the claim says of its first device.
func (s *site) deviceStatus(claim string) (metav1.Condition, DeviceData) {
	s.t.Helper()
	got, err := s.client.ResourceV1().ResourceClaims("default").Get(context.Background(), claim, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	if len(got.Status.Devices) == 0 || len(got.Status.Devices[0].Conditions) == 0 {
		return metav1.Condition{}, DeviceData{}
	}
	var data DeviceData
	if err := json.Unmarshal(got.Status.Devices[0].Data.Raw, &data); err != nil {
		s.t.Fatal(err)
	}
	return got.Status.Devices[0].Conditions[0], data
}

// page is what the agent says of its metrics.
func (s *site) page() string {
	page := httptest.NewRecorder()
	promhttp.HandlerFor(s.agent.metrics.registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return page.Body.String()
}

var reserved = sched.Attr{Policy: sched.Deadline, Flags: sched.ResetOnFork, Runtime: 2_000_000, Deadline: 20_000_000, Period: 20_000_000}

func TestAPodWithAClaimRunsUnderItsReservationAndLeavesNothing(t *testing.T) {
	s := newSite(t)
	s.until("the cores are published", func() bool {
		list, err := s.client.ResourceV1().ResourceSlices().List(context.Background(), metav1.ListOptions{})
		return err == nil && len(list.Items) == 1 && len(list.Items[0].Spec.Devices) == len(s.agent.offer.CPUs)
	})
	claim := s.claim("claim", plain, nil)
	response := s.prepare(claim)
	if response.Error != "" {
		t.Fatal(response.Error)
	}
	if again := s.prepare(claim); again.Error != "" || len(again.Devices) != len(response.Devices) {
		t.Errorf("prepared again: %v", again)
	}
	device := response.Devices[0]
	if device.ShareId == nil || device.PoolName != nodeName || len(device.RequestNames) != 1 || device.RequestNames[0] != "cpu" {
		t.Errorf("device is %v", device)
	}
	spec := s.injected(device.CdiDeviceIds)
	if len(spec.Hooks.CreateRuntime) != 1 || spec.Hooks.CreateRuntime[0].Path != s.config.Gate {
		t.Errorf("hooks are %+v", spec.Hooks)
	}
	b := s.mustCreate("pod", "main", "idle", spec.Process.Env)
	if got := b.policy(); got.Policy != sched.Other {
		t.Errorf("before the gate the container has %+v", got)
	}
	if err := b.gate(); err != nil {
		t.Fatal(err)
	}
	if got := b.policy(); got != reserved {
		t.Errorf("after the gate the container has %+v", got)
	}
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	s.until("the claim's status says so", func() bool {
		condition, data := s.deviceStatus("claim")
		return condition.Status == metav1.ConditionTrue && condition.Reason == reasonReserved && data.Backend == "deadline" &&
			data.Bandwidth == 100_000 && data.CPU == s.cpu() && len(data.Threads) == 1 && data.Threads[0].TID == 1 && *data.Free == 0
	})
	page := s.page()
	for _, want := range []string{
		`takt_reservation_thread_run_delay_seconds_total{claim="claim",container="main",namespace="default",pod="pod",request="cpu",thread="`,
		`takt_reservation_threads{claim="claim",container="main",namespace="default",pod="pod",request="cpu"} 1`,
		`takt_node_core_reserved_ppm{cpu="` + strconv.Itoa(s.cpu()) + `"} 100000`,
		"takt_node_prepare_seconds_count 2", "takt_node_enforce_seconds_count 1", `takt_node_hook_seconds_count{hook="gate"} 1`,
		`takt_node_hook_seconds_count{hook="CreateContainer"} 1`, `takt_node_core_healthy{cpu="` + strconv.Itoa(s.cpu()) + `"} 1`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("metrics have no %s", want)
		}
	}
	told := s.agent.podsNow(context.Background())
	want := report.Reserved{
		Namespace: "default", Pod: "pod", Container: "main", Claim: "claim", Request: "cpu", Runtime: "2ms", Period: "20ms", Threads: 1, Cores: []int{s.cpu()},
	}
	if told.Networks != nil || len(told.Reserved) != 1 || !reflect.DeepEqual(told.Reserved[0], want) {
		t.Errorf("%+v and not %+v", told, want)
	}
	if err := s.agent.ready(); err != nil {
		t.Error("not ready:", err)
	}
	b.remove()
	s.unprepare(claim)
	s.unprepare(claim)
	s.empty()
}

func TestHostileClaimsAreRefusedWithAReasonForTheirUsers(t *testing.T) {
	s := newSite(t)
	result := func(c *resourceapi.ResourceClaim) *resourceapi.DeviceRequestAllocationResult {
		return &c.Status.Allocation.Devices.Results[0]
	}
	for name, tc := range map[string]struct {
		parameters string
		edit       func(*resourceapi.ResourceClaim)
		want       string
	}{
		"no-parameters":    {plain, func(c *resourceapi.ResourceClaim) { c.Status.Allocation.Devices.Config = nil }, "no parameters"},
		"of-another":       {plain, func(c *resourceapi.ResourceClaim) { c.Status.Allocation.Devices.Config[0].Requests = []string{"gpu"} }, "no parameters"},
		"unknown-field":    {strings.Replace(plain, `"runtime"`, `"budget"`, 1), nil, `"budget"`},
		"runtime-too-long": {strings.Replace(plain, "2ms", "21ms", 1), nil, "exceeds the period"},
		"too-little-asked": {strings.Replace(plain, "2ms", "3ms", 1), nil, "set capacity.requests.bandwidth to 150000"},
		"nothing-asked":    {plain, func(c *resourceapi.ResourceClaim) { result(c).ConsumedCapacity = nil }, "set capacity.requests.bandwidth to 100000"},
		"admin":            {plain, func(c *resourceapi.ResourceClaim) { yes := true; result(c).AdminAccess = &yes }, "admin access"},
		"no-such-device":   {plain, func(c *resourceapi.ResourceClaim) { result(c).Device = "gpu-0" }, `"gpu-0"`},
		"not-offered":      {plain, func(c *resourceapi.ResourceClaim) { result(c).Device = "cpu-8000" }, "no longer offers"},
		"more-than-bound": {strings.Replace(plain, "2ms", "19.9ms", 1), func(c *resourceapi.ResourceClaim) {
			result(c).ConsumedCapacity[reservation.Bandwidth] = resource.MustParse("995k")
		}, "one reservation at most"},
		"same-core-twice": {plain, func(c *resourceapi.ResourceClaim) {
			c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, *result(c))
		}, "twice"},
		"policy-of-groups": {strings.Replace(plain, `"kind"`, `"policy":"fifo","kind"`, 1), nil, `policy "fifo"`},
		"reclaim":          {strings.Replace(plain, `"kind"`, `"overrun":"reclaim","kind"`, 1), nil, "overrun reclaim is not available with admission guaranteed"},
		"elsewhere":        {plain, func(c *resourceapi.ResourceClaim) { result(c).Pool = "node-2" }, "no device"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := "pod-" + name
			claim := s.claim(name, tc.parameters, func(c *resourceapi.ResourceClaim) {
				c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{podReference(pod)}
				if tc.edit != nil {
					tc.edit(c)
				}
			})
			response := s.prepare(claim)
			if !strings.Contains(response.Error, tc.want) || len(response.Devices) > 0 {
				t.Errorf("answer is %v", response)
			}
			if told := s.events.of(pod, reasonRefused); len(told) != 1 || !strings.Contains(told[0], tc.want) {
				t.Errorf("the pod is told %q", told)
			}
		})
	}
	s.until("the status of a refused claim says why", func() bool {
		condition, _ := s.deviceStatus("too-little-asked")
		return condition.Status == metav1.ConditionFalse && strings.Contains(condition.Message, "150000")
	})
	s.empty()
}

func TestAClaimOfAGroupOfPodsIsRefused(t *testing.T) {
	s := newSite(t)
	claim := s.claim("claim", plain, func(c *resourceapi.ResourceClaim) {
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "g", UID: "u"}}
	})
	if response := s.prepare(claim); !strings.Contains(response.Error, "ResourceClaimTemplate") {
		t.Errorf("answer is %v", response)
	}
}

func TestNoContainerTakesAReservationThatIsNotItsOwn(t *testing.T) {
	s := newSite(t)
	claim := s.claim("claim", plain, nil)
	env := s.ready(claim)
	mark := grantVariable + "X="
	for name, tc := range map[string]struct {
		pod  string
		env  []string
		want string
	}{
		"another pod":     {"thief", env, "reserved for pod pod"},
		"an unknown one":  {"pod", []string{mark + "nobody/cpu"}, "not prepared on this node"},
		"another request": {"pod", []string{mark + string(claim.UID) + "/gpu"}, "has none of that name"},
		"nonsense":        {"pod", []string{mark + "x"}, "is not a reservation"},
	} {
		if _, err := s.create(tc.pod, "main", "idle", tc.env); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if told := s.events.of("thief", reasonRefused); len(told) != 1 {
		t.Errorf("the thief is told %q", told)
	}
	first := s.mustCreate("pod", "main", "idle", env)
	if err := first.start(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.create("pod", "sidecar", "idle", env); err == nil || !strings.Contains(err.Error(), "held by container main") {
		t.Errorf("a second container at once: %v", err)
	}
	// A container that has failed is followed by another of its name before anybody cleans up.
	first.kill()
	second := s.mustCreate("pod", "main", "idle", env)
	if err := second.start(); err != nil {
		t.Fatal(err)
	}
	if got := second.policy(); got != reserved {
		t.Errorf("its successor has %+v", got)
	}
	// A container without a claim is none of the agent's business.
	stranger := s.mustCreate("other", "main", "idle", []string{"PATH=/"})
	if err := stranger.start(); err != nil || stranger.policy().Policy != sched.Other {
		t.Errorf("a container without a claim: %v", err)
	}
}

// As after the end of a kubelet between creating and starting a container: its successor must not wait for it.
func TestASuccessorEndsTheContainerThatTheKubeletHasGivenUp(t *testing.T) {
	s := newSite(t)
	claim := s.claim("claim", plain, nil)
	env := s.ready(claim)
	for _, step := range []string{"created", "gated", "started", "started, undated"} {
		started := strings.HasPrefix(step, "started")
		abandoned := s.mustCreate("pod", "main", "idle", env)
		if step != "created" {
			if err := abandoned.gate(); err != nil {
				t.Fatal(step, err)
			}
		}
		if started {
			if err := abandoned.start(); err != nil {
				t.Fatal(step, err)
			}
		}
		next := s.mustCreate("pod", "main", "idle", env)
		if step != "created" {
			// It has its reservation no more, so it must not run.
			abandoned.cmd.Wait()
			abandoned.done = true
		}
		if err := abandoned.gate(); err == nil || !strings.Contains(err.Error(), "has not seen") {
			t.Errorf("%s: the gate of the one given up says %v", step, err)
		}
		if err := next.gate(); err != nil {
			t.Fatal(step, err)
		}
		if err := next.start(); err != nil {
			t.Fatal(step, err)
		}
		if got := next.policy(); got != reserved {
			t.Errorf("%s: the successor has %+v", step, got)
		}
		// The runtime still lists the one given up, which does not take its successor's place. Not every runtime
		// says when a container was created.
		if step == "started, undated" {
			abandoned.ctr.CreatedAt, next.ctr.CreatedAt = 0, 0
		}
		s.stop()
		s.startAgent()
		if got := next.policy(); got != reserved {
			t.Errorf("%s: after a restart of the agent the successor has %+v", step, got)
		}
		abandoned.remove()
		next.remove()
	}
	s.unprepare(claim)
	s.empty()
}

func TestAClaimPassesToTheNextPodWhenTheFirstIsDone(t *testing.T) {
	s := newSite(t)
	claim := s.claim("claim", plain, nil)
	env := s.ready(claim)
	both := claim.DeepCopy()
	both.Status.ReservedFor = append(both.Status.ReservedFor, podReference("next"))
	update := func(c *resourceapi.ResourceClaim) {
		t.Helper()
		if _, err := s.client.ResourceV1().ResourceClaims("default").UpdateStatus(context.Background(), c, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	update(both)
	if _, err := s.create("next", "main", "idle", env); err == nil || !strings.Contains(err.Error(), "ResourceClaimTemplate") {
		t.Errorf("shared by two pods: %v", err)
	}
	passed := both.DeepCopy()
	passed.Status.ReservedFor = passed.Status.ReservedFor[1:]
	update(passed)
	b := s.mustCreate("next", "main", "idle", env)
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	if got := b.policy(); got != reserved {
		t.Errorf("the next pod has %+v", got)
	}
}

func TestWithoutTheAgentNothingStartsAndWhatRunsIsKept(t *testing.T) {
	s := newSite(t)
	claim, other := s.claim("claim", plain, nil), s.claim("other", plain, nil)
	env, otherEnv := s.ready(claim), s.ready(other)
	running := s.mustCreate("pod", "main", "idle", env)
	if err := running.start(); err != nil {
		t.Fatal(err)
	}
	waiting := s.mustCreate("pod", "second", "idle", otherEnv)
	s.stop()
	if err := waiting.gate(); err == nil || !strings.Contains(err.Error(), "takt-node does not answer") {
		t.Errorf("the gate says %v", err)
	}
	if got := running.policy(); got != reserved {
		t.Errorf("while the agent is away the container has %+v", got)
	}
	// The runtime fails what it was about to ask, then notices, and asks no more.
	unseen, err := s.create("pod", "third", "idle", otherEnv)
	if err != nil {
		unseen = s.mustCreate("pod", "third", "idle", otherEnv)
	}
	s.mu.Lock()
	s.containers = s.containers[:len(s.containers)-1] // nor does the runtime list it in time
	s.mu.Unlock()

	s.startAgent()
	if got := running.policy(); got != reserved {
		t.Errorf("after a restart the container has %+v", got)
	}
	if err := unseen.gate(); err == nil || !strings.Contains(err.Error(), "has not seen") {
		t.Errorf("the gate says %v", err)
	}
	// The runtime asks the plugin a moment after the agent has heard from the runtime.
	s.until("the plugin refuses the container", func() bool {
		err := unseen.start()
		return err != nil && strings.Contains(err.Error(), "created again")
	})
	// One that was created and not started may have come past this agent: the kubelet creates it anew.
	if err := waiting.gate(); err == nil || !strings.Contains(err.Error(), "has not seen") {
		t.Errorf("the gate says of the container that had to wait %v", err)
	}
	if !waiting.dead() {
		t.Error("its process waits on")
	}
	waiting.remove()
	anew := s.mustCreate("pod", "second", "idle", otherEnv)
	if err := anew.gate(); err != nil {
		t.Errorf("the gate says %v", err)
	}
	if got := anew.policy(); got != reserved {
		t.Errorf("the container that had to wait has %+v", got)
	}
	running.remove()
	anew.remove()
	s.unprepare(claim)
	s.unprepare(other)
	s.empty()
}

// What begins nothing begins nothing either when the container was created while the agent was away.
func TestWhatWasCreatedWhileTheAgentWasAwayIsNotStarted(t *testing.T) {
	s := newSite(t)
	env := s.ready(s.claim("claim", strings.TrimSuffix(plain, "}")+`,"changes":"deny"}`, nil))
	s.stop()
	unasked, err := s.create("pod", "main", "idle", env)
	if err != nil {
		unasked = s.mustCreate("pod", "main", "idle", env) // the runtime has noticed that nobody is there
	}
	unasked.ctr.Pid = 0 // as containerd has it until the start
	s.startAgent()
	if err := unasked.gate(); err == nil || !strings.Contains(err.Error(), "has not seen") {
		t.Errorf("the gate says %v", err)
	}
	if err := unasked.start(); err == nil || !strings.Contains(err.Error(), "created again") {
		t.Errorf("the plugin says %v", err)
	}
	if got := unasked.policy(); got.Policy != sched.Other {
		t.Errorf("it has %+v", got)
	}
	if err := s.mustCreate("pod", "main", "idle", env).gate(); err != nil {
		t.Errorf("created anew: %v", err)
	}
}

// Nor where an agent before has given it the sockets of its pod.
func TestAContainerWithSocketsAndAReservationThatWasCreatedBeforeIsNotStarted(t *testing.T) {
	s := networked(t)
	s.startAgent()
	env := s.ready(s.claim("claim", plain, nil))
	early := s.mustCreate("pod", "main", "idle", env)
	early.ctr.Pid = 0 // as containerd has it until the start
	early.ctr.Mounts = []*api.Mount{{Source: filepath.Join(s.config.Network.Sockets, early.pod.Id), Destination: containerSockets}}
	s.stop()
	s.startAgent()
	if err := early.gate(); err == nil || !strings.Contains(err.Error(), "has not seen") {
		t.Errorf("the gate says %v", err)
	}
	if got := early.policy(); got.Policy != sched.Other {
		t.Errorf("it has %+v", got)
	}
}

// hesitant is a backend that does not succeed at once.
type hesitant struct {
	enforce.Deadline
	failures atomic.Int32
}

func (h *hesitant) Enforce(c enforce.Container, grants []enforce.Grant) (enforce.Enforcement, error) {
	if h.failures.Add(-1) >= 0 {
		return nil, errors.New("cannot be found out at the moment")
	}
	return h.Deadline.Enforce(c, grants)
}

func TestWhatIsNoRefusalIsTriedAgainBeforeAContainerIsEnded(t *testing.T) {
	backend := &hesitant{}
	s := newSiteWith(t, backend)
	b := s.mustCreate("pod", "main", "idle", s.ready(s.claim("claim", plain, nil)))
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	s.stop()
	backend.failures.Store(takeBackTries - 1)
	s.startAgent()
	if b.dead() {
		t.Fatal("the container was ended")
	}
	s.until("it is taken back", func() bool { return len(s.agent.reserved()) == 1 })
	s.stop()
	backend.failures.Store(takeBackTries)
	s.startAgent()
	s.until("one that is not taken back is ended", b.dead)
}

func TestAContainerWhoseRecordIsLostIsEnded(t *testing.T) {
	s := newSite(t)
	claim := s.claim("claim", plain, nil)
	b := s.mustCreate("pod", "main", "idle", s.ready(claim))
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	s.stop()
	if err := os.Remove(s.agent.records.path(claim.UID)); err != nil {
		t.Fatal(err)
	}
	s.startAgent()
	s.until("the container is ended", b.dead)
	if told := s.events.of("pod", reasonLost); len(told) != 1 || !strings.Contains(told[0], "not prepared") {
		t.Errorf("the pod is told %q", told)
	}
}

func TestClaimsThatLeftTheClusterMeanwhileAreCleanedUp(t *testing.T) {
	s := newSite(t)
	claim := s.claim("claim", plain, nil)
	s.ready(claim)
	s.stop()
	if err := s.client.ResourceV1().ResourceClaims("default").Delete(context.Background(), "claim", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.startAgent()
	s.until("the claim is forgotten", func() bool {
		s.agent.mu.Lock()
		defer s.agent.mu.Unlock()
		return len(s.agent.claims) == 0
	})
	s.empty()
}

func TestWhatTheKernelRefusesDoesNotStart(t *testing.T) {
	s := newSite(t)
	b := s.mustCreate("pod", "main", "idle", s.ready(s.claim("claim", plain, nil)))
	b.confine()
	for name, err := range map[string]error{"gate": b.gate(), "plugin": b.start()} {
		if err == nil || !strings.Contains(err.Error(), "the kernel refused") {
			t.Errorf("%s says %v", name, err)
		}
	}
	if told := s.events.of("pod", reasonRefused); len(told) == 0 || !strings.Contains(told[0], "static CPU manager") {
		t.Errorf("the pod is told %q", told)
	}
	s.until("the claim's status says why", func() bool {
		condition, _ := s.deviceStatus("claim")
		return condition.Status == metav1.ConditionFalse && strings.Contains(condition.Message, "the kernel refused")
	})
}

func TestAContainerThatDropsItsReservationAgainAndAgainIsEnded(t *testing.T) {
	s := newSite(t)
	env := s.ready(s.claim("claim", plain, nil))
	b := s.mustCreate("pod", "main", "idle", env)
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	s.until("the container is ended", func() bool {
		if b.dead() {
			return true
		}
		if attr, err := sched.Get(b.cmd.Process.Pid); err == nil && attr.Policy == sched.Deadline {
			_ = sched.Drop(b.cmd.Process.Pid) // it may end at any moment
		}
		return false
	})
	if told := s.events.of("pod", reasonRestored); len(told) == 0 {
		t.Error("the pod is not told of what was restored")
	}
	s.until("the pod is told of its end", func() bool { return len(s.events.of("pod", reasonLost)) == 1 })
	// Each change may have cost the node bandwidth: its successors do not begin to count anew, nor after a restart of the agent.
	for range 2 {
		// The runtime asks the plugin a moment after the agent has heard from the runtime.
		s.until("a container after it is refused", func() bool {
			_, err := s.create("pod", "main", "idle", env)
			return err != nil && strings.Contains(err.Error(), codeRestless) && strings.Contains(err.Error(), "delete the pod")
		})
		s.stop()
		s.startAgent()
	}
}

func TestWhatEarlierContainersChangedIsCounted(t *testing.T) {
	s := newSite(t)
	env := s.ready(s.claim("claim", plain, nil))
	for want := range 3 {
		b := s.mustCreate("pod", "main", "idle", env)
		if err := b.start(); err != nil {
			t.Fatal(err)
		}
		if err := sched.Drop(b.cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		s.until("it is restored and counted", func() bool {
			s.agent.mu.Lock()
			defer s.agent.mu.Unlock()
			return s.agent.claims["claim-uid"].Requests[0].Restored == want+1
		})
		if told := s.events.of("pod", reasonRestored); len(told) != want+1 {
			t.Errorf("the pod is told %q", told)
		}
		b.kill()
		b.remove()
	}
}

// Each change costs the node as much, whichever of the pod's reservations it is of.
func TestChangesOfAllRequestsOfAPodAreCountedTogether(t *testing.T) {
	s := newSite(t)
	first, second := s.claim("claim", plain, nil), s.claim("another", plain, nil)
	var boxes []*box
	for i, claim := range []*resourceapi.ResourceClaim{first, second} {
		b := s.mustCreate("pod", fmt.Sprintf("main-%d", i), "idle", s.ready(claim))
		if err := b.start(); err != nil {
			t.Fatal(err)
		}
		boxes = append(boxes, b)
	}
	s.until("one of them is ended", func() bool {
		for _, b := range boxes {
			if b.dead() {
				return true
			}
		}
		for _, b := range boxes {
			if attr, err := sched.Get(b.cmd.Process.Pid); err == nil && attr.Policy == sched.Deadline && s.agent.restoredOf(Pod{UID: "pod-uid"}) < enforce.MostRestored+1 {
				before := s.agent.restoredOf(Pod{UID: "pod-uid"})
				_ = sched.Drop(b.cmd.Process.Pid) // it may end at any moment
				s.until("it is counted", func() bool { return s.agent.restoredOf(Pod{UID: "pod-uid"}) > before || b.dead() })
			}
		}
		return false
	})
	if times := s.agent.restoredOf(Pod{UID: "pod-uid"}); times != enforce.MostRestored+1 {
		t.Errorf("ended after %d changes", times)
	}
	_, err := s.create("pod", "main-1", "idle", s.ready(second))
	if err == nil || !strings.Contains(err.Error(), codeRestless) {
		t.Errorf("another container of the pod: %v", err)
	}
}

func TestAClaimOfALaterAgentIsKeptWhereItRunsAndBeginsNothing(t *testing.T) {
	s := newSite(t)
	env := s.ready(s.claim("claim", plain, nil))
	b := s.mustCreate("pod", "main", "idle", env)
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	s.stop()
	path := s.agent.records.path("claim-uid")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	later := strings.Replace(string(text), `\"version\":1`, `\"version\":2,\"unheardOf\":true`, 1)
	if later == string(text) {
		t.Fatal("the record has no version")
	}
	if err := os.WriteFile(path, []byte(later), 0o644); err != nil {
		t.Fatal(err)
	}
	s.startAgent()
	if got := b.policy(); got != reserved || b.dead() {
		t.Errorf("the container has %+v", got)
	}
	s.until("it is taken back", func() bool { return len(s.agent.reserved()) == 1 })
	// The runtime asks the plugin a moment after the agent has heard from the runtime.
	s.until("its successor is refused", func() bool {
		_, err := s.create("pod", "main", "idle", env)
		return err != nil && strings.Contains(err.Error(), "later version of this agent")
	})
	if now, err := os.ReadFile(path); err != nil || string(now) != later {
		t.Errorf("its record is %s, %v", now, err)
	}
}

func TestOverrunsAreCountedAndTold(t *testing.T) {
	s := newSite(t)
	b := s.mustCreate("pod", "main", "busy", s.ready(s.claim("claim", plain, nil)))
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	s.until("the pod is told", func() bool {
		told := s.events.of("pod", reasonOverrun)
		return len(told) == 1 && strings.Contains(told[0], "2ms every 20ms")
	})
	c := s.agent.runningContainers()[0]
	s.until("time is counted", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.tallies[0].exhausted > 0 && c.tallies[0].cpu > 0 && c.tallies[0].samples > c.tallies[0].exhausted
	})
}

func TestThreadsAskInTheContainerOfTheirClaim(t *testing.T) {
	s := newSite(t)
	asking := strings.Replace(plain, `"kind"`, `"threads":{"select":"ask"},"kind"`, 1)
	claim := s.claim("claim", asking, nil)
	response := s.prepare(claim)
	spec := s.injected(response.Devices[0].CdiDeviceIds)
	if len(spec.Mounts) != 1 || !strings.Contains(strings.Join(spec.Process.Env, " "), socketVariable+"="+spec.Mounts[0].Destination+"/") {
		t.Fatalf("mounts %+v, environment %q", spec.Mounts, spec.Process.Env)
	}
	b := s.mustCreate("pod", "main", "ask", spec.Process.Env)
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	if got := b.policy(); got.Policy != sched.Other {
		t.Errorf("before it asks the thread has %+v", got)
	}
	ask := func() string {
		if _, err := b.in.Write([]byte("\n")); err != nil {
			t.Fatal(err)
		}
		line, err := b.out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return line
	}
	if got := ask(); got != "ok 2000000 20000000 20000000\n" {
		t.Errorf("answer %q", got)
	}
	if got := b.policy(); got != reserved {
		t.Errorf("the thread that asked has %+v", got)
	}
	s.stop()
	s.startAgent()
	if got := ask(); !strings.HasPrefix(got, "ok ") {
		t.Errorf("after a restart of the agent: %q", got)
	}
	b.remove()
	s.unprepare(claim)
	s.empty()
}

func TestAContainerOfAGroupIsCreatedOnItsCores(t *testing.T) {
	group, err := enforce.NewRTGroup("/")
	if err != nil {
		t.Skip(err)
	}
	s := newSiteWith(t, group)
	b := s.mustCreate("pod", "main", "idle", s.ready(s.claim("claim", plain, nil)))
	if got := b.adjusted.GetLinux().GetResources().GetCpu().GetCpus(); got != strconv.Itoa(s.cpu()) {
		t.Errorf("it is to run on %q", got)
	}
	// Here it is in no cgroup of its own that could have a budget.
	if err := b.start(); err == nil || !strings.Contains(err.Error(), "must give it one of its own") {
		t.Errorf("the plugin says %v", err)
	}
}

func TestARestartOfTheContainerRuntimeIsSurvived(t *testing.T) {
	s := newSite(t)
	claim := s.claim("claim", plain, nil)
	b := s.mustCreate("pod", "main", "idle", s.ready(claim))
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	s.stopRuntime()
	s.until("the agent has noticed", func() bool { return !s.agent.isConnected() })
	s.startRuntime()
	s.untilConnected()
	if got := b.policy(); got != reserved {
		t.Errorf("the container has %+v", got)
	}
	b.remove()
	s.unprepare(claim)
	s.empty()
}

func TestAContainerThatTheRuntimeHasForgottenIsKeptUnderItsReservation(t *testing.T) {
	s := newSite(t)
	claim := s.claim("claim", plain, nil)
	b := s.mustCreate("pod", "main", "idle", s.ready(claim))
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	s.stopRuntime()
	s.mu.Lock()
	s.containers = nil
	s.mu.Unlock()
	s.until("the agent has noticed", func() bool { return !s.agent.isConnected() })
	s.startRuntime()
	s.untilConnected()
	if got := b.policy(); got != reserved {
		t.Errorf("the container has %+v", got)
	}
	// The claim cannot be taken away from under it either.
	s.unprepare(claim)
	s.until("the container is ended", b.dead)
	s.empty()
}

func TestAHundredPodsInARowLeaveNothing(t *testing.T) {
	s := newSite(t)
	kubelet := s.kubelet()
	ctx := context.Background()
	for i := range 100 {
		name := "claim-" + strconv.Itoa(i)
		claim := s.claim(name, plain, nil)
		response, err := kubelet.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{
			Claims: []*drapb.Claim{{Namespace: "default", Name: name, Uid: string(claim.UID)}},
		})
		if err != nil || response.Claims[string(claim.UID)].Error != "" {
			t.Fatal(i, err, response)
		}
		b := s.mustCreate("pod", "main", "idle", s.injected(response.Claims[string(claim.UID)].Devices[0].CdiDeviceIds).Process.Env)
		if err := b.gate(); err != nil {
			t.Fatal(i, err)
		}
		if i%3 != 0 { // some are never started
			if err := b.start(); err != nil {
				t.Fatal(i, err)
			}
		}
		if i%2 == 0 { // and of some the runtime says nothing
			b.remove()
		} else {
			b.kill()
		}
		if _, err := kubelet.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{
			Claims: []*drapb.Claim{{Namespace: "default", Name: name, Uid: string(claim.UID)}},
		}); err != nil {
			t.Fatal(i, err)
		}
	}
	s.empty()
	if consumed := s.agent.consumed(); len(consumed) > 0 {
		t.Errorf("cores still hold %v", consumed)
	}
}

func TestRecordsThatCannotBeReadDoNotHideTheOthers(t *testing.T) {
	dir := t.TempDir()
	s := records{dir: dir, run: t.TempDir(), gate: "/gate"}
	good := &Record{
		Claim: "good", Namespace: "default", Name: "claim", Pods: []Pod{{Name: "pod", UID: "pod-uid"}},
		Requests: []Request{{
			Name:       "cpu/first",
			Parameters: reservation.Parameters{Runtime: 1_000_000, Period: 10_000_000},
			Devices:    []Device{{Pool: "node", Name: "cpu-3", CPU: 3, PPM: 100_000}},
		}},
	}
	if err := s.write(good); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(s.path("good"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		s.path("other"):                  string(text), // a copy under another name
		s.path("torn"):                   string(text[:len(text)/2]),
		s.path("empty"):                  `{"cdiVersion":"0.6.0","annotations":{"cpu.takt.dev/record":"{}"}}`,
		dir + "/vendor.json":             "not ours",
		dir + "/." + cdiPrefix + "1.tmp": "left by a killed agent",
	} {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	all, err := s.load()
	if len(all) != 1 || all[0].Claim != types.UID("good") {
		t.Errorf("loaded %+v", all)
	}
	for _, want := range []string{"other", "torn", "empty"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
	if _, err := os.Stat(dir + "/." + cdiPrefix + "1.tmp"); !os.IsNotExist(err) {
		t.Error("what the killed agent left is still there")
	}
	grant, ok := all[0].grant("cpu/first")
	if !ok || grant.Key != "good/cpu/first" || len(grant.Cores) != 1 || grant.Cores[0] != 3 {
		t.Errorf("grant is %+v", grant)
	}
	if uid, request, err := parseKey(grant.Key); err != nil || uid != "good" || request != "cpu/first" {
		t.Errorf("key is %q, %q, %v", uid, request, err)
	}
}

func FuzzRecordsAreReadWithoutHarm(f *testing.F) {
	s := records{dir: f.TempDir(), run: f.TempDir(), gate: "/gate"}
	record := &Record{Claim: "c", Requests: []Request{{Name: "r", Parameters: reservation.Parameters{Period: 1}, Devices: []Device{{CPU: 1}}}}}
	if err := s.write(record); err != nil {
		f.Fatal(err)
	}
	text, err := os.ReadFile(s.path("c"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"annotations":{"cpu.takt.dev/record":"{\"claim\":\"../x\",\"requests\":[{}]}"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(s.path("c"), text, 0o644); err != nil {
			t.Fatal(err)
		}
		all, _ := s.load()
		for _, r := range all {
			if r.Claim != "c" {
				t.Fatalf("claim %q was read from the file of c", r.Claim)
			}
			for _, q := range r.Requests {
				if g, ok := r.grant(q.Name); !ok || len(g.Cores) == 0 {
					t.Fatalf("request %q has no grant", q.Name)
				}
			}
		}
	})
}

func TestThreadsAskInWhicheverContainerOfTheirClaimTheyAre(t *testing.T) {
	s := newSite(t)
	asking := strings.Replace(plain, `"kind"`, `"threads":{"select":"ask"},"kind"`, 1)
	claim := s.claim("claim", asking, func(c *resourceapi.ResourceClaim) {
		devices := &c.Status.Allocation.Devices
		devices.Config[0].Requests = nil
		second := devices.Results[0]
		share := types.UID("0b1f3a52-0000-4000-8000-00000000ffff")
		second.Request, second.ShareID = "second", &share
		devices.Results = append(devices.Results, second)
	})
	response := s.prepare(claim)
	if response.Error != "" {
		t.Fatal(response.Error)
	}
	var boxes []*box
	for _, device := range response.Devices {
		b := s.mustCreate("pod", "of-"+device.RequestNames[0], "ask", s.injected(device.CdiDeviceIds).Process.Env)
		if err := b.start(); err != nil {
			t.Fatal(err)
		}
		boxes = append(boxes, b)
	}
	for i, b := range boxes {
		if _, err := b.in.Write([]byte("\n")); err != nil {
			t.Fatal(err)
		}
		if line, err := b.out.ReadString('\n'); err != nil || line != "ok 2000000 20000000 20000000\n" {
			t.Errorf("container %d: %q, %v", i, line, err)
		}
		if got := b.policy(); got != reserved {
			t.Errorf("the thread that asked in container %d has %+v", i, got)
		}
	}
}

// Whoever holds a container's lock again and again, as threads that ask in a loop do, does not keep its scans from it.
func TestAContainerIsLookedAtHoweverOftenItsLockIsHeld(t *testing.T) {
	s := newSite(t)
	b := s.mustCreate("pod", "main", "idle", s.ready(s.claim("claim", plain, nil)))
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	s.agent.mu.Lock()
	c := s.agent.containers[b.ctr.Id]
	s.agent.mu.Unlock()
	var before uint64
	for held := range 40 {
		c.mu.Lock()
		time.Sleep(2 * time.Duration(s.config.ScanInterval))
		now := c.tallies[0].samples
		c.mu.Unlock()
		if held == 0 {
			before = now
		}
		if now > before+10 {
			return
		}
	}
	t.Error("it was hardly looked at")
}

func TestAPodThatTakesLongDoesNotDelayTheOthers(t *testing.T) {
	s := newSite(t)
	slow := s.reserved("pod", "idle")
	quick := s.mustCreate("other", "main", "idle", s.ready(s.claim("quick", plain, func(c *resourceapi.ResourceClaim) {
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{podReference("other")}
	})))
	for _, b := range []*box{slow, quick} {
		if err := b.gate(); err != nil {
			t.Fatal(err)
		}
	}
	s.agent.mu.Lock()
	held := s.agent.containers[slow.ctr.Id]
	s.agent.mu.Unlock()
	held.mu.Lock()
	defer held.mu.Unlock()
	if err := sched.Drop(quick.cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	s.until("the other's reservation is restored", func() bool { return quick.policy() == reserved })
}

func TestAnErrorThatTheAgentCannotRecoverFromEndsIt(t *testing.T) {
	s := newSite(t)
	s.stop()
	agent, err := New(nodeName, s.config, s.client, s.events, s.backend)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- agent.Run(context.Background()) }()
	s.until("it serves", func() bool { return agent.isConnected() })
	agent.HandleError(context.Background(), fmt.Errorf("later: %w", kubeletplugin.ErrRecoverable), "publishing")
	select {
	case err := <-done:
		t.Fatalf("it has ended for what passes: %v", err)
	default:
	}
	agent.HandleError(context.Background(), errors.New("socket gone"), "serving")
	if err := <-done; err == nil || !strings.Contains(err.Error(), "serving: socket gone") {
		t.Errorf("it ended with %v", err)
	}
}

func TestTheTimeThatAThreadWaitsForACoreIsCounted(t *testing.T) {
	s := newSite(t)
	b := s.reserved("pod", "busy")
	if err := b.gate(); err != nil {
		t.Fatal(err)
	}
	s.agent.mu.Lock()
	c := s.agent.containers[b.ctr.Id]
	s.agent.mu.Unlock()
	// It wants the core all the time and has a tenth of it.
	s.until("its waiting is counted", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.tallies[0].cpu > 0 && c.tallies[0].delay > 2*c.tallies[0].cpu
	})
}

func TestARecordOfANewerAgentIsNotMisread(t *testing.T) {
	s := records{dir: t.TempDir(), run: t.TempDir(), gate: "/gate"}
	record := &Record{Claim: "c", Requests: []Request{{Name: "r", Parameters: reservation.Parameters{Period: 1}, Devices: []Device{{CPU: 1}}}}}
	if err := s.write(record); err != nil {
		t.Fatal(err)
	}
	if all, err := s.load(); err != nil || len(all) != 1 || all[0].Version != recordVersion {
		t.Fatalf("%v, %v", all, err)
	}
	text, err := os.ReadFile(s.path("c"))
	if err != nil {
		t.Fatal(err)
	}
	newer := strings.Replace(string(text), `\"version\":1`, `\"version\":2`, 1)
	if err := os.WriteFile(s.path("c"), []byte(newer), 0o644); err != nil {
		t.Fatal(err)
	}
	if all, err := s.load(); err != nil || len(all) != 1 || !all[0].newer {
		t.Errorf("%v, %v", all, err)
	}
}

func TestAContainerIsToldWithinWhatItsRuntimeMayBeSet(t *testing.T) {
	s := newSite(t)
	response := s.prepare(s.claim("claim", strings.Replace(plain, `"kind"`, `"minRuntime":"1ms","kind"`, 1), nil))
	if response.Error != "" {
		t.Fatal(response.Error)
	}
	var parameters reservation.Parameters
	if err := json.Unmarshal([]byte(plain), &parameters); err != nil {
		t.Fatal(err)
	}
	said := fmt.Sprintf("=1000000 %d", parameters.Runtime.Nanoseconds())
	if environment := s.injected(response.Devices[0].CdiDeviceIds).Process.Env; !slices.ContainsFunc(environment, func(one string) bool {
		return strings.HasPrefix(one, tuneVariable) && strings.HasSuffix(one, said)
	}) {
		t.Errorf("its environment is %q", environment)
	}
}

func TestAStartupIsSaidInTheClaimsStatus(t *testing.T) {
	s := newSite(t)
	response := s.prepare(s.claim("claim", strings.Replace(plain, `"kind"`, `"startup":"2s","kind"`, 1), nil))
	if response.Error != "" {
		t.Fatal(response.Error)
	}
	b := s.mustCreate("pod", "main", "idle", s.injected(response.Devices[0].CdiDeviceIds).Process.Env)
	if err := b.gate(); err != nil {
		t.Fatal(err)
	}
	reasons := map[string]bool{}
	s.until("it has its reservation", func() bool {
		condition, _ := s.deviceStatus("claim")
		reasons[condition.Reason] = true
		if condition.Reason == reasonStarting && condition.Status != metav1.ConditionFalse {
			t.Fatalf("while it starts: %+v", condition)
		}
		return condition.Reason == reasonReserved && condition.Status == metav1.ConditionTrue
	})
	if !reasons[reasonStarting] {
		t.Errorf("it was said to be %v", reasons)
	}
	if got := b.policy(); got != reserved {
		t.Errorf("the container has %+v", got)
	}
}
