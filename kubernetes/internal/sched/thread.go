package sched

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
	// Runnable says that it ran or wanted to when it was read.
	Runnable bool
}

// ReadThread reads what the kernel says of a thread.
func ReadThread(process, tid int) (Thread, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/stat", process, tid))
	if err != nil {
		return Thread{}, fmt.Errorf("cannot read thread %d: %w", tid, err)
	}
	// The name is in parentheses and may contain any of them: the last one ends it.
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return Thread{}, fmt.Errorf("cannot read thread %d: stat has no name", tid)
	}
	fields := strings.Fields(string(text[end+1:]))
	// state is field 3 of proc(5), ppid 4, starttime 22.
	if len(fields) < 20 {
		return Thread{}, fmt.Errorf("cannot read thread %d: stat ends early", tid)
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return Thread{}, fmt.Errorf("thread %d has ended: %w", tid, os.ErrNotExist)
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return Thread{}, fmt.Errorf("cannot read thread %d: parent %q", tid, fields[1])
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return Thread{}, fmt.Errorf("cannot read thread %d: start time %q", tid, fields[19])
	}
	return Thread{TID: tid, Process: process, Parent: parent, Start: start, Name: string(text[open+1 : end]), Runnable: fields[0] == "R"}, nil
}

// Threads are the threads of a process that are there at the moment; none if it has ended.
func Threads(process int) []Thread {
	entries, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(process), "task"))
	if err != nil {
		return nil
	}
	var threads []Thread
	for _, entry := range entries {
		tid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
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

// Usage is what a thread has consumed.
type Usage struct {
	// CPU is the time it ran, in nanoseconds since it was born.
	CPU uint64
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
	if _, err := fmt.Sscanf(string(text), "%d", &usage.CPU); err != nil {
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
