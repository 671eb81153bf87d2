package objects

import (
	"cmp"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
)

// Request is what taktd is asked to install. Its base time is the instant at which the schedule begins.
func Request(datapath string, r *network.Revision) (*adminv1.InstallScheduleRequest, error) {
	schedule := &adminv1.GateSchedule{
		BaseTimeNs: r.BeginsNanoseconds, CycleTimeNs: r.CycleTime.Nanoseconds(), CycleTimeExtensionNs: r.CycleTimeExtension.Nanoseconds(),
	}
	if r.InitialGates != nil {
		gates := mask(*r.InitialGates)
		schedule.InitialGates = &gates
	}
	for at, entry := range r.Entries {
		interval := entry.Interval.Nanoseconds()
		if interval == 0 || interval > 1<<32-1 {
			return nil, fmt.Errorf("entries[%d].interval %s is not from 1ns to 4.294967295s", at, entry.Interval)
		}
		schedule.Entries = append(schedule.Entries, &adminv1.GateEntry{Gates: mask(entry.Gates), IntervalNs: uint32(interval)})
	}
	for _, most := range r.MaxSDU {
		for len(schedule.MaxSdu) <= int(most.Class) {
			schedule.MaxSdu = append(schedule.MaxSdu, 0)
		}
		schedule.MaxSdu[most.Class] = uint32(most.Octets)
	}
	if r.RequireSync != nil {
		within := r.RequireSync.Nanoseconds()
		schedule.RequireSyncNs = &within
	}
	for _, one := range r.Selection {
		schedule.Selection = append(schedule.Selection, &adminv1.ClassSelection{
			Class: uint32(one.Class), Algorithm: one.Algorithm, IdleSlopeBps: uint64(one.IdleSlope), HighCreditBits: uint64(one.HighCredit),
		})
	}
	request := &adminv1.InstallScheduleRequest{Datapath: datapath, Schedule: schedule, LinkRateBps: uint64(r.Rate), Vlan: r.VLAN, OtherTraffic: r.OtherTraffic}
	for _, class := range r.Priorities {
		request.Classes = append(request.Classes, uint32(class))
	}
	return request, nil
}

func mask(gates []int32) (bits uint32) {
	for _, gate := range gates {
		bits |= 1 << gate
	}
	return bits
}

// Same says whether a link's schedule is what was asked for, in all that taktd tells of it.
func Same(has *adminv1.GateSchedule, asked *adminv1.InstallScheduleRequest) bool {
	return has != nil && proto.Equal(whole(has), whole(asked.GetSchedule()))
}

// SamePriorities says whether frames of each priority pass the gate that was asked for.
func SamePriorities(has *adminv1.LinkSchedule, asked *adminv1.InstallScheduleRequest) bool {
	own := func(classes []uint32) []uint32 {
		if len(classes) == 0 {
			return []uint32{0, 1, 2, 3, 4, 5, 6, 7}
		}
		return classes
	}
	return slices.Equal(own(has.GetPriorities()), own(asked.GetClasses()))
}

// SameOthers says whether what others send is kept by who was asked for.
func SameOthers(has *adminv1.LinkSchedule, asked *adminv1.InstallScheduleRequest) bool {
	return cmp.Or(has.GetOtherTraffic(), "port") == cmp.Or(asked.GetOtherTraffic(), "port")
}

// whole is a schedule with all that may be left out, in one order: taktd gives back what it was told in a form of its own.
func whole(of *adminv1.GateSchedule) *adminv1.GateSchedule {
	all := proto.Clone(of).(*adminv1.GateSchedule)
	if all.InitialGates == nil {
		all.InitialGates = proto.Uint32(0xff)
	}
	for len(all.GetMaxSdu()) < 8 {
		all.MaxSdu = append(all.MaxSdu, 0)
	}
	all.Selection = slices.DeleteFunc(all.GetSelection(), func(one *adminv1.ClassSelection) bool {
		return one.GetAlgorithm() == "" || one.GetAlgorithm() == "launch-time"
	})
	slices.SortFunc(all.GetSelection(), func(a, b *adminv1.ClassSelection) int { return cmp.Compare(a.GetClass(), b.GetClass()) })
	return all
}
