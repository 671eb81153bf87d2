package main

import (
	"cmp"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

// job is one that was done; instants are of the monotonic clock, in nanoseconds.
type job struct {
	released, done, deadline, period uint64
	// stopped says that the kernel charged the thread with more than its runtime, and had it wait for the next one.
	stopped bool
}

// gap is time that passed for a thread which neither ran meanwhile nor was switched from: the machine took it.
type gap struct{ from, to uint64 }

// leastGap is what a thread takes for one; shorter ones are the clock itself and short interrupts.
const leastGap = 50_000

// within is what was taken from one instant to another, counted once where several threads saw it. gaps are in their order.
func within(gaps []gap, from, to uint64) (sum uint64) {
	for _, g := range gaps {
		begin, end := max(g.from, from), min(g.to, to)
		if begin < end {
			sum += end - begin
			from = end
		}
	}
	return sum
}

type result struct {
	// begin is when the first jobs came.
	begin uint64
	jobs  []job
	gaps  []gap
}

// watcher sees gaps by a clock that it reads again and again. What is full forgets the rest.
type watcher struct {
	last     uint64
	switches int64
	gaps     []gap
	seen     int
}

func newWatcher() *watcher { return &watcher{gaps: make([]gap, 4096)} }

// What follows is without a place where Go's scheduler could take the thread from its goroutine (no stack is grown, no call
// enters the runtime): it would be given back by another thread, which has no reservation and waits behind the hogs.

// now reads the clock.
//
//go:nosplit
func (w *watcher) now() uint64 {
	now := clock(unix.CLOCK_MONOTONIC)
	if w.last != 0 && now-w.last >= leastGap {
		if switches := switched(); switches != w.switches {
			w.switches = switches
		} else if w.seen < len(w.gaps) {
			w.gaps[w.seen] = gap{w.last, now}
			w.seen++
		}
	}
	w.last = now
	return now
}

// rested says that the thread comes from a sleep.
//
//go:nosplit
func (w *watcher) rested() { w.last, w.switches = 0, switched() }

//go:nosplit
func clock(id uintptr) uint64 {
	var now unix.Timespec
	unix.RawSyscall(unix.SYS_CLOCK_GETTIME, id, uintptr(unsafe.Pointer(&now)), 0)
	return uint64(now.Sec)*1_000_000_000 + uint64(now.Nsec)
}

//go:nosplit
func sleepUntil(instant uint64) {
	until := unix.Timespec{Sec: int64(instant / 1_000_000_000), Nsec: int64(instant % 1_000_000_000)}
	for {
		_, _, errno := unix.RawSyscall6(unix.SYS_CLOCK_NANOSLEEP, unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, uintptr(unsafe.Pointer(&until)), 0, 0, 0)
		if errno != unix.EINTR {
			return
		}
	}
}

// switched is how often the thread has left its core.
//
//go:nosplit
func switched() int64 {
	var usage unix.Rusage
	unix.RawSyscall(unix.SYS_GETRUSAGE, unix.RUSAGE_THREAD, uintptr(unsafe.Pointer(&usage)), 0)
	return usage.Nvcsw + usage.Nivcsw
}

// work does jobs until one would come after the end, and returns how many.
//
//go:nosplit
func work(s server, begin, end, uses uint64, jobs []job, w *watcher) (done int) {
	charged, owed := clock(unix.CLOCK_THREAD_CPUTIME_ID), uint64(0)
	for release := begin; release < end && done < len(jobs); release += s.Period {
		sleepUntil(release)
		w.rested()
		until := clock(unix.CLOCK_THREAD_CPUTIME_ID) + uses
		for clock(unix.CLOCK_THREAD_CPUTIME_ID) < until {
			w.now()
		}
		now := w.now()
		// What the kernel charges it with since its last job, and what it repays: beyond its runtime it is stopped.
		last := charged
		charged = clock(unix.CLOCK_THREAD_CPUTIME_ID)
		owed += charged - last
		jobs[done] = job{release, now, s.Deadline, s.Period, owed > s.Runtime}
		owed -= min(owed, s.Runtime)
		done++
	}
	return done
}

// spin wants the core until it is told to stop.
//
//go:nosplit
func spin(stop *uint32, w *watcher) {
	w.rested()
	for atomic.LoadUint32(stop) == 0 {
		w.now()
	}
}

// execute runs a mix for so long, beside two hogs for each core: all threads begin at one instant, and each of their jobs
// uses so much of its runtime.
func execute(m mix, cores int, each time.Duration, use float64) (result, error) {
	var (
		mu      sync.Mutex
		all     result
		failed  []error
		threads sync.WaitGroup
		ready   sync.WaitGroup
		stop    uint32
		start   atomic.Uint64
	)
	add := func(w *watcher, jobs []job) {
		mu.Lock()
		defer mu.Unlock()
		all.jobs, all.gaps = append(all.jobs, jobs...), append(all.gaps, w.gaps[:w.seen]...)
	}
	for range 2 * cores {
		threads.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread ends here
			w := newWatcher()
			spin(&stop, w)
			add(w, nil)
		})
	}
	ready.Add(len(m.Servers))
	var working sync.WaitGroup
	for _, s := range m.Servers {
		working.Go(func() {
			runtime.LockOSThread() // as above, and the reservation with it
			wanted := sched.Attr{Policy: sched.Deadline, Flags: sched.ResetOnFork, Runtime: s.Runtime, Deadline: s.Deadline, Period: s.Period}
			err := sched.Set(unix.Gettid(), wanted)
			// The kernel has the bandwidth of a thread that is gone for up to a period more.
			for began := time.Now(); errors.Is(err, unix.EBUSY) && time.Since(began) < time.Second; err = sched.Set(unix.Gettid(), wanted) {
				time.Sleep(10 * time.Millisecond)
			}
			if err != nil {
				mu.Lock()
				failed = append(failed, err)
				mu.Unlock()
			}
			ready.Done()
			if err != nil {
				return
			}
			// Not by sched.Drop: with the tiny reservation that it takes in between the thread would be stopped in the middle, with
			// what it holds of Go. It runs, so that no bandwidth is lost.
			defer sched.Set(unix.Gettid(), sched.Attr{Policy: sched.Other})
			jobs, w := make([]job, uint64(each)/s.Period+1), newWatcher()
			for start.Load() == 0 {
				sleepUntil(clock(unix.CLOCK_MONOTONIC) + uint64(time.Millisecond))
			}
			if atomic.LoadUint32(&stop) == 0 {
				begin := start.Load()
				done := work(s, begin, begin+uint64(each), uint64(float64(s.Runtime)*use), jobs, w)
				add(w, jobs[:done])
			}
		})
	}
	ready.Wait()
	if len(failed) > 0 {
		atomic.StoreUint32(&stop, 1)
	}
	// Later than the longest period: whoever begins has its whole runtime.
	start.Store(clock(unix.CLOCK_MONOTONIC) + uint64(100*time.Millisecond))
	working.Wait()
	atomic.StoreUint32(&stop, 1)
	threads.Wait()
	all.begin = start.Load()
	slices.SortFunc(all.gaps, func(a, b gap) int { return cmp.Compare(a.from, b.from) })
	return all, errors.Join(failed...)
}
