// Package v1alpha1 is what pods request of a node in the opaque parameters of their claims: gate time of a network
// (gatetime.go), and CPU time, a runtime Q in every period P on each
// of m cores (KubeDeadline, ECRTS 2025, section 2.1). It reads and checks the parameters of a
// ResourceClaim. It knows neither the node's cores nor how a reservation is enforced.
package v1alpha1

import (
	"fmt"
	"math/bits"
	"path"
	"strings"

	"github.com/takt-dev/takt/kubernetes/internal/quote"
)

const (
	// Driver is the name of the DRA driver that reservations are made with.
	Driver = "cpu.takt.dev"
	// NetworkDriver is the name of the one whose devices are networks of the node's taktd.
	NetworkDriver = "network.takt.dev"
	// TimeSensitive is the annotation, "true", of pods whose datagrams are to leave at their launch times.
	TimeSensitive = "takt.dev/time-sensitive"
	// APIVersion is the version of the parameters that this package reads.
	APIVersion = Driver + "/v1alpha1"
	// Kind is the kind of the parameters.
	Kind = "Reservation"
	// Bandwidth is the capacity of a device that claims consume, in parts per million of a core.
	Bandwidth = "bandwidth"
	// WholeCore is the bandwidth of an entire core: one million parts per million.
	WholeCore = 1_000_000
	// MinRuntime is the least runtime that the kernel takes, 2^10 ns: its own bandwidths would round
	// anything less to nothing (kernel/sched/deadline.c, __checkparam_dl).
	MinRuntime = Duration(1024)
	// MaxStartup is how long a container may run without its reservation.
	MaxStartup = Duration(600_000_000_000)
)

// Policy is the scheduling class that the time-critical threads get inside the reservation.
type Policy string

const (
	// PolicyNative leaves the choice to the backend of the node.
	PolicyNative Policy = ""
	// PolicyDeadline is SCHED_DEADLINE: each thread has a reservation of its own.
	PolicyDeadline Policy = "deadline"
	// PolicyFIFO is SCHED_FIFO inside a group that has the reservation: the paper's two levels.
	PolicyFIFO Policy = "fifo"
	// PolicyRR is SCHED_RR inside a group that has the reservation.
	PolicyRR Policy = "rr"
)

// Overrun is what happens to a thread that wants more than its runtime in a period.
type Overrun string

const (
	// OverrunThrottle stops the thread until its next period: the default.
	OverrunThrottle Overrun = "throttle"
	// OverrunSignal throttles and sends the process SIGXCPU (SCHED_FLAG_DL_OVERRUN), which kills it
	// unless it handles the signal.
	OverrunSignal Overrun = "signal"
	// OverrunReclaim lets the thread use bandwidth that other reservations leave unused
	// (SCHED_FLAG_RECLAIM, the kernel's GRUB).
	OverrunReclaim Overrun = "reclaim"
)

// Changes is what happens when a program changes the policy of its reserved threads.
type Changes string

const (
	// ChangesRestore gives the reservation back, and ends the container that does not leave it at that: the default.
	ChangesRestore Changes = "restore"
	// ChangesDeny has the system calls that change a policy fail with EPERM for all of the container (seccomp).
	ChangesDeny Changes = "deny"
)

// Selection says which threads of the container get the m reservations.
type Selection string

const (
	// SelectFirst takes the first thread of the container's first process. It needs m = 1.
	SelectFirst Selection = "first"
	// SelectFirstM takes the m oldest threads of the container: the default.
	SelectFirstM Selection = "first-m"
	// SelectName takes the m oldest threads whose names match a pattern.
	SelectName Selection = "name"
	// SelectAsk takes threads that ask through the socket in the container.
	SelectAsk Selection = "ask"
)

// Threads is the choice of threads. Without a request for real time inside a container, what is chosen
// here is all that is reserved: other threads run as if there were no claim.
type Threads struct {
	// Select is the rule; first-m if empty.
	Select Selection `json:"select,omitempty"`
	// Name is a shell pattern (*, ?, [a-z]) for thread names, which have at most 15 bytes; only with
	// select: name.
	Name string `json:"name,omitempty"`
}

// Parameters are what a claim says in config[].opaque.parameters.
type Parameters struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Runtime is Q, the CPU time that each core gives in every period.
	Runtime Duration `json:"runtime"`
	// Period is P.
	Period Duration `json:"period"`
	// Deadline is how long after the start of a period the runtime has been given at the latest; the
	// period if absent.
	Deadline *Duration `json:"deadline,omitempty"`
	Policy   Policy    `json:"policy,omitempty"`
	Threads  Threads   `json:"threads,omitempty"`
	Overrun  Overrun   `json:"overrun,omitempty"`
	Changes  Changes   `json:"changes,omitempty"`
	// Startup is how long after its start a container runs as ordinary threads before the rule of Threads
	// gives reservations: what a program does to begin may need far more than it does in each period. From
	// the start if absent.
	Startup *Duration `json:"startup,omitempty"`
	// MinRuntime and MaxRuntime are the least and the most that the runtime of a thread may be set to while it runs (`takt
	// reserve tune`); the runtime if absent. What is set aside is for the most.
	MinRuntime *Duration `json:"minRuntime,omitempty"`
	MaxRuntime *Duration `json:"maxRuntime,omitempty"`
}

// Limits are what the kernel of a node accepts (sysctl kernel.sched_deadline_period_{min,max}_us).
type Limits struct {
	PeriodMin, PeriodMax Duration
}

// DefaultLimits are those of an unconfigured kernel: 100 us and 2^22 us.
var DefaultLimits = Limits{PeriodMin: 100_000, PeriodMax: 4_194_304_000}

// RelativeDeadline is the deadline, or the period if none is given.
func (p *Parameters) RelativeDeadline() Duration {
	if p.Deadline != nil {
		return *p.Deadline
	}
	return p.Period
}

// RuntimeRange are the least and the most that the runtime may be set to.
func (p *Parameters) RuntimeRange() (least, most Duration) {
	least, most = p.Runtime, p.Runtime
	if p.MinRuntime != nil {
		least = *p.MinRuntime
	}
	if p.MaxRuntime != nil {
		most = *p.MaxRuntime
	}
	return least, most
}

// Selection is the rule by which threads are chosen, with the default filled in.
func (p *Parameters) Selection() Selection {
	if p.Threads.Select == "" {
		return SelectFirstM
	}
	return p.Threads.Select
}

// OverrunRule is what happens on an overrun, with the default filled in.
func (p *Parameters) OverrunRule() Overrun {
	if p.Overrun == "" {
		return OverrunThrottle
	}
	return p.Overrun
}

// PartsPerMillion is the bandwidth that each core must have left for the reservation: the largest runtime over
// deadline, rounded up. With a deadline before the end of the period it is the density, because
// reservations whose densities fit a core meet their deadlines under EDF, and those whose Q/P alone fit
// may not.
func (p *Parameters) PartsPerMillion() int64 {
	_, most := p.RuntimeRange()
	return ppm(most.Nanoseconds(), p.RelativeDeadline().Nanoseconds())
}

// ppm is 10^6 * runtime / period, rounded up; runtime <= period, period > 0.
func ppm(runtime, period uint64) int64 {
	high, low := bits.Mul64(runtime, WholeCore)
	quotient, rest := bits.Div64(high, low, period)
	if rest > 0 {
		quotient++
	}
	return int64(quotient)
}

// Validate says what is wrong with the parameters, for a kernel with these limits and a claim for so many
// cores; nil if nothing is.
func (p *Parameters) Validate(limits Limits, cores int) error {
	if p.APIVersion != APIVersion {
		return fmt.Errorf("apiVersion %s is not known: this node reads %q", quote.Value(p.APIVersion), APIVersion)
	}
	if p.Kind != Kind {
		return fmt.Errorf("kind %s is not known: write %q", quote.Value(p.Kind), Kind)
	}
	if err := p.validateTimes(limits); err != nil {
		return err
	}
	switch p.Policy {
	case PolicyNative, PolicyDeadline, PolicyFIFO, PolicyRR:
	default:
		return fmt.Errorf("policy %s is not known: write deadline, fifo or rr, or leave it out", quote.Value(p.Policy))
	}
	switch p.Overrun {
	case "", OverrunThrottle, OverrunSignal, OverrunReclaim:
	default:
		return fmt.Errorf("overrun %s is not known: write throttle, signal or reclaim, or leave it out", quote.Value(p.Overrun))
	}
	switch p.Changes {
	case "", ChangesRestore, ChangesDeny:
	default:
		return fmt.Errorf("changes %s is not known: write restore or deny, or leave it out", quote.Value(p.Changes))
	}
	if p.Startup != nil && *p.Startup > MaxStartup {
		return fmt.Errorf("startup %s is above %s: a program that needs longer to begin should ask for its reservation (threads.select: ask)", *p.Startup, MaxStartup)
	}
	if p.Startup != nil && p.Threads.Select == SelectAsk {
		return fmt.Errorf("startup %s has no effect with select %q: threads have their reservation when they ask", *p.Startup, SelectAsk)
	}
	return p.validateThreads(cores)
}

func (p *Parameters) validateTimes(limits Limits) error {
	if p.Runtime == 0 {
		return fmt.Errorf("runtime is missing or zero: say how much CPU time every period needs, as in \"3ms\"")
	}
	if p.Period == 0 {
		return fmt.Errorf("period is missing or zero: say how often the runtime is needed, as in \"10ms\"")
	}
	least, most := p.RuntimeRange()
	if least < MinRuntime {
		what := "runtime"
		if p.MinRuntime != nil {
			what = "minRuntime"
		}
		return fmt.Errorf("%s %s is below the kernel's least of %s: ask for more, or for the same share of a longer period",
			what, least, MinRuntime)
	}
	if least > p.Runtime {
		return fmt.Errorf("minRuntime %s is above the runtime %s: make it at most that", least, p.Runtime)
	}
	if most < p.Runtime {
		return fmt.Errorf("maxRuntime %s is below the runtime %s: make it at least that", most, p.Runtime)
	}
	if p.Period < limits.PeriodMin {
		return fmt.Errorf("period %s is below the node's least of %s: make it longer, or lower kernel.sched_deadline_period_min_us there",
			p.Period, limits.PeriodMin)
	}
	if p.Period > limits.PeriodMax {
		return fmt.Errorf("period %s is above the node's greatest of %s: make it shorter, or raise kernel.sched_deadline_period_max_us there",
			p.Period, limits.PeriodMax)
	}
	if p.Deadline != nil {
		if *p.Deadline == 0 {
			return fmt.Errorf("deadline is zero: leave it out to have the period's end, %s", p.Period)
		}
		if *p.Deadline > p.Period {
			return fmt.Errorf("deadline %s is after the period's end, %s: make it at most that", *p.Deadline, p.Period)
		}
	}
	if most > p.RelativeDeadline() {
		what, whose := "period", "runtime"
		if p.Deadline != nil {
			what = "deadline"
		}
		if most > p.Runtime {
			whose = "maxRuntime"
		}
		return fmt.Errorf("%s %s exceeds the %s %s: one core gives at most as much time as passes",
			whose, most, what, p.RelativeDeadline())
	}
	return nil
}

func (p *Parameters) validateThreads(cores int) error {
	name := p.Threads.Name
	switch p.Threads.Select {
	case "", SelectFirstM, SelectAsk:
	case SelectFirst:
		if cores > 1 {
			return fmt.Errorf("threads.select \"first\" reserves for one thread, but the claim has %d cores: write \"first-m\", or count: 1", cores)
		}
	case SelectName:
		if name == "" {
			return fmt.Errorf("threads.name is missing: select \"name\" needs a pattern, as in \"control-*\"")
		}
		if len(name) > 64 {
			return fmt.Errorf("threads.name has %d bytes: a pattern may have 64, thread names have at most 15", len(name))
		}
		if _, err := path.Match(name, ""); err != nil {
			return fmt.Errorf("threads.name %s is not a pattern: close its brackets, escape a lone \\", quote.Value(name))
		}
		if strings.ContainsAny(name, "/\x00") {
			return fmt.Errorf("threads.name %s has a slash or zero byte, which it would never match: leave it out", quote.Value(name))
		}
		return nil
	default:
		return fmt.Errorf("threads.select %s is not known: write first, first-m, name or ask", quote.Value(p.Threads.Select))
	}
	if name != "" {
		return fmt.Errorf("threads.name %s has no effect with select %q: write select: name", quote.Value(name), p.Selection())
	}
	return nil
}

// FitsCapacity says whether the scheduler has set aside enough of a core for the reservation. It is the
// node's own check: the request for capacity and the parameters are two fields that users write.
func (p *Parameters) FitsCapacity(consumedPPM int64) error {
	if need := p.PartsPerMillion(); need > consumedPPM {
		_, most := p.RuntimeRange()
		return fmt.Errorf("runtime %s in %s needs %d parts per million of a core, but the claim requests %d: set capacity.requests.%s to %d",
			most, p.RelativeDeadline(), need, consumedPPM, Bandwidth, need)
	}
	return nil
}
