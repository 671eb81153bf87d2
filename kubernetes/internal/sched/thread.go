package sched

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Thread is one thread of a process. TID and Start together name it for the life of the machine: numbers
// are used again, start times are not.
type Thread struct {
	TID, Process int
	// Parent is the process that the thread's process is a child of.
	Parent int
	// Start is when it was born, in clock ticks since boot.
	Start uint64
	// Name is what the thread calls itself, at most 15 bytes: hostile text.
	Name string
	// Session is the session that the thread's process is in.
	Session int
	// Runnable says that it ran or wanted to when it was read.
	Runnable bool
	// Kernel says that it is one of the kernel's own.
	Kernel bool
}

// ReadThread reads what the kernel says of a thread. One that has ended is an error.
func ReadThread(process, tid int) (Thread, error) {
	thread, at, err := readStat(process, tid)
	if err == nil && at == ended {
		err = fmt.Errorf("thread %d has ended: %w", tid, os.ErrNotExist)
	}
	return thread, err
}

// ReadProcess reads the first thread of a process that has a thread left. That need not be the first one: a
// program may end its main thread and go on (pthread_exit), and the kernel keeps what is left of that thread,
// a zombie, for as long.
func ReadProcess(process int) (Thread, error) {
	leader, at, err := readStat(process, process)
	if err == nil && at == ended && len(Threads(process)) == 0 {
		err = fmt.Errorf("process %d has ended: %w", process, os.ErrNotExist)
	}
	return leader, err
}

// Flags of a thread: PF_EXITING and PF_KTHREAD (include/linux/sched.h).
const (
	exitingThread = 0x00000004
	kernelThread  = 0x00200000
)

// stage is how far a thread is: one that exits may run still, one that has ended only waits to be reaped.
type stage int

const (
	running stage = iota
	exiting
	ended
)

// readStat reads a thread, and how far it is.
func readStat(process, tid int) (thread Thread, at stage, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/stat", process, tid))
	if err != nil {
		return Thread{}, running, fmt.Errorf("cannot read thread %d: %w", tid, err)
	}
	// The name is in parentheses and may contain any of them: the last one ends it.
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return Thread{}, running, fmt.Errorf("cannot read thread %d: stat has no name", tid)
	}
	fields := strings.Fields(string(text[end+1:]))
	// state is field 3 of proc(5), ppid 4, session 6, flags 9, starttime 22.
	if len(fields) < 20 {
		return Thread{}, running, fmt.Errorf("cannot read thread %d: stat ends early", tid)
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return Thread{}, running, fmt.Errorf("cannot read thread %d: parent %q", tid, fields[1])
	}
	session, err := strconv.Atoi(fields[3])
	if err != nil {
		return Thread{}, running, fmt.Errorf("cannot read thread %d: session %q", tid, fields[3])
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	if err != nil {
		return Thread{}, running, fmt.Errorf("cannot read thread %d: flags %q", tid, fields[6])
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return Thread{}, running, fmt.Errorf("cannot read thread %d: start time %q", tid, fields[19])
	}
	switch {
	case fields[0] == "Z" || fields[0] == "X":
		at = ended
	case flags&exitingThread != 0:
		at = exiting
	}
	return Thread{
		TID: tid, Process: process, Parent: parent, Session: session, Start: start,
		Name: string(text[open+1 : end]), Runnable: fields[0] == "R", Kernel: flags&kernelThread != 0,
	}, at, nil
}

// ThreadIDs are the numbers of a process' threads at the moment, ended ones that wait to be reaped among them;
// none if it has ended.
func ThreadIDs(process int) []int {
	dir, err := os.Open(filepath.Join("/proc", strconv.Itoa(process), "task"))
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil
	}
	ids := make([]int, 0, len(names))
	for _, name := range names {
		if tid, err := strconv.Atoi(name); err == nil {
			ids = append(ids, tid)
		}
	}
	return ids
}

// Threads are the threads of a process that are there at the moment; none if it has ended.
func Threads(process int) []Thread {
	var threads []Thread
	for _, tid := range ThreadIDs(process) {
		if thread, err := ReadThread(process, tid); err == nil {
			threads = append(threads, thread)
		}
	}
	return threads
}

// Alive says whether this very thread still exists.
func (t Thread) Alive() bool {
	now, err := ReadThread(t.Process, t.TID)
	return err == nil && now.Start == t.Start
}

// ProcessAlive says whether the very process that the thread was read of has a thread left; t is its first one.
func (t Thread) ProcessAlive() bool {
	now, err := ReadProcess(t.Process)
	return err == nil && now.Start == t.Start
}

// Headless says that the very process that the thread was read of goes on without its first thread, which t is.
func (t Thread) Headless() bool {
	now, at, err := readStat(t.Process, t.Process)
	return err == nil && at == ended && now.Start == t.Start && len(Threads(t.Process)) > 0
}

// clockTicks are those of a second in which the kernel tells times (USER_HZ, the same on all machines that it
// still runs on).
const clockTicks = 100

// Age is how long ago the thread was born, to a hundredth of a second.
func (t Thread) Age() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0
	}
	return time.Duration(now.Nano()) - time.Duration(t.Start)*(time.Second/clockTicks)
}

// Usage is what a thread has consumed.
type Usage struct {
	// CPU is the time it ran, in nanoseconds since it was born.
	CPU uint64
	// Delay is the time it waited for a core though it could have run, in nanoseconds since it was born.
	Delay uint64
	// Exhausted says that the runtime of the present period is used up: the thread is, or would be,
	// throttled.
	Exhausted bool
}

// Usage reads what the thread has consumed of its reservation.
func (t Thread) Usage() (Usage, error) {
	dir := fmt.Sprintf("/proc/%d/task/%d/", t.Process, t.TID)
	text, err := os.ReadFile(dir + "schedstat")
	if err != nil {
		return Usage{}, fmt.Errorf("cannot read the usage of thread %d: %w", t.TID, err)
	}
	var usage Usage
	if _, err := fmt.Sscanf(string(text), "%d %d", &usage.CPU, &usage.Delay); err != nil {
		return Usage{}, fmt.Errorf("cannot read the usage of thread %d: %q", t.TID, text)
	}
	text, err = os.ReadFile(dir + "sched")
	if err != nil {
		return usage, nil // a kernel without CONFIG_SCHED_DEBUG counts time but not periods
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "dl.runtime"); ok {
			_, value, _ := strings.Cut(rest, ":")
			left, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			usage.Exhausted = err == nil && left <= 0
		}
	}
	return usage, nil
}
