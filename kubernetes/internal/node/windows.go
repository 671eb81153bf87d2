package node

import (
	"math/bits"
	"slices"

	"github.com/takt-dev/takt/kubernetes/internal/adminv1"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
)

// What schedules give to classes, and what is left of it, as bits per second of a link. A stream has to fit all links with a
// schedule (a program chooses the datapath of its messages), so the least of them counts. These are sums, by which the
// scheduler finds a node; whether each launch finds its gate open is taktd's to say, when the claim is prepared.

// classes is a number for each traffic class that frames are marked with.
type classes [8]int64

// windows is what a schedule gives to each priority of a link; 0: its class never opens, or takes no launch times, or
// nobody has told taktd the link's rate.
func windows(link *adminv1.LinkSchedule, schedule *adminv1.GateSchedule) (given classes) {
	cycle := schedule.GetCycleTimeNs()
	if cycle == 0 || len(schedule.GetEntries()) == 0 {
		return given
	}
	open := opened(schedule)
	for _, one := range schedule.GetSelection() {
		if one.GetClass() < 8 && one.GetAlgorithm() != "launch-time" {
			open[one.GetClass()] = 0
		}
	}
	for priority := range given {
		high, low := bits.Mul64(link.GetLinkRateBps(), open[classOf(link, priority)])
		if high < cycle {
			quotient, _ := bits.Div64(high, low, cycle)
			given[priority] = int64(min(quotient, 1<<63-1))
		}
	}
	return given
}

// opened is how long each class is open in a cycle.
func opened(schedule *adminv1.GateSchedule) (open [8]uint64) {
	rest := schedule.GetCycleTimeNs()
	for at, entry := range schedule.GetEntries() {
		interval := min(uint64(entry.GetIntervalNs()), rest)
		if at == len(schedule.GetEntries())-1 {
			interval = rest // the last entry holds until the cycle ends
		}
		rest -= interval
		for class := range open {
			if entry.GetGates()>>class&1 == 1 {
				open[class] += interval
			}
		}
	}
	return open
}

// classOf is the class whose gate frames of a priority pass.
func classOf(link *adminv1.LinkSchedule, priority int) int {
	if of := link.GetPriorities(); priority < len(of) && of[priority] < 8 {
		return int(of[priority])
	}
	return priority
}

// stream is one that is declared, as far as sums need it.
type stream struct {
	class          int
	frames, octets int64
	periodNs       uint64
}

// takes is what admission counts of streams where a link has this schedule, in bits per second: more than they send where
// they launch more rarely than is looked at. What meets no gate, its class's or that of one below, is counted as it is.
func takes(link *adminv1.LinkSchedule, schedule *adminv1.GateSchedule) func(stream) int64 {
	cycle, open := schedule.GetCycleTimeNs(), opened(schedule)
	return func(s stream) int64 {
		period := s.periodNs
		if slices.Min(open[:classOf(link, s.class)+1]) < cycle {
			period = reservation.CountedPeriod(period, cycle)
		}
		return reservation.StreamBits(s.frames, s.octets, period)
	}
}

func streamsOf(listeners []*adminv1.ListenerStatus) (found []stream) {
	for _, one := range listeners {
		for _, declared := range one.GetListener().GetStreams() {
			if declared.GetTrafficClass() > 7 {
				continue
			}
			found = append(found, stream{int(declared.GetTrafficClass()), int64(max(declared.GetFrames(), 1)), int64(declared.GetFrame()), declared.GetPeriodNs()})
		}
	}
	return found
}

// left is what all links with a schedule give to each class beside these streams, and never below 0; schedules that will run
// included, and nothing while none runs. False: no link has one.
func left(links []*adminv1.LinkSchedule, streams []stream) (least classes, any bool) {
	for _, link := range links {
		if link.GetOperational() == nil && link.GetPending() != nil {
			least, any = classes{}, true
			continue
		}
		for _, schedule := range []*adminv1.GateSchedule{link.GetOperational(), link.GetPending()} {
			if schedule == nil {
				continue
			}
			here, taken := windows(link, schedule), takes(link, schedule)
			for _, s := range streams {
				bits := taken(s)
				for priority := range here {
					if classOf(link, s.class) == classOf(link, priority) {
						here[priority] -= min(bits, here[priority])
					}
				}
			}
			for priority := range here {
				if !any || here[priority] < least[priority] {
					least[priority] = here[priority]
				}
			}
			any = true
		}
	}
	return least, any
}

// needs is what a claimed stream takes of the links with a schedule: of the one where that is most.
func needs(links []*adminv1.LinkSchedule, p *reservation.GateTime) int64 {
	most := p.BitsPerSecond()
	for _, link := range links {
		for _, schedule := range []*adminv1.GateSchedule{link.GetOperational(), link.GetPending()} {
			if schedule != nil {
				most = max(most, takes(link, schedule)(stream{int(*p.Class), p.Frames(), p.LargestFrame(), p.Period.Nanoseconds()}))
			}
		}
	}
	return most
}
