package node

import (
	"runtime"
	"slices"

	"github.com/containerd/nri/pkg/api"
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

// denies says that a claim does not let its container change policies itself.
func denies(grants []enforce.Grant) bool {
	return slices.ContainsFunc(grants, func(g enforce.Grant) bool { return g.Parameters.Changes == reservation.ChangesDeny })
}

// withoutPolicyCalls is the seccomp policy of a container, nil for none, but the calls that change a scheduling class
// fail with EPERM. All else is as it was.
func withoutPolicyCalls(policy *api.LinuxSeccomp) *api.LinuxSeccomp {
	if policy == nil {
		policy = &api.LinuxSeccomp{DefaultAction: seccompAllow, Architectures: architectures[runtime.GOARCH]}
	}
	strict := &api.LinuxSeccomp{
		DefaultAction: policy.DefaultAction, DefaultErrno: policy.DefaultErrno, Architectures: policy.Architectures,
		Flags: policy.Flags, ListenerPath: policy.ListenerPath, ListenerMetadata: policy.ListenerMetadata,
	}
	for _, rule := range policy.Syscalls {
		// Another rule for the same call would have libseccomp refuse the policy, or win.
		names := slices.DeleteFunc(slices.Clone(rule.Names), func(name string) bool { return slices.Contains(policyCalls, name) })
		if len(names) > 0 {
			strict.Syscalls = append(strict.Syscalls, &api.LinuxSyscall{Names: names, Action: rule.Action, ErrnoRet: rule.ErrnoRet, Args: rule.Args})
		}
	}
	errno := uint32(unix.EPERM)
	if policy.DefaultAction == seccompErrno && (policy.DefaultErrno == nil || policy.DefaultErrno.Value == errno) {
		return strict // what no rule allows fails so already
	}
	strict.Syscalls = append(strict.Syscalls, &api.LinuxSyscall{Names: policyCalls, Action: seccompErrno, ErrnoRet: api.UInt32(errno)})
	return strict
}
