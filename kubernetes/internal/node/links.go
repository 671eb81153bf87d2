package node

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/objects"
)

// schedule has the node's links have the schedules that its TaktNode assigns to them, and says in its status what became
// of that. What the status does not say to be installed by takt-node is somebody else's: it stays, and an assignment for
// that link is refused. An error means that taktd does not answer.
func (m *member) schedule(ctx context.Context, self *network.TaktNode) error {
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
		for _, had := range self.Status.Schedules {
			if had.Datapath == assigned.Datapath {
				state.Installed = slices.Clone(had.Installed)
			}
		}
		if err := m.assign(ctx, assigned, linkOf(all, assigned.Datapath), &state); err != nil {
			return err
		}
		states = append(states, state)
	}
	for _, had := range self.Status.Schedules {
		if slices.ContainsFunc(self.Spec.Schedules, func(a network.Assignment) bool { return a.Datapath == had.Datapath }) {
			continue
		}
		link := linkOf(all, had.Datapath)
		if len(present(link)) == 0 || !owns(had.Installed, link) {
			continue
		}
		if _, err := m.admin.RemoveSchedule(ctx, &adminv1.RemoveScheduleRequest{Datapath: had.Datapath}); err != nil {
			return err
		}
	}
	slices.SortFunc(states, func(a, b network.LinkState) int { return strings.Compare(a.Datapath, b.Datapath) })
	self.Status.Schedules = states
	return nil
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

// assign has a link have the schedule that is assigned to it.
func (m *member) assign(ctx context.Context, assigned *network.Assignment, link *adminv1.LinkSchedule, state *network.LinkState) error {
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
	same := link.GetLinkRateBps() == request.GetLinkRateBps() && link.GetVlan() == request.GetVlan()
	if same && (objects.Same(link.GetPending(), request) || link.GetPending() == nil && objects.Same(link.GetOperational(), request)) {
		state.State = network.Running
		if link.GetPending() != nil {
			state.State = network.Pending
		}
		// Also one that an agent has installed which ended before it could say so.
		state.Installed = append(state.Installed, assigned.BeginsNanoseconds)
	}
	has := present(link)
	state.Installed = slices.DeleteFunc(state.Installed, func(base int64) bool { return !slices.Contains(has, base) })
	slices.Sort(state.Installed)
	state.Installed = slices.Compact(state.Installed)
	if state.State != network.Refused {
		return nil
	}
	if !owns(state.Installed, link) {
		state.Message = fmt.Sprintf("datapath %s has a schedule that is not the cluster's: take it away with `takt schedule remove --datapath %s`, or out of taktd's configuration", assigned.Datapath, assigned.Datapath)
		return nil
	}
	answer, err := m.admin.InstallSchedule(ctx, request)
	switch said := status.Convert(err); said.Code() {
	case codes.OK:
		state.State = network.Running
		if answer.GetBeginsNs() > objects.TAI() {
			state.State = network.Pending
		}
		state.Installed = append(state.Installed, assigned.BeginsNanoseconds)
		slices.Sort(state.Installed)
		state.Installed = slices.Compact(state.Installed)
	case codes.InvalidArgument, codes.FailedPrecondition:
		state.Message = said.Message()
	default:
		return err
	}
	return nil
}
