package enforce

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

// members finds the threads of a container's own program, oldest first: those of its first process and of
// that one's descendants inside the container's cgroup. A process that exec or a probe put there descends
// from outside, so it gets no reservation.
type members struct {
	init sched.Thread
	// dir is the container's cgroup in some hierarchy.
	dir string
}

func findMembers(c Container) (*members, error) {
	init, err := sched.ReadThread(c.Init, c.Init)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", c.Init, ErrGone)
	}
	for _, controller := range []string{"", "pids", "cpuset", "memory", "cpu"} {
		root, err := cgroupRoot("/", controller)
		if err != nil {
			continue
		}
		path, err := c.cgroupOf(controller)
		if err != nil {
			continue
		}
		if path == "/" {
			continue // this hierarchy does not hold containers
		}
		if dir := filepath.Join(root, path); exists(dir) {
			return &members{init: init, dir: dir}, nil
		}
	}
	return nil, fmt.Errorf("cannot find the cgroup of process %d: is /sys/fs/cgroup the host's?", c.Init)
}

// list is the threads at this moment; ErrGone if the first process has ended.
func (m *members) list() ([]sched.Thread, error) {
	if !m.init.Alive() {
		return nil, fmt.Errorf("process %d: %w", m.init.Process, ErrGone)
	}
	processes := map[int]sched.Thread{m.init.Process: m.init}
	err := filepath.WalkDir(m.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil // a nested cgroup that has just ended
		}
		text, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			return nil
		}
		for field := range strings.FieldsSeq(string(text)) {
			process, err := strconv.Atoi(field)
			if err != nil || process <= 0 {
				continue
			}
			if leader, err := sched.ReadThread(process, process); err == nil {
				processes[process] = leader
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list the processes of %s: %w", m.dir, err)
	}
	var threads []sched.Thread
	for process := range processes {
		if m.descends(process, processes) {
			threads = append(threads, sched.Threads(process)...)
		}
	}
	slices.SortFunc(threads, func(a, b sched.Thread) int {
		return cmp.Or(m.rank(a)-m.rank(b), cmp.Compare(a.Start, b.Start), cmp.Compare(a.TID, b.TID))
	})
	return threads, nil
}

// rank puts the thread that the container began with before all others: clock ticks do not tell it from
// its earliest children.
func (m *members) rank(thread sched.Thread) int {
	if thread.TID == m.init.TID {
		return 0
	}
	return 1
}

func (m *members) descends(process int, processes map[int]sched.Thread) bool {
	for range len(processes) {
		if process == m.init.Process {
			return true
		}
		leader, ok := processes[process]
		if !ok {
			return false
		}
		process = leader.Parent
	}
	return false
}

// find is the thread by which the container's own number is known: process is this process' view of the
// one that says so.
func (m *members) find(process, inner int) (sched.Thread, error) {
	threads, err := m.list()
	if err != nil {
		return sched.Thread{}, err
	}
	for _, thread := range threads {
		if thread.Process == process && innerID(thread) == inner {
			return thread, nil
		}
	}
	return sched.Thread{}, fmt.Errorf("thread %d of process %d is not of the container's program: only its own threads may ask, not those of exec or probes",
		inner, process)
}

// innerID is the thread's number in its own PID namespace; 0 if it has ended.
func innerID(thread sched.Thread) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", thread.Process, thread.TID))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			fields := strings.Fields(rest)
			if len(fields) == 0 {
				return 0
			}
			inner, err := strconv.Atoi(fields[len(fields)-1])
			if err != nil {
				return 0
			}
			return inner
		}
	}
	return 0
}
