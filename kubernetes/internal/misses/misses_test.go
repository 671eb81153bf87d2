package misses

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

const ms = 1_000_000

// server is a thread that wants so much of its reservation in each of so many periods.
type server struct {
	runtime, period, wants uint64
	periods                int
}

// job is one period of a server: its deadline as the kernel prints it, of the scheduler's clock, and when it had what it wanted, of
// CLOCK_MONOTONIC.
type job struct {
	Deadline, Had int64
	// Unlike says that it slept, so that the kernel may have postponed its deadline, or had less than it wanted, having overrun
	// before, or was counted to run while a hypervisor did something else: then its end says nothing.
	Unlike bool
}

// program is a server's: in Python, because Go's own threads wait for each other, and yield.
const program = `
import gc, json, os, re, resource, sys, time
wants, periods = map(int, sys.argv[1:])
printed = re.compile(rb"^dl\.runtime\s*:\s*(-?\d+)\ndl\.deadline\s*:\s*(\d+)$", re.M)
overhead = 100_000  # what a job may need beside what it wants
slept = lambda: resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
file = os.open("/proc/thread-self/sched", os.O_RDONLY)
jobs = []
gc.disable()
print("ready", flush=True)
sys.stdin.readline()
for _ in range(periods):
    os.sched_yield()  # until its next period begins
    before = slept()
    until = time.thread_time_ns() + wants
    text = os.pread(file, 8192, 0)
    while time.thread_time_ns() < until:
        pass
    had, after, over = time.monotonic_ns(), slept(), time.thread_time_ns() - until
    left, deadline = map(int, printed.search(text).groups())
    jobs.append({"Deadline": deadline, "Had": had, "Unlike": after != before or left < wants + overhead or over > overhead})
time.sleep(0.05)  # with its reservation still: how late it was is seen when it stops
os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
print(json.dumps(jobs))
`

// behind is how far the scheduler's clock is behind CLOCK_MONOTONIC, as the kernel prints both at a time.
func behind(t *testing.T) int64 {
	t.Helper()
	debug := t.TempDir()
	if err := unix.Mount("none", debug, "debugfs", 0, ""); err != nil {
		t.Skip("the scheduler's clock cannot be read without debugfs: ", err)
	}
	defer unix.Unmount(debug, unix.MNT_DETACH)
	text, err := os.ReadFile(filepath.Join(debug, "sched/debug"))
	if err != nil {
		t.Skip("the scheduler's clock cannot be read: ", err)
	}
	at := map[string]int64{}
	for _, line := range strings.Split(string(text), "\n")[:8] {
		name, value, _ := strings.Cut(line, ":")
		ms, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err == nil {
			at[strings.TrimSpace(name)] = int64(ms * 1e6)
		}
	}
	if at["ktime"] == 0 || at["cpu_clk"] == 0 {
		t.Skipf("the scheduler's clock is not printed: %.300s", text)
	}
	return at["ktime"] - at["cpu_clk"]
}

// patience is how long the kernel may take to give back what others had.
const patience = 20 * time.Second

// run has servers run, all from the same moment on, and returns the threads and their jobs.
func run(t *testing.T, servers ...server) (tids []int, jobs [][]job) {
	t.Helper()
	type running struct {
		cmd    *exec.Cmd
		input  io.Writer
		output *bufio.Reader
		said   bytes.Buffer
	}
	var all []*running
	began := time.Now()
	for _, s := range servers {
		r := &running{cmd: exec.CommandContext(t.Context(), "python3", "-c", program, strconv.FormatUint(s.wants, 10), strconv.Itoa(s.periods))}
		r.cmd.Stderr = &r.said
		var err error
		if r.input, err = r.cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		output, err := r.cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		r.output = bufio.NewReader(output)
		if err := r.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := r.output.ReadString('\n'); err != nil {
			t.Fatalf("a server does not begin: %v: %s", err, &r.said)
		}
		tid := r.cmd.Process.Pid
		attr := sched.Attr{Policy: sched.Deadline, Flags: sched.ResetOnFork, Runtime: s.runtime, Deadline: s.period, Period: s.period}
		for err = sched.Set(tid, attr); errors.Is(err, unix.EBUSY) && time.Since(began) < patience; err = sched.Set(tid, attr) {
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil {
			t.Fatal(err)
		}
		all, tids = append(all, r), append(tids, tid)
	}
	for _, r := range all {
		if _, err := r.input.Write([]byte("begin\n")); err != nil {
			t.Fatal(err)
		}
	}
	for i, r := range all {
		var of []job
		if err := json.NewDecoder(r.output).Decode(&of); err != nil || len(of) != servers[i].periods {
			t.Fatalf("%d jobs of %d: %v: %s", len(of), servers[i].periods, err, &r.said)
		}
		if err := r.cmd.Wait(); err != nil {
			t.Fatalf("%v: %s", err, &r.said)
		}
		jobs = append(jobs, of)
	}
	return tids, jobs
}

// unsure is how near to a deadline this test does not say which side of it a job ended on: the two clocks are printed one after the
// other, and a job's end is not the end of its thread's.
const unsure = 300 * time.Microsecond

// What is counted agrees with what the threads themselves find, where the schedule is one that is known to miss deadlines: two light reservations
// that come first keep a heavy one from both cores (Dhall and Liu 1978).
func TestMissedDeadlinesAreThoseThatThreadsFind(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("reservations and eBPF programs need root")
	}
	if runtime.NumCPU() != 2 {
		t.Skip("the mix is one for two cores")
	}
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	light, heavy := server{4.5 * ms, 10 * ms, 4.2 * ms, 100}, server{9 * ms, 10.001 * ms, 8.7 * ms, 100}
	// How the reservations come to lie is chance.
	for missed := 0; missed < 5; {
		late := behind(t)
		servers := []server{light, light, heavy}
		tids, all := run(t, servers...)
		for i, jobs := range all {
			least, most := 0, 1 // what was before the first job
			for _, one := range jobs {
				by := one.Had - late - one.Deadline
				switch {
				case one.Unlike || max(by, -by) <= int64(unsure):
					most++
				case by > 0:
					// Of a job that is later than a period, the deadline of the next one has passed as well.
					least, most = least+1, most+1+int(by/int64(servers[i].period))
				}
			}
			count, err := c.Of(tids[i])
			if err != nil {
				t.Fatal(err)
			}
			if count.Missed < uint64(least) || count.Missed > uint64(most) {
				t.Errorf("thread %d has missed %d to %d deadlines of %d, and %d are counted", i, least, most, len(jobs), count.Missed)
			}
			if (count.Missed == 0) != (count.Latest == 0) {
				t.Errorf("thread %d has missed %d deadlines, the latest by %d ns", i, count.Missed, count.Latest)
			}
			t.Logf("thread %d has missed %d to %d deadlines of %d, and %d are counted, the latest by %v", i, least, most, len(jobs), count.Missed, time.Duration(count.Latest))
			missed += least
		}
		if t.Failed() {
			return
		}
	}
}
