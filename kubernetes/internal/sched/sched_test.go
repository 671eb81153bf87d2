package sched

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func kernel(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestTheBoundLeavesRoomForTheFairServer(t *testing.T) {
	const proc, debug = "proc/sys/kernel/", "sys/kernel/debug/sched/fair_server/"
	for name, tc := range map[string]struct {
		runtime, release, server string
		want                     int64
		message                  string
	}{
		"before the fair server":  {"950000", "6.1.0-42-amd64", "", 950_000, ""},
		"with it, debugfs hidden": {"950000", "6.12.3", "", 900_000, ""},
		"as debugfs says":         {"950000", "6.18.0", "20000000", 930_000, ""},
		"unlimited":               {"-1", "6.18.0", "", 900_000, ""},
		"nothing left":            {"50000", "7.0.0", "", 0, "kernel.sched_rt_runtime_us is 50000"},
		"more than everything":    {"1000001", "6.1.0", "", 0, "1000001"},
		"no version":              {"950000", "next", "", 0, "next"},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{
				proc + "sched_rt_runtime_us": tc.runtime, proc + "sched_rt_period_us": "1000000", proc + "osrelease": tc.release,
			}
			if tc.server != "" {
				files[debug+"cpu0/runtime"], files[debug+"cpu0/period"] = tc.server, "1000000000"
			}
			got, err := Bound(kernel(t, files))
			if got != tc.want {
				t.Errorf("bound is %d", got)
			}
			if (err != nil) != (tc.message != "") || (err != nil && !strings.Contains(err.Error(), tc.message)) {
				t.Errorf("error is %v", err)
			}
		})
	}
}

func TestThisKernelHasLimitsAndABound(t *testing.T) {
	limits := Limits("/")
	if limits.PeriodMin <= 0 || limits.PeriodMax <= limits.PeriodMin {
		t.Errorf("periods from %s to %s", limits.PeriodMin, limits.PeriodMax)
	}
	if bound, err := Bound("/"); err != nil || bound > 1_000_000 {
		t.Errorf("bound %d, %v", bound, err)
	}
}

func TestAThreadIsReadWhateverItCallsItself(t *testing.T) {
	runtime.LockOSThread() // and never unlocked: the thread ends with its strange name
	for _, name := range []string{"plain", ") R 1 1 (", "a b\nc", ")))"} {
		bytes, err := unix.BytePtrFromString(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(bytes)), 0, 0, 0); err != nil {
			t.Fatal(err)
		}
		thread, err := ReadThread(os.Getpid(), unix.Gettid())
		if err != nil || thread.Name != name || thread.Parent != os.Getppid() || thread.Start == 0 {
			t.Errorf("%q is read as %+v, %v", name, thread, err)
		}
		if !thread.Alive() {
			t.Errorf("%q is not alive", name)
		}
		if usage, err := thread.Usage(); err != nil || usage.Exhausted {
			t.Errorf("usage is %+v, %v", usage, err)
		}
		thread.Start++
		if thread.Alive() {
			t.Error("another thread of the same number is taken for it")
		}
	}
	if len(Threads(os.Getpid())) < 2 {
		t.Error("the Go runtime has one thread")
	}
}

func TestAReservationIsReadBackAndSeenExhausted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SCHED_DEADLINE needs root")
	}
	runtime.LockOSThread()
	tid := unix.Gettid()
	attr := Attr{Policy: Deadline, Flags: ResetOnFork, Runtime: 2_000_000, Deadline: 50_000_000, Period: 100_000_000}
	if err := Set(tid, attr); err != nil {
		t.Fatal(err)
	}
	defer Set(tid, Attr{Policy: Other})
	got, err := Get(tid)
	if err != nil || got != attr {
		t.Fatalf("read back %+v, %v", got, err)
	}
	thread, err := ReadThread(os.Getpid(), tid)
	if err != nil {
		t.Fatal(err)
	}
	// Another thread looks while this one is busy beyond its runtime, and ends that.
	seen := make(chan uint64)
	done := make(chan struct{})
	go func() {
		defer close(seen)
		for {
			if usage, err := thread.Usage(); err == nil && usage.Exhausted {
				close(done)
				seen <- usage.CPU
				return
			}
		}
	}()
	for busy := true; busy; {
		select {
		case <-done:
			busy = false
		default:
		}
	}
	if cpu := <-seen; cpu == 0 {
		t.Error("a thread that used its runtime up has not run")
	}
}

func TestAThreadThatHasEndedKeepsItsPolicy(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SCHED_DEADLINE needs root")
	}
	ended := exec.Command("sleep", "1000")
	if err := ended.Start(); err != nil {
		t.Fatal(err)
	}
	tid := ended.Process.Pid
	attr := Attr{Policy: Deadline, Flags: ResetOnFork, Runtime: 1_000_000, Deadline: 100_000_000, Period: 100_000_000}
	err := Set(tid, attr)
	ended.Process.Kill()
	defer ended.Wait()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, at, err := readStat(tid, tid); err != nil || at != running {
			break
		}
		runtime.Gosched()
	}
	for _, to := range []Attr{{Policy: Other}, attr} {
		if err := Set(tid, to); !errors.Is(err, unix.ESRCH) {
			t.Errorf("setting it to %s says %v", PolicyName(to.Policy), err)
		}
	}
	if err := Drop(tid); !errors.Is(err, unix.ESRCH) {
		t.Errorf("dropping it says %v", err)
	}
	if got, err := Get(tid); err == nil && got != attr {
		t.Errorf("it has %+v", got)
	}
}

func TestANudgeDoesNotDisturbASleepingProgram(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("tracing needs root")
	}
	program := exec.Command("sh", "-c", "read line; echo got $line")
	in, err := program.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	program.Stdout = &out
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if err := Nudge(program.Process.Pid); err != nil {
			t.Fatal(err)
		}
	}
	in.Write([]byte("it\n"))
	if err := program.Wait(); err != nil || out.String() != "got it\n" {
		t.Errorf("the program wrote %q, %v", out.String(), err)
	}
	if err := Nudge(program.Process.Pid); err == nil {
		t.Error("a program that has ended woke up")
	}
}

func TestWhatTheKernelRefusesNamesTheThread(t *testing.T) {
	err := Set(1<<22+1, Attr{Policy: Other})
	if err == nil || !strings.Contains(err.Error(), "4194305") || !strings.Contains(err.Error(), syscall.ESRCH.Error()) {
		t.Errorf("error is %v", err)
	}
}

func TestTheServerForSchedExtTakesItsShareToo(t *testing.T) {
	limits := map[string]string{"proc/sys/kernel/sched_rt_runtime_us": "950000", "proc/sys/kernel/sched_rt_period_us": "1000000"}
	for name, tc := range map[string]struct {
		release string
		more    map[string]string
		want    int64
	}{
		"7.0 with sched_ext":    {"7.0.3", map[string]string{"sys/kernel/sched_ext/state": "disabled"}, 850_000},
		"7.0 without sched_ext": {"7.0.3", nil, 900_000},
		"6.12 with sched_ext":   {"6.12.0", map[string]string{"sys/kernel/sched_ext/state": "disabled"}, 900_000},
		"as debugfs says": {"7.1.0", map[string]string{
			"sys/kernel/sched_ext/state":                      "enabled",
			"sys/kernel/debug/sched/fair_server/cpu0/runtime": "50000000", "sys/kernel/debug/sched/fair_server/cpu0/period": "1000000000",
			"sys/kernel/debug/sched/ext_server/cpu0/runtime": "20000000", "sys/kernel/debug/sched/ext_server/cpu0/period": "1000000000",
		}, 880_000},
	} {
		files := map[string]string{"proc/sys/kernel/osrelease": tc.release}
		maps.Copy(files, limits)
		maps.Copy(files, tc.more)
		if got, err := Bound(kernel(t, files)); got != tc.want || err != nil {
			t.Errorf("%s: bound is %d, %v", name, got, err)
		}
	}
}
