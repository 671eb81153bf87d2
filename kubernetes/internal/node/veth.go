package node

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/nri/pkg/api"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/takt-dev/takt/kubernetes/internal/cni"
	"github.com/takt-dev/takt/kubernetes/internal/report"
)

// vethPatience is how long the creation of a container waits for launch times to be taken: a hook has two seconds in all.
var vethPatience = time.Second

const (
	// vethAgain and vethLongest are the pauses before `takt veth attach` is started again: each is twice the one before.
	vethAgain   = 100 * time.Millisecond
	vethLongest = 10 * time.Second
	// vethGrace is how long it may take to end when it is asked to.
	vethGrace = 5 * time.Second
)

// vethWish is what is wanted of one veth of a pod. It is also the record of that, on disk.
type vethWish struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	UID       string `json:"uid"`
	Interface string `json:"interface"`
	Device    string `json:"device"`
	Socket    string `json:"socket"`
	Required  bool   `json:"required"`
	// Class is a number, or empty: that of each packet's DSCP.
	Class string `json:"class,omitempty"`
	// All: what has no launch time is taken as well.
	All bool `json:"all,omitempty"`
	// Cgroup is the pod's, as the host names it, whose programs need no capability for CLOCK_TAI; empty: the node has no cgroup v2.
	Cgroup string `json:"cgroup,omitempty"`
}

// arguments are those of takt.
func (w vethWish) arguments() []string {
	arguments := []string{"veth", "attach", "--device", w.Device, "--socket", w.Socket}
	if w.Required {
		arguments = append(arguments, "--required")
	}
	if w.Class != "" {
		arguments = append(arguments, "--class", w.Class)
	}
	if w.All {
		arguments = append(arguments, "--all")
	}
	if w.Cgroup != "" {
		arguments = append(arguments, "--cgroup", w.Cgroup)
	}
	return arguments
}

func (w vethWish) of() Pod {
	return Pod{Namespace: w.Namespace, Name: w.Pod, UID: types.UID(w.UID)}
}

// veths are the node's `takt veth attach`, one for each veth of a pod that wants it. They are programs of the host that
// outlive the agent, so that launch times are kept while it is away. Each holds a lock on its record, by which the next
// agent knows it again.
type veths struct {
	n         *Node
	directory string

	mu sync.Mutex
	// closed: the agent ends, and starts none any more.
	closed bool
	all    map[string]*veth
	tasks  sync.WaitGroup
}

func newVeths(n *Node) *veths {
	return &veths{n: n, directory: filepath.Join(n.config.RunDirectory, "veth"), all: map[string]*veth{}}
}

// veth keeps one `takt veth attach` running.
type veth struct {
	set  *veths
	key  string
	wish vethWish
	// ask has it try now what it would try later.
	ask    chan struct{}
	cancel context.CancelFunc
	done   chan struct{}

	mu sync.Mutex
	// end: the pod has gone, and so shall the program; otherwise the agent alone ends.
	end    bool
	taking bool
	// problem is why it does not take launch times, once that is known.
	problem error
	// outcome is closed when one of both has changed.
	outcome  chan struct{}
	restarts int
}

func vethKey(sandbox, ifName string) string { return sandbox + "." + ifName }

// want has launch times of a veth taken from now on.
func (v *veths) want(ctx context.Context, sandbox string, wish vethWish) *veth {
	key := vethKey(sandbox, wish.Interface)
	v.mu.Lock()
	defer v.mu.Unlock()
	if there := v.all[key]; there != nil || v.closed {
		return there
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	one := &veth{set: v, key: key, wish: wish, ask: make(chan struct{}, 1), cancel: cancel, done: make(chan struct{}), outcome: make(chan struct{})}
	v.all[key] = one
	v.tasks.Go(func() {
		defer close(one.done)
		one.run(ctx)
	})
	return one
}

// wait returns nil when launch times are taken; otherwise what keeps them from that, as soon as that is known.
func (a *veth) wait(ctx context.Context) error {
	if a == nil {
		return errors.New("takt-node is ending: it will be tried again")
	}
	ctx, cancel := context.WithTimeout(ctx, vethPatience)
	defer cancel()
	a.mu.Lock()
	taking, outcome := a.taking, a.outcome
	a.mu.Unlock()
	if taking {
		return nil
	}
	select {
	case a.ask <- struct{}{}:
	default:
	}
	select {
	case <-outcome:
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.taking:
		return nil
	case a.problem != nil:
		return a.problem
	}
	return fmt.Errorf("takt veth attach has not begun within %v: it will be tried again", vethPatience)
}

// forget ends what serves a sandbox, and returns when it has ended.
func (v *veths) forget(sandbox string) {
	v.mu.Lock()
	var ending []*veth
	for key, one := range v.all {
		if strings.HasPrefix(key, sandbox+".") {
			ending = append(ending, one)
			delete(v.all, key)
		}
	}
	v.mu.Unlock()
	for _, one := range ending {
		one.mu.Lock()
		one.end = true
		one.mu.Unlock()
		one.cancel()
	}
	for _, one := range ending {
		<-one.done
	}
	// Of an earlier agent, and of a pod none of whose containers ran since.
	records, _ := filepath.Glob(filepath.Join(v.directory, sandbox+".*.lock"))
	for _, record := range records {
		v.adoptToEnd(context.Background(), strings.TrimSuffix(filepath.Base(record), ".lock"))
	}
}

// close leaves the programs alone, and returns when nobody looks after them any more.
func (v *veths) close() {
	v.mu.Lock()
	v.closed = true
	for _, one := range v.all {
		one.cancel()
	}
	v.mu.Unlock()
	v.tasks.Wait()
}

// keep ends what serves none of these sandboxes: also what an earlier agent has started.
func (v *veths) keep(ctx context.Context, sandboxes []string) {
	v.end(ctx, v.others(ctx, sandboxes))
}

// others are what serves none of these sandboxes, and whether this agent looks after it.
func (v *veths) others(ctx context.Context, sandboxes []string) map[string]bool {
	records, err := filepath.Glob(filepath.Join(v.directory, "*.lock"))
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot list the records of veths")
	}
	keys := map[string]bool{}
	for _, path := range records {
		keys[strings.TrimSuffix(filepath.Base(path), ".lock")] = false
	}
	v.mu.Lock()
	for key := range v.all {
		keys[key] = true
	}
	v.mu.Unlock()
	maps.DeleteFunc(keys, func(key string, _ bool) bool { return slices.Contains(sandboxes, sandboxOf(key)) })
	return keys
}

func sandboxOf(key string) string {
	sandbox, _, _ := strings.Cut(key, ".")
	return sandbox
}

// end ends what others has found.
func (v *veths) end(ctx context.Context, keys map[string]bool) {
	for key, known := range keys {
		if known {
			v.forget(sandboxOf(key))
		} else {
			v.adoptToEnd(ctx, key)
		}
	}
	v.tidy()
}

// tidy removes cgroups that something was still in when their programs had ended. A program has its record before its cgroup.
func (v *veths) tidy() {
	for _, group := range vethGroups("/") {
		for _, key := range groupsIn(group) {
			if _, err := os.Stat(filepath.Join(v.directory, key+".lock")); errors.Is(err, fs.ErrNotExist) {
				_ = removeGroup(filepath.Join(group, key))
			}
		}
	}
}

// adoptToEnd ends a program of an earlier agent.
func (v *veths) adoptToEnd(ctx context.Context, key string) {
	one := &veth{set: v, key: key}
	program, err := one.adopt()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot end what takes launch times of a pod that has gone", "record", key)
		return
	}
	if program != nil {
		program.stop()
	}
	one.remove()
}

func (a *veth) path(kind string) string { return filepath.Join(a.set.directory, a.key+kind) }

func (a *veth) remove() {
	for _, kind := range []string{".lock", ".log"} {
		if err := os.Remove(a.path(kind)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			klog.Background().Error(err, "Cannot remove the record of a veth")
		}
	}
	for _, group := range vethGroups("/") {
		if err := removeGroup(filepath.Join(group, a.key)); err != nil {
			klog.Background().Error(err, "Cannot remove the cgroup of a veth")
		}
	}
}

// run starts the program, or finds it again, and starts it again when it has ended.
func (a *veth) run(ctx context.Context) {
	logger := klog.FromContext(ctx).WithValues("pod", klog.KRef(a.wish.Namespace, a.wish.Pod), "device", a.wish.Device)
	pause := vethAgain
	for ctx.Err() == nil {
		program, err := a.begin(ctx)
		if err == nil {
			pause = vethAgain
			logger.Info("Launch times are taken at the pod's veth", "required", a.wish.Required)
			a.is(nil)
			a.set.tasks.Go(func() { a.set.n.gates.tellOfClass(ctx, a.wish) })
			select {
			case <-program.ended:
				err = a.said("it has ended")
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			a.leave(program)
			return
		}
		logger.Error(err, "Launch times are not taken at the pod's veth, trying again", "after", pause)
		a.set.n.metrics.failed(atVeth)
		a.is(err)
		select {
		case <-ctx.Done():
		case <-a.ask:
		case <-time.After(pause):
		}
		pause = min(2*pause, vethLongest)
	}
	a.leave(nil)
}

// leave ends the program if its pod has gone.
func (a *veth) leave(program *program) {
	a.mu.Lock()
	end := a.end
	a.mu.Unlock()
	if !end {
		return
	}
	if program != nil {
		program.stop()
	}
	a.remove()
}

// is says how it is, to those who wait and to the pod.
func (a *veth) is(problem error) {
	a.mu.Lock()
	first, was, before := !a.taking && a.problem == nil, a.taking, a.problem
	a.taking, a.problem = problem == nil, problem
	if problem == nil && !first {
		a.restarts++
	}
	close(a.outcome)
	a.outcome = make(chan struct{})
	a.mu.Unlock()
	switch {
	case problem != nil && (was || before == nil || before.Error() != problem.Error()):
		otherwise := "programs that are not preloaded send without them until then"
		if a.wish.Required {
			otherwise = "what has one is dropped until then, or its container does not start"
		}
		a.set.n.event(a.wish.of(), corev1.EventTypeWarning, reasonVeth, "%s: launch times are not taken at the veth of %s, and %s: %s", codeNoVeth, a.wish.Interface, otherwise, problem)
	case problem == nil && !first:
		a.set.n.event(a.wish.of(), corev1.EventTypeNormal, reasonVeth, "launch times are taken again at the veth of %s", a.wish.Interface)
	}
}

// state is for those who ask.
func (a *veth) state() *report.Veth {
	a.mu.Lock()
	defer a.mu.Unlock()
	told := &report.Veth{Device: a.wish.Device, Taking: a.taking, Required: a.wish.Required, Restarts: a.restarts}
	if a.problem != nil {
		told.Problem = a.problem.Error()
	}
	return told
}

// at is what looks after the veth that a socket of a pod is for; nil if none does.
func (v *veths) at(socket string) *veth {
	if v == nil {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, one := range v.all {
		if one.wish.Socket == socket {
			return one
		}
	}
	return nil
}

// counts are how many take launch times, and how many do not.
func (v *veths) counts() (taking, not int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, one := range v.all {
		if one.state().Taking {
			taking++
		} else {
			not++
		}
	}
	return taking, not
}

// program is a `takt veth attach` that runs.
type program struct {
	process *os.Process
	// ended is closed when it has.
	ended chan struct{}
}

// stop ends it.
func (p *program) stop() {
	if err := p.process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		klog.Background().Error(err, "Cannot ask takt veth attach to end", "pid", p.process.Pid)
	}
	select {
	case <-p.ended:
		return
	case <-time.After(vethGrace):
	}
	if err := p.process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		klog.Background().Error(err, "Cannot end takt veth attach", "pid", p.process.Pid)
		return
	}
	<-p.ended
}

// begin returns when the program takes launch times: a new one, or one that an earlier agent has started.
func (a *veth) begin(ctx context.Context) (*program, error) {
	if err := os.MkdirAll(a.set.directory, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the directory of records: %w", err)
	}
	found, err := a.adopt()
	if err != nil {
		return nil, err
	}
	if found != nil {
		text, err := os.ReadFile(a.path(".lock"))
		var was vethWish
		if err == nil && json.Unmarshal(text, &was) == nil && was == a.wish {
			return found, nil
		}
		found.stop()
	}
	return a.start(ctx)
}

// start starts the program on the host.
func (a *veth) start(ctx context.Context) (*program, error) {
	n := a.set.n
	if missingBelow(n.host, n.config.Network.Takt) {
		return nil, fmt.Errorf("the node has no %s: install the package takt there, or name its place in network.takt", n.config.Network.Takt)
	}
	record, err := os.OpenFile(a.path(".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot make the record: %w", err)
	}
	defer record.Close()
	if err := unix.Flock(int(record.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("cannot lock the record: another takt-node serves this node: %w", err)
	}
	if err := errors.Join(record.Truncate(0), json.NewEncoder(record).Encode(a.wish)); err != nil {
		return nil, fmt.Errorf("cannot write the record: %w", err)
	}
	log, err := os.Create(a.path(".log"))
	if err != nil {
		return nil, fmt.Errorf("cannot make the log: %w", err)
	}
	defer log.Close()
	// It prints one line, when it has begun: what comes after the agent is told by the log.
	told, line, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	// A program whose beginning nobody waits for ends: it cannot tell of it.
	defer told.Close()
	command := exec.Command(n.config.Network.Takt, a.wish.arguments()...)
	command.Dir, command.Env = "/", []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	command.Stdout, command.Stderr = line, log
	// The lock is the program's as long as it lives.
	command.ExtraFiles = []*os.File{record}
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	room, err := makeVethRoom(a.key)
	defer room.close()
	if err != nil {
		klog.FromContext(ctx).Error(err, "What takes launch times at a veth may go without bounds, or end with the agent", "record", a.key)
	}
	err = n.onHost(func() error {
		if err := room.enter(command.SysProcAttr); err != nil {
			klog.FromContext(ctx).Error(err, "What takes launch times at a veth may go without bounds, or end with the agent", "record", a.key)
		}
		return command.Start()
	})
	line.Close()
	if err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", n.config.Network.Takt, err)
	}
	started := &program{process: command.Process, ended: make(chan struct{})}
	go func() {
		_ = command.Wait()
		close(started.ended)
	}()
	begun := make(chan error, 1)
	go func() {
		_, err := bufio.NewReader(told).ReadString('\n')
		begun <- err
	}()
	select {
	case err = <-begun:
	case <-ctx.Done():
		return started, ctx.Err()
	}
	if err != nil {
		started.stop()
		return nil, a.said("it ended")
	}
	return started, nil
}

// said is the problem that the program has told, or another one.
func (a *veth) said(otherwise string) error {
	const most = 1024
	log, err := os.Open(a.path(".log"))
	if err != nil {
		return fmt.Errorf("takt veth attach: %s", otherwise)
	}
	defer log.Close()
	text, _ := io.ReadAll(io.LimitReader(log, most))
	said := strings.Join(strings.Fields(strings.ToValidUTF8(string(text), "?")), " ")
	if said == "" {
		said = otherwise
	}
	return fmt.Errorf("takt veth attach: %s", said)
}

// adopt finds the program that holds the record's lock; nil if none does.
func (a *veth) adopt() (*program, error) {
	record, err := os.Open(a.path(".lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the record: %w", err)
	}
	defer record.Close()
	switch err := unix.Flock(int(record.Fd()), unix.LOCK_SH|unix.LOCK_NB); {
	case err == nil:
		return nil, nil
	case !errors.Is(err, unix.EWOULDBLOCK):
		return nil, fmt.Errorf("cannot look at the record's lock: %w", err)
	}
	own, err := record.Stat()
	if err != nil {
		return nil, err
	}
	for _, at := range heldAt() {
		if held, err := os.Stat(at); err != nil || !os.SameFile(held, own) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(at, "/proc/%d/", &pid); err != nil {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		process, err := os.FindProcess(pid)
		// The number may have passed to another process in between.
		if held, again := os.Stat(at); err != nil || again != nil || !os.SameFile(held, own) {
			unix.Close(fd)
			continue
		}
		found := &program{process: process, ended: make(chan struct{})}
		go func() {
			defer close(found.ended)
			defer unix.Close(fd)
			for {
				_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
				if !errors.Is(err, unix.EINTR) {
					return
				}
			}
		}()
		return found, nil
	}
	return nil, errors.New("takt veth attach runs, and is in no process that this agent sees: give it the host's processes (hostPID)")
}

// heldAt are where a program has the lock of its record: in its first descriptor behind the standard ones.
func heldAt() []string {
	found, _ := filepath.Glob("/proc/[0-9]*/fd/3")
	return found
}

// onHost has a program start in the host's file system, by a thread of its own.
func (n *Node) onHost(start func() error) error {
	var namespace *os.File
	if n.host != "/" {
		// Of the process that the host's root is seen through.
		var err error
		if namespace, err = os.Open(filepath.Join(filepath.Dir(n.host), "ns/mnt")); err != nil {
			return err
		}
		defer namespace.Close()
	}
	started := make(chan error)
	go func() {
		// Never unlocked: the thread is the host's from now on, and ends with this function.
		runtime.LockOSThread()
		if namespace != nil {
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				started <- err
				return
			}
			if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS); err != nil {
				started <- err
				return
			}
		}
		started <- start()
	}()
	return <-started
}

// takeAtVeths has launch times of a pod taken at its veths, as far as it wants that. The error is of a pod that must not
// run without; others are told.
func (n *Node) takeAtVeths(ctx context.Context, sandbox *api.PodSandbox, wish wish, attached []string, wait bool) error {
	if !wish.veth() {
		return nil
	}
	for _, ifName := range attached {
		directory := filepath.Join(n.config.Network.Sockets, sandbox.GetId(), ifName)
		wanted := vethWish{
			Namespace: sandbox.GetNamespace(), Pod: sandbox.GetName(), UID: sandbox.GetUid(), Interface: ifName,
			Socket: filepath.Join(directory, cni.SocketName), Required: wish.required, Class: wish.class, All: wish.all,
			Cgroup: podCgroup(n.host, sandbox.GetLinux().GetCgroupParent()),
		}
		var err error
		if wanted.Device, err = cni.Device(directory); err == nil && wanted.Device == "" {
			err = fmt.Errorf("interface %s is no veth of this node, or was attached by an earlier takt-cni: create the pod again, or write %s: %q if all of its programs can be preloaded",
				ifName, annotationPath, PathPreload)
		}
		switch {
		case err != nil && !wish.strict():
			n.event(wanted.of(), corev1.EventTypeWarning, reasonVeth, "%s: launch times of programs that are not preloaded are not kept: %s", codeNoVeth, err)
		case err == nil:
			one := n.veths.want(ctx, sandbox.GetId(), wanted)
			if wait {
				err = one.wait(ctx)
			}
		}
		if err != nil && wish.strict() {
			return refuse(codeNoVeth, "launch times are not taken at the veth of %s, which the pod requires: %w", ifName, err)
		}
	}
	return nil
}

// takeAgain has launch times taken at the veths of pods that run, which an earlier agent may have begun, and at no other.
func (n *Node) takeAgain(ctx context.Context, pods []*api.PodSandbox, containers []*api.Container) {
	if n.veths == nil {
		return
	}
	var there []string
	for _, pod := range pods {
		attached, err := interfaces(filepath.Join(n.config.Network.Sockets, pod.GetId()))
		if err != nil || len(attached) == 0 {
			continue
		}
		there = append(there, pod.GetId())
		// A container with the pod's sockets was created by an agent, which has looked whether it may have them.
		served := slices.ContainsFunc(containers, func(ctr *api.Container) bool {
			return ctr.GetPodSandboxId() == pod.GetId() && ctr.GetState() != api.ContainerState_CONTAINER_STOPPED && n.hasSockets(ctr)
		})
		if !served {
			continue
		}
		wish, err := n.wishes(pod.GetAnnotations(), "")
		if err == nil {
			err = n.takeAtVeths(ctx, pod, wish, attached, false)
		}
		if err != nil {
			n.tell(podOf(pod), reasonVeth, "launch times are not taken at its veth", err)
		}
	}
	// Before pods can come that are not among these; ended not while the container runtime waits, since that may take long.
	others := n.veths.others(ctx, there)
	go n.veths.end(context.WithoutCancel(ctx), others)
}
