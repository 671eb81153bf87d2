// Package misses counts the deadlines that threads of SCHED_DEADLINE miss: the kernel does not tell of them. An eBPF
// program at the scheduler's switch from one thread to another compares its clock with the thread's absolute deadline.
//
// A deadline is missed if it passes while the thread wants to run and has runtime left of its period: the reservation was
// not given in time, whatever the thread does with it (Documentation/scheduler/sched-deadline.rst, section 2).
package misses

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

// license is what the kernel lets look at threads. The instructions below are this project's own, and offered under the MIT
// licence as well, which is the one that this word chooses.
const license = "Dual MIT/GPL"

// most is how many threads are known at a time: those that were late longest ago are forgotten first.
const most = 8192

// Count is what is known of one thread, since its number had a reservation first.
type Count struct {
	// Missed is how many deadlines it has missed.
	Missed uint64
	// Latest is by how much, at most, it was seen to run after one, in nanoseconds.
	Latest uint64
}

// Where the parts of what is kept of a thread, and of a running one's record, are.
const (
	// How many deadlines it has missed, the last of them, and by how much it was late at most.
	countMissed, countDeadline, countLatest, countBytes = 0, 8, 16, 24
	// Which thread runs, until when it is to have had its runtime, how much that was, and since when it runs.
	runTID, runDeadline, runRuntime, runSince, runBytes = 0, 8, 16, 24, 32
)

// Counter counts until it is closed.
type Counter struct {
	counts   *ebpf.Map
	attached link.Link
}

// New begins to count. It needs a kernel with type information (CONFIG_DEBUG_INFO_BTF) and group scheduling, and CAP_BPF with
// CAP_PERFMON.
func New() (*Counter, error) {
	counter, err := begin()
	if err != nil {
		return nil, fmt.Errorf("cannot count missed deadlines: %w", err)
	}
	return counter, nil
}

func begin() (*Counter, error) {
	at, err := find()
	if err != nil {
		return nil, err
	}
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Name: "takt_missed", Type: ebpf.LRUHash, KeySize: 4, ValueSize: countBytes, MaxEntries: most})
	if err != nil {
		return nil, err
	}
	counter := &Counter{counts: counts}
	running, err := ebpf.NewMap(&ebpf.MapSpec{Name: "takt_running", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: runBytes, MaxEntries: 1})
	if err != nil {
		return nil, errors.Join(err, counter.Close())
	}
	// The program holds it.
	defer running.Close()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "takt_misses", Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: "sched_switch",
		Instructions: instructions(at, running.FD(), counts.FD()), License: license,
	})
	if err != nil {
		return nil, errors.Join(err, counter.Close())
	}
	defer program.Close()
	if counter.attached, err = link.AttachTracing(link.TracingOptions{Program: program, AttachType: ebpf.AttachTraceRawTp}); err != nil {
		return nil, errors.Join(err, counter.Close())
	}
	return counter, nil
}

// Of is what a thread has missed; nothing of one that has missed none.
func (c *Counter) Of(tid int) (Count, error) {
	var raw [countBytes / 8]uint64
	err := c.counts.Lookup(uint32(tid), &raw)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = nil
	}
	if err != nil {
		return Count{}, fmt.Errorf("cannot read what thread %d has missed: %w", tid, err)
	}
	return Count{Missed: raw[countMissed/8], Latest: raw[countLatest/8]}, nil
}

// Close ends the counting.
func (c *Counter) Close() error {
	var err error
	if c.attached != nil {
		err = c.attached.Close()
	}
	return errors.Join(err, c.counts.Close())
}

// offsets are where the kernel keeps what is looked at, in bytes.
type offsets struct {
	pid, policy, deadline, runtime, period int16
	// The scheduler's clock is the run queue's, which is found by the next thread. The one by which runtime is used up stands still while a
	// hypervisor or interrupts have the processor, where the kernel is built so.
	queue, runQueue, clock, clockTask int16
}

// find asks the running kernel.
func find() (at offsets, err error) {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return at, fmt.Errorf("the kernel has no type information (CONFIG_DEBUG_INFO_BTF): %w", err)
	}
	for _, one := range []struct {
		to         *int16
		of, member string
	}{
		{&at.pid, "task_struct", "pid"},
		{&at.policy, "task_struct", "policy"},
		{&at.deadline, "task_struct", "dl.deadline"},
		{&at.runtime, "task_struct", "dl.runtime"},
		{&at.period, "task_struct", "dl.dl_period"},
		{&at.queue, "task_struct", "se.cfs_rq"},
		{&at.runQueue, "cfs_rq", "rq"},
		{&at.clock, "rq", "clock"},
		{&at.clockTask, "rq", "clock_task"},
	} {
		var of *btf.Struct
		if err := kernel.TypeByName(one.of, &of); err != nil {
			return at, fmt.Errorf("struct %s: %w", one.of, err)
		}
		offset, err := member(of, one.member)
		if err != nil {
			return at, err
		}
		if *one.to = int16(offset); uint32(*one.to) != offset {
			return at, fmt.Errorf("struct %s: %s is %d bytes behind its beginning", one.of, one.member, offset)
		}
	}
	return at, nil
}

// member is where a path of members is, in bytes.
func member(of *btf.Struct, path string) (uint32, error) {
	name, rest, deeper := strings.Cut(path, ".")
	for _, m := range of.Members {
		if m.Name != name {
			continue
		}
		if !deeper {
			return m.Offset.Bytes(), nil
		}
		inner, ok := btf.UnderlyingType(m.Type).(*btf.Struct)
		if !ok {
			break
		}
		offset, err := member(inner, rest)
		return m.Offset.Bytes() + offset, err
	}
	return 0, fmt.Errorf("struct %s of this kernel has no %s", of.Name, path)
}

// instructions are the program. Registers: R6 the thread that has run, R7 the one that will, R8 the clock, R9 this CPU's
// record of the former.
func instructions(at offsets, running, counts int) asm.Instructions {
	const (
		// On the stack: a key, a fresh Count, and what note is called with.
		key                                         = -4
		fresh                                       = -32
		stackFirst, stackLate, stackLast, stackMore = -40, -48, -56, -64
		clockTask                                   = -72
	)
	program := asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, 8, asm.DWord),
		asm.LoadMem(asm.R7, asm.R1, 16, asm.DWord),
		asm.LoadMem(asm.R8, asm.R7, at.queue, asm.DWord),
		asm.LoadMem(asm.R8, asm.R8, at.runQueue, asm.DWord),
		asm.LoadMem(asm.R1, asm.R8, at.clockTask, asm.DWord),
		asm.StoreMem(asm.RFP, clockTask, asm.R1, asm.DWord),
		asm.LoadMem(asm.R8, asm.R8, at.clock, asm.DWord),
		asm.StoreImm(asm.RFP, key, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, running),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, key),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "end"),
		asm.Mov.Reg(asm.R9, asm.R0),
	}
	// note counts what thread R1 has missed: the deadline R2, by R3, and R5 more until the deadline R4; goes on at the label.
	note := func(then string) asm.Instructions {
		found, again := "found before "+then, "again before "+then
		lookup := asm.Instructions{
			asm.LoadMapPtr(asm.R1, counts),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, key),
			asm.FnMapLookupElem.Call(),
		}
		all := asm.Instructions{
			asm.StoreMem(asm.RFP, key, asm.R1, asm.Word),
			asm.StoreMem(asm.RFP, stackFirst, asm.R2, asm.DWord),
			asm.StoreMem(asm.RFP, stackLate, asm.R3, asm.DWord),
			asm.StoreMem(asm.RFP, stackLast, asm.R4, asm.DWord),
			asm.StoreMem(asm.RFP, stackMore, asm.R5, asm.DWord),
		}
		all = append(all, lookup...)
		all = append(all,
			asm.JNE.Imm(asm.R0, 0, found),
			asm.Mov.Imm(asm.R1, 0),
			asm.StoreMem(asm.RFP, fresh+countMissed, asm.R1, asm.DWord),
			asm.StoreMem(asm.RFP, fresh+countDeadline, asm.R1, asm.DWord),
			asm.StoreMem(asm.RFP, fresh+countLatest, asm.R1, asm.DWord),
			asm.LoadMapPtr(asm.R1, counts),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, key),
			asm.Mov.Reg(asm.R3, asm.RFP),
			asm.Add.Imm(asm.R3, fresh),
			asm.Mov.Imm(asm.R4, 0),
			asm.FnMapUpdateElem.Call(),
		)
		all = append(all, lookup...)
		return append(all,
			asm.JEq.Imm(asm.R0, 0, then),
			asm.LoadMem(asm.R4, asm.RFP, stackMore, asm.DWord).WithSymbol(found),
			// The same deadline is missed once, and may be seen to be later.
			asm.LoadMem(asm.R1, asm.RFP, stackFirst, asm.DWord),
			asm.LoadMem(asm.R2, asm.R0, countDeadline, asm.DWord),
			asm.JEq.Reg(asm.R1, asm.R2, again),
			asm.Add.Imm(asm.R4, 1),
			asm.LoadMem(asm.R1, asm.R0, countMissed, asm.DWord).WithSymbol(again),
			asm.Add.Reg(asm.R1, asm.R4),
			asm.StoreMem(asm.R0, countMissed, asm.R1, asm.DWord),
			asm.LoadMem(asm.R1, asm.RFP, stackLast, asm.DWord),
			asm.StoreMem(asm.R0, countDeadline, asm.R1, asm.DWord),
			asm.LoadMem(asm.R3, asm.RFP, stackLate, asm.DWord),
			asm.LoadMem(asm.R1, asm.R0, countLatest, asm.DWord),
			asm.JGE.Reg(asm.R1, asm.R3, then),
			asm.StoreMem(asm.R0, countLatest, asm.R3, asm.DWord),
		)
	}
	// The thread that has run until now, if it was and is of SCHED_DEADLINE: whether its deadline has passed before it had had
	// what it had left when it began to run.
	program = append(program,
		asm.LoadMem(asm.R1, asm.R9, runTID, asm.Word),
		asm.StoreImm(asm.R9, runTID, 0, asm.Word),
		asm.JEq.Imm(asm.R1, 0, "next"),
		asm.LoadMem(asm.R2, asm.R6, at.pid, asm.Word),
		asm.JNE.Reg(asm.R1, asm.R2, "next"),
		asm.LoadMem(asm.R2, asm.R6, at.policy, asm.Word),
		asm.JNE.Imm(asm.R2, int32(sched.Deadline), "next"),
		asm.LoadMem(asm.R2, asm.R9, runDeadline, asm.DWord),
		asm.JLE.Reg(asm.R8, asm.R2, "next"),
		// Had it until when? What was taken from it while it ran, is taken for having been before the deadline: runtime + clock - (clockTask - since).
		asm.LoadMem(asm.R3, asm.R9, runRuntime, asm.DWord),
		asm.Add.Reg(asm.R3, asm.R8),
		asm.LoadMem(asm.R4, asm.R9, runSince, asm.DWord),
		asm.Add.Reg(asm.R3, asm.R4),
		asm.LoadMem(asm.R4, asm.RFP, clockTask, asm.DWord),
		asm.Sub.Reg(asm.R3, asm.R4),
		asm.JGT.Reg(asm.R3, asm.R2, "late"),
		// Or it has something left: with SCHED_FLAG_RECLAIM runtime is used up more slowly than time passes.
		asm.LoadMem(asm.R4, asm.R6, at.deadline, asm.DWord),
		asm.JNE.Reg(asm.R4, asm.R2, "next"),
		asm.LoadMem(asm.R4, asm.R6, at.runtime, asm.DWord),
		asm.JSLE.Imm(asm.R4, 0, "next"),
		asm.Mov.Reg(asm.R3, asm.R8),
		asm.JLE.Reg(asm.R3, asm.R8, "whole").WithSymbol("late"),
		asm.Mov.Reg(asm.R3, asm.R8),
		asm.Sub.Reg(asm.R3, asm.R2).WithSymbol("whole"),
		// A thread gets its next runtime at once, without being switched away from, if its deadline has passed already when it has
		// used up what it had, or has yielded: each of those deadlines was missed, and the one that it has now if that has passed as well.
		asm.LoadMem(asm.R4, asm.R6, at.deadline, asm.DWord),
		asm.LoadMem(asm.R0, asm.R6, at.period, asm.DWord),
		asm.Mov.Reg(asm.R5, asm.R4),
		asm.Sub.Reg(asm.R5, asm.R2),
		asm.JSLE.Imm(asm.R5, 0, "one"),
		asm.JEq.Imm(asm.R0, 0, "one"),
		asm.JLT.Reg(asm.R4, asm.R8, "now"),
		asm.Sub.Reg(asm.R4, asm.R0),
		asm.Sub.Reg(asm.R5, asm.R0),
		asm.JSLE.Imm(asm.R5, 0, "one"),
		asm.Div.Reg(asm.R5, asm.R0).WithSymbol("now"),
		asm.Ja.Label("count"),
		asm.Mov.Imm(asm.R5, 0).WithSymbol("one"),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("count"),
	)
	program = append(program, note("next")...)
	// The thread that runs from now on, if it has anything left: whether its deadline has passed already.
	program = append(program,
		asm.LoadMem(asm.R1, asm.R7, at.policy, asm.Word).WithSymbol("next"),
		asm.JNE.Imm(asm.R1, int32(sched.Deadline), "end"),
		asm.LoadMem(asm.R4, asm.R7, at.runtime, asm.DWord),
		asm.JSLE.Imm(asm.R4, 0, "end"),
		asm.LoadMem(asm.R1, asm.R7, at.pid, asm.Word),
		asm.LoadMem(asm.R2, asm.R7, at.deadline, asm.DWord),
		asm.StoreMem(asm.R9, runTID, asm.R1, asm.Word),
		asm.StoreMem(asm.R9, runDeadline, asm.R2, asm.DWord),
		asm.StoreMem(asm.R9, runRuntime, asm.R4, asm.DWord),
		asm.LoadMem(asm.R3, asm.RFP, clockTask, asm.DWord),
		asm.StoreMem(asm.R9, runSince, asm.R3, asm.DWord),
		asm.JLE.Reg(asm.R8, asm.R2, "end"),
		asm.Mov.Reg(asm.R3, asm.R8),
		asm.Sub.Reg(asm.R3, asm.R2),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Mov.Imm(asm.R5, 0),
	)
	program = append(program, note("end")...)
	return append(program,
		asm.Mov.Imm(asm.R0, 0).WithSymbol("end"),
		asm.Return(),
	)
}
