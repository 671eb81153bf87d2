// Command partitions is the first process of a virtual machine that tries out what cpuset partitions of cgroup v2
// give to SCHED_DEADLINE: run.sh starts it, docs/decisions/0011-reservations-on-cgroup-v2.md has what it said. With
// takt.test in the kernel's command line it runs the tests of the backend that rests on that instead.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

const root = "/sys/fs/cgroup"

func main() {
	if len(os.Args) > 1 && os.Args[1] == "sleep" {
		time.Sleep(time.Hour)
		return
	}
	if len(os.Args) > 3 && os.Args[1] == "spin" {
		cpu, _ := strconv.Atoi(os.Args[3])
		spinHere(os.Args[2], cpu)
		return
	}
	if os.Getpid() == 1 {
		for _, mount := range [][2]string{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"cgroup2", root}} {
			os.MkdirAll(mount[1], 0o755)
			if err := unix.Mount("none", mount[1], mount[0], 0, ""); err != nil {
				say("mount "+mount[0], err)
			}
		}
		unix.Mount("none", "/sys/kernel/debug", "debugfs", 0, "")
		defer unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
	line, _ := os.ReadFile("/proc/cmdline")
	if strings.Contains(string(line), "takt.test") {
		test()
		return
	}
	version, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	fmt.Printf("experiment: Linux %s, CPUs %s\n", strings.TrimSpace(string(version)), read("cpuset.cpus.effective"))
	if strings.Contains(string(line), "takt.whole") {
		whole()
		fmt.Println("experiment: done")
		return
	}
	say("cpuset, memory and cpu for the children of the root", write("cgroup.subtree_control", "+cpuset +memory +cpu"))

	// 1. A partition of one core, with two containers below it.
	group("takt")
	say("1. partition takt of CPU 1", errors.Join(write("takt/cpuset.cpus", "1"), write("takt/cpuset.cpus.partition", "root")))
	fmt.Printf("experiment:    takt is %q, the rest of the machine has CPUs %s\n", read("takt/cpuset.cpus.partition"), read("cpuset.cpus.effective"))
	say("   memory for the containers of takt", write("takt/cgroup.subtree_control", "+memory +cpu"))
	group("takt/a")
	group("takt/b")
	a, b := start("takt/a"), start("takt/b")
	say("   a: 0.5 of the core", deadline(a, 10, 20))
	say("   b: 0.4 of the core", deadline(b, 8, 20))
	again := start("takt/b")
	say("   b: 0.1 more, above 0.95", deadline(again, 2, 20))
	outside := start("")
	say("   a process outside: 0.9 of the other core", deadline(outside, 18, 20))
	fmt.Printf("experiment:    a may run on CPUs %s, the process outside on %s\n", allowed(a), allowed(outside))
	sched.Drop(outside)

	// 2. A container elsewhere cannot lend one of its threads to the partition.
	group("pods")
	say("2. memory for pods", write("pods/cgroup.subtree_control", "+memory +cpu"))
	group("pods/c")
	c := start("pods/c")
	thread := threadOf(c)
	say("   one thread of pods/c into takt/a (cgroup.threads)", write("takt/a/cgroup.threads", fmt.Sprint(thread)))
	say("   the whole process of pods/c into takt/b (cgroup.procs)", write("takt/b/cgroup.procs", fmt.Sprint(c)))
	say("   and back", write("pods/c/cgroup.procs", fmt.Sprint(c)))

	// 3. A threaded cgroup inside the container.
	say("3. cpuset for pods and its containers", errors.Join(write("pods/cgroup.subtree_control", "+cpuset")))
	group("pods/c/rt")
	say("   pods/c/rt is threaded", write("pods/c/rt/cgroup.type", "threaded"))
	say("   cpuset in the container's threaded children", write("pods/c/cgroup.subtree_control", "+cpuset"))
	say("   one thread into pods/c/rt", write("pods/c/rt/cgroup.threads", fmt.Sprint(thread)))
	say("   CPU 0 alone for pods/c/rt", write("pods/c/rt/cpuset.cpus", "0"))
	say("   pods/c/rt a partition", write("pods/c/rt/cpuset.cpus.partition", "root"))
	fmt.Printf("experiment:    pods/c/rt is %q\n", read("pods/c/rt/cpuset.cpus.partition"))

	// 4. A process with a reservation moves with it.
	say("4. pods/c reserves 0.2 outside of the partition", deadline(c, 4, 20))
	say("   moves into takt/b, which has 0.05 left", write("takt/b/cgroup.procs", fmt.Sprint(c)))
	sched.Drop(b)
	time.Sleep(100 * time.Millisecond)
	say("   moves into takt/b after b has given its 0.4 back", write("takt/b/cgroup.procs", fmt.Sprint(c)))

	// 5. The partition is given up under a reservation.
	say("5. takt a member again, with reservations in it", write("takt/cpuset.cpus.partition", "member"))
	fmt.Printf("experiment:    takt is %q, a may run on %s\n", read("takt/cpuset.cpus.partition"), allowed(a))
	end(a, b, again, outside, c)
	ungroup("takt/a", "takt/b", "takt", "pods/c/rt", "pods/c", "pods")

	pair("root")
	pair("isolated")
	remote()
	recount()
	bound()
	servers()
	fmt.Println("experiment: done")
}

// test runs the backend's tests, which the run's last line says the result of.
func test() {
	if err := unix.Mount("none", "/tmp", "tmpfs", 0, ""); err != nil {
		say("mount /tmp", err)
	}
	tests := exec.Command("/enforce.test", "-test.v", "-test.run", "Cell|Core")
	tests.Env = append(os.Environ(), "TAKT_TEST_CELLS=1", "PATH=/")
	tests.Stdout, tests.Stderr = os.Stdout, os.Stdout
	err := tests.Run()
	fmt.Printf("test: %v\n", err)
}

func say(what string, err error) {
	answer := "yes"
	if err != nil {
		answer = "no: " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	fmt.Printf("experiment: %s: %s\n", what, answer)
}

func group(cgroup string) {
	if err := os.Mkdir(filepath.Join(root, cgroup), 0o755); err != nil {
		say("mkdir "+cgroup, err)
	}
}

func write(file, text string) error {
	if text == "" {
		text = "\n" // of nothing nothing is written
	}
	return os.WriteFile(filepath.Join(root, file), []byte(text), 0)
}

func read(file string) string {
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text))
}

// start begins a process with several threads in a cgroup.
func start(cgroup string) int {
	child := exec.Command("/proc/self/exe", "sleep")
	if err := child.Start(); err != nil {
		say("start", err)
		return 0
	}
	if cgroup != "" {
		if err := write(cgroup+"/cgroup.procs", fmt.Sprint(child.Process.Pid)); err != nil {
			say("enter "+cgroup, err)
		}
	}
	for len(sched.ThreadIDs(child.Process.Pid)) < 3 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(100 * time.Millisecond) // it is where it shall be, and sleeps
	return child.Process.Pid
}

func threadOf(process int) int {
	for _, tid := range sched.ThreadIDs(process) {
		if tid != process {
			return tid
		}
	}
	return 0
}

func deadline(tid int, runtimeMS, periodMS uint64) error {
	err := sched.Nudge(tid)
	return errors.Join(err, sched.Set(tid, sched.Attr{
		Policy: sched.Deadline, Flags: sched.ResetOnFork, Runtime: runtimeMS * 1_000_000, Deadline: periodMS * 1_000_000, Period: periodMS * 1_000_000,
	}))
}

func allowed(process int) string { return allowedThread(process, process) }

func allowedThread(process, tid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", process, tid))
	if err != nil {
		return err.Error()
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			return strings.TrimSpace(rest)
		}
	}
	return "?"
}
