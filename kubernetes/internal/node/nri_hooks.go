package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/takt-dev/takt/kubernetes/internal/enforce"
	"github.com/takt-dev/takt/kubernetes/internal/quote"
	"github.com/takt-dev/takt/kubernetes/internal/topology"
)

// PluginName and pluginIndex are how the container runtime knows the agent. It comes late, so that it sees
// what other plugins have decided.
const (
	PluginName  = "takt-node"
	pluginIndex = "90"
)

// hookPatience is how long the creation of a container may wait for taktd, the API server and other pods' turns in all. The
// runtime gives a hook two seconds; one whose NRI knows no failure policy (before 0.12.4) then creates the container as if
// there were no agent.
var hookPatience = 1500 * time.Millisecond

// askAPI is how long a hook may wait for the API server.
const askAPI = time.Second

// reconnect is the pause before the container runtime is called again.
const reconnect = time.Second

// nriPlugin is the part of the agent that the container runtime calls.
type nriPlugin struct{ n *Node }

// runNRI stays connected with the container runtime, which may restart at any time. In between, the gate
// keeps containers with claims from starting.
func (n *Node) runNRI(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	for {
		plugin, err := stub.New(&nriPlugin{n},
			stub.WithPluginName(PluginName), stub.WithPluginIdx(pluginIndex), stub.WithSocketPath(n.config.NRISocket),
			// No answer is an answer: a container must not start because the agent is slow or gone.
			stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true, KeepConnected: true}),
		)
		if err != nil {
			return fmt.Errorf("cannot make the NRI plugin: %w", err)
		}
		err = plugin.Run(ctx)
		n.setConnected(false)
		if ctx.Err() != nil {
			return nil
		}
		logger.Error(err, "The container runtime is not there, calling again", "socket", n.config.NRISocket)
		n.metrics.failed(atNri)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reconnect):
		}
	}
}

func (n *Node) setConnected(connected bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.connected = connected
}

// Synchronize is called once after connecting, with all that runs: containers are taken back under
// reservation. One that runs without a claim to show for it is ended.
func (p *nriPlugin) Synchronize(ctx context.Context, pods []*api.PodSandbox, all []*api.Container) ([]*api.ContainerUpdate, error) {
	n := p.n
	logger := klog.FromContext(ctx)
	byID := map[string]*api.PodSandbox{}
	for _, pod := range pods {
		byID[pod.GetId()] = pod
	}
	// Of containers of one name the last one is the kubelet's: it comes first, and those before it are ended.
	all = slices.SortedStableFunc(slices.Values(all), func(a, b *api.Container) int {
		return cmp.Or(-cmp.Compare(a.GetState(), b.GetState()), -cmp.Compare(a.GetCreatedAt(), b.GetCreatedAt()))
	})
	// One with a reservation is the gate's to refuse unless this agent has created it, or taken it back.
	n.attended.reset(slices.DeleteFunc(slices.Clone(all), func(ctr *api.Container) bool { return !n.hasSockets(ctr) || len(marks(ctr)) > 0 }))
	present := map[string]bool{}
	for _, ctr := range all {
		if n.hasSockets(ctr) {
			n.served.Store(ctr.GetPodSandboxId(), true)
		}
		reserved := len(marks(ctr)) > 0
		if reserved {
			present[ctr.GetId()] = true
		}
		if ctr.GetState() != api.ContainerState_CONTAINER_RUNNING && ctr.GetState() != api.ContainerState_CONTAINER_CREATED {
			continue
		}
		sandbox := byID[ctr.GetPodSandboxId()]
		pod := podOf(sandbox)
		if err := n.missing(sandbox, ctr); err != nil {
			n.endWithoutRuntime(ctx, pod, ctr, err)
			if !reserved {
				continue
			}
		}
		if ctr.GetState() == api.ContainerState_CONTAINER_CREATED {
			n.denyAgain(sandbox, ctr)
			if reserved && !n.knows(ctr.GetId()) {
				n.leaveUnknown(ctx, pod, ctr)
			}
			continue
		}
		if !reserved {
			continue
		}
		err := n.takeBack(ctx, pod, ctr)
		if err == nil {
			continue
		}
		logger.Error(err, "A container runs without its reservation, ending it", "pod", klog.KRef(pod.Namespace, pod.Name), "container", ctr.GetName())
		n.tell(pod, reasonLost, "container "+ctr.GetName()+" is ended", err)
		if err := kill(int(ctr.GetPid()), 0); err != nil {
			logger.Error(err, "Cannot end the container")
		}
	}
	n.mu.Lock()
	var gone []*container
	for id, c := range n.containers {
		// One that runs is kept under its reservation, listed or not: a runtime that has crashed may have
		// forgotten it, and the kubelet will find it.
		if !present[id] && !(c.running() && c.alive()) {
			gone = append(gone, c)
		}
	}
	n.mu.Unlock()
	for _, c := range gone {
		n.forget(ctx, c)
	}
	kept := maps.Clone(present)
	for _, c := range n.runningContainers() {
		kept[c.id] = true
	}
	n.forgetProcesses(kept)
	n.takeAgain(ctx, pods, all)
	n.tellOfNetworks(ctx, pods)
	n.setConnected(true)
	go n.sweep(context.WithoutCancel(ctx))
	return nil, nil
}

// How often it is tried to take a container back that runs, and the pause between.
const (
	takeBackTries = 3
	takeBackPause = 50 * time.Millisecond
)

// takeBack takes a container that runs back under its reservation; one that has ended meanwhile is no error. What the agent
// could not find out, or do, is no refusal: that is tried again before it costs the container its life.
func (n *Node) takeBack(ctx context.Context, pod Pod, ctr *api.Container) error {
	for try := 1; ; try++ {
		c, err := n.admit(ctx, pod, ctr, false)
		if err == nil {
			err = n.enforce(ctx, c, int(ctr.GetPid()), true)
		}
		if err == nil {
			return nil
		}
		if errors.Is(err, enforce.ErrGone) {
			n.forget(ctx, c)
			return nil
		}
		if code, _ := coded(err); code != codeAgent || try == takeBackTries {
			return err
		}
		time.Sleep(takeBackPause)
	}
}

// knows says that this agent has seen a container being created, or taken it back.
func (n *Node) knows(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.containers[id] != nil
}

// leaveUnknown leaves a container alone that was created, and not by this agent's leave: whatever it would have been
// refused for, or given, it may have come past. The gate lets it not start, and the kubelet creates it anew. Some runtimes have
// a process for it already, which an earlier agent may have given a reservation: that one is ended.
func (n *Node) leaveUnknown(ctx context.Context, pod Pod, ctr *api.Container) {
	logger := klog.FromContext(ctx)
	logger.Info("A container was created while this agent was away, it does not start", "pod", klog.KRef(pod.Namespace, pod.Name), "container", ctr.GetName())
	if ctr.GetPid() == 0 {
		return
	}
	if err := kill(int(ctr.GetPid()), 0); err != nil {
		logger.Error(err, "Cannot end the container")
	}
}

// endWithoutRuntime ends a container of a time-sensitive pod that came while the agent was away: the kubelet starts it
// again, with its runtime. One that has no process yet is refused its start (StartContainer). Where such pods may start without
// a runtime, the pod is only told.
func (n *Node) endWithoutRuntime(ctx context.Context, pod Pod, ctr *api.Container, why error) {
	logger := klog.FromContext(ctx)
	if n.config.Network.Unattached == StartUnattached {
		n.event(pod, corev1.EventTypeWarning, reasonUnattached, "container %s runs without launch times: %s", ctr.GetName(), why)
		return
	}
	if ctr.GetPid() == 0 {
		logger.Info("A container of a time-sensitive pod was created while this agent was away, it does not start", "pod", klog.KRef(pod.Namespace, pod.Name), "container", ctr.GetName())
		return
	}
	logger.Error(why, "A container of a time-sensitive pod runs without its runtime, ending it", "pod", klog.KRef(pod.Namespace, pod.Name), "container", ctr.GetName())
	n.tell(pod, reasonNetwork, "container "+ctr.GetName()+" is ended", why)
	if err := kill(int(ctr.GetPid()), 0); err != nil {
		logger.Error(err, "Cannot end the container")
	}
}

// sweep removes claims that are not in the cluster any more and that nobody holds: the kubelet's own list
// may have been lost with its disk.
func (n *Node) sweep(ctx context.Context) {
	if n.gates != nil {
		n.gates.sweep(ctx)
	}
	n.mu.Lock()
	var candidates []*Record
	for _, claim := range n.claims {
		if !slices.ContainsFunc(claim.Requests, func(r Request) bool { return n.holders[key(claim.Claim, r.Name)] != nil }) {
			candidates = append(candidates, claim.Record)
		}
	}
	n.mu.Unlock()
	for _, record := range candidates {
		if n.exists(ctx, record) {
			continue
		}
		klog.FromContext(ctx).Info("A prepared claim has gone from the cluster, removing it", "claim", klog.KRef(record.Namespace, record.Name))
		if err := n.unprepare(ctx, record.Claim); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot remove it")
		}
	}
}

// marks are the reservations that a container's environment names.
func marks(ctr *api.Container) []string {
	var found []string
	for _, variable := range ctr.GetEnv() {
		if name, value, ok := strings.Cut(variable, "="); ok && strings.HasPrefix(name, grantVariable) {
			found = append(found, value)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func podOf(pod *api.PodSandbox) Pod {
	return Pod{Namespace: pod.GetNamespace(), Name: pod.GetName(), UID: types.UID(pod.GetUid())}
}

// CreateContainer refuses containers whose claims are not prepared for their pod, or which have no runtime and need
// one, and adjusts the others.
func (p *nriPlugin) CreateContainer(ctx context.Context, sandbox *api.PodSandbox, ctr *api.Container) (adjustment *api.ContainerAdjustment, updates []*api.ContainerUpdate, err error) {
	n, pod := p.n, podOf(sandbox)
	defer n.metrics.hook("CreateContainer")()
	defer func() {
		if err != nil {
			n.denials.remove(ctr.GetId())
			err = quote.Error(err)
		}
	}()
	adjustment = &api.ContainerAdjustment{}
	within, cancel := context.WithTimeout(ctx, hookPatience)
	defer cancel()
	if err := n.connect(within, sandbox, ctr, adjustment); err != nil {
		err = inTime(within, err)
		n.metrics.refused(atCreate, err)
		n.tell(pod, reasonNetwork, "container "+ctr.GetName(), err)
		return nil, nil, err
	}
	if len(marks(ctr)) == 0 {
		n.attended.add(ctr.GetId())
		return adjustment, nil, nil
	}
	c, err := n.admit(within, pod, ctr, true)
	if err != nil {
		n.metrics.refused(atCreate, err)
		n.tell(pod, reasonRefused, "container "+ctr.GetName(), err)
		return nil, nil, err
	}
	wanted := n.backend.Adjust(c.grants)
	if len(wanted.CPUs) > 0 {
		adjustment.SetLinuxCPUSetCPUs(topology.FormatCPUList(wanted.CPUs))
	} else if wide, err := n.wide(pod, ctr, ctr.GetLinux().GetResources()); err != nil {
		return nil, nil, err
	} else if wide != "" {
		adjustment.SetLinuxCPUSetCPUs(wide)
	}
	if wanted.Cgroup != "" {
		path := ctr.GetLinux().GetCgroupsPath()
		if strings.Contains(path, ":") {
			err := refuse(codeUnsupported, "the container runtime has systemd make its cgroups (%s), and backend %s places containers itself: use the driver cgroupfs on this node, or backend %s",
				path, n.backend.Name(), enforce.DeadlineName)
			n.metrics.refused(atCreate, err)
			n.tell(pod, reasonRefused, "container "+ctr.GetName(), err)
			return nil, nil, err
		}
		adjustment.SetLinuxCgroupsPath(wanted.Cgroup + "/" + ctr.GetId())
	}
	if denies(c.grants) {
		policy := adjustment.GetLinux().GetSeccompPolicy()
		if policy == nil {
			policy = ctr.GetLinux().GetSeccompPolicy()
		}
		adjustment.SetLinuxSeccompPolicy(withoutPolicyCalls(policy))
	}
	return adjustment, nil, nil
}

// wide are the CPUs that a container must have instead of those of resources, because its reservations count on all
// of the root domain; empty if nothing need change. The static CPU manager takes CPUs from everybody when a pod gets
// some of its own.
func (n *Node) wide(pod Pod, ctr *api.Container, resources *api.LinuxResources) (string, error) {
	cpus := resources.GetCpu().GetCpus()
	if !n.backend.Roams() || cpus == "" {
		return "", nil
	}
	domain, err := topology.RootDomain("/")
	if err != nil {
		return "", err
	}
	may, err := topology.ParseCPUList(cpus)
	if err != nil {
		return "", err
	}
	if !slices.ContainsFunc(domain, func(cpu int) bool { return !slices.Contains(may, cpu) }) {
		return "", nil
	}
	n.event(pod, corev1.EventTypeWarning, reasonNarrowed, "container %s: it was to be confined to CPUs %s and stays on all, which its reservation counts on: pods with CPUs of their own share them with it; move one of the pods to another node",
		ctr.GetName(), cpus)
	return topology.FormatCPUList(domain), nil
}

// admit takes in a container that may have the reservations it names. One that is being created follows the
// one of its name, which is ended if it still lives.
func (n *Node) admit(ctx context.Context, pod Pod, ctr *api.Container, creating bool) (*container, error) {
	c := &container{id: ctr.GetId(), name: ctr.GetName(), pod: pod}
	for _, mark := range marks(ctr) {
		uid, request, err := parseKey(mark)
		if err != nil {
			return nil, refuse(codeNotPrepared, "%w: variables %s* are set by this agent alone, leave them out of the container", err, grantVariable)
		}
		if err := n.belongs(ctx, pod, uid); err != nil {
			return nil, err
		}
		n.mu.Lock()
		var grant enforce.Grant
		found := false
		newer := false
		if claim := n.claims[uid]; claim != nil {
			grant, found = claim.grant(request)
			newer = claim.newer
		}
		n.mu.Unlock()
		if creating && newer {
			return nil, refuse(codeNotPrepared, "claim %s was prepared by a later version of this agent, which may promise more than this one keeps: run that one, or delete the pod", uid)
		}
		if !found {
			return nil, refuse(codeNotPrepared, "the container names request %s of claim %s, which has none of that name: variables %s* are set by this agent alone, leave them out of the container", quote.Value(request), uid, grantVariable)
		}
		c.grants = append(c.grants, grant)
	}
	if times := n.restoredOf(pod); creating && times > enforce.MostRestored {
		return nil, refuse(codeRestless, "containers of pod %s have changed their reservations behind this agent's back %d times: let only the agent set policies, or have the calls fail (changes: deny), and delete the pod", pod.Name, times)
	}
	if err := n.backend.Accepts(c.grants); err != nil {
		return nil, err
	}
	former, known, err := n.take(c, creating)
	if err != nil || known != nil {
		return known, err
	}
	for _, old := range former {
		if old.alive() {
			klog.FromContext(ctx).Info("A container is created before its predecessor has ended: ending it", "pod", klog.KRef(pod.Namespace, pod.Name), "container", old.name, "id", old.id)
		}
		n.forget(context.WithoutCancel(ctx), old)
	}
	return c, nil
}

// inTime is why a container is refused, where it is that there was no more time.
func inTime(ctx context.Context, err error) error {
	var known refusal
	if ctx.Err() == nil || errors.As(err, &known) {
		return err
	}
	return refuse(codeNoAnswer, "not all that the container needs was answered within the %v that the container runtime leaves: see that taktd runs and is not overloaded (`takt status`, its log); the kubelet will try again (%w)", hookPatience, err)
}

// take makes the container the holder of its requests, if nobody else still is, and returns those who were;
// or the container itself as it is known already.
func (n *Node) take(c *container, creating bool) (former []*container, known *container, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if known := n.containers[c.id]; known != nil {
		return nil, known, nil
	}
	for _, grant := range c.grants {
		holder := n.holders[grant.Key]
		if holder == nil {
			continue
		}
		// The kubelet creates a container when it has given up the one before it. That may still live: a
		// kubelet that ends between creating and starting one never returns to it.
		follows := creating && holder.pod.UID == c.pod.UID && holder.name == c.name
		if !follows && holder.alive() {
			return nil, nil, refuse(codeShared, "%s is held by container %s of pod %s: a request is for one container at a time, give each its own request or claim",
				grant, holder.name, holder.pod.Name)
		}
		former = append(former, holder)
	}
	n.containers[c.id] = c
	for _, grant := range c.grants {
		n.holders[grant.Key] = c
	}
	return former, nil, nil
}

// belongs says whether the claim is prepared and reserved for the pod before all others. The kubelet does
// not ask again when a prepared claim passes from one pod to the next, so the API server is asked here.
func (n *Node) belongs(ctx context.Context, pod Pod, uid types.UID) error {
	n.mu.Lock()
	claim := n.claims[uid]
	var record *Record
	if claim != nil {
		record = claim.Record
	}
	n.mu.Unlock()
	if record == nil {
		return refuse(codeNotPrepared, "claim %s is not prepared on this node: the kubelet will try again; a container that sets %s* itself never has a reservation", quote.Value(uid), grantVariable)
	}
	if record.Pods[0].UID == pod.UID {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askAPI)
	defer cancel()
	now, err := n.client.ResourceV1().ResourceClaims(record.Namespace).Get(ctx, record.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("cannot see whom claim %s is reserved for: %w", record.Name, err)
	}
	if now.UID != uid || pod.Namespace != record.Namespace {
		return refuse(codeShared, "claim %s/%s is not of pod %s/%s", record.Namespace, record.Name, pod.Namespace, pod.Name)
	}
	fresh, err := newRecord(now, n.name, n.limits)
	if err != nil {
		return err
	}
	if fresh.Pods[0].UID != pod.UID {
		return refuse(codeShared, "claim %s is reserved for pod %s: a reservation is one pod's at a time, use a ResourceClaimTemplate to give each its own",
			record.Name, fresh.Pods[0].Name)
	}
	// The claim may have been prepared before this pod was there.
	if err := n.checkPod(ctx, fresh, fresh.Pods[0]); err != nil {
		return err
	}
	fresh.keep(record)
	if err := n.records.write(fresh); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if claim := n.claims[uid]; claim != nil {
		claim.Record = fresh
	}
	return nil
}

// StartContainer is the last moment before the program runs. The gate has already enforced the reservation,
// unless the runtime has no hooks.
func (p *nriPlugin) StartContainer(ctx context.Context, sandbox *api.PodSandbox, ctr *api.Container) error {
	n := p.n
	// One that this agent has not created may have come past it.
	if !n.attended.has(ctr.GetId()) && !n.knows(ctr.GetId()) {
		if err := n.missing(sandbox, ctr); err != nil && n.config.Network.Unattached == RefuseUnattached {
			n.tell(podOf(sandbox), reasonNetwork, "container "+ctr.GetName(), err)
			return quote.Error(err)
		}
	}
	if len(marks(ctr)) == 0 {
		return nil
	}
	defer n.metrics.hook("StartContainer")()
	n.mu.Lock()
	c := n.containers[ctr.GetId()]
	n.mu.Unlock()
	if c == nil {
		return fmt.Errorf("container %s was created before this %s began, or while it was away: it has to be created again", ctr.GetName(), PluginName)
	}
	return n.enforce(ctx, c, int(ctr.GetPid()), false)
}

// UpdateContainer is told that a container's resources shall change; which CPUs it has does not (see wide).
func (p *nriPlugin) UpdateContainer(ctx context.Context, sandbox *api.PodSandbox, ctr *api.Container, resources *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	n := p.n
	if len(marks(ctr)) == 0 {
		return nil, nil
	}
	defer n.metrics.hook("UpdateContainer")()
	wide, err := n.wide(podOf(sandbox), ctr, resources)
	if err != nil || wide == "" {
		return nil, err
	}
	update := &api.ContainerUpdate{}
	update.SetContainerId(ctr.GetId())
	update.SetLinuxCPUSetCPUs(wide)
	return []*api.ContainerUpdate{update}, nil
}

// StopContainer is told when a container is being stopped, or has ended.
func (p *nriPlugin) StopContainer(ctx context.Context, _ *api.PodSandbox, ctr *api.Container) ([]*api.ContainerUpdate, error) {
	if len(marks(ctr)) > 0 {
		defer p.n.metrics.hook("StopContainer")()
	}
	p.n.ended(ctx, ctr.GetId())
	return nil, nil
}

// RunPodSandbox is told when a pod has its interfaces, and no container yet. The runtime does not wait.
func (p *nriPlugin) RunPodSandbox(ctx context.Context, sandbox *api.PodSandbox) error {
	if p.n.gates == nil {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	go func() {
		if err := p.n.gates.sandboxed(ctx, sandbox); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot see whether a pod may have its gate time", "pod", klog.KRef(sandbox.GetNamespace(), sandbox.GetName()))
		}
	}()
	return nil
}

// StopPodSandbox is told when a pod ends, and loses its interfaces.
func (p *nriPlugin) StopPodSandbox(_ context.Context, sandbox *api.PodSandbox) error {
	p.n.named.Delete(sandbox.GetId())
	p.n.served.Delete(sandbox.GetId())
	if p.n.veths != nil {
		// The runtime does not wait for that: it ends with its device, too.
		go p.n.veths.forget(sandbox.GetId())
		p.n.gates.look()
	}
	return nil
}

// RemovePodSandbox is told when nothing of the pod is left.
func (p *nriPlugin) RemovePodSandbox(ctx context.Context, sandbox *api.PodSandbox) error {
	return p.StopPodSandbox(ctx, sandbox)
}

// RemoveContainer is told when nothing of the container is left.
func (p *nriPlugin) RemoveContainer(ctx context.Context, _ *api.PodSandbox, ctr *api.Container) error {
	p.n.attended.remove(ctr.GetId())
	p.n.denials.remove(ctr.GetId())
	p.n.mu.Lock()
	c := p.n.containers[ctr.GetId()]
	p.n.mu.Unlock()
	if c != nil {
		defer p.n.metrics.hook("RemoveContainer")()
		p.n.forget(ctx, c)
	}
	return nil
}

// Configure is told which runtime this is; all hooks of the plugin are wanted.
func (p *nriPlugin) Configure(ctx context.Context, _, runtime, version string) (api.EventMask, error) {
	klog.FromContext(ctx).Info("Connected with the container runtime", "runtime", runtime, "version", version)
	return 0, nil
}
