package node

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/containerd/nri/pkg/api"
	ocispec "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/enforce"
)

// policyCalls are the system calls that change a thread's scheduling class.
var policyCalls = []string{"sched_setattr", "sched_setparam", "sched_setscheduler"}

// Actions of a seccomp policy, as the OCI runtime specification calls them.
const (
	seccompAllow = "SCMP_ACT_ALLOW"
	seccompErrno = "SCMP_ACT_ERRNO"
)

// architectures are those that a filter of its own has to know: to others the kernel answers by ending the program.
var architectures = map[string][]string{
	"amd64": {"SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"},
	"arm64": {"SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"},
}

// launchCalls are those by which the kernel could be told of launch times.
var launchCalls = []string{"setsockopt", "io_uring_setup"}

// denials are the calls that containers without a reservation which have been created are to be denied; what those with one
// are, their grants say. Container runtimes whose NRI does not know of seccomp policies leave out what they are asked for,
// and say nothing.
type denials struct {
	mu  sync.Mutex
	all map[string]denial
}

type denial struct {
	pod  Pod
	name string
	// reason is that of the event if they are not denied.
	reason string
	calls  []string
}

func (d *denials) add(pod Pod, ctr *api.Container, reason string, calls []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all == nil {
		d.all = map[string]denial{}
	}
	calls = slices.Concat(d.all[ctr.GetId()].calls, calls)
	d.all[ctr.GetId()] = denial{pod, ctr.GetName(), reason, calls}
}

func (d *denials) of(id string) (denial, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	is, there := d.all[id]
	return is, there
}

func (d *denials) remove(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.all, id)
}

// checkDenials refuses a container whose policy, as it was given to the kernel's side, allows what it is to be denied.
// c is nil for one without a reservation.
func (n *Node) checkDenials(id string, c *container, given json.RawMessage) error {
	is, strict := n.denials.of(id)
	if c != nil && denies(c.grants) {
		is, strict = denial{c.pod, c.name, reasonRefused, slices.Concat(policyCalls, is.calls)}, true
	}
	if !strict {
		return nil
	}
	var policy *ocispec.LinuxSeccomp
	if len(given) > 0 {
		if err := json.Unmarshal(given, &policy); err != nil {
			return fmt.Errorf("cannot read the container's seccomp policy: %w", err)
		}
	}
	call := allowed(policy, is.calls)
	if call == "" {
		return nil
	}
	err := refuse(codeNoSeccomp, "the container would be allowed to call %s: its runtime has not set the seccomp policy that NRI plugins ask for; containerd sets it from 2.2 on, CRI-O 1.34 does not, and changes: deny and a required preload need it", call)
	n.metrics.failed(atCreate)
	n.tell(is.pod, is.reason, "container "+is.name, err)
	return err
}

// allowed is the first of some calls that a policy, nil for none, lets pass whatever its arguments are; empty: it lets none.
func allowed(policy *ocispec.LinuxSeccomp, calls []string) string {
	passes := func(action ocispec.LinuxSeccompAction) bool {
		switch action {
		case ocispec.ActAllow, ocispec.ActLog, ocispec.ActTrace, ocispec.ActNotify:
			return true
		}
		return false
	}
	for _, call := range calls {
		if policy == nil || slices.ContainsFunc(policy.Syscalls, func(rule ocispec.LinuxSyscall) bool {
			return passes(rule.Action) && len(rule.Args) == 0 && slices.Contains(rule.Names, call)
		}) {
			return call
		}
		denied := slices.ContainsFunc(policy.Syscalls, func(rule ocispec.LinuxSyscall) bool {
			return !passes(rule.Action) && slices.Contains(rule.Names, call)
		})
		if passes(policy.DefaultAction) && !denied {
			return call
		}
	}
	return ""
}

// denies says that a claim does not let its container change policies itself.
func denies(grants []enforce.Grant) bool {
	return slices.ContainsFunc(grants, func(g enforce.Grant) bool { return g.Parameters.Changes == reservation.ChangesDeny })
}

// withoutPolicyCalls is the seccomp policy of a container, nil for none, but the calls that change a scheduling class
// fail with EPERM. All else is as it was.
func withoutPolicyCalls(policy *api.LinuxSeccomp) *api.LinuxSeccomp {
	strict := without(policy, policyCalls)
	if !refuses(strict) {
		strict.Syscalls = append(strict.Syscalls, eperm(nil, policyCalls...))
	}
	return strict
}

// withoutLaunchTimes is such a policy under which the kernel is not told of launch times: SO_TXTIME and io_uring, by which it could be set
// as well, fail with EPERM. The preload does without both where the runtime is required. All else is as it was, but that programs of
// 32 bits, whose arguments a policy cannot see, are ended.
func withoutLaunchTimes(policy *api.LinuxSeccomp) *api.LinuxSeccomp {
	const call, level, name = "setsockopt", 1, 2 // and which of its arguments are which
	allowed := policy == nil || slices.ContainsFunc(policy.Syscalls, func(rule *api.LinuxSyscall) bool {
		return rule.Action == seccompAllow && len(rule.Args) == 0 && slices.Contains(rule.Names, call)
	})
	strict := without(policy, launchCalls)
	strict.Architectures = slices.DeleteFunc(slices.Clone(strict.Architectures), func(name string) bool { return slices.Contains(narrow, name) })
	is := func(at uint32, value uint64) *api.LinuxSeccompArg {
		return &api.LinuxSeccompArg{Index: at, Value: value, Op: "SCMP_CMP_EQ"}
	}
	not := func(at uint32, value uint64) *api.LinuxSeccompArg {
		return &api.LinuxSeccompArg{Index: at, Value: value, Op: "SCMP_CMP_NE"}
	}
	if strict.DefaultAction == seccompAllow {
		strict.Syscalls = append(strict.Syscalls, eperm(nil, "io_uring_setup"),
			eperm([]*api.LinuxSeccompArg{is(level, unix.SOL_SOCKET), is(name, unix.SO_TXTIME)}, call))
		return strict
	}
	if allowed {
		// What none of them allows is answered as all else that is not.
		for _, arguments := range [][]*api.LinuxSeccompArg{{not(level, unix.SOL_SOCKET)}, {is(level, unix.SOL_SOCKET), not(name, unix.SO_TXTIME)}} {
			strict.Syscalls = append(strict.Syscalls, &api.LinuxSyscall{Names: []string{call}, Action: seccompAllow, Args: arguments})
		}
	}
	if !refuses(strict) {
		strict.Syscalls = append(strict.Syscalls, eperm(nil, "io_uring_setup"))
	}
	return strict
}

// narrow are the architectures of 32 bits that run beside those of 64.
var narrow = []string{"SCMP_ARCH_X86", "SCMP_ARCH_X32", "SCMP_ARCH_ARM"}

// refuses says that what no rule names fails with EPERM.
func refuses(policy *api.LinuxSeccomp) bool {
	return policy.DefaultAction == seccompErrno && (policy.DefaultErrno == nil || policy.DefaultErrno.Value == uint32(unix.EPERM))
}

// eperm has calls with these arguments fail.
func eperm(arguments []*api.LinuxSeccompArg, names ...string) *api.LinuxSyscall {
	return &api.LinuxSyscall{Names: names, Action: seccompErrno, ErrnoRet: api.UInt32(uint32(unix.EPERM)), Args: arguments}
}

// without is a policy, nil for none, without its rules for some calls: another rule for the same call would have libseccomp
// refuse the policy, or win.
func without(policy *api.LinuxSeccomp, calls []string) *api.LinuxSeccomp {
	if policy == nil {
		policy = &api.LinuxSeccomp{DefaultAction: seccompAllow, Architectures: architectures[runtime.GOARCH]}
	}
	strict := &api.LinuxSeccomp{
		DefaultAction: policy.DefaultAction, DefaultErrno: policy.DefaultErrno, Architectures: policy.Architectures,
		Flags: policy.Flags, ListenerPath: policy.ListenerPath, ListenerMetadata: policy.ListenerMetadata,
	}
	for _, rule := range policy.Syscalls {
		names := slices.DeleteFunc(slices.Clone(rule.Names), func(name string) bool { return slices.Contains(calls, name) })
		if len(names) > 0 {
			strict.Syscalls = append(strict.Syscalls, &api.LinuxSyscall{Names: names, Action: rule.Action, ErrnoRet: rule.ErrnoRet, Args: rule.Args})
		}
	}
	return strict
}
