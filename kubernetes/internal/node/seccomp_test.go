package node

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
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
