package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/objects"
)

// schedule has the node's links have the schedules that its TaktNode assigns to them, and says in its status what became
// of that. A schedule that was not noted before it was installed is somebody else's: it stays, and an assignment for that
// link is refused. An error means that taktd does not answer.
//
// What was installed is noted on the node, in e, and not in the status alone: a status is written afterwards, and is lost
// where the API server does not take it or the agent ends before.
func (m *member) schedule(ctx context.Context, self *network.TaktNode, e *entered) error {
	all, err := m.admin.ListSchedules(ctx, &adminv1.ListSchedulesRequest{})
	if err != nil {
		return err
	}
	var states []network.LinkState
	for at := range self.Spec.Schedules {
		assigned := &self.Spec.Schedules[at]
		state := network.LinkState{
			Datapath: assigned.Datapath, Name: assigned.Name, UID: assigned.UID, Generation: assigned.Generation, BeginsNanoseconds: assigned.BeginsNanoseconds,
		}
		state.Installed = installed(self, e, assigned.Datapath)
		before := ""
		for _, said := range self.Status.Schedules {
			if said.Datapath == assigned.Datapath && said.Of(&assigned.Revision) {
				before = said.State
			}
		}
		if err := m.assign(ctx, assigned, linkOf(all, assigned.Datapath), before, &state, e); err != nil {
			return err
		}
		states = append(states, state)
	}
	links := slices.Collect(maps.Keys(e.Schedules))
	for _, had := range self.Status.Schedules {
		links = append(links, had.Datapath)
	}
	slices.Sort(links)
	for _, datapath := range slices.Compact(links) {
		if !self.Spec.Planned {
			break // the object is new: what it does not say yet may be assigned all the same
		}
		if slices.ContainsFunc(self.Spec.Schedules, func(a network.Assignment) bool { return a.Datapath == datapath }) {
			continue
		}
		link, own := linkOf(all, datapath), installed(self, e, datapath)
		if len(present(link)) > 0 && owns(own, link) {
			_, err := m.admin.RemoveSchedule(ctx, &adminv1.RemoveScheduleRequest{Datapath: datapath})
			if away(err) {
				return err
			}
			if err != nil {
				// It is still the cluster's, and tried again.
				states = append(states, network.LinkState{Datapath: datapath, Installed: own, State: network.Refused,
					Message: shortened("the schedule that is not assigned any more cannot be taken away: " + status.Convert(err).Message())})
				continue
			}
		}
		if _, noted := e.Schedules[datapath]; noted {
			delete(e.Schedules, datapath)
			delete(e.Asked, datapath)
			// If that cannot be noted, the note is of something that is not there: it harms nothing, and goes later.
			_ = m.store(e)
		}
	}
	slices.SortFunc(states, func(a, b network.LinkState) int { return strings.Compare(a.Datapath, b.Datapath) })
	self.Status.Schedules = states
	return nil
}

// installed are the base times that takt-node has installed on a link, as it noted them or, if the note is gone, as the
// status has them.
func installed(self *network.TaktNode, e *entered, datapath string) []int64 {
	bases := slices.Clone(e.Schedules[datapath])
	for _, had := range self.Status.Schedules {
		if had.Datapath == datapath {
			bases = append(bases, had.Installed...)
		}
	}
	slices.Sort(bases)
	return slices.Compact(bases)
}

// away says that a call has failed because taktd does not answer, and not because it does not want to.
func away(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return true
	default:
		return false
	}
}

func linkOf(all *adminv1.ListSchedulesResponse, datapath string) *adminv1.LinkSchedule {
	for _, link := range all.GetLinks() {
		if link.GetDatapath() == datapath {
			return link
		}
	}
	return nil
}

// present are the base times of what a link has: what runs, and what will.
func present(link *adminv1.LinkSchedule) (bases []int64) {
	for _, one := range []*adminv1.GateSchedule{link.GetOperational(), link.GetPending()} {
		if one != nil && !slices.Contains(bases, one.GetBaseTimeNs()) {
			bases = append(bases, one.GetBaseTimeNs())
		}
	}
	return bases
}

// owns says whether all that a link has was installed by takt-node. A base time, an instant that the controller has
// chosen to the nanosecond, is as good as a name.
func owns(installed []int64, link *adminv1.LinkSchedule) bool {
	return !slices.ContainsFunc(present(link), func(base int64) bool { return !slices.Contains(installed, base) })
}

// scheduleAt is the name of the GateSchedule that was assigned to a link with this base time; empty if none was.
func (m *member) scheduleAt(datapath string, base int64) string {
	self := m.known()
	if self == nil {
		return ""
	}
	for _, one := range self.Spec.Schedules {
		switch {
		case one.Datapath != datapath:
		case one.BeginsNanoseconds == base:
			return one.Name
		case one.Previous != nil && one.Previous.BeginsNanoseconds == base:
			return one.Previous.Name
		}
	}
	return ""
}

// same says whether a link has what is asked for. noted is the digest of what was last installed.
func same(link *adminv1.LinkSchedule, asked *adminv1.InstallScheduleRequest, noted string) bool {
	if pending := link.GetPending(); pending != nil {
		// Of what is to begin, taktd tells neither the priorities nor, beside what runs, the rate, the tag and who keeps others.
		return objects.Same(pending, asked) && noted == digest(asked)
	}
	return objects.Same(link.GetOperational(), asked) && link.GetLinkRateBps() == asked.GetLinkRateBps() && link.GetVlan() == asked.GetVlan() && objects.SamePriorities(link, asked) && objects.SameOthers(link, asked)
}

// digest tells requests from each other.
func digest(of *adminv1.InstallScheduleRequest) string {
	bytes, _ := proto.MarshalOptions{Deterministic: true}.Marshal(of) // it only fails without a required field, of which there are none
	sum := sha256.Sum256(bytes)
	return hex.EncodeToString(sum[:])
}

// uncommitted is why a schedule has expired.
var uncommitted = fmt.Sprintf("it was not committed %v before its instant, and what was there before runs on: see that takt-controller runs, and its log", objects.CommitMargin)

// takeBack gives a link what it had before an assignment that has not begun.
func (m *member) takeBack(ctx context.Context, assigned *network.Assignment, link *adminv1.LinkSchedule, e *entered) error {
	var before *adminv1.InstallScheduleRequest
	switch runs := link.GetOperational(); {
	case assigned.Previous != nil:
		var err error
		if before, err = objects.Request(assigned.Datapath, assigned.Previous); err != nil {
			return err // no API server takes that
		}
	case runs != nil:
		// The object has not said what there was, as when it was made anew.
		before = &adminv1.InstallScheduleRequest{Datapath: assigned.Datapath, Schedule: runs, LinkRateBps: link.GetLinkRateBps(), Vlan: link.GetVlan(), Classes: link.GetPriorities(), OtherTraffic: link.GetOtherTraffic()}
	default:
		delete(e.Asked, assigned.Datapath)
		_, err := m.admin.RemoveSchedule(ctx, &adminv1.RemoveScheduleRequest{Datapath: assigned.Datapath})
		return err
	}
	if base := before.GetSchedule().GetBaseTimeNs(); !slices.Contains(e.Schedules[assigned.Datapath], base) {
		e.Schedules[assigned.Datapath] = append(e.Schedules[assigned.Datapath], base)
	}
	delete(e.Asked, assigned.Datapath)
	if err := m.store(e); err != nil {
		return err
	}
	if _, err := m.admin.InstallSchedule(ctx, before); err != nil {
		return err
	}
	// If that cannot be noted, it is installed once more, which changes nothing.
	e.Asked[assigned.Datapath] = digest(before)
	_ = m.store(e)
	return nil
}

// mostWarnings is how many warnings of a schedule are told.
const mostWarnings = 3

// warnings are what taktd finds wrong or doubtful in the schedule that a link has.
func warnings(link *adminv1.LinkSchedule) string {
	all := link.GetWarnings()
	if problem := link.GetOtherTrafficProblem(); problem != "" {
		all = append([]string{"what others send is not kept inside the schedule: " + problem}, all...)
	}
	told := strings.Join(all[:min(len(all), mostWarnings)], "; ")
	if more := len(all) - mostWarnings; more > 0 {
		told += fmt.Sprintf("; and %d more: takt schedule check", more)
	}
	return shortened(told)
}

// hasBack says whether what was there before an assignment is what was last installed.
func hasBack(assigned *network.Assignment, e *entered) bool {
	if assigned.Previous == nil {
		return false
	}
	before, err := objects.Request(assigned.Datapath, assigned.Previous)
	return err == nil && e.Asked[assigned.Datapath] == digest(before)
}

// assign has a link have the schedule that is assigned to it. before is what was said of that assignment last; empty if nothing was.
func (m *member) assign(ctx context.Context, assigned *network.Assignment, link *adminv1.LinkSchedule, before string, state *network.LinkState, e *entered) error {
	state.State = network.Refused
	request, err := objects.Request(assigned.Datapath, &assigned.Revision)
	if err != nil {
		state.Message = err.Error()
		return nil
	}
	if link == nil {
		state.Message = fmt.Sprintf("taktd has no datapath %s: name one that `takt status datapaths` shows as available", assigned.Datapath)
		return nil
	}
	// Nobody knows any more whether all nodes have it in time: it begins on none.
	now := objects.TAI()
	overdue := !assigned.Committed && assigned.BeginsNanoseconds-int64(objects.CommitMargin) <= now
	has := same(link, request, e.Asked[assigned.Datapath])
	// What is pending is this one, or one before it that was not committed either; or what was there before, if that is to begin yet.
	if overdue && link.GetPending() != nil && (has || owns(state.Installed, link)) && !hasBack(assigned, e) {
		err := m.takeBack(ctx, assigned, link, e)
		if away(err) {
			return err
		}
		if err != nil {
			state.State, state.Message = network.Pending, shortened("it was not committed in time, and cannot be taken back: "+status.Convert(err).Message())
			return nil
		}
		state.State, state.Message = network.Expired, uncommitted
		state.Installed = slices.DeleteFunc(state.Installed, func(base int64) bool { return base == assigned.BeginsNanoseconds })
		return nil
	}
	if has {
		state.State, state.Message = network.Running, warnings(link)
		if link.GetPending() != nil {
			state.State = network.Pending
		}
		state.Installed = append(state.Installed, assigned.BeginsNanoseconds)
		if !slices.Contains(e.Schedules[assigned.Datapath], assigned.BeginsNanoseconds) {
			// Of an agent that did not note it. If that is not possible now, the status says it.
			e.Schedules[assigned.Datapath] = append(e.Schedules[assigned.Datapath], assigned.BeginsNanoseconds)
			_ = m.store(e)
		}
	}
	bases := present(link)
	state.Installed = slices.DeleteFunc(state.Installed, func(base int64) bool { return !slices.Contains(bases, base) })
	slices.Sort(state.Installed)
	state.Installed = slices.Compact(state.Installed)
	if state.State != network.Refused {
		return nil
	}
	if !owns(state.Installed, link) {
		state.Message = fmt.Sprintf("datapath %s has a schedule that is not the cluster's: take it away with `takt schedule remove --datapath %s`, or out of taktd's configuration", assigned.Datapath, assigned.Datapath)
		return nil
	}
	if overdue {
		if before == network.Pending || before == network.Expired {
			state.State, state.Message = network.Expired, uncommitted
			return nil
		}
		// It would begin later here than on the others, or be taken back at once.
		state.Message = fmt.Sprintf("by this node's clock its instant is in %.1f s, and it has to be committed %v before: see `takt clock` there and on the node of takt-controller, or give nodes more time (controller.lead)",
			float64(assigned.BeginsNanoseconds-now)/1e9, objects.CommitMargin)
		return nil
	}
	// Noted before: whatever happens from here on, the next agent knows whose it is. What is there is known again when taktd has
	// taken it.
	e.Schedules[assigned.Datapath] = append(slices.Clone(state.Installed), assigned.BeginsNanoseconds)
	delete(e.Asked, assigned.Datapath)
	if err := m.store(e); err != nil {
		state.Message = shortened(err.Error())
		return nil
	}
	answer, err := m.admin.InstallSchedule(ctx, request)
	if away(err) {
		return err
	}
	if err != nil {
		state.Message = shortened(status.Convert(err).Message())
		return nil
	}
	// If that cannot be noted, it is installed once more, which changes nothing.
	e.Asked[assigned.Datapath] = digest(request)
	_ = m.store(e)
	state.State = network.Running
	if answer.GetBeginsNs() > objects.TAI() {
		state.State = network.Pending
	}
	state.Installed = append(state.Installed, assigned.BeginsNanoseconds)
	slices.Sort(state.Installed)
	state.Installed = slices.Compact(state.Installed)
	return nil
}
