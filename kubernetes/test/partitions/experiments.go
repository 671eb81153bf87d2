package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

// end kills processes and waits for them, and for what the kernel still counts of them.
func end(processes ...int) {
	for _, process := range processes {
		unix.Kill(process, unix.SIGKILL)
		unix.Wait4(process, nil, 0, nil)
	}
	time.Sleep(100 * time.Millisecond)
}

// ungroup removes cgroups, those inside first.
func ungroup(cgroups ...string) {
	for _, cgroup := range cgroups {
		if err := os.Remove(filepath.Join(root, cgroup)); err != nil {
			say("rmdir "+cgroup, err)
		}
	}
}

// pin confines all threads of a process.
func pin(process, cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	var failed error
	for _, tid := range sched.ThreadIDs(process) {
		failed = errors.Join(failed, unix.SchedSetaffinity(tid, &set))
	}
	return failed
}

// pair tries a partition of two cores with several containers in it.
func pair(kind string) {
	group("pair")
	say("6. "+kind+" partition pair of CPUs 1 and 2", errors.Join(write("pair/cpuset.cpus", "1-2"), write("pair/cpuset.cpus.partition", kind)))
	fmt.Printf("experiment:    pair is %q, the rest of the machine has CPUs %s\n", read("pair/cpuset.cpus.partition"), read("cpuset.cpus.effective"))
	say("   cpuset and memory for the containers of pair", write("pair/cgroup.subtree_control", "+cpuset +memory"))
	group("pair/a")
	group("pair/b")
	a, b, c := start("pair/a"), start("pair/b"), start("pair/b")
	say("   a: 0.8 of a core", deadline(a, 16, 20))
	say("   b: 0.8 of a core", deadline(b, 16, 20))
	say("   b: 0.4 more, above 1.9 for both cores", deadline(c, 8, 20))
	fmt.Printf("experiment:    a may run on CPUs %s\n", allowed(a))
	say("   a, which has its reservation, pins itself to CPU 1", pin(a, 1))
	say("   c pins itself to CPU 1", pin(c, 1))
	say("   c, pinned: 0.1", deadline(c, 2, 20))
	end(c)
	c = start("pair/b")
	sched.Drop(b)
	time.Sleep(100 * time.Millisecond)
	say("   container b has CPU 2 alone in its cpuset", write("pair/b/cpuset.cpus", "2"))
	fmt.Printf("experiment:    b may run on CPUs %s\n", allowed(b))
	say("   b: 0.1 of it", deadline(b, 2, 20))
	end(a, b, c)
	ungroup("pair/a", "pair/b")
	say("   pair a member again", write("pair/cpuset.cpus.partition", "member"))
	ungroup("pair")
}

// remote tries partitions below cgroups that are none, as pods' slices are.
func remote() {
	const slices = "kubepods.slice"
	pods := []string{slices + "/kubepods-pod1.slice", slices + "/kubepods-pod2.slice"}
	group(slices)
	for _, pod := range pods {
		group(pod)
		group(pod + "/cri-a.scope")
	}
	enable := []error{write(slices+"/cgroup.subtree_control", "+cpuset +memory +cpu")}
	for _, pod := range pods {
		enable = append(enable, write(pod+"/cgroup.subtree_control", "+cpuset +memory +cpu"))
	}
	say("7. cpuset for slices and pods, as the systemd driver has it", errors.Join(enable...))
	scope := pods[0] + "/cri-a.scope"
	a, b := start(scope), start(pods[1]+"/cri-a.scope")
	say("   CPU 3 exclusive for the slices and pod 1 (cpuset.cpus.exclusive)", errors.Join(write(slices+"/cpuset.cpus.exclusive", "3"), write(pods[0]+"/cpuset.cpus.exclusive", "3")))
	say("   pod 1's container a partition of it", errors.Join(write(scope+"/cpuset.cpus.exclusive", "3"), write(scope+"/cpuset.cpus.partition", "root")))
	fmt.Printf("experiment:    it is %q, a may run on CPUs %s, b of pod 2 on %s\n", read(scope+"/cpuset.cpus.partition"), allowed(a), allowed(b))
	say("   a: 0.8 of the core", deadline(a, 16, 20))
	another := start(scope)
	say("   another of that container: 0.3 more", deadline(another, 6, 20))
	say("   the same core for pod 2 as well", write(pods[1]+"/cpuset.cpus.exclusive", "3"))
	fmt.Printf("experiment:    pod 2 has %q of it, b may run on CPUs %s\n", read(pods[1]+"/cpuset.cpus.exclusive.effective"), allowed(b))
	group(pods[1] + "/cri-b.scope")
	say("   a thread of pod 1's other container into that partition", func() error {
		group(pods[0] + "/cri-c.scope")
		c := start(pods[0] + "/cri-c.scope")
		defer ungroup(pods[0] + "/cri-c.scope")
		defer end(c)
		return write(scope+"/cgroup.threads", fmt.Sprint(threadOf(c)))
	}())
	say("   the partition given up under reservations", write(scope+"/cpuset.cpus.partition", "member"))
	fmt.Printf("experiment:    a may run on CPUs %s, and has %s\n", allowed(a), policyOf(a))
	end(a, another)
	// The pod's slice, with two containers in it.
	say("   pod 1 a partition, of two containers", write(pods[0]+"/cpuset.cpus.partition", "root"))
	a = start(scope)
	fmt.Printf("experiment:    it is %q, a may run on CPUs %s\n", read(pods[0]+"/cpuset.cpus.partition"), allowed(a))
	say("   a: 0.8 of the core", deadline(a, 16, 20))
	end(a)
	say("   given up", write(pods[0]+"/cpuset.cpus.partition", "member"))

	// Threads alone.
	say("8. a threaded cgroup in pod 1's container", func() error {
		group(scope + "/rt")
		return errors.Join(write(scope+"/rt/cgroup.type", "threaded"), write(scope+"/cgroup.subtree_control", "+cpuset"))
	}())
	a = start(scope)
	thread := threadOf(a)
	say("   one thread of a into it", write(scope+"/rt/cgroup.threads", fmt.Sprint(thread)))
	say("   a partition of CPU 3 for it", errors.Join(write(scope+"/cpuset.cpus.exclusive", "3"), write(scope+"/rt/cpuset.cpus.exclusive", "3"), write(scope+"/rt/cpuset.cpus.partition", "root")))
	fmt.Printf("experiment:    it is %q, the thread may run on CPUs %s, its process on %s\n", read(scope+"/rt/cpuset.cpus.partition"), allowedThread(a, thread), allowed(a))
	say("   the thread: 0.8 of the core", deadline(thread, 16, 20))
	other := 0
	for _, tid := range sched.ThreadIDs(a) {
		if tid != thread && tid != a {
			other = tid
		}
	}
	say("   another thread of the process, outside: 0.1", deadline(other, 2, 20))
	say("   comes in: 0.1 is left", write(scope+"/rt/cgroup.threads", fmt.Sprint(other)))
	end(a, b)
	say("   given up", write(scope+"/rt/cpuset.cpus.partition", "member"))
	ungroup(scope+"/rt", scope, pods[1]+"/cri-a.scope", pods[1]+"/cri-b.scope", pods[0], pods[1], slices)
}

func policyOf(tid int) string {
	attr, err := sched.Get(tid)
	if err != nil {
		return err.Error()
	}
	return sched.PolicyName(attr.Policy)
}

// counted is what the kernel counts of a CPU's root domain beyond its own servers.
func counted(cpu int) string {
	all, err := sched.Admitted("/", cpu)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(all)
}

// lose has the kernel count what no thread has: see sched.Drop.
func lose(process int) {
	for range 3 {
		if err := deadline(process, 4, 20); err != nil {
			say("   0.2 for a thread that sleeps", err)
		}
		time.Sleep(100 * time.Millisecond)
		if err := sched.Set(process, sched.Attr{Policy: sched.Other}); err != nil {
			say("   and none", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// recount tries what has the kernel count anew, without a cpuset of cgroup v1.
func recount() {
	fmt.Printf("experiment: 9. the kernel counts %s ppm\n", counted(0))
	a := start("")
	lose(a)
	fmt.Printf("experiment:    a thread has left SCHED_DEADLINE three times while it slept: %s\n", counted(0))
	keeper := start("")
	say("   another reserves 0.1", deadline(keeper, 2, 20))
	fmt.Printf("experiment:    that is %s\n", counted(0))
	group("once")
	say("   a cgroup of CPU 3, a member", write("once/cpuset.cpus", "3"))
	fmt.Printf("experiment:    that is %s\n", counted(0))
	pinned := start("")
	say("   a process pins itself to CPU 3", pin(pinned, 3))
	say("   a partition of CPU 3", errors.Join(write("once/cpuset.cpus", "3"), write("once/cpuset.cpus.partition", "root")))
	fmt.Printf("experiment:    once is %q: that is %s; the pinned process may run on %s, the reserved one on %s\n", read("once/cpuset.cpus.partition"), counted(0), allowed(pinned), allowed(keeper))
	say("   given up", write("once/cpuset.cpus.partition", "member"))
	fmt.Printf("experiment:    that is %s; the pinned process may run on %s, the reserved one on %s and has %s\n", counted(0), allowed(pinned), allowed(keeper), policyOf(keeper))
	sched.Drop(keeper)
	time.Sleep(100 * time.Millisecond)
	fmt.Printf("experiment:    it gives its reservation back: %s\n", counted(0))
	end(a, keeper, pinned)
	ungroup("once")

	// A cell that is there, of another kind for an instant.
	group("takt-cpu3")
	say("10. partition takt-cpu3 of CPU 3", errors.Join(write("takt-cpu3/cpuset.cpus", "3"), write("takt-cpu3/cpuset.cpus.partition", "root")))
	group("takt-cpu3/a")
	group("takt-cpu3/b")
	a, keeper = start("takt-cpu3/a"), start("takt-cpu3/b")
	a2 := start("")
	say("   b reserves 0.1", deadline(keeper, 2, 20))
	fmt.Printf("experiment:    that is %s there, %s elsewhere\n", counted(3), counted(0))
	group("takt-cpu2")
	say("   another partition, of CPU 2", errors.Join(write("takt-cpu2/cpuset.cpus", "2"), write("takt-cpu2/cpuset.cpus.partition", "root")))
	fmt.Printf("experiment:    that is %s there, %s in the other one, %s elsewhere\n", counted(3), counted(2), counted(0))
	say("   given up", write("takt-cpu2/cpuset.cpus.partition", "member"))
	ungroup("takt-cpu2")
	lose(a)
	lose(a2)
	fmt.Printf("experiment:    after bandwidth was lost: %s there, %s elsewhere\n", counted(3), counted(0))
	say("   the partition isolated", write("takt-cpu3/cpuset.cpus.partition", "isolated"))
	fmt.Printf("experiment:    that is %s there, %s elsewhere; b may run on %s\n", counted(3), counted(0), allowed(keeper))
	say("   root again", write("takt-cpu3/cpuset.cpus.partition", "root"))
	fmt.Printf("experiment:    takt-cpu3 is %q: that is %s there, %s elsewhere; b may run on %s and has %s\n", read("takt-cpu3/cpuset.cpus.partition"), counted(3), counted(0), allowed(keeper), policyOf(keeper))
	sched.Drop(keeper)
	time.Sleep(100 * time.Millisecond)
	fmt.Printf("experiment:    b gives its reservation back: %s there\n", counted(3))
	end(a, a2, keeper)
	ungroup("takt-cpu3/a", "takt-cpu3/b")
	say("   given up", write("takt-cpu3/cpuset.cpus.partition", "member"))
	ungroup("takt-cpu3")
}

// bound compares what package sched believes of a core with what the kernel admits on one.
func bound() {
	features, _ := os.ReadFile("/sys/kernel/debug/sched/features")
	var tick []string
	for feature := range strings.FieldsSeq(string(features)) {
		if strings.Contains(feature, "HRTICK") {
			tick = append(tick, feature)
		}
	}
	servers, _ := filepath.Glob("/sys/kernel/debug/sched/*_server")
	_, noExt := os.Stat("/sys/kernel/sched_ext")
	is, err := sched.Bound("/")
	fmt.Printf("experiment: 11. features %s, servers %s, sched_ext %t: the bound is %d ppm, %v\n", strings.Join(tick, " "), servers, noExt == nil, is, err)
	for _, file := range []string{"/proc/sys/kernel/sched_rt_runtime_us", "/proc/sys/kernel/sched_rt_period_us", "/sys/kernel/sched_ext/state", "/sys/kernel/sched_ext/switch_all",
		"/sys/kernel/debug/sched/fair_server/cpu3/runtime", "/sys/kernel/debug/sched/fair_server/cpu3/period", "/sys/kernel/debug/sched/ext_server/cpu3/runtime", "/sys/kernel/debug/sched/ext_server/cpu3/period"} {
		text, err := os.ReadFile(file)
		fmt.Printf("experiment:    %s: %s %v\n", file, strings.TrimSpace(string(text)), err)
	}
	admits()
}

// admits is how much the kernel admits on a core that is apart.
func admits() {
	group("one")
	if err := errors.Join(write("one/cpuset.cpus", "3"), write("one/cpuset.cpus.partition", "root")); err != nil {
		say("   a partition of CPU 3", err)
	}
	a := start("one")
	if err := sched.Nudge(a); err != nil {
		say("   it comes to CPU 3", err)
	}
	least, most := int64(0), int64(1_000_000) // admitted, and refused
	for most-least > 1 {
		ppm := (least + most) / 2
		runtime := uint64(ppm) * 1000
		if err := sched.Set(a, sched.Attr{Policy: sched.Deadline, Flags: sched.ResetOnFork, Runtime: runtime, Deadline: 1e9, Period: 1e9}); err != nil {
			if !errors.Is(err, unix.EBUSY) {
				say("   a reservation", err)
				break
			}
			most = ppm
			continue
		}
		least = ppm
	}
	fmt.Printf("experiment:    the kernel admits %d ppm of a core, of which it counts %s in all\n", least, counted(3))
	sched.Drop(a) // what the kernel subtracts after the partition is given up it subtracts in vain
	end(a)
	say("   given up", write("one/cpuset.cpus.partition", "member"))
	ungroup("one")
}
