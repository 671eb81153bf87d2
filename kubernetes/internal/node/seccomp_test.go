package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	ocispec "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func allowing(names ...string) *api.LinuxSyscall {
	return &api.LinuxSyscall{Names: names, Action: seccompAllow}
}

// answer is what a policy does with a call, without regard to arguments.
func answer(policy *api.LinuxSeccomp, call string) string {
	for _, rule := range policy.Syscalls {
		if slices.Contains(rule.Names, call) {
			return rule.Action
		}
	}
	return policy.DefaultAction
}

func TestPolicyCallsFailUnderEverySeccompPolicyAndNothingElseChanges(t *testing.T) {
	for name, policy := range map[string]*api.LinuxSeccomp{
		"none":                nil,
		"allows by default":   {DefaultAction: seccompAllow, Syscalls: []*api.LinuxSyscall{{Names: []string{"reboot"}, Action: seccompErrno}}},
		"refuses by default":  {DefaultAction: seccompErrno, Syscalls: []*api.LinuxSyscall{allowing("read", "sched_setattr"), allowing("sched_setscheduler")}},
		"with another errno":  {DefaultAction: seccompErrno, DefaultErrno: api.UInt32(uint32(38)), Syscalls: []*api.LinuxSyscall{allowing("read", "sched_setparam")}},
		"kills by default":    {DefaultAction: "SCMP_ACT_KILL_PROCESS", Syscalls: []*api.LinuxSyscall{allowing("read", "sched_setattr")}},
		"by arguments":        {DefaultAction: seccompErrno, Syscalls: []*api.LinuxSyscall{allowing("read"), {Names: []string{"sched_setscheduler"}, Action: seccompAllow, Args: []*api.LinuxSeccompArg{{Index: 1, Value: 0}}}}},
		"logs what it is not": {DefaultAction: "SCMP_ACT_LOG", Syscalls: []*api.LinuxSyscall{allowing("read")}},
	} {
		strict := withoutPolicyCalls(policy)
		for _, call := range policyCalls {
			if got := answer(strict, call); got != seccompErrno {
				t.Errorf("%s: %s is answered by %s", name, call, got)
			}
			count := 0
			for _, rule := range strict.Syscalls {
				if slices.Contains(rule.Names, call) {
					count++
				}
			}
			if count > 1 {
				t.Errorf("%s: %d rules for %s", name, count, call)
			}
		}
		if policy == nil {
			if answer(strict, "reboot") != seccompAllow || len(strict.Architectures) == 0 {
				t.Errorf("%s: %v", name, strict)
			}
			continue
		}
		for _, call := range []string{"read", "reboot", "clone"} {
			if got, was := answer(strict, call), answer(policy, call); got != was {
				t.Errorf("%s: %s was answered by %s, and is by %s", name, call, was, got)
			}
		}
	}
}

func TestAContainerThatMayNotChangePoliciesIsCreatedSo(t *testing.T) {
	for field, want := range map[string]bool{`"changes":"deny"`: true, `"changes":"restore"`: false, `"overrun":"throttle"`: false} {
		s := newSite(t)
		response := s.prepare(s.claim("claim", strings.TrimSuffix(plain, "}")+","+field+"}", nil))
		if response.Error != "" {
			t.Fatal(response.Error)
		}
		created, err := s.runtime.CreateContainer(context.Background(), &adaptation.CreateContainerRequest{
			Pod: &api.PodSandbox{Id: "pod-sandbox", Namespace: "default", Name: "pod", Uid: "pod-uid"},
			Container: &api.Container{
				Id: "of " + field, PodSandboxId: "pod-sandbox", Name: "main", State: api.ContainerState_CONTAINER_CREATED,
				Env: s.injected(response.Devices[0].CdiDeviceIds).Process.Env,
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		policy := created.GetAdjust().GetLinux().GetSeccompPolicy()
		if got := policy != nil && answer(policy, "sched_setattr") == seccompErrno; got != want {
			t.Errorf("%s: denied is %v, by %v", field, got, policy)
		}
	}
}

// A container runtime that sets no policy though it was asked for one starts no container that needs it.
func TestAContainerWhoseRuntimeSetsNoPolicyDoesNotStart(t *testing.T) {
	for field, needs := range map[string]bool{`"changes":"deny"`: true, `"changes":"restore"`: false} {
		for _, old := range []bool{false, true} {
			s := newSite(t)
			env := s.ready(s.claim("claim", strings.TrimSuffix(plain, "}")+","+field+"}", nil))
			b := s.mustCreate("pod", "main", "idle", env)
			b.old = old
			err := b.gate()
			if refused := err != nil; refused != (needs && old) || refused && !strings.Contains(err.Error(), codeNoSeccomp+": ") {
				t.Errorf("%s, by a runtime that sets none %v: %v", field, old, err)
			}
			if told := s.events.of("pod", reasonRefused); (len(told) == 1) != (needs && old) {
				t.Errorf("%s, by a runtime that sets none %v: the pod is told %q", field, old, told)
			}
		}
	}
}

func TestWhatAPolicyAllowsIsSeen(t *testing.T) {
	rule := func(action ocispec.LinuxSeccompAction, arguments int, names ...string) ocispec.LinuxSyscall {
		return ocispec.LinuxSyscall{Names: names, Action: action, Args: make([]ocispec.LinuxSeccompArg, arguments)}
	}
	policy := func(action ocispec.LinuxSeccompAction, rules ...ocispec.LinuxSyscall) *ocispec.LinuxSeccomp {
		return &ocispec.LinuxSeccomp{DefaultAction: action, Syscalls: rules}
	}
	for name, one := range map[string]struct {
		policy *ocispec.LinuxSeccomp
		want   string
	}{
		"none":                             {nil, "a"},
		"all by default":                   {policy(ocispec.ActAllow), "a"},
		"logged":                           {policy(ocispec.ActLog, rule(ocispec.ActErrno, 0, "a")), "b"},
		"both denied":                      {policy(ocispec.ActAllow, rule(ocispec.ActErrno, 0, "x", "a"), rule(ocispec.ActKillProcess, 0, "b")), ""},
		"denied by arguments":              {policy(ocispec.ActAllow, rule(ocispec.ActErrno, 2, "a"), rule(ocispec.ActErrno, 0, "b")), ""},
		"none by default":                  {policy(ocispec.ActErrno, rule(ocispec.ActAllow, 0, "x")), ""},
		"one allowed":                      {policy(ocispec.ActErrno, rule(ocispec.ActAllow, 0, "x", "b")), "b"},
		"one allowed by arguments":         {policy(ocispec.ActErrno, rule(ocispec.ActAllow, 1, "b")), ""},
		"denied, and allowed another time": {policy(ocispec.ActErrno, rule(ocispec.ActErrno, 0, "a"), rule(ocispec.ActAllow, 0, "a")), "a"},
	} {
		if got := allowed(one.policy, []string{"a", "b"}); got != one.want {
			t.Errorf("%s: %q is allowed, not %q", name, got, one.want)
		}
	}
}

// tellTheKernel says what becomes of calls by which launch times could be set, and of others.
func tellTheKernel() {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		fmt.Println("socket:", err)
	}
	clock := string([]byte{unix.CLOCK_MONOTONIC, 0, 0, 0, 0, 0, 0, 0})
	fmt.Println("SO_TXTIME:", unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_TXTIME, clock))
	fmt.Println("SO_PRIORITY:", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PRIORITY, 5))
	// An option of the same number, of another level: IP_TOS is 1, and IPPROTO_IP has no 61.
	fmt.Println("IP_TOS:", unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS, 8))
	fmt.Println("61 of IP:", unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.SO_TXTIME, 1))
	parameters := make([]byte, 120)
	_, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, addressOf(parameters), 0)
	fmt.Println("io_uring_setup:", errno == unix.EPERM)
}

// The policies are given to a real runc, whose libseccomp makes filters of them.
func TestLaunchTimesAreRefusedUnderARealRuntime(t *testing.T) {
	cache, _ := os.UserCacheDir()
	runc, err := exec.LookPath("runc")
	if err != nil {
		if runc, err = exec.LookPath(filepath.Join(cache, "takt-cluster/bin/runc")); err != nil {
			t.Skip("there is no runc: run kubernetes/test/cluster/build.sh")
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("containers need root")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// What runc and a program in Go need, as the runtime's own policy has it; both ways of naming a call.
	usual := &api.LinuxSeccomp{
		DefaultAction: seccompErrno, Architectures: []string{"SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"},
		Syscalls: []*api.LinuxSyscall{allowing(strings.Fields(`access arch_prctl bind brk capget capset chdir clone clone3 close connect dup dup3
			epoll_create1 epoll_ctl epoll_pwait epoll_wait eventfd2 execve execveat exit exit_group faccessat faccessat2 fchdir fchown fcntl fstat fstatfs
			futex getcwd getdents64 geteuid getegid getgid getpid getppid getrandom getsockname getsockopt gettid getuid ioctl lseek lstat
			madvise mkdirat mmap mprotect munmap nanosleep newfstatat open openat openat2 pidfd_open pidfd_send_signal pipe2 poll ppoll
			prctl pread64 prlimit64 read readlink readlinkat recvmsg restart_syscall rseq rt_sigaction rt_sigprocmask rt_sigreturn
			sched_getaffinity sched_yield sendmsg sendto set_robust_list set_tid_address setgid setgroups setresgid setresuid setsid setsockopt
			setuid sigaltstack socket stat statfs statx symlinkat sysinfo tgkill timer_create timer_delete timer_settime umask uname
			unlinkat wait4 waitid write io_uring_setup`)...)},
	}
	elsewhere := &api.LinuxSeccomp{DefaultAction: seccompErrno, DefaultErrno: api.UInt32(uint32(unix.ENOSYS)), Architectures: usual.Architectures, Syscalls: usual.Syscalls}
	for name, policy := range map[string]*api.LinuxSeccomp{"none": nil, "usual": usual, "with another errno": elsewhere} {
		for strict, changed := range map[bool]*api.LinuxSeccomp{false: policy, true: withoutLaunchTimes(policy)} {
			bundle := t.TempDir()
			spec := ocispec.Spec{
				Version: "1.2.0", Root: &ocispec.Root{Path: "root"},
				Process: &ocispec.Process{Args: []string{"/program"}, Cwd: "/", Env: []string{"TAKT_TEST_PROGRAM=tell"}, NoNewPrivileges: true},
				Linux:   &ocispec.Linux{Namespaces: []ocispec.LinuxNamespace{{Type: "pid"}, {Type: "mount"}, {Type: "network"}}},
				Mounts:  []ocispec.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}, {Destination: "/program", Type: "bind", Source: self, Options: []string{"bind", "ro"}}},
			}
			for _, of := range []string{"/usr", "/lib", "/lib64"} {
				spec.Mounts = append(spec.Mounts, ocispec.Mount{Destination: of, Type: "bind", Source: of, Options: []string{"rbind", "ro"}})
			}
			if changed != nil {
				spec.Linux.Seccomp = ociPolicy(changed)
			}
			text, err := json.Marshal(spec)
			if err == nil {
				err = os.WriteFile(filepath.Join(bundle, "config.json"), text, 0o600)
			}
			if err == nil {
				err = os.Mkdir(filepath.Join(bundle, "root"), 0o755)
			}
			if err != nil {
				t.Fatal(err)
			}
			id := fmt.Sprintf("takt-test-%d-%v-%v", os.Getpid(), strings.ReplaceAll(name, " ", "-"), strict)
			out, err := exec.Command(runc, "--root", filepath.Join(bundle, "state"), "run", "--bundle", bundle, id).CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v: %s", name, err, out)
			}
			refused := "<nil>"
			if strict {
				refused = unix.EPERM.Error()
				if name == "with another errno" {
					refused = unix.ENOSYS.Error()
				}
			}
			want := fmt.Sprintf("SO_TXTIME: %s\nSO_PRIORITY: <nil>\nIP_TOS: <nil>\n61 of IP: %v\nio_uring_setup: %v\n", refused, unix.ENOPROTOOPT, strict)
			if string(out) != want {
				t.Errorf("%s, strict %v: %s and not %s", name, strict, out, want)
			}
		}
	}
}

// ociPolicy is a policy as the runtime has it.
func ociPolicy(policy *api.LinuxSeccomp) *ocispec.LinuxSeccomp {
	told := &ocispec.LinuxSeccomp{DefaultAction: ocispec.LinuxSeccompAction(policy.DefaultAction)}
	if policy.DefaultErrno != nil {
		errno := uint(policy.DefaultErrno.Value)
		told.DefaultErrnoRet = &errno
	}
	for _, name := range policy.Architectures {
		told.Architectures = append(told.Architectures, ocispec.Arch(name))
	}
	for _, rule := range policy.Syscalls {
		one := ocispec.LinuxSyscall{Names: rule.Names, Action: ocispec.LinuxSeccompAction(rule.Action)}
		if rule.ErrnoRet != nil {
			errno := uint(rule.ErrnoRet.Value)
			one.ErrnoRet = &errno
		}
		for _, argument := range rule.Args {
			one.Args = append(one.Args, ocispec.LinuxSeccompArg{Index: uint(argument.Index), Value: argument.Value, Op: ocispec.LinuxSeccompOperator(argument.Op)})
		}
		told.Syscalls = append(told.Syscalls, one)
	}
	return told
}

func TestAContainerThatRequiresThePreloadAloneIsCreatedSo(t *testing.T) {
	s := vethSite(t, "")
	s.known()
	for id, tc := range map[string]struct {
		more []string
		want bool
	}{
		"required-by-the-preload": {[]string{"takt.dev/preload", "required", "takt.dev/path", "preload"}, true},
		"of-this-container":       {[]string{"takt.dev/preload.main", "required", "takt.dev/path", "preload"}, true},
		"of-another-container":    {[]string{"takt.dev/preload.other", "required", "takt.dev/path", "preload"}, false},
		"not-required":            {[]string{"takt.dev/path", "preload"}, false},
		"at-the-veth-too":         {[]string{"takt.dev/preload", "required"}, false},
	} {
		s.attach(id, "eth0", "veth-"+id)
		adjusted, err := s.createOf(sensitivePod(id, tc.more...))
		if err != nil {
			t.Fatal(err)
		}
		policy := adjusted.GetLinux().GetSeccompPolicy()
		if got := policy != nil && answer(policy, "io_uring_setup") == seccompErrno; got != tc.want {
			t.Errorf("%s: denied is %v, by %v", id, got, policy)
		}
	}
}
