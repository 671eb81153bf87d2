package enforce

import (
	"cmp"
	"encoding/json"
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
// from outside, so it gets no reservation; nor do its children, which the kernel makes children of the
// container's first process when their parent has ended.
type members struct {
	init sched.Thread
	// depth is how many PID namespaces the first process is below this one's.
	depth int
	// dir is the container's cgroup in some hierarchy.
	dir string
	// known are the processes that were there the last time, by number: whose they are does not change with
	// their parent.
	known map[int]relation
	// memory is the file that has of known what cannot be told from the processes alone, written its text; none if empty.
	memory, written string
	// threads are those that were there the last time, by number: what does not change is not read again.
	threads map[int]sched.Thread
}

// relation is what is known of a process in the container's cgroup.
type relation struct {
	leader sched.Thread
	own    bool
}

func findMembers(c Container) (*members, error) {
	init, err := sched.ReadProcess(c.Init)
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
			m := &members{init: init, depth: len(numbers(init)) - 1, dir: dir, memory: c.Memory}
			m.recall()
			return m, nil
		}
	}
	return nil, fmt.Errorf("cannot find the cgroup of process %d: is /sys/fs/cgroup the host's?", c.Init)
}

// list is the threads at this moment, read entirely; ErrGone if the first process has ended.
func (m *members) list() ([]sched.Thread, error) {
	return m.look(func(sched.Thread) bool { return true })
}

// look is the threads at this moment; ErrGone if the first process has ended. Of those that were there the
// last time only the ones that fresh says are read anew: with a thousand threads, reading is what costs.
func (m *members) look(fresh func(sched.Thread) bool) ([]sched.Thread, error) {
	if !m.init.ProcessAlive() {
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
			if leader, err := sched.ReadProcess(process); err == nil {
				processes[process] = leader
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list the processes of %s: %w", m.dir, err)
	}
	m.relate(processes)
	var threads []sched.Thread
	now := map[int]sched.Thread{}
	for process, is := range m.known {
		if !is.own {
			continue
		}
		for _, tid := range sched.ThreadIDs(process) {
			thread, seen := m.threads[tid]
			if !seen || thread.Process != process || fresh(thread) {
				if thread, err = sched.ReadThread(process, tid); err != nil {
					continue // it has ended
				}
			}
			now[tid] = thread
			threads = append(threads, thread)
		}
	}
	m.threads = now
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

// remembered is a process of which a later agent could not tell whose it is: the parent that told it has ended.
type remembered struct {
	Process int    `json:"process"`
	Start   uint64 `json:"start"`
	Own     bool   `json:"own"`
}

// recall reads what an earlier agent has written down. What cannot be read was never there.
func (m *members) recall() {
	if m.memory == "" {
		return
	}
	text, err := os.ReadFile(m.memory)
	var all []remembered
	if err != nil || json.Unmarshal(text, &all) != nil {
		return
	}
	m.written, m.known = string(text), map[int]relation{}
	for _, is := range all {
		m.known[is.Process] = relation{sched.Thread{TID: is.Process, Process: is.Process, Start: is.Start}, is.Own}
	}
}

// remember writes down what a later agent could not tell, if that has changed. It is tried again at the next look.
func (m *members) remember(processes map[int]sched.Thread) {
	if m.memory == "" {
		return
	}
	anew := m.relations(processes, nil)
	all := []remembered{}
	for process, is := range m.known {
		if anew[process].own != is.own {
			all = append(all, remembered{process, is.leader.Start, is.own})
		}
	}
	slices.SortFunc(all, func(a, b remembered) int { return a.Process - b.Process })
	text, err := json.Marshal(all)
	if err != nil || string(text) == m.written || (len(all) == 0 && m.written == "") {
		return
	}
	if os.WriteFile(m.memory+".tmp", text, 0o600) == nil && os.Rename(m.memory+".tmp", m.memory) == nil {
		m.written = string(text)
	}
}

// relate says of each process whether it is of the container's own program. What was said of it before stays,
// though its parent may have ended since and it be another one's child.
func (m *members) relate(processes map[int]sched.Thread) {
	m.known = m.relations(processes, m.known)
	m.remember(processes)
}

// relations are those of processes, of which some were known before.
func (m *members) relations(processes map[int]sched.Thread, before map[int]relation) map[int]relation {
	known := map[int]relation{}
	for process, leader := range processes {
		if was, ok := before[process]; ok && was.leader.Start == leader.Start {
			known[process] = relation{leader, was.own}
		}
	}
	known[m.init.Process] = relation{m.init, true}
	var own func(process, depth int) bool
	own = func(process, depth int) bool {
		if is, ok := known[process]; ok {
			return is.own
		}
		leader, ok := processes[process]
		if !ok || depth > len(processes) {
			return false
		}
		is := own(leader.Parent, depth+1)
		// A child of the first process was born as one, or left by another that has ended. A container
		// runtime begins a session for each process of exec and probes, and what they leave is in it; a
		// session of its own is a process' own doing.
		if is && leader.Parent == m.init.Process && leader.Session != m.init.Session && leader.Session != process {
			is = own(leader.Session, depth+1)
		}
		known[process] = relation{leader, is}
		return is
	}
	for process := range processes {
		own(process, 0)
	}
	return known
}

// forget has a thread read anew the next time.
func (m *members) forget(thread sched.Thread) { delete(m.threads, thread.TID) }

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
	return sched.Thread{}, fmt.Errorf("thread %d of process %d %w: only its own threads may ask, not those of exec or probes",
		inner, process, ErrStranger)
}

// innerID is the thread's number in its own PID namespace, which it knows itself by; 0 if it has ended.
func innerID(thread sched.Thread) int {
	all := numbers(thread)
	if len(all) == 0 {
		return 0
	}
	return all[len(all)-1]
}

// number is the thread's in the PID namespace of the container's first process, where no two are the same: in further
// ones below it numbers begin at 1 again. 0 if it has ended.
func (m *members) number(thread sched.Thread) int {
	all := numbers(thread)
	if m.depth < 0 || m.depth >= len(all) {
		return 0
	}
	return all[m.depth]
}

// numbers are those of a thread in all PID namespaces that it is in, from this process' one inwards; none if it has ended.
func numbers(thread sched.Thread) (all []int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", thread.Process, thread.TID))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			for field := range strings.FieldsSeq(rest) {
				number, err := strconv.Atoi(field)
				if err != nil {
					return nil
				}
				all = append(all, number)
			}
		}
	}
	return all
}
