package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/takt-dev/takt/kubernetes/internal/enforce"
	"github.com/takt-dev/takt/kubernetes/internal/quote"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

// The check looks at what the machine gives (measure.go) and compares what the kernel has admitted with what the
// containers of claims hold, beyond what each scan compares thread by thread. A thread that has just ended is counted to
// the end of its period, at most 4.2 s, so that only a difference that stays is one.
const (
	checkPace     = time.Second
	checkPatience = 10 * time.Second
	// looksEvery is after how many times that patience the threads of the machine are looked at for one of the root domains,
	// whatever the kernel counts: what it counts too little hides a thread outside of all claims that has as much.
	looksEvery = 6
	// checkSlack, in parts per million of a core, is what rounding may make.
	checkSlack = 500
)

// drift is what the kernel counts of a root domain beyond what is known.
type drift struct {
	// since is when the kernel began to count something else than is known; zero while it does not. beyond is the least
	// that it has counted since: threads come and go, and what never goes away is drift.
	since  time.Time
	beyond int64
	// last is what it counted the last time, and still since when that is so.
	last  int64
	still time.Time
	// looked is when the threads of the machine were looked at, seen what those outside of all claims had then, and outside
	// what is believed of it. The kernel counts rest more than threads have, or less.
	looked  time.Time
	seen    map[int]sched.Attr
	outside []sched.Attr
	rest    int64
	// kept is what of rest the kernel could not be made to count right: it is not asked again for the same.
	kept int64
	// admitted is what the kernel said last.
	admitted int64
}

// lost is what the kernel counts and nobody has.
func (d drift) lost() int64 { return max(d.rest, 0) }

// strangers is what threads outside of all claims have, as the kernel counts it.
func (d drift) strangers() (sum int64) {
	for _, attr := range d.outside {
		sum += attr.Share()
	}
	return sum
}

// note takes in what the kernel counts beyond what the containers of claims hold, and says whether the threads of the
// machine have to be looked at: when that has been something else than is known for all of patience, and in any case when
// they were not looked at for so long, however much comes and goes. whole says that the former is so.
func (d *drift) note(now int64, at time.Time, patience, unlooked time.Duration) (due, whole bool) {
	if d.still.IsZero() || now != d.last {
		d.last, d.still = now, at
	}
	switch {
	case !beyondSlack(now - d.strangers() - d.rest):
		d.since = time.Time{}
	case d.since.IsZero():
		d.since, d.beyond = at, now
	default:
		d.beyond = min(d.beyond, now)
	}
	whole = !d.since.IsZero() && at.Sub(d.since) >= patience
	due = whole || at.Sub(d.looked) >= unlooked
	if due {
		d.looked = at
	}
	if whole {
		d.since = time.Time{}
	}
	return due, whole
}

// believe says which of the threads that were seen outside of all claims are: all, where nothing moves; else those that were
// seen the last time as well, because one of a claim may be between two scans.
func (d *drift) believe(strangers map[int]sched.Attr, quiet bool) map[int]sched.Attr {
	before := d.seen
	d.seen = maps.Clone(strangers)
	if !quiet {
		maps.DeleteFunc(strangers, func(tid int, attr sched.Attr) bool { return before[tid] != attr })
	}
	return strangers
}

// restOf is what the kernel counts more than threads have, where it does not stand still and strangers have so much: no more
// than the least that it has counted for all of patience. What it seems to count too little may be somebody who comes.
func (d drift) restOf(strangers int64, whole bool) int64 {
	if !whole {
		return d.rest
	}
	return max(d.beyond-strangers, min(d.rest, 0))
}

func (d drift) densities() (all []int64) {
	for _, attr := range d.outside {
		all = append(all, attr.Density())
	}
	return all
}

// driftInAll is that of all root domains together. Call with n.mu held.
func (n *Node) driftInAll() (sum drift) {
	for _, d := range n.drifts {
		sum.outside = append(sum.outside, d.outside...)
		sum.rest += d.lost()
		sum.admitted += d.admitted
	}
	return sum
}

// check runs until the context ends.
func (n *Node) check(ctx context.Context) {
	if len(n.offer.CPUs) == 0 {
		return
	}
	ticker := time.NewTicker(checkPace)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			n.checkOnce(ctx, checkPatience)
		}
	}
}

func (n *Node) checkOnce(ctx context.Context, patience time.Duration) {
	m, err := n.remeasure(ctx)
	if err != nil {
		return // told with each core
	}
	domains := n.domains(m)
	n.mu.Lock()
	for key := range n.drifts {
		// What is no domain any more has no drift either.
		if !slices.ContainsFunc(domains, func(d rootDomain) bool { return d.key == key }) {
			delete(n.drifts, key)
		}
	}
	n.mu.Unlock()
	var failed error
	for _, domain := range domains {
		if err := n.compare(ctx, domain, patience, looksEvery*patience*time.Duration(len(domains))); err != nil {
			failed = err
		}
	}
	n.noteReadable(ctx, failed)
	if failed != nil {
		n.lookForStrangers(ctx, domains, patience)
	}
}

// noteReadable tells the node once that the kernel does not say what it has admitted, and once that it does again.
func (n *Node) noteReadable(ctx context.Context, err error) {
	n.mu.Lock()
	told := n.unreadable
	n.unreadable = err != nil
	n.mu.Unlock()
	switch {
	case err != nil && !told:
		klog.FromContext(ctx).Error(err, "The kernel's bandwidth is not compared with what claims hold")
		n.nodeEvent(corev1.EventTypeWarning, reasonUnchecked, "what the kernel has admitted is not compared with what claims hold, and bandwidth that it loses is not found: %s; mount debugfs on the node", err)
	case err == nil && told:
		n.nodeEvent(corev1.EventTypeNormal, reasonUnchecked, "what the kernel has admitted is compared with what claims hold again")
	}
}

// lookForStrangers does without what the kernel counts: only threads that had a reservation outside of all claims the
// last time as well are believed to have one, because one of a claim may be between two scans.
func (n *Node) lookForStrangers(ctx context.Context, domains []rootDomain, patience time.Duration) {
	n.mu.Lock()
	due := time.Since(n.lookedAt) >= patience
	if due {
		n.lookedAt = time.Now()
	}
	before := n.seen
	n.mu.Unlock()
	if !due {
		return
	}
	seen := map[int]sched.Attr{}
	for _, domain := range domains {
		found, err := n.strangers(domain)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot find who holds reservations outside of claims")
			return
		}
		maps.Copy(seen, found)
		maps.DeleteFunc(found, func(tid int, attr sched.Attr) bool { return before[tid] != attr })
		n.settleDrift(ctx, domain, found, 0)
	}
	n.mu.Lock()
	n.seen = seen
	n.mu.Unlock()
}

// compare looks at one root domain, and at all threads of the machine when they have to be.
func (n *Node) compare(ctx context.Context, domain rootDomain, patience, unlooked time.Duration) error {
	now, err := n.beyond(domain)
	if err != nil {
		return err
	}
	n.mu.Lock()
	d := n.drifts[domain.key]
	due, whole := d.note(now, time.Now(), patience, unlooked)
	n.drifts[domain.key] = d
	n.mu.Unlock()
	if !due {
		return nil
	}
	strangers, err := n.strangers(domain)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot find who holds reservations outside of claims")
		return nil
	}
	again, err := n.beyond(domain)
	if err != nil {
		return err
	}
	quiet := again == now && time.Since(d.still) >= patience
	strangers = d.believe(strangers, quiet)
	sum := (drift{outside: slices.Collect(maps.Values(strangers))}).strangers()
	rest := d.restOf(sum, whole)
	if quiet {
		// While threads come and go the kernel must not be made to count: it subtracts later what has ended before.
		if rest = now - sum; beyondSlack(rest) && rest != d.kept {
			var asked bool
			if rest, asked = n.reclaim(ctx, domain, rest, sum); asked {
				d.kept = rest
			}
		} else {
			d.kept = rest
		}
	}
	if !beyondSlack(rest) {
		rest = 0
	}
	n.mu.Lock()
	is := n.drifts[domain.key]
	is.seen, is.kept = d.seen, d.kept
	n.drifts[domain.key] = is
	n.mu.Unlock()
	n.settleDrift(ctx, domain, strangers, rest)
	return nil
}

func beyondSlack(ppm int64) bool { return ppm > checkSlack || ppm < -checkSlack }

// errReserved says that the kernel is made to count anew when no claim is prepared on the node.
var errReserved = errors.New("claims are prepared on the node")

// recount has the kernel count anew what is reserved of a root domain. With cgroup v2 that is done without a thread's notice where
// the backend has a partition of its own; else it takes a CPU away for a moment, and waits until nobody counts on it.
func (n *Node) recount(domain rootDomain, strangers int64) error {
	err := sched.Rebuild(n.root)
	if !errors.Is(err, sched.ErrNoRebuild) {
		return err
	}
	if cells, ok := n.backend.(interface{ Recount(core int) error }); ok {
		return cells.Recount(domain.key)
	}
	if domain.key != everywhere {
		return err
	}
	n.mu.Lock()
	reserved := len(n.claims) > 0
	n.mu.Unlock()
	if reserved || strangers > 0 {
		return errReserved
	}
	return enforce.RecountIdle(n.root, domain.cpus)
}

// reclaim has the kernel count anew what it counts too much, or too little, and returns what is still wrong; asked says that it
// was asked, and need not be again for the same.
func (n *Node) reclaim(ctx context.Context, domain rootDomain, rest, strangers int64) (left int64, asked bool) {
	if err := n.recount(domain, strangers); errors.Is(err, errReserved) {
		return rest, false
	} else if err != nil {
		if !errors.Is(err, sched.ErrNoRebuild) {
			klog.FromContext(ctx).Error(err, "Cannot have the kernel count anew")
			n.metrics.failed(atReclaim)
		}
		return rest, true
	}
	now, err := n.beyond(domain)
	if err != nil {
		return rest, true
	}
	if left := now - strangers; beyondSlack(left) {
		return left, true
	}
	n.mu.Lock()
	n.reclaimed++
	n.mu.Unlock()
	klog.FromContext(ctx).Info("The kernel has counted anew what is reserved", "reclaimedPPM", rest)
	n.nodeEvent(corev1.EventTypeNormal, reasonReclaimed, "the kernel counted %s, and has counted anew", miscounted(rest))
	return 0, true
}

// miscounted says how far the kernel is from what threads have.
func miscounted(rest int64) string {
	if rest < 0 {
		return fmt.Sprintf("%d parts per million of a core less than its threads have", -rest)
	}
	return fmt.Sprintf("%d parts per million of a core more than its threads have", rest)
}

// beyond is what the kernel has admitted of a root domain and nobody is known to have: see unknown.
func (n *Node) beyond(domain rootDomain) (int64, error) {
	if len(domain.cpus) == 0 {
		return 0, errors.New("no CPU is in the root domain")
	}
	admitted, err := sched.Admitted("/", domain.cpus[0])
	if err != nil {
		return 0, err
	}
	servers, err := sched.ServersShare("/")
	if err != nil {
		return 0, err
	}
	var held int64
	for tid, attr := range n.held() {
		if sched.MayRunOn(tid, domain.cpus) {
			held += attr.Share()
		}
	}
	n.mu.Lock()
	d := n.drifts[domain.key]
	d.admitted = admitted
	n.drifts[domain.key] = d
	n.mu.Unlock()
	return unknown(admitted, held, servers*int64(len(domain.cpus))), nil
}

// unknown is what the kernel has admitted beyond what claims hold and its own servers have. Those it may count or not: Linux 6.12
// forgets them for every root domain that stays when another one changes, and Linux 7.2 counts that for sched_ext only while
// a scheduler of that kind runs. So nothing is unknown between what claims hold, and that with all of them.
func unknown(admitted, held, servers int64) int64 {
	switch rest := admitted - held; {
	case rest > servers:
		return rest - servers
	case rest < 0:
		return rest
	}
	return 0
}

// held are the threads that hold reservations of claims, by number, and what the kernel says that they have.
func (n *Node) held() map[int]sched.Attr {
	all := map[int]sched.Attr{}
	for _, c := range n.runningContainers() {
		c.mu.Lock()
		for _, tally := range c.tallies {
			for _, thread := range tally.state.Threads {
				if attr, err := sched.Get(thread.TID); err == nil {
					all[thread.TID] = attr
				}
			}
		}
		c.mu.Unlock()
	}
	return all
}

// strangers are the threads of a root domain that hold no reservation of a claim, and what they have.
func (n *Node) strangers(domain rootDomain) (map[int]sched.Attr, error) {
	before := n.held()
	all, err := sched.DeadlineThreads()
	if err != nil {
		return nil, err
	}
	after := n.held()
	maps.DeleteFunc(all, func(tid int, _ sched.Attr) bool {
		_, was := before[tid]
		_, is := after[tid]
		return was || is || !sched.MayRunOn(tid, domain.cpus)
	})
	return all, nil
}

// named are threads as people are told of them.
func named(threads map[int]sched.Attr) string {
	var names []string
	for _, tid := range slices.Sorted(maps.Keys(threads)) {
		name := "?"
		if thread, err := sched.ReadThread(tid, tid); err == nil {
			name = thread.Name
		}
		names = append(names, fmt.Sprintf("%d (%q)", tid, name))
	}
	const most = 5
	if len(names) > most {
		names = append(names[:most:most], fmt.Sprintf("and %d more", len(names)-most))
	}
	return strings.Join(names, ", ")
}

// settleDrift publishes what is left beside what strangers have and what is lost, and tells the node.
func (n *Node) settleDrift(ctx context.Context, domain rootDomain, strangers map[int]sched.Attr, rest int64) {
	var outside []sched.Attr
	for _, tid := range slices.Sorted(maps.Keys(strangers)) {
		outside = append(outside, strangers[tid])
	}
	n.mu.Lock()
	d := n.drifts[domain.key]
	changed := !slices.Equal(d.outside, outside) || d.rest != rest
	d.outside, d.rest = outside, rest
	n.drifts[domain.key] = d
	n.mu.Unlock()
	if !changed {
		return
	}
	if _, err := n.remeasure(ctx); err != nil {
		return
	}
	if sum := d.strangers(); sum > 0 {
		klog.FromContext(ctx).Info("Threads outside of all claims have reservations, publishing less", "ppm", sum)
		n.nodeEvent(corev1.EventTypeWarning, reasonStrangers, "threads outside of all claims have %d parts per million of a core with SCHED_DEADLINE: %s; what is published are capacities that hold beside them",
			sum, named(strangers))
	}
	if rest == 0 {
		return
	}
	effect := "as much less is published"
	if rest < 0 {
		effect = "it may give as much more to threads outside of all claims, or, having come below nought, refuse reservations"
	}
	klog.FromContext(ctx).Info("The kernel counts otherwise than threads have", "ppm", rest)
	n.nodeEvent(corev1.EventTypeWarning, reasonBandwidthLost, "the kernel counts %s, until it has counted anew (with cgroup v2 and backend deadline from Linux 6.2 on, when no claim is prepared on the node) or the machine restarts; %s", miscounted(rest), effect)
}

// nodeEvent tells the operators of the node.
func (n *Node) nodeEvent(eventType, reason, message string, args ...any) {
	n.events.Eventf(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.name}, eventType, reason, "%s", quote.Text(fmt.Sprintf(message, args...)))
}
