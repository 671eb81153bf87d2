package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/takt-dev/takt/kubernetes/internal/enforce"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

// debugfs is where the agent looks for it, for as long as the test runs.
func debugfs(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/sys/kernel/debug/sched"); err == nil {
		return
	}
	if err := unix.Mount("none", "/sys/kernel/debug", "debugfs", 0, ""); err != nil {
		t.Skipf("needs debugfs: %v", err)
	}
	t.Cleanup(func() { unix.Unmount("/sys/kernel/debug", unix.MNT_DETACH) })
	if _, err := sched.Admitted("/", 0); err != nil {
		t.Skip(err)
	}
}

func (s *site) drift() drift {
	s.agent.mu.Lock()
	defer s.agent.mu.Unlock()
	return s.agent.driftInAll()
}

func (s *site) capacities() []int64 {
	s.agent.mu.Lock()
	defer s.agent.mu.Unlock()
	return slices.Clone(s.agent.offer.Capacities)
}

func (s *site) reclaimed() int {
	s.agent.mu.Lock()
	defer s.agent.mu.Unlock()
	return s.agent.reclaimed
}

func (s *site) unreadable() bool {
	s.agent.mu.Lock()
	defer s.agent.mu.Unlock()
	return s.agent.unreadable
}

// toldNode are the node's own events.
func (s *site) toldNode(reason string) []string { return s.events.of(nodeName, reason) }

func TestBandwidthThatNoThreadHasIsFoundAndReclaimed(t *testing.T) {
	s := newSite(t)
	debugfs(t)
	if s.agent.checkOnce(context.Background(), 0); s.unreadable() {
		t.Skip("the kernel does not say what it has admitted")
	}
	if _, err := os.Stat("/sys/fs/cgroup/cpuset/cpuset.sched_relax_domain_level"); err != nil {
		t.Skip("needs the cpuset controller of cgroup v1")
	}
	b := s.reserved("pod", "idle")
	if err := b.gate(); err != nil {
		t.Fatal(err)
	}
	// A thread that is taken out of SCHED_DEADLINE while it sleeps, later than the end of its period, takes
	// its bandwidth with it, and gets it again: each time the kernel counts it once more.
	before := s.reclaimed()
	for range 2 {
		time.Sleep(30 * time.Millisecond) // longer than its period
		if err := sched.Set(b.cmd.Process.Pid, sched.Attr{Policy: sched.Other}); err != nil {
			t.Fatal(err)
		}
		s.until("it is restored", func() bool { return b.policy() == reserved })
	}
	m, err := s.agent.measure("/")
	if err != nil {
		t.Fatal(err)
	}
	if now, err := s.agent.beyond(s.agent.domains(m)[0]); err == nil && now < 50_000 {
		t.Skip("this kernel loses no bandwidth")
	}
	s.until("it is reclaimed", func() bool {
		s.agent.checkOnce(context.Background(), 100*time.Millisecond)
		return s.reclaimed() > before
	})
	if told := s.toldNode(reasonReclaimed); len(told) == 0 || !strings.Contains(told[0], "counted anew") {
		t.Errorf("the node is told %q", told)
	}
	s.agent.checkOnce(context.Background(), 0)
	if got := s.drift().lost(); got != 0 {
		t.Errorf("%d ppm are still lost", got)
	}
	// What is held is counted on, whatever other tests do meanwhile.
	s.until("the kernel counts what is held", func() bool {
		now, err := s.agent.beyond(s.agent.domains(m)[0])
		return err == nil && now >= -checkSlack
	})
	if b.policy() != reserved {
		t.Errorf("the container has %+v", b.policy())
	}
}

func TestThreadsOutsideOfAllClaimsTakeFromWhatIsPublished(t *testing.T) {
	s := newSite(t)
	debugfs(t)
	if s.agent.checkOnce(context.Background(), 0); s.unreadable() {
		t.Skip("the kernel does not say what it has admitted")
	}
	before := s.capacities()
	sum := func(all []int64) (sum int64) {
		for _, one := range all {
			sum += one
		}
		return sum
	}
	stranger := s.stranger()
	s.agent.checkOnce(context.Background(), 0)
	s.agent.checkOnce(context.Background(), 0)
	if got := s.drift().strangers(); got < 199_000 {
		t.Errorf("strangers have %d ppm", got)
	}
	if less := sum(before) - sum(s.capacities()); less < 199_000 {
		t.Errorf("%d ppm less are published", less)
	}
	if told := s.toldNode(reasonStrangers); len(told) == 0 || !strings.Contains(told[len(told)-1], `"sleep"`) {
		t.Errorf("the node is told %q", told)
	}
	stranger.Process.Kill()
	stranger.Wait()
	s.until("what it had is published again", func() bool {
		s.agent.checkOnce(context.Background(), 0)
		return sum(s.capacities()) > sum(before)-100_000
	})
}

// The kernel subtracts what a thread had when the thread's bandwidth would have been used up, also if it has counted
// anew meanwhile, without the thread: then it counts too little for good.
func TestWhatTheKernelCountsTooLittleHidesNoStranger(t *testing.T) {
	s := newSite(t)
	debugfs(t)
	if s.agent.checkOnce(context.Background(), 0); s.unreadable() {
		t.Skip("the kernel does not say what it has admitted")
	}
	m, err := s.agent.measure("/")
	if err != nil {
		t.Fatal(err)
	}
	beyond := func() int64 {
		ppm, err := s.agent.beyond(s.agent.domains(m)[0])
		if err != nil {
			t.Fatal(err)
		}
		return ppm
	}
	runtime.LockOSThread() // Pdeathsig is of the thread that forks
	busy := exec.Command("sh", "-c", "while :; do :; done")
	busy.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { busy.Process.Kill() })
	// More than the kernel's own servers have, which it may count or not, and less than the stranger has beside them: a sum below nought
	// would refuse that.
	servers, err := sched.ServersShare("/")
	if err != nil {
		t.Fatal(err)
	}
	const period = 4_000_000_000
	takes := uint64(servers*int64(len(m.domain))+150_000) * period / 1_000_000
	if err := sched.Set(busy.Process.Pid, sched.Attr{Policy: sched.Deadline, Runtime: takes, Deadline: period, Period: period}); err != nil {
		t.Skip(err) // more cores than one thread can stand for
	}
	s.until("it has used some of its time", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", busy.Process.Pid))
		var ran int64
		fmt.Sscan(string(stat), &ran)
		return err == nil && ran > 300_000_000
	})
	busy.Process.Kill()
	busy.Wait()
	if err := sched.Rebuild("/"); err != nil {
		t.Skip(err)
	}
	for began := time.Now(); beyond() > -140_000; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > 5*time.Second { // longer than its period
			t.Skip("this kernel does not count too little")
		}
	}
	stranger := s.stranger() // has more than the kernel counts too little, and no more than that with its servers
	s.agent.checkOnce(context.Background(), 0)
	if got := s.drift().strangers(); got < 199_000 {
		t.Errorf("strangers have %d ppm", got)
	}
	// Counting anew is in vain where the kernel forgets all threads of the cpuset (see sched.Set).
	told := s.toldNode(reasonBandwidthLost)
	if beyond() < 199_000 && (len(told) == 0 || !strings.Contains(told[0], "less than its threads have")) {
		t.Errorf("the node is told %q", told)
	}
	for range 3 {
		s.agent.checkOnce(context.Background(), time.Hour)
	}
	if got := s.drift().strangers(); got < 199_000 {
		t.Errorf("strangers have %d ppm when nothing has changed", got)
	}
	stranger.Process.Kill()
	stranger.Wait()
}

func TestWhetherTheKernelCountsItsOwnServersIsNoDrift(t *testing.T) {
	for name, tc := range map[string]struct{ admitted, held, servers, want int64 }{
		"Linux 6.1, without servers":                         {99_999, 99_999, 0, 0},
		"Linux 6.12, one core apart":                         {149_998, 99_999, 50_000, 0},
		"the same when another one has been set apart since": {99_999, 99_999, 50_000, 0},
		"Linux 7.2 without a sched_ext scheduler, 4 CPUs":    {199_996, 0, 400_000, 0},
		"and with one, and threads of claims":                {499_996, 99_999, 400_000, 0},
		"bandwidth that was lost":                            {749_998, 99_999, 50_000, 599_999},
		"a stranger beside servers that are all counted":     {449_996, 0, 250_000, 199_996},
		"less than threads have":                             {-100_000, 99_999, 50_000, -199_999},
	} {
		if got := unknown(tc.admitted, tc.held, tc.servers); got != tc.want {
			t.Errorf("%s: %d are unknown, not %d", name, got, tc.want)
		}
	}
}

// apart is a backend with a root domain for each core that can have the kernel count anew.
type apart struct {
	enforce.Backend
	counted []int
}

func (a *apart) Recount(core int) error {
	a.counted = append(a.counted, core)
	return nil
}

// On a machine without the cpusets of cgroup v1.
func TestTheKernelIsMadeToCountAnewWhereNobodyNoticesIt(t *testing.T) {
	root := t.TempDir()
	backend := &apart{Backend: enforce.Deadline{}}
	n := &Node{root: root, backend: backend, claims: map[types.UID]*prepared{}}
	if err := n.recount(rootDomain{3, []int{3}}, 0); err != nil || !slices.Equal(backend.counted, []int{3}) {
		t.Errorf("a core that is apart: %v, %v", backend.counted, err)
	}
	n.backend = enforce.Deadline{}
	all := rootDomain{everywhere, []int{0, 1}}
	n.claims["a"] = &prepared{}
	if left, asked := n.reclaim(t.Context(), all, 100_000, 0); left != 100_000 || asked {
		t.Errorf("with a claim %d are left, asked %t: it has to be tried again", left, asked)
	}
	delete(n.claims, "a")
	if err := n.recount(all, 200_000); !errors.Is(err, errReserved) {
		t.Errorf("with a thread outside of claims: %v", err)
	}
	if err := n.recount(all, 0); !errors.Is(err, sched.ErrNoRebuild) {
		t.Errorf("without any cpusets: %v", err)
	}
	if left, asked := n.reclaim(t.Context(), all, 100_000, 0); left != 100_000 || !asked {
		t.Errorf("without any cpusets %d are left, asked %t", left, asked)
	}
}

// rewritten is a backend whose containers' budgets something else writes now and then.
type rewritten struct {
	enforce.Backend
	times *atomic.Int32
}

func (r rewritten) Enforce(c enforce.Container, grants []enforce.Grant) (enforce.Enforcement, error) {
	e, err := r.Backend.Enforce(c, grants)
	return rewrittenEnforcement{e, r.times}, err
}

type rewrittenEnforcement struct {
	enforce.Enforcement
	times *atomic.Int32
}

func (r rewrittenEnforcement) Refresh() ([]enforce.State, error) {
	states, err := r.Enforcement.Refresh()
	for i := range states {
		states[i].Rewritten = int(r.times.Load())
	}
	return states, err
}

// wholeCores says that it gives whole cores.
type wholeCores struct{ enforce.Backend }

func (wholeCores) Name() string { return enforce.WholeName }

func TestThePodIsToldOfCoresThatWereRestored(t *testing.T) {
	times := &atomic.Int32{}
	s := newSiteWith(t, wholeCores{rewritten{enforce.Deadline{}, times}})
	b := s.reserved("pod", "idle")
	if err := b.gate(); err != nil {
		t.Fatal(err)
	}
	times.Store(1)
	s.until("the pod is told", func() bool { return len(s.events.of("pod", reasonRestored)) > 0 })
	if told := s.events.of("pod", reasonRestored); !strings.Contains(told[0], "the cpuset partition of the cores that") || strings.Contains(told[0], "budget") {
		t.Errorf("the pod is told %q", told)
	}
}

func TestThePodIsToldOfABudgetThatWasRestored(t *testing.T) {
	times := &atomic.Int32{}
	s := newSiteWith(t, rewritten{enforce.Deadline{}, times})
	b := s.reserved("pod", "idle")
	if err := b.gate(); err != nil {
		t.Fatal(err)
	}
	times.Store(1)
	s.until("the pod is told", func() bool { return len(s.events.of("pod", reasonRestored)) > 0 })
	if told := s.events.of("pod", reasonRestored); len(told) != 1 || !strings.Contains(told[0], "another budget") {
		t.Errorf("the pod is told %q", told)
	}
	if page := s.page(); !regexp.MustCompile(`(?m)^takt_reservation_budget_restored_total\{.*\} 1$`).MatchString(page) {
		t.Errorf("metrics are %s", page)
	}
	// It was not the container: it is not ended for it, however often.
	times.Store(100)
	s.until("the pod is told again", func() bool { return len(s.events.of("pod", reasonRestored)) > 1 })
	if b.dead() {
		t.Error("the container was ended for what something else has written")
	}
}

// stranger is a process outside of all claims that has 4 ms every 20 ms.
func (s *site) stranger() *exec.Cmd {
	s.t.Helper()
	runtime.LockOSThread() // Pdeathsig is of the thread that forks
	stranger := exec.Command("sleep", "1000")
	stranger.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := stranger.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { stranger.Process.Kill() })
	if err := sched.Set(stranger.Process.Pid, sched.Attr{Policy: sched.Deadline, Runtime: 4_000_000, Deadline: 20_000_000, Period: 20_000_000}); err != nil {
		s.t.Fatal(err)
	}
	return stranger
}

func TestWithoutWhatTheKernelCountsStrangersAreFoundAndTheNodeIsTold(t *testing.T) {
	if _, err := sched.Admitted("/", 0); err == nil {
		t.Skip("the kernel says what it has admitted")
	}
	s := newSite(t)
	stranger := s.stranger()
	s.until("it is found", func() bool {
		s.agent.checkOnce(context.Background(), 0)
		return s.drift().strangers() >= 199_000
	})
	if told := s.toldNode(reasonUnchecked); len(told) != 1 || !strings.Contains(told[0], "mount debugfs") {
		t.Errorf("the node is told %q", told)
	}
	if page := s.page(); !strings.Contains(page, "takt_node_bandwidth_checked 0") || !strings.Contains(page, "takt_node_outside_claims_ppm") {
		t.Errorf("metrics are %s", page)
	}
	stranger.Process.Kill()
	stranger.Wait()
	s.until("it is forgotten", func() bool {
		s.agent.checkOnce(context.Background(), 0)
		return s.drift().strangers() < 199_000
	})
}
