package sched

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// nudgePatience is how long a thread may take to wake up: one that waits for a disk does not.
const nudgePatience = time.Second

// Nudge makes a sleeping thread run for an instant inside the kernel. Only then does it come to the CPUs
// that it has been confined to: up to then the kernel counts it where it last ran, and refuses it a
// reservation elsewhere (EPERM). The program notices nothing: a system call that was waiting goes on.
func Nudge(tid int) error {
	result := make(chan error, 1)
	go func() {
		// What traces is a thread, not a process, and tracing ends with it: so it ends, never unlocked.
		runtime.LockOSThread()
		result <- nudge(tid)
	}()
	if err := <-result; err != nil {
		return fmt.Errorf("cannot wake thread %d: %w", tid, err)
	}
	return nil
}

func nudge(tid int) error {
	if err := unix.PtraceSeize(tid); err != nil {
		return err
	}
	if err := unix.PtraceInterrupt(tid); err != nil {
		return errors.Join(err, unix.PtraceDetach(tid))
	}
	for began := time.Now(); ; time.Sleep(100 * time.Microsecond) {
		var status unix.WaitStatus
		stopped, err := unix.Wait4(tid, &status, unix.WALL|unix.WNOHANG, nil)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if stopped == tid {
			if !status.Stopped() {
				return nil // it has ended
			}
			// A signal that came at this moment is the thread's.
			signal := 0
			if status.TrapCause() == -1 && status.StopSignal() != unix.SIGTRAP {
				signal = int(status.StopSignal())
			}
			_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(tid), 0, uintptr(signal), 0, 0)
			if errno != 0 && errno != unix.ESRCH {
				return errno
			}
			return nil
		}
		if time.Since(began) > nudgePatience {
			return errors.New("it waits for something that cannot be interrupted")
		}
	}
}
