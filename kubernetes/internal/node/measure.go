package node

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/takt-dev/takt/kubernetes/internal/admission"
	"github.com/takt-dev/takt/kubernetes/internal/enforce"
	"github.com/takt-dev/takt/kubernetes/internal/inventory"
	"github.com/takt-dev/takt/kubernetes/internal/topology"
)

// measured is what the machine gives at one moment: CPUs go offline, partitions break, and limits are lowered while
// reservations run.
type measured struct {
	online []int
	// domain are the CPUs that the kernel schedules together, where reservations roam.
	domain []int
	// bound is how many parts per million of each offered core may be reserved.
	bound int64
	// broken says of offered CPUs that give nothing why.
	broken map[int]string
}

// measure looks at the machine. What cannot be read is an error, and then nothing may be given.
func (n *Node) measure(root string) (measured, error) {
	m := measured{broken: map[int]string{}}
	bound, err := kernelBound(root, n.backend)
	if err != nil {
		return m, err
	}
	if n.config.Bound > 0 {
		bound = min(bound, n.config.Bound)
	}
	m.bound = bound / int64(max(n.backend.Shared(len(n.offer.CPUs)), 1))
	cpus, err := topology.Read(root)
	if err != nil {
		return m, err
	}
	for _, cpu := range cpus {
		m.online = append(m.online, cpu.ID)
	}
	if m.domain, err = topology.RootDomain(root); err != nil {
		return m, err
	}
	for cpu, why := range n.backend.Broken() {
		m.broken[cpu] = why.Error()
	}
	for _, cpu := range n.offer.CPUs {
		switch {
		case !slices.Contains(m.online, cpu.ID):
			m.broken[cpu.ID] = fmt.Sprintf("CPU %d is not online any more: its reservations are kept by the others, if at all", cpu.ID)
		case n.offer.Roams && !slices.Contains(m.domain, cpu.ID):
			m.broken[cpu.ID] = fmt.Sprintf("CPU %d is in a cpuset partition of its own now: its reservations are kept by the others, if at all", cpu.ID)
		}
	}
	return m, nil
}

// remeasure looks at the machine and publishes what it gives now.
func (n *Node) remeasure(ctx context.Context) (measured, error) {
	m, err := n.measure(n.root)
	n.mu.Lock()
	before := n.trouble
	changed := n.give(m, err)
	trouble := n.trouble
	capacities := slices.Clone(n.offer.Capacities)
	n.mu.Unlock()
	if changed {
		klog.FromContext(ctx).Info("The machine gives another bandwidth than before", "ppm", capacities)
	}
	for _, cpu := range slices.Sorted(maps.Keys(trouble)) {
		if before[cpu] == "" {
			n.nodeEvent(corev1.EventTypeWarning, reasonUnkept, "%s", trouble[cpu])
		}
	}
	return m, err
}

// give puts what was measured into the offer, and says whether that changed it. Call with n.mu held.
func (n *Node) give(m measured, err error) (changed bool) {
	offer := n.offer
	offer.Capacities, offer.Most = make([]int64, len(offer.CPUs)), max(offer.Most, 1)
	if err == nil {
		offer.RootDomain, offer.Bound = len(m.domain), m.bound
		offer.Capacities, offer.Most = n.capacities(m)
	}
	n.trouble = n.troubles(m, err)
	offer.Troubled, offer.Drifting = n.trouble, n.drifting()
	changed = !slices.Equal(offer.Capacities, n.offer.Capacities) || offer.Most != n.offer.Most
	if changed || offer.Drifting != n.offer.Drifting || !maps.Equal(offer.Troubled, n.offer.Troubled) {
		n.reorder()
	}
	// The cores, and whether threads roam, are read by others without the lock: they never change.
	n.offer.Capacities, n.offer.Most, n.offer.RootDomain, n.offer.Bound = offer.Capacities, offer.Most, offer.RootDomain, offer.Bound
	n.offer.Troubled, n.offer.Drifting = offer.Troubled, offer.Drifting
	return changed
}

// capacities are what each offered core may give, and the most that one reservation may have. Call with n.mu held.
func (n *Node) capacities(m measured) (capacities []int64, most int64) {
	capacities = make([]int64, len(n.offer.CPUs))
	var usable []int
	for i, cpu := range n.offer.CPUs {
		if _, broken := m.broken[cpu.ID]; broken {
			continue
		}
		usable = append(usable, i)
		if !n.offer.Roams {
			d := n.drifts[cpu.ID]
			capacities[i] = max(m.bound-d.lost()-d.strangers(), 0)
		}
	}
	most = max(m.bound, 1)
	if !n.offer.Roams || len(usable) == 0 {
		return capacities, most
	}
	if n.guaranteed() {
		most = min(cmp.Or(n.config.MaxDensity, admission.Widest(len(m.domain), len(usable), m.bound)), m.bound)
	}
	shares := admission.Within(n.total(m, most), len(usable), most, m.bound)
	for at, i := range usable {
		capacities[i] = shares[at]
	}
	// What claims hold beyond a core's capacity the others cannot give as well.
	consumed, over := n.consumed(), int64(0)
	for cpu, ppm := range consumed {
		at := slices.IndexFunc(n.offer.CPUs, func(c topology.CPU) bool { return c.ID == cpu })
		if at < 0 {
			over += ppm
		} else {
			over += max(ppm-capacities[at], 0)
		}
	}
	for i, cpu := range n.offer.CPUs {
		less := min(over, max(capacities[i]-consumed[cpu.ID], 0))
		capacities[i] -= less
		over -= less
	}
	return capacities, most
}

// total is how much claims may have of all cores together, in reservations of at most most each: what the kernel admits
// beside threads outside of all claims and what it has lost, and what is proven beside those. Call with n.mu held.
func (n *Node) total(m measured, most int64) int64 {
	d := n.drifts[everywhere]
	// What is lost nobody runs: the kernel alone counts it. Strangers run, too.
	total := int64(len(m.domain))*m.bound - d.lost() - d.strangers()
	if !n.guaranteed() {
		return total
	}
	proven := int64(0)
	for _, attr := range d.outside {
		most = max(most, attr.Density())
		proven -= attr.Density()
	}
	for _, density := range n.densities("") {
		most = max(most, density)
	}
	return min(total, proven+admission.Total(len(m.domain), most))
}

// troubles are the CPUs that cannot keep what claims hold of them, or that cannot be used, and why. Call with n.mu held.
func (n *Node) troubles(m measured, err error) map[int]string {
	found := map[int]string{}
	consumed := n.consumed()
	if err != nil {
		for _, cpu := range n.offer.CPUs {
			found[cpu.ID] = fmt.Sprintf("CPU %d gives nothing, because it cannot be seen what it has: %s", cpu.ID, err)
		}
		return found
	}
	maps.Copy(found, m.broken)
	var all int64
	for cpu, ppm := range consumed {
		all += ppm
		if found[cpu] == "" && !slices.Contains(m.online, cpu) {
			found[cpu] = fmt.Sprintf("CPU %d is not online any more: its reservations are kept by the others, if at all", cpu)
		}
	}
	const remedy = "raise kernel.sched_rt_runtime_us, bring the node's CPUs online, end threads outside of claims, or delete pods"
	if !n.offer.Roams {
		for cpu, ppm := range consumed {
			if now := max(m.bound-n.drifts[cpu].lost()-n.drifts[cpu].strangers(), 0); found[cpu] == "" && ppm > now {
				found[cpu] = fmt.Sprintf("CPU %d has %d parts per million reserved, and only %d can be kept now: %s", cpu, ppm, now, remedy)
			}
		}
		return found
	}
	short := ""
	d := n.drifts[everywhere]
	if gives := int64(len(m.domain))*m.bound - d.strangers() - d.lost(); all > gives {
		short = fmt.Sprintf("claims have %d parts per million of a core reserved, and the kernel admits only %d now: %s", all, max(gives, 0), remedy)
	} else if held := append(n.densities(""), d.densities()...); len(consumed) > 0 && n.guaranteed() && !admission.Schedulable(len(m.domain), held) {
		short = fmt.Sprintf("the %d reservations that are there may miss deadlines on %d cores: %s", len(held), len(m.domain), remedy)
	}
	for cpu := range consumed {
		if short != "" && found[cpu] == "" {
			found[cpu] = short
		}
	}
	return found
}

// troubleOf is why a container's reservations are not kept at the moment; empty if they are.
func (n *Node) troubleOf(c *container) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, grant := range c.grants {
		for _, core := range grant.Cores {
			if why := n.trouble[core]; why != "" {
				return why
			}
		}
	}
	return ""
}

// drifting says what the kernel counts beyond what claims hold. Call with n.mu held.
func (n *Node) drifting() string {
	switch d := n.driftInAll(); {
	case d.lost() > 0:
		return inventory.DriftLost
	case len(d.outside) > 0:
		return inventory.DriftOutside
	}
	return ""
}

// rootDomain is a set of CPUs whose reservations the kernel admits, and schedules, together.
type rootDomain struct {
	// key is everywhere, or the number of its only core.
	key  int
	cpus []int
}

// everywhere is the key of the root domain that all offered cores are in.
const everywhere = -1

// domains are those that are compared with what claims hold: none of backends without SCHED_DEADLINE.
func (n *Node) domains(m measured) []rootDomain {
	if n.offer.Roams {
		return []rootDomain{{everywhere, m.domain}}
	}
	if n.backend.Name() != enforce.PartitionName {
		return nil
	}
	var all []rootDomain
	for _, cpu := range n.offer.CPUs {
		if _, broken := m.broken[cpu.ID]; !broken {
			all = append(all, rootDomain{cpu.ID, []int{cpu.ID}})
		}
	}
	return all
}
