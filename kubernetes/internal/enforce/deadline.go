package enforce

import (
	"fmt"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
	"github.com/takt-dev/takt/kubernetes/internal/topology"
)

// DeadlineName is the backend of SCHED_DEADLINE per thread.
const DeadlineName = "deadline"

// Deadline gives chosen threads SCHED_DEADLINE. The kernel admits per root domain, by default all CPUs
// together, and schedules them by global EDF; the cores of the claim are accounted for by the scheduler
// only.
type Deadline struct{}

// Name implements Backend.
func (Deadline) Name() string { return DeadlineName }

// Shared implements Backend.
func (Deadline) Shared(int) int { return 1 }

// Roams implements Backend.
func (Deadline) Roams() bool { return true }

// Accepts implements Backend.
func (Deadline) Accepts(grants []Grant) error { return acceptDeadline(DeadlineName, grants) }

func acceptDeadline(backend string, grants []Grant) error {
	for _, grant := range grants {
		switch grant.Parameters.Policy {
		case reservation.PolicyNative, reservation.PolicyDeadline:
		default:
			return fmt.Errorf("policy %q is not available: the backend %s of this node gives SCHED_DEADLINE; leave policy out, or select devices by attribute backend",
				grant.Parameters.Policy, backend)
		}
	}
	return nil
}

// Adjust implements Backend: the kernel refuses SCHED_DEADLINE to pinned threads, so nothing is pinned.
func (Deadline) Adjust([]Grant) Adjustment { return Adjustment{} }

// Enforce implements Backend.
func (Deadline) Enforce(c Container, grants []Grant) (Enforcement, error) {
	members, err := findMembers(c)
	if err != nil {
		return nil, err
	}
	return (&threads{members: members, all: newSeats(grants), attr: deadlineAttr, span: rootDomain}).start(c.Runs)
}

func rootDomain() ([]int, error) { return topology.RootDomain("/") }

// Broken implements Backend.
func (Deadline) Broken() map[int]error { return nil }

// Open implements Backend.
func (Deadline) Open() error { return nil }

// Close implements Backend.
func (Deadline) Close() error { return nil }

// deadlineAttr resets on fork, without which a thread of SCHED_DEADLINE cannot create others: fork fails
// with EAGAIN.
func deadlineAttr(grant Grant) sched.Attr {
	flags := sched.ResetOnFork
	switch grant.Parameters.OverrunRule() {
	case reservation.OverrunSignal:
		flags |= sched.Overrun
	case reservation.OverrunReclaim:
		flags |= sched.Reclaim
	}
	return sched.Attr{
		Policy: sched.Deadline, Flags: flags,
		Runtime:  grant.Parameters.Runtime.Nanoseconds(),
		Deadline: grant.Parameters.RelativeDeadline().Nanoseconds(),
		Period:   grant.Parameters.Period.Nanoseconds(),
	}
}
