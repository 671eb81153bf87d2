package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

// whole tries what a container gets that has cores of its own: a remote partition at its scope, with SCHED_FIFO inside.
// docs/decisions/0032-whole-cores.md has what it said.
func whole() {
	const slices = "kubepods.slice"
	pods := []string{slices + "/kubepods-pod1.slice", slices + "/kubepods-pod2.slice"}
	mine, other := pods[0]+"/cri-a.scope", pods[1]+"/cri-b.scope"
	group(slices)
	for _, dir := range []string{pods[0], pods[1], mine, other} {
		group(dir)
	}
	say("12. cpuset for slices and pods", errors.Join(write("cgroup.subtree_control", "+cpuset +memory +cpu"), write(slices+"/cgroup.subtree_control", "+cpuset +memory +cpu"),
		write(pods[0]+"/cgroup.subtree_control", "+cpuset +memory +cpu"), write(pods[1]+"/cgroup.subtree_control", "+cpuset +memory +cpu")))
	fmt.Printf("experiment:    sched_rt_runtime_us is %s\n", text("/proc/sys/kernel/sched_rt_runtime_us"))
	say("   a container of pod 2 has CPUs 1 and 2 for itself (static CPU manager)", write(other+"/cpuset.cpus", "1-2"))
	exclusive := errors.Join(write(slices+"/cpuset.cpus.exclusive", "1-2"), write(pods[0]+"/cpuset.cpus.exclusive", "1-2"), write(mine+"/cpuset.cpus.exclusive", "1-2"))
	say("   CPUs 1 and 2 exclusive down to pod 1's container", exclusive)
	say("   it a partition", write(mine+"/cpuset.cpus.partition", "root"))
	fmt.Printf("experiment:    it is %q of %s; pod 2's has %s of its %s, all others %s\n", read(mine+"/cpuset.cpus.partition"), read(mine+"/cpuset.cpus.effective"),
		read(other+"/cpuset.cpus.effective"), read(other+"/cpuset.cpus"), read("cpuset.cpus.effective"))
	if exclusive != nil {
		ungroup(mine, other, pods[0], pods[1], slices)
		return
	}
	say("   pod 2's container has CPU 3 instead", write(other+"/cpuset.cpus", "3"))
	a, b := start(mine), start(other)
	fmt.Printf("experiment:    a may run on %s, b of pod 2 on %s\n", allowed(a), allowed(b))
	say("   b pins itself to CPU 1", pin(b, 1))
	fmt.Printf("experiment:    b may run on %s\n", allowed(b))
	say("   a third pod gets CPU 1 in its cpuset.cpus afterwards", write(other+"/cpuset.cpus", "1,3"))
	fmt.Printf("experiment:    it has %s; the partition is %q\n", read(other+"/cpuset.cpus.effective"), read(mine+"/cpuset.cpus.partition"))
	say("   the container's cpuset.cpus is written as the kubelet does (0-3)", write(mine+"/cpuset.cpus", "0-3"))
	fmt.Printf("experiment:    the partition is %q of %s\n", read(mine+"/cpuset.cpus.partition"), read(mine+"/cpuset.cpus.effective"))
	say("   and nothing", write(mine+"/cpuset.cpus", ""))
	fmt.Printf("experiment:    the partition is %q of %s\n", read(mine+"/cpuset.cpus.partition"), read(mine+"/cpuset.cpus.effective"))
	say("   a reserves 0.1 by SCHED_DEADLINE in its partition", deadline(a, 2, 20))
	sched.Drop(a)
	fmt.Printf("experiment:    threads of the kernel that may run on CPU 1: %s\n", kernelThreads(1))
	end(a, b)

	fmt.Println("experiment: 13. a thread of SCHED_FIFO spins for 5 s")
	spin(mine, "   alone on CPU 1", 1, false)
	spin(mine, "   beside an ordinary thread of its container there", 1, true)
	fmt.Printf("experiment:    %s\n", "with sched_rt_runtime_us -1")
	was := text("/proc/sys/kernel/sched_rt_runtime_us")
	os.WriteFile("/proc/sys/kernel/sched_rt_runtime_us", []byte("-1"), 0)
	spin(mine, "   alone on CPU 1", 1, false)
	spin(mine, "   beside an ordinary thread of its container there", 1, true)
	os.WriteFile("/proc/sys/kernel/sched_rt_runtime_us", []byte(was), 0)

	// What is left when it ends.
	a = start(mine)
	say("14. the slices' exclusive CPUs taken back under it", write(slices+"/cpuset.cpus.exclusive", ""))
	fmt.Printf("experiment:    the partition is %q of %s\n", read(mine+"/cpuset.cpus.partition"), read(mine+"/cpuset.cpus.effective"))
	say("   given again", errors.Join(write(slices+"/cpuset.cpus.exclusive", "1-2"), write(pods[0]+"/cpuset.cpus.exclusive", "1-2"), write(mine+"/cpuset.cpus.exclusive", "1-2"), write(mine+"/cpuset.cpus.partition", "root")))
	fmt.Printf("experiment:    the partition is %q of %s\n", read(mine+"/cpuset.cpus.partition"), read(mine+"/cpuset.cpus.effective"))
	third := slices + "/kubepods-pod3.slice"
	second := third + "/cri-c.scope"
	for _, dir := range []string{third, third + "/cri-pause.scope", second} {
		group(dir)
	}
	say("   CPU 3 for a container of pod 3, beside", errors.Join(write(third+"/cgroup.subtree_control", "+cpuset +memory +cpu"), write(slices+"/cpuset.cpus.exclusive", "1-3"),
		write(third+"/cpuset.cpus.exclusive", "3"), write(second+"/cpuset.cpus.exclusive", "3"), write(second+"/cpuset.cpus.partition", "root")))
	both := func() {
		fmt.Printf("experiment:    the partitions are %q of %s and %q of %s, others have %s, pod 2's container with CPUs 1 and 3 of the static CPU manager %s\n", read(mine+"/cpuset.cpus.partition"), read(mine+"/cpuset.cpus.effective"),
			read(second+"/cpuset.cpus.partition"), read(second+"/cpuset.cpus.effective"), read("cpuset.cpus.effective"), read(other+"/cpuset.cpus.effective"))
	}
	both()
	say("   that container has all CPUs again, and CPU 3 is asked for once more", errors.Join(write(other+"/cpuset.cpus", ""), write(second+"/cpuset.cpus.partition", "member"), write(second+"/cpuset.cpus.partition", "root")))
	both()
	say("   pod 3's container has ended", write(second+"/cpuset.cpus.partition", "member"))
	ungroup(second, third+"/cri-pause.scope", third)
	say("   its CPU 3 taken out of the slice's exclusive ones, under pod 1's partition", write(slices+"/cpuset.cpus.exclusive", "1-2"))
	fmt.Printf("experiment:    pod 1's is %q of %s, others have %s\n", read(mine+"/cpuset.cpus.partition"), read(mine+"/cpuset.cpus.effective"), read("cpuset.cpus.effective"))
	end(a)
	ungroup(mine)
	fmt.Printf("experiment:    the container has gone, with its cgroup: others have %s, pod 1's slice still %s\n", read("cpuset.cpus.effective"), read(pods[0]+"/cpuset.cpus.exclusive"))
	ungroup(pods[0], other, pods[1])
	fmt.Printf("experiment:    the pods, too: the slice above still has %s\n", read(slices+"/cpuset.cpus.exclusive"))
	ungroup(slices)
}

func text(path string) string {
	is, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(is))
}

// spin says what a thread gets of a CPU that it never gives away, and how long it was kept off it.
func spin(cgroup, what string, cpu int, beside bool) {
	var ordinary *exec.Cmd
	if beside {
		ordinary = spinner(cgroup, cpu, "ordinary")
	}
	fifo := spinner(cgroup, cpu, "fifo")
	fifo.Wait()
	fmt.Printf("experiment: %s: %s", what, fifo.Stdout)
	if ordinary != nil {
		ordinary.Wait()
		fmt.Printf("experiment:       the ordinary one: %s", ordinary.Stdout)
	}
}

// spinner starts this program as one that spins in a cgroup.
func spinner(cgroup string, cpu int, policy string) *exec.Cmd {
	child := exec.Command("/proc/self/exe", "spin", policy, fmt.Sprint(cpu))
	said := &strings.Builder{}
	child.Stdout, child.Stderr = said, said
	hold, _ := child.StdinPipe()
	if err := child.Start(); err != nil {
		say("start", err)
	}
	if err := write(cgroup+"/cgroup.procs", fmt.Sprint(child.Process.Pid)); err != nil {
		say("enter "+cgroup, err)
	}
	hold.Close() // and it begins
	return child
}

// spinHere is that program.
func spinHere(policy string, cpu int) {
	runtime.LockOSThread()
	os.Stdin.Read(make([]byte, 1))
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		fmt.Println(err)
		return
	}
	if policy == "fifo" {
		if err := sched.Set(unix.Gettid(), sched.Attr{Policy: sched.FIFO, Priority: 1}); err != nil {
			fmt.Println(err)
			return
		}
	}
	const long = 5 * time.Second
	used := func() time.Duration {
		var ts unix.Timespec
		unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
		return time.Duration(ts.Nano())
	}
	before, began := used(), time.Now()
	last, gap := began, time.Duration(0)
	for last.Sub(began) < long {
		now := time.Now()
		gap, last = max(gap, now.Sub(last)), now
	}
	fmt.Printf("%.1f %% of the core, kept off it for at most %s\n", 100*float64(used()-before)/float64(last.Sub(began)), gap.Round(100*time.Microsecond))
}

// kernelThreads are the names of those that a CPU is among the CPUs of, without those that are on every CPU by design.
func kernelThreads(cpu int) string {
	names := map[string]int{}
	entries, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range entries {
		if link, _ := os.Readlink(filepath.Join(dir, "exe")); link != "" {
			continue
		}
		var pid int
		fmt.Sscan(filepath.Base(dir), &pid)
		var set unix.CPUSet
		if unix.SchedGetaffinity(pid, &set) == nil && set.IsSet(cpu) {
			name, _, _ := strings.Cut(text(filepath.Join(dir, "comm")), "/")
			if set.Count() == 1 {
				name += " (bound)"
			}
			names[name]++
		}
	}
	return fmt.Sprint(names)
}
