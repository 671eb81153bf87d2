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

	"github.com/takt-dev/takt/kubernetes/internal/admission"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

// The check compares what the kernel has admitted with what the containers of claims hold, beyond what each scan
// compares thread by thread. A thread that has just ended is counted to the end of its period, at most 4.2 s, so
// that only a difference that stays is one.
const (
	checkPace     = time.Second
	checkPatience = 10 * time.Second
	// checkSlack, in parts per million of a core, is what rounding may make.
	checkSlack = 500
)

// drift is what the kernel counts beyond what is known.
type drift struct {
	// since is when it began to be what it is, beyond; zero while there is none.
	since  time.Time
	beyond int64
	// strangers is what threads outside of all claims have, lost what nobody has.
	strangers, lost int64
	// admitted is what the kernel said last.
	admitted int64
	// reclaimed counts how often what was lost came back.
	reclaimed int
	// unreadable is set once the kernel does not say.
	unreadable bool
}

// check runs until the context ends. Only a backend whose threads share one root domain is checked.
func (n *Node) check(ctx context.Context) {
	if !n.offer.Roams || len(n.offer.CPUs) == 0 {
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
	logger := klog.FromContext(ctx)
	now, err := n.beyond()
	n.mu.Lock()
	d := &n.drift
	if err != nil {
		told := d.unreadable
		d.unreadable = true
		n.mu.Unlock()
		if !told {
			logger.Error(err, "The kernel's bandwidth is not compared with what claims hold")
		}
		return
	}
	d.unreadable = false
	switch {
	case now <= checkSlack && now >= -checkSlack:
		d.since, d.beyond = time.Time{}, 0
	case d.since.IsZero() || now != d.beyond:
		d.since, d.beyond = time.Now(), now
	}
	// While threads come and go the kernel must not be made to count: it subtracts later what has ended before.
	same, settled := d.since.IsZero(), time.Since(d.since) >= patience
	if !same && settled {
		d.since = time.Now() // to be looked at again only then: it takes a look at every thread of the machine
	}
	n.mu.Unlock()
	if same {
		n.settleDrift(ctx, 0, 0, nil)
		return
	}
	if !settled {
		return
	}
	strangers, names, err := n.strangers()
	if err != nil {
		logger.Error(err, "Cannot find who holds reservations outside of claims")
		return
	}
	lost := now - strangers
	if lost > checkSlack || lost < -checkSlack {
		lost = n.reclaim(ctx, lost, strangers)
	}
	if lost <= checkSlack {
		lost = 0
	}
	n.settleDrift(ctx, strangers, lost, names)
}

// reclaim has the kernel count anew and returns what is still lost; less than nothing where it counts too little.
func (n *Node) reclaim(ctx context.Context, lost, strangers int64) int64 {
	err := sched.Rebuild("/")
	if err != nil && !errors.Is(err, sched.ErrNoRebuild) {
		klog.FromContext(ctx).Error(err, "Cannot have lost bandwidth back")
		n.metrics.failures.WithLabelValues("reclaim").Inc()
	}
	if err != nil {
		return lost
	}
	now, err := n.beyond()
	if err != nil {
		return lost
	}
	if left := now - strangers; left > checkSlack || left < -checkSlack {
		return left
	}
	n.mu.Lock()
	n.drift.reclaimed++
	n.drift.since, n.drift.beyond = time.Time{}, 0
	n.mu.Unlock()
	klog.FromContext(ctx).Info("The kernel has counted anew what is reserved", "reclaimedPPM", lost)
	n.nodeEvent(corev1.EventTypeNormal, reasonReclaimed, "the kernel counted %d parts per million of a core more than its threads have, and has counted anew", lost)
	return 0
}

// beyond is what the kernel has admitted beyond its own servers and what the containers of claims hold.
func (n *Node) beyond() (int64, error) {
	admitted, err := sched.Admitted("/", n.offer.CPUs[0].ID)
	if err != nil {
		return 0, err
	}
	servers, err := sched.ServersShare("/")
	if err != nil {
		return 0, err
	}
	known := servers * int64(n.offer.RootDomain)
	for _, attr := range n.held() {
		known += attr.Share()
	}
	n.mu.Lock()
	n.drift.admitted = admitted
	n.mu.Unlock()
	return admitted - known, nil
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

// strangers are what threads have that hold no reservation of a claim: their sum, and their names.
func (n *Node) strangers() (int64, []string, error) {
	all, err := sched.DeadlineThreads()
	if err != nil {
		return 0, nil, err
	}
	ours := n.held()
	var sum int64
	var names []string
	for _, tid := range slices.Sorted(maps.Keys(all)) {
		if _, ok := ours[tid]; ok {
			continue
		}
		sum += all[tid].Share()
		name := "?"
		if thread, err := sched.ReadThread(tid, tid); err == nil {
			name = thread.Name
		}
		names = append(names, fmt.Sprintf("%d (%q)", tid, name))
	}
	return sum, names, nil
}

// settleDrift publishes what is left beside what strangers have and what is lost, and tells the node.
func (n *Node) settleDrift(ctx context.Context, strangers, lost int64, names []string) {
	n.mu.Lock()
	changed := n.drift.strangers != strangers || n.drift.lost != lost
	n.drift.strangers, n.drift.lost = strangers, lost
	if changed {
		n.offer.Capacities = n.remaining(n.offer.RootDomain, n.offer.Bound)
		n.reorder()
	}
	n.mu.Unlock()
	if !changed || strangers+lost == 0 {
		return
	}
	klog.FromContext(ctx).Info("The kernel has admitted more than claims hold, publishing less", "strangersPPM", strangers, "lostPPM", lost)
	if strangers > 0 {
		const most = 5
		if len(names) > most {
			names = append(names[:most:most], fmt.Sprintf("and %d more", len(names)-most))
		}
		n.nodeEvent(corev1.EventTypeWarning, reasonStrangers, "threads outside of all claims have %d parts per million of a core with SCHED_DEADLINE: %s; as much less is published",
			strangers, strings.Join(names, ", "))
	}
	if lost > 0 {
		n.nodeEvent(corev1.EventTypeWarning, reasonBandwidthLost, "the kernel counts %d parts per million of a core that no thread has, until its CPUs are partitioned anew or the machine restarts; as much less is published",
			lost)
	}
}

// remaining is what each offered core may give when so many cores, of this bound each, are scheduled together.
// Call with n.mu held.
func (n *Node) remaining(cores int, bound int64) []int64 {
	devices := len(n.offer.CPUs)
	// What is lost nobody runs: the kernel alone counts it. Strangers run, too.
	total := int64(cores)*bound - n.drift.lost - n.drift.strangers
	if n.guaranteed() {
		total = min(total, admission.Total(cores, n.offer.Most)-n.drift.strangers)
	}
	return admission.Within(total, devices, n.offer.Most, bound)
}

// nodeEvent tells the operators of the node.
func (n *Node) nodeEvent(eventType, reason, message string, args ...any) {
	n.events.Eventf(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.name}, eventType, reason, message, args...)
}
