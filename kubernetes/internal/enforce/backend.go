// Package enforce makes the kernel keep a reservation for a container. There is one backend per mechanism
// of the kernel; docs/concepts/reservations.md says what each guarantees. It knows nothing of Kubernetes.
package enforce

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

// ErrRefused marks a reservation that the kernel does not grant: the container must not run.
var ErrRefused = errors.New("the kernel refused the reservation")

// ErrRestless says that a container has changed its reservations more often than they are restored.
var ErrRestless = errors.New("its threads change their policy again and again")

// ErrGone says that the container has ended.
var ErrGone = errors.New("the container has no process left")

// ErrStranger says that a thread is not of the container that it was looked for in.
var ErrStranger = errors.New("is not of the container's program")

// Grant is one reservation that the scheduler gave to a container: runtime and period on each of the cores.
type Grant struct {
	// Key names the grant on the node: claim UID and request.
	Key string
	// Name is how people know it; the key if empty.
	Name       string
	Parameters reservation.Parameters
	// Cores are the CPUs that it was allocated on, distinct.
	Cores []int
	// Restored is how often threads of earlier containers have had it restored: State.Restored counts on from there.
	Restored int
}

// String is how people know the grant.
func (g Grant) String() string { return cmp.Or(g.Name, g.Key) }

// Container is what a backend has to know of one.
type Container struct {
	// ID is the runtime's name for it.
	ID string
	// Init is the process number of its first process, as this process sees it.
	Init int
	// Root is "/" but in tests: below it are sys/fs/cgroup and the container's cgroups.
	Root string
	// Memory is the file that remembers which of the container's processes are its program's, where a later agent could
	// not tell; none if empty. It goes with the reservation.
	Memory string
	// Runs says that its program runs already: an earlier agent has enforced the grants.
	Runs bool
}

// Adjustment is what a backend needs of a container before it is created.
type Adjustment struct {
	// CPUs pins the container; empty leaves it free.
	CPUs []int
	// Cgroup is the one that it is created below, from the root of the hierarchy; empty leaves it where the
	// container runtime puts it.
	Cgroup string
}

// Backend is one way to enforce.
type Backend interface {
	// Name is how configuration, claims and metrics call it.
	Name() string
	// Shared is how many cores share one core's bandwidth: n where the kernel admits the sum over n cores
	// against the bound of one, 1 where each core has its own.
	Shared(cores int) int
	// Roams says that the kernel runs a reservation's threads on any core of their root domain, by global
	// EDF: then what it admits is more than what is schedulable.
	Roams() bool
	// Accepts says whether the backend can do what the grants of one container ask for.
	Accepts(grants []Grant) error
	// Adjust is what the container has to be created with.
	Adjust(grants []Grant) Adjustment
	// Broken says of cores why they keep no reservation at the moment, having put right what it can.
	Broken() map[int]error
	// Enforce takes effect before it returns. It is called before the container's own program starts,
	// and again after a restart of this process, for a container that runs. An error wraps ErrRefused or
	// ErrGone; then nothing is left behind.
	Enforce(c Container, grants []Grant) (Enforcement, error)
	// Open does to the node what the backend needs, once and before anything else; Close undoes it.
	Open() error
	Close() error
}

// Enforcement is a container under reservation.
type Enforcement interface {
	// Refresh takes in threads that were born or died, repairs what was changed from inside the
	// container, and returns one state per grant. An error wraps ErrRefused or ErrGone.
	Refresh() ([]State, error)
	// Ask gives a thread a reservation of the first grant with select: ask that has one left. process is
	// this process' number of the one that asks, inner the number that the thread has for itself.
	Ask(process, inner int) (Grant, error)
	// Return takes a reservation back from a thread that asked.
	Return(process, inner int) error
	// Release gives everything back. The container may still run, or be gone.
	Release() error
}

// State is what is known of a grant at one moment.
type State struct {
	Grant Grant
	// Threads hold its reservations.
	Threads []ThreadState
	// Free is how many reservations no thread holds.
	Free int
	// Resting is how many of them a thread had less than a period ago: no other one may have them yet.
	Resting int
	// Waiting is how many threads have no reservation for the moment, because the kernel has no room for it.
	Waiting int
	// Starting says that the container still runs as ordinary threads, as the grant wants it at the beginning.
	Starting bool
	// LeftOut is how many threads have a name that matches but came too late: all reservations were taken.
	LeftOut int
	// Restored counts reservations that a thread had changed or dropped and got back.
	Restored int
	// Unpinned counts threads that had pinned themselves to some CPUs, and were unpinned to have their
	// reservation; LastUnpinned is the last one.
	Unpinned     int
	LastUnpinned sched.Thread
	// Narrowed is how many threads a cpuset keeps off CPUs that their reservations count on; Missing are
	// those of one of them.
	Narrowed int
	Missing  []int
	// Rewritten counts how often something else on the node had written the budget that the container's threads have
	// together, and it was put back.
	Rewritten int
	// Revived counts threads that the kernel had stopped running and that got their reservation anew.
	Revived int
}

// ThreadState is one thread with a reservation.
type ThreadState struct {
	sched.Thread
	sched.Usage
	// Inner is the number by which the container knows it, 0 if not known.
	Inner int
}

// Unified is where the unified hierarchy (cgroup v2) is below a root.
func Unified(root string) (string, error) { return cgroupRoot(root, "") }

// cgroupRoot finds where a controller is mounted: "" stands for the unified hierarchy.
func cgroupRoot(root, controller string) (string, error) {
	base := filepath.Join(root, "sys/fs/cgroup")
	if controller == "" {
		for _, dir := range []string{base, filepath.Join(base, "unified")} {
			if exists(filepath.Join(dir, "cgroup.controllers")) {
				return dir, nil
			}
		}
		return "", fmt.Errorf("%s has no unified hierarchy (cgroup v2): %w", base, fs.ErrNotExist)
	}
	for _, dir := range []string{controller, controller + ",cpuacct"} {
		if dir = filepath.Join(base, dir); exists(filepath.Join(dir, "cgroup.procs")) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%s has no hierarchy of its own (cgroup v1) for %s: %w", base, controller, fs.ErrNotExist)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// cgroupOf is the path of a process below the root of a hierarchy.
func (c Container) cgroupOf(controller string) (string, error) {
	text, err := os.ReadFile(filepath.Join(c.Root, "proc", strconv.Itoa(c.Init), "cgroup"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("process %d: %w", c.Init, ErrGone)
	}
	if err != nil {
		return "", fmt.Errorf("cannot read the cgroups of process %d: %w", c.Init, err)
	}
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for name := range strings.SplitSeq(parts[1], ",") {
			if name == controller {
				return cleanCgroup(parts[2])
			}
		}
	}
	return "", fmt.Errorf("process %d is in no cgroup of %q", c.Init, controller)
}

// cleanCgroup refuses paths that lead out of the hierarchy, as a private cgroup namespace shows them.
func cleanCgroup(path string) (string, error) {
	if !strings.HasPrefix(path, "/") || strings.Contains(path+"/", "/../") {
		return "", fmt.Errorf("cgroup %q is outside this process' cgroup namespace: run it in the host's", path)
	}
	return filepath.Clean(path), nil
}
