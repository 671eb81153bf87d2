package node

import (
	"sync"
	"time"

	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/report"
)

const (
	// latelyPace is how far samples are apart, at least; latelySpan is how old the one is that counts are compared with, at most, but
	// for the first ones.
	latelyPace = 10 * time.Second
	latelySpan = time.Minute
)

// lately remembers what taktd has counted of each listener, so that what went wrong a day ago says nothing of now.
type lately struct {
	mu      sync.Mutex
	samples []sample
}

// sample is what had been counted, by the listener's socket.
type sample struct {
	at     time.Time
	counts map[string]report.Counts
}

// note takes a sample, if it is time for one.
func (l *lately) note(now time.Time, listeners []*adminv1.ListenerStatus) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last := len(l.samples) - 1; last >= 0 && now.Sub(l.samples[last].at) < latelyPace {
		return
	}
	counts := map[string]report.Counts{}
	for _, status := range listeners {
		counts[status.GetListener().GetPath()] = countsOf(status)
	}
	l.samples = append(l.samples, sample{now, counts})
	for len(l.samples) > 1 && now.Sub(l.samples[1].at) >= latelySpan {
		l.samples = l.samples[1:]
	}
}

// since is what has been counted of a listener since about a minute; nil if nobody has looked for so long that it says anything.
func (l *lately) since(now time.Time, path string, counts report.Counts) *report.Recent {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.samples) == 0 || now.Sub(l.samples[0].at) < latelyPace {
		return nil
	}
	before := l.samples[0].counts[path]
	if counts.Launches.Left < before.Launches.Left || counts.Launches.Missed < before.Launches.Missed {
		before = report.Counts{} // Of a taktd that is there no more.
	}
	return &report.Recent{Seconds: int(now.Sub(l.samples[0].at) / time.Second), Counts: counts.Less(before)}
}

// countsOf is what taktd has counted of what a listener's programs launch.
func countsOf(status *adminv1.ListenerStatus) report.Counts {
	counters := status.GetCounters()
	counts := report.Counts{
		Launches:  report.Launches{Left: counters.GetLaunched(), Late: counters.GetLaunchedLate(), Missed: counters.GetLaunchesMissed()},
		RefusedBy: map[string]uint64{}, Around: map[string]uint64{},
	}
	refused := func(why string, count uint64) {
		if count > 0 {
			counts.Refused += count
			counts.RefusedBy[why] += count
		}
	}
	refused(report.RefusedUndeclared, status.GetUndeclared())
	for _, stream := range status.GetStreams() {
		refused(report.RefusedWindow, stream.GetRefusedWindow())
		refused(report.RefusedSize, stream.GetRefusedSize())
		refused(report.RefusedExcess, stream.GetRefusedExcess())
	}
	for _, around := range status.GetUnserved() {
		counts.Around[around.GetReason()] += around.GetCount()
	}
	return counts
}
