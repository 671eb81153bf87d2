package enforce

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

// Names of the backends that reserve for a group of threads: the paper's two levels, a reservation outside
// and fixed priorities inside.
const (
	RTGroupName = "rt-group"
	HCBSName    = "hcbs"
)

// Group reserves for all real-time threads of a container together, by its cgroup.
type Group struct {
	name       string
	controller string
	budgets    *budgets
	// perCore says that cores have budgets of their own.
	perCore bool
}

// NewRTGroup is the backend of real-time groups of cgroup v1 (CONFIG_RT_GROUP_SCHED). It caps what the
// container's real-time threads use of every core. It does not isolate them: a thread of a higher priority
// in another group goes first.
func NewRTGroup(root string) (*Group, error) {
	dir, err := cgroupRoot(root, "cpu")
	if err != nil {
		return nil, err
	}
	if !exists(filepath.Join(dir, "cpu.rt_runtime_us")) {
		return nil, fmt.Errorf("%s has no cpu.rt_runtime_us: this kernel has no real-time groups (CONFIG_RT_GROUP_SCHED) or they are off (rt_group_sched=0)", dir)
	}
	return &Group{name: RTGroupName, controller: "cpu", budgets: &budgets{root: dir, knob: rtKnob{}}}, nil
}

// NewHCBS is the backend of hierarchical constant bandwidth servers, which are not in Linux yet:
// cpu.rt.max of the patches for cgroup v2 (RFC v6, June 2026), or cpu.rt_multi_runtime_us of the paper's
// kernel. Each core has a server for the group, so that it is isolated like a thread of SCHED_DEADLINE.
func NewHCBS(root string) (*Group, error) {
	if dir, err := cgroupRoot(root, "cpu"); err == nil && exists(filepath.Join(dir, multiRuntime)) {
		return &Group{name: HCBSName, controller: "cpu", budgets: &budgets{root: dir, knob: multiKnob{}}, perCore: true}, nil
	}
	dir, err := cgroupRoot(root, "")
	if err != nil {
		return nil, err
	}
	// The root itself may have no such file.
	found, err := filepath.Glob(filepath.Join(dir, "*", rtMax))
	if err != nil || (len(found) == 0 && !exists(filepath.Join(dir, rtMax))) {
		return nil, fmt.Errorf("no cgroup of %s has %s: this kernel has no HCBS", dir, rtMax)
	}
	return &Group{name: HCBSName, budgets: &budgets{root: dir, knob: maxKnob{}}}, nil
}

// Name implements Backend.
func (g *Group) Name() string { return g.name }

// Roams implements Backend: a group's budget is of one CPU.
func (g *Group) Roams() bool { return false }

// Shared implements Backend: a budget that holds on every core counts against the bound of each, wherever
// the container runs.
func (g *Group) Shared(cores int) int {
	if g.perCore {
		return 1
	}
	return max(cores, 1)
}

// Accepts implements Backend.
func (g *Group) Accepts(grants []Grant) error {
	if err := acceptTogether(g.name, grants); err != nil {
		return err
	}
	for _, grant := range grants {
		if share := g.budgets.knob.share(grant); slices.Max(share) == 0 {
			return fmt.Errorf("runtime %s every %s is nothing in the units of %s: ask for at least 1us and a millionth of the period",
				grant.Parameters.Runtime, grant.Parameters.Period, g.name)
		}
	}
	return nil
}

// acceptTogether is Accepts of backends that reserve for all real-time threads of a container together.
func acceptTogether(backend string, grants []Grant) error {
	if len(grants) > 1 {
		return fmt.Errorf("a container with %d reservations is not available: the backend %s has one for all threads of a container; use one request",
			len(grants), backend)
	}
	for _, grant := range grants {
		p := grant.Parameters
		if p.Policy == reservation.PolicyDeadline {
			return fmt.Errorf("policy %q is not available: the backend %s of this node gives SCHED_FIFO or SCHED_RR inside a group; leave policy out, or select devices by attribute backend",
				p.Policy, backend)
		}
		if p.OverrunRule() != reservation.OverrunThrottle {
			return fmt.Errorf("overrun %q is not available: the backend %s throttles groups; leave overrun out", p.Overrun, backend)
		}
		if p.Deadline != nil && *p.Deadline != p.Period {
			return fmt.Errorf("deadline %s is not available: the backend %s gives groups their runtime by the end of the period %s; leave deadline out, or shorten the period",
				*p.Deadline, backend, p.Period)
		}
		if p.Changes == reservation.ChangesDeny {
			return fmt.Errorf("changes %q is not available: inside a group of the backend %s a program sets its threads' priorities; leave changes out", p.Changes, backend)
		}
		if p.Startup != nil {
			return fmt.Errorf("startup %s is not available: the backend %s gives a group its budget before it begins; leave startup out", *p.Startup, backend)
		}
		if least, most := p.RuntimeRange(); least != most {
			return fmt.Errorf("a runtime from %s to %s is not available: the backend %s gives a group one budget; leave minRuntime and maxRuntime out", least, most, backend)
		}
	}
	return nil
}

// Adjust implements Backend: the container stays on the cores of its claim.
func (g *Group) Adjust(grants []Grant) Adjustment {
	var adjustment Adjustment
	for _, grant := range grants {
		adjustment.CPUs = append(adjustment.CPUs, grant.Cores...)
	}
	return adjustment
}

// Enforce implements Backend.
func (g *Group) Enforce(c Container, grants []Grant) (Enforcement, error) {
	path, err := c.cgroupOf(g.controller)
	if err != nil {
		return nil, err
	}
	if path == "/" {
		return nil, fmt.Errorf("%w: the container is in the root of cgroup %q: its runtime must give it one of its own", ErrRefused, g.controller)
	}
	members, err := findMembers(c)
	if err != nil {
		return nil, err
	}
	for _, grant := range grants {
		if err := g.budgets.grant(path, grant); err != nil {
			return nil, err
		}
	}
	if err := letPrioritise(c.Init); err != nil {
		return nil, errors.Join(err, g.budgets.revoke(path))
	}
	return (&threads{
		members: members, all: togetherSeats(grants), attr: groupAttr(grants), free: true,
		keep: func() (rewritten bool, err error) {
			for _, grant := range grants { // at most one
				rewritten, err = g.budgets.keep(path, grant)
			}
			return rewritten, err
		},
		release: func() error { return g.budgets.revoke(path) },
	}).start(c.Runs)
}

// togetherSeats are the seats of threads that have their runtime together.
func togetherSeats(grants []Grant) []*seats {
	all := newSeats(grants)
	for _, s := range all {
		s.rest = 0 // what threads pass on is a priority: the runtime is the container's
		if s.grant.Parameters.Threads.Select == "" {
			// The first thread hands its policy on to all that it creates.
			s.grant.Parameters.Threads.Select, s.held = reservation.SelectFirst, s.held[:1]
		}
	}
	return all
}

// Broken implements Backend.
func (g *Group) Broken() map[int]error { return nil }

// Open implements Backend.
func (g *Group) Open() error { return nil }

// Close implements Backend.
func (g *Group) Close() error { return nil }

// letPrioritise lets the container's program order its own threads, which the budget holds together. Where
// this agent has no right to raise limits (CAP_SYS_RESOURCE), the program needs CAP_SYS_NICE for that.
func letPrioritise(process int) error {
	const highest = 99
	limit := unix.Rlimit{Cur: highest, Max: highest}
	err := unix.Prlimit(process, unix.RLIMIT_RTPRIO, &limit, nil)
	if err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("cannot let process %d set priorities: %w", process, err)
	}
	return nil
}

// groupAttr is the lowest priority inside the group. Only where the claim chooses threads do their
// children not inherit it.
func groupAttr(grants []Grant) func(Grant) sched.Attr {
	chosen := len(grants) > 0 && grants[0].Parameters.Threads.Select != ""
	return func(grant Grant) sched.Attr {
		attr := sched.Attr{Policy: sched.FIFO, Priority: 1}
		if grant.Parameters.Policy == reservation.PolicyRR {
			attr.Policy = sched.RR
		}
		if chosen {
			attr.Flags = sched.ResetOnFork
		}
		return attr
	}
}

// rtKnob is cpu.rt_runtime_us of cpu.rt_period_us.
type rtKnob struct{}

func (rtKnob) read(dir string) (share, error) {
	runtime, period, err := rtBudget(dir)
	if err != nil {
		return nil, err
	}
	if runtime < 0 || period <= 0 {
		return unlimited, nil
	}
	return share{ratio(uint64(runtime), uint64(period))}, nil
}

func (rtKnob) write(dir string, s share) error {
	period, err := rtPeriod(dir)
	if err != nil {
		return err
	}
	return writeText(filepath.Join(dir, "cpu.rt_runtime_us"), strconv.FormatUint(runtimeFor(s[0], period), 10))
}

func (rtKnob) fit(dir string, s share) (share, error) { return fitPeriod(dir, s) }

func fitPeriod(dir string, s share) (share, error) {
	period, err := rtPeriod(dir)
	if err != nil {
		return nil, err
	}
	return s.written(period), nil
}

// written is the share after its runtimes have been rounded up to microseconds of a period.
func (s share) written(period uint64) share {
	rounded := make(share, len(s))
	for i, units := range s {
		rounded[i] = ratio(runtimeFor(units, period), period)
	}
	return rounded
}

func rtPeriod(dir string) (uint64, error) {
	period, err := readNumbers(filepath.Join(dir, "cpu.rt_period_us"))
	if err != nil {
		return 0, err
	}
	if period[0] <= 0 {
		return 0, fmt.Errorf("cgroup %s has a period of %d us", dir, period[0])
	}
	return uint64(period[0]), nil
}

func (rtKnob) grant(dir string, g Grant) error {
	runtime, period, err := rtBudget(dir)
	if err != nil {
		return err
	}
	file, gives := filepath.Join(dir, "cpu.rt_runtime_us"), int64(g.runtime())
	if period != int64(g.period()) {
		// The old runtime may not fit the new period, nor the new runtime the old period. The least that fits both is not
		// nought: the kernel leaves that to no group in which real-time threads are.
		if runtime != 0 {
			if err := writeText(file, "1"); err != nil {
				return err
			}
			runtime = 1
		}
		if err := writeText(filepath.Join(dir, "cpu.rt_period_us"), strconv.FormatUint(g.period(), 10)); err != nil {
			return err
		}
	}
	if runtime == gives {
		return nil // after a restart of the agent it is there already
	}
	return writeText(file, strconv.FormatInt(gives, 10))
}

func (rtKnob) holds(dir string, g Grant) (bool, error) {
	runtime, period, err := rtBudget(dir)
	return runtime == int64(g.runtime()) && period == int64(g.period()), err
}

// rtBudget is a group's runtime, -1 for no limit, and its period.
func rtBudget(dir string) (runtime, period int64, err error) {
	runtimes, err := readNumbers(filepath.Join(dir, "cpu.rt_runtime_us"))
	if err != nil {
		return 0, 0, err
	}
	periods, err := readNumbers(filepath.Join(dir, "cpu.rt_period_us"))
	if err != nil {
		return 0, 0, err
	}
	return runtimes[0], periods[0], nil
}

func (rtKnob) revoke(dir string) error {
	return notGone(writeText(filepath.Join(dir, "cpu.rt_runtime_us"), "0"))
}

func (rtKnob) share(g Grant) share { return share{ratio(g.runtime(), g.period())} }

// rtMax is "RUNTIME PERIOD" or "max PERIOD", as cpu.max is.
const rtMax = "cpu.rt.max"

type maxKnob struct{}

func (maxKnob) read(dir string) (share, error) {
	text, err := os.ReadFile(filepath.Join(dir, rtMax))
	if errors.Is(err, os.ErrNotExist) && exists(dir) {
		return unlimited, nil // the controller is not enabled there
	}
	if err != nil {
		return nil, err
	}
	runtime, period, err := parseMax(string(text))
	if err != nil {
		return nil, fmt.Errorf("cannot read %s of %s: %w", rtMax, dir, err)
	}
	if runtime < 0 || period <= 0 {
		return unlimited, nil
	}
	return share{ratio(uint64(runtime), uint64(period))}, nil
}

// parseMax is runtime (-1 for max) and period.
func parseMax(text string) (runtime, period int64, err error) {
	fields := strings.Fields(text)
	if len(fields) != 2 {
		return 0, 0, fmt.Errorf("%q is not a runtime and a period", text)
	}
	if period, err = strconv.ParseInt(fields[1], 10, 64); err != nil {
		return 0, 0, err
	}
	if fields[0] == "max" {
		return -1, period, nil
	}
	runtime, err = strconv.ParseInt(fields[0], 10, 64)
	return runtime, period, err
}

// second is the period, in microseconds, of groups above containers.
const second = 1_000_000

func (maxKnob) write(dir string, s share) error {
	return writeText(filepath.Join(dir, rtMax), fmt.Sprintf("%d %d", runtimeFor(s[0], second), second))
}

func (maxKnob) fit(_ string, s share) (share, error) { return s.written(second), nil }

func (maxKnob) grant(dir string, g Grant) error {
	return writeText(filepath.Join(dir, rtMax), fmt.Sprintf("%d %d", g.runtime(), g.period()))
}

func (maxKnob) holds(dir string, g Grant) (bool, error) {
	text, err := os.ReadFile(filepath.Join(dir, rtMax))
	if err != nil {
		return false, err
	}
	runtime, period, err := parseMax(string(text))
	return runtime == int64(g.runtime()) && period == int64(g.period()), err
}

func (maxKnob) revoke(dir string) error {
	return notGone(writeText(filepath.Join(dir, rtMax), fmt.Sprintf("0 %d", second)))
}

func (maxKnob) share(g Grant) share { return share{ratio(g.runtime(), g.period())} }

// multiRuntime has a runtime for every CPU of the machine, of the period cpu.rt_period_us (the paper,
// section 2.3).
const multiRuntime = "cpu.rt_multi_runtime_us"

type multiKnob struct{}

func (multiKnob) read(dir string) (share, error) {
	runtimes, err := readNumbers(filepath.Join(dir, multiRuntime))
	if err != nil {
		return nil, err
	}
	period, err := readNumbers(filepath.Join(dir, "cpu.rt_period_us"))
	if err != nil {
		return nil, err
	}
	s := make(share, len(runtimes))
	for i, runtime := range runtimes {
		if runtime < 0 || period[0] <= 0 {
			return unlimited, nil
		}
		s[i] = ratio(uint64(runtime), uint64(period[0]))
	}
	return s, nil
}

func (multiKnob) write(dir string, s share) error {
	period, err := rtPeriod(dir)
	if err != nil {
		return err
	}
	return writeRuntimes(dir, func(cpu int) uint64 {
		if cpu >= len(s) {
			return 0
		}
		return runtimeFor(s[cpu], period)
	})
}

func (multiKnob) fit(dir string, s share) (share, error) { return fitPeriod(dir, s) }

// writeRuntimes writes as many numbers as there are.
func writeRuntimes(dir string, runtime func(cpu int) uint64) error {
	path := filepath.Join(dir, multiRuntime)
	now, err := readNumbers(path)
	if err != nil {
		return err
	}
	words := make([]string, len(now))
	for cpu := range now {
		words[cpu] = strconv.FormatUint(runtime(cpu), 10)
	}
	return writeText(path, strings.Join(words, " "))
}

func (multiKnob) grant(dir string, g Grant) error {
	if err := writeText(filepath.Join(dir, "cpu.rt_period_us"), strconv.FormatUint(g.period(), 10)); err != nil {
		return err
	}
	return writeRuntimes(dir, g.runtimeOn)
}

// runtimeOn is the grant's runtime on a CPU.
func (g Grant) runtimeOn(cpu int) uint64 {
	if slices.Contains(g.Cores, cpu) {
		return g.runtime()
	}
	return 0
}

func (multiKnob) holds(dir string, g Grant) (bool, error) {
	runtimes, err := readNumbers(filepath.Join(dir, multiRuntime))
	if err != nil {
		return false, err
	}
	for cpu, runtime := range runtimes {
		if runtime != int64(g.runtimeOn(cpu)) {
			return false, nil
		}
	}
	period, err := readNumbers(filepath.Join(dir, "cpu.rt_period_us"))
	return err == nil && period[0] == int64(g.period()), err
}

func (multiKnob) revoke(dir string) error {
	return notGone(writeRuntimes(dir, func(int) uint64 { return 0 }))
}

func (multiKnob) share(g Grant) share {
	s := make(share, slices.Max(g.Cores)+1)
	for _, cpu := range g.Cores {
		s[cpu] = ratio(g.runtime(), g.period())
	}
	return s
}

func notGone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
