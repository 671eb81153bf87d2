package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/objects"
)

// A schedule is installed in two steps. Every node that it selects installs it before its instant, as pending, and says
// so; if one refuses, or does not answer in time, every node is given back what it had. What has been taken by all is
// committed, and begins by itself. What a node has not heard of being committed by objects.CommitMargin before the instant it
// takes back itself: a controller that ends in between leaves nothing that begins.

// mostSchedules is what a TaktNode has room for.
const mostSchedules = 16

// MinLead is the least lead: it leaves the nodes three seconds for their answers.
const MinLead = 8 * time.Second

// MaxLead is the longest: nobody means more.
const MaxLead = time.Hour

// lateMargin is how long before the instant all of so many nodes have to have answered: the rest is for writing to all of them
// that it is committed, which takes 8 s for a thousand, and for them to see it.
func lateMargin(nodes int) time.Duration {
	return objects.CommitMargin + time.Second + time.Duration(nodes)*10*time.Millisecond
}

// rollout is one GateSchedule in a round.
type rollout struct {
	w      *World
	p      *Plan
	specs  map[string]*network.TaktNodeSpec
	of     *network.GateSchedule
	status network.GateScheduleStatus
	// selected are the nodes, members those by name.
	selected []string
	members  map[string]*network.TaktNode
	// reason and message say why the schedule is not taken as it is; empty if it is.
	reason, message string
}

func (w *World) planSchedules(p *Plan, specs map[string]*network.TaktNodeSpec) {
	members := map[string]*network.TaktNode{}
	for _, member := range w.Members {
		members[member.Name] = member
	}
	// Who has a link keeps it.
	all := slices.Clone(w.Schedules)
	slices.SortFunc(all, func(a, b *network.GateSchedule) int {
		rank := func(g *network.GateSchedule) int {
			if g.Status.State == network.Installed || g.Status.State == network.Installing {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(rank(a), rank(b)), older(a, b))
	})
	var rollouts []*rollout
	taken := map[string]*network.GateSchedule{}
	for _, of := range all {
		r := &rollout{w: w, p: p, specs: specs, of: of, status: *of.Status.DeepCopy(), members: members}
		r.reason, r.message = r.choose()
		rollouts = append(rollouts, r)
		// A link is also the one's who has it and is decided upon later: what is assigned now is not given to another one.
		for _, name := range r.selected {
			if r.had(name) != nil {
				taken[name+" "+of.Spec.Datapath] = of
			}
		}
		// One that is not accepted any more keeps what it had.
		for name := range members {
			if had := r.had(name); r.reason != "" && had != nil && had.Reverted() != nil {
				taken[name+" "+of.Spec.Datapath] = of
			}
		}
	}
	// One that selects no node any more gives way to those that do.
	slices.SortStableFunc(rollouts, func(a, b *rollout) int { return cmp.Compare(min(len(b.selected), 1), min(len(a.selected), 1)) })
	for _, r := range rollouts {
		r.make(taken)
		p.Schedules[r.of.Name] = r.status
		for name, spec := range specs {
			if slices.ContainsFunc(spec.Schedules, func(a network.Assignment) bool { return a.UID == r.of.UID }) {
				taken[name+" "+r.of.Spec.Datapath] = r.of
			}
		}
	}
	for _, spec := range specs {
		slices.SortFunc(spec.Schedules, func(a, b network.Assignment) int { return cmp.Compare(a.Datapath, b.Datapath) })
	}
}

// make decides what becomes of the schedule in this round.
func (r *rollout) make(taken map[string]*network.GateSchedule) {
	if r.reason == "" {
		r.reason, r.message = r.conflict(taken)
	}
	reason, message := r.reason, r.message
	nodes := ""
	if reason != "" {
		r.keep()
		kept := r.kept()
		nodes = kept.count()
		if kept.do > 0 {
			message += kept.runsOn()
		}
	}
	accepted := condition(network.Accepted, reason == "", r.of.Generation, cmp.Or(reason, "Accepted"), cmp.Or(message, "goes together with the other schedules"))
	var inForce metav1.Condition
	if reason != "" {
		inForce = condition(network.InForce, false, r.of.Generation, "NotAccepted", message)
	} else {
		inForce = r.advance()
		nodes = r.count()
		if len(r.selected) == 0 {
			nodes = r.kept().count()
		}
	}
	r.status.Nodes = nodes
	var changed []metav1.Condition
	r.status.Conditions, changed = conditions(r.of.Status.Conditions, r.w.Now, accepted, inForce)
	if reason != "" && len(changed) > 1 {
		changed = changed[:1]
	}
	r.p.tell(r.of, changed)
}

// choose finds the nodes, and says why the schedule is nobody's.
func (r *rollout) choose() (reason, message string) {
	spec := &r.of.Spec
	if _, err := objects.Request(spec.Datapath, &network.Revision{Schedule: spec.Schedule}); err != nil {
		return "Invalid", err.Error()
	}
	if spec.CycleTime <= 0 {
		return "Invalid", "cycleTime is 0: write how long a cycle lasts"
	}
	if sum := spec.EntriesTime(); sum > spec.CycleTime {
		return "Invalid", fmt.Sprintf("the entries last %s and cycleTime is %s, which would cut them: write cycleTime %[1]s, or shorter intervals", sum, spec.CycleTime)
	}
	if _, err := spec.BaseNanoseconds(); err != nil {
		return "Invalid", err.Error()
	}
	if problem := selectorProblem(spec.NodeSelector); problem != "" {
		return "Invalid", problem
	}
	if spec.Network != "" && !slices.ContainsFunc(r.w.Networks, func(n *network.TaktNetwork) bool { return n.Name == spec.Network }) {
		return "UnknownNetwork", fmt.Sprintf("there is no TaktNetwork %s: create it, or name another one", spec.Network)
	}
	for _, member := range r.w.Members {
		if spec.Network != "" && slices.Contains(r.specs[member.Name].Networks, spec.Network) || spec.Network == "" && r.w.selects(spec.NodeSelector, member.Name) {
			r.selected = append(r.selected, member.Name)
		}
	}
	return "", ""
}

// conflict says whose link is to become this schedule's.
func (r *rollout) conflict(taken map[string]*network.GateSchedule) (reason, message string) {
	for _, name := range r.selected {
		if other := taken[name+" "+r.of.Spec.Datapath]; other != nil && other.UID != r.of.UID {
			r.selected = nil
			return "ScheduleConflict", fmt.Sprintf("node %s has GateSchedule %s on datapath %s: delete one of them, or have them select different nodes", name, other.Name, r.of.Spec.Datapath)
		}
	}
	return "", ""
}

// had is what the node's TaktNode assigns now of this schedule; nil if nothing.
func (r *rollout) had(name string) *network.Assignment {
	for at := range r.members[name].Spec.Schedules {
		if had := &r.members[name].Spec.Schedules[at]; had.UID == r.of.UID && had.Datapath == r.of.Spec.Datapath {
			return had
		}
	}
	return nil
}

// give assigns to a node's link, if it is nobody's: of two for one link the API server would take neither, nor anything
// else that is said of the node.
func (r *rollout) give(name string, a network.Assignment) {
	a.Datapath = r.of.Spec.Datapath
	if len(r.specs[name].Schedules) == mostSchedules || slices.ContainsFunc(r.specs[name].Schedules, func(b network.Assignment) bool { return b.Datapath == a.Datapath }) {
		return
	}
	r.specs[name].Schedules = append(r.specs[name].Schedules, a)
}

// keep leaves nodes what has been committed, and takes back what has not.
func (r *rollout) keep() {
	for name := range r.members {
		if before := r.before(name); before != nil {
			r.give(name, network.Assignment{Revision: *before, Committed: true})
		}
	}
}

// kept are the nodes that have been left what they had, and those of them that run it.
func (r *rollout) kept() *tally {
	t := &tally{}
	for name := range r.members {
		for _, a := range r.specs[name].Schedules {
			if a.UID != r.of.UID {
				continue
			}
			t.of++
			if state, _ := r.state(name, &a.Revision); state == network.Pending || state == network.Running {
				t.do++
			}
		}
	}
	return t
}

// runsOn ends what is said of a schedule that is not in force any more, and is kept.
func (t *tally) runsOn() string {
	return fmt.Sprintf("; what ran before runs on, on %d nodes: delete the object to open the gates", t.do)
}

// before is what a node has had of this schedule that was committed; nil if nothing. Of one whose TaktNode was made anew, only the
// others know that.
func (r *rollout) before(name string) *network.Revision {
	if had := r.had(name); had != nil {
		return had.Reverted()
	}
	if r.members[name].Spec.Planned || !slices.Contains(r.selected, name) {
		return nil
	}
	for _, other := range r.w.Members {
		if had := r.had(other.Name); had != nil && had.Reverted() != nil {
			return had.Reverted()
		}
	}
	return nil
}

// others is what a node has of another schedule, which gives way to this one; nil if nothing.
func (r *rollout) others(name string) *network.Revision {
	for at := range r.members[name].Spec.Schedules {
		if had := &r.members[name].Spec.Schedules[at]; had.UID != r.of.UID && had.Datapath == r.of.Spec.Datapath {
			return had.Reverted()
		}
	}
	return nil
}

func (r *rollout) revision() network.Revision {
	return network.Revision{Name: r.of.Name, UID: r.of.UID, Generation: r.of.Generation, BeginsNanoseconds: r.status.BeginsNanoseconds, Schedule: r.of.Spec.Schedule}
}

// state is what a node says of a revision; empty while it has said nothing.
func (r *rollout) state(name string, of *network.Revision) (state, message string) {
	for at := range r.members[name].Status.Schedules {
		if said := &r.members[name].Status.Schedules[at]; said.Datapath == r.of.Spec.Datapath && said.Of(of) {
			return said.State, said.Message
		}
	}
	return "", ""
}

// absent says why a node's runtime is not there; empty if it is, or there is no such node any more.
func (r *rollout) absent(name string) string {
	if member := r.members[name]; member != nil {
		return r.w.absence(member)
	}
	return ""
}

func (r *rollout) count() string {
	has := 0
	revision := r.revision()
	for _, name := range r.selected {
		if state, _ := r.state(name, &revision); r.absent(name) == "" && r.status.State == network.Installed && (state == network.Pending || state == network.Running) {
			has++
		}
	}
	return fmt.Sprintf("%d/%d", has, len(r.selected))
}

// advance takes the next step, and says how it stands.
func (r *rollout) advance() metav1.Condition {
	generation := r.of.Generation
	if len(r.selected) == 0 {
		r.keep()
		message := "no node with takt-node is selected: label nodes, or change nodeSelector or network"
		if kept := r.kept(); kept.do > 0 {
			message += kept.runsOn()
		} else {
			r.status.State, r.status.Targets = "", nil
		}
		return condition(network.InForce, false, generation, "NoNodes", message)
	}
	fresh := r.status.State == "" || r.status.ObservedGeneration != generation ||
		r.status.State == network.RolledBack && (!slices.Equal(r.status.Targets, r.selected) || r.spoken())
	if fresh {
		if reason, message := r.begin(); reason != "" {
			r.keep()
			return condition(network.InForce, false, generation, reason, message)
		}
	}
	switch r.status.State {
	case network.Installing:
		return r.install()
	case network.Installed:
		return r.maintain()
	default:
		r.keep()
		// What was said when it was rolled back stands.
		for _, said := range r.of.Status.Conditions {
			if said.Type == network.InForce {
				return said
			}
		}
		return condition(network.InForce, false, generation, network.RolledBack, "a node has refused it: change the schedule, or which nodes it selects")
	}
}

// spoken says whether all nodes whose silence has rolled it back speak again: each knows of the way back.
func (r *rollout) spoken() bool {
	return len(r.status.Silent) > 0 && !slices.ContainsFunc(r.status.Silent, func(name string) bool {
		member := r.members[name]
		return member != nil && (r.w.absence(member) != "" || meta.FindStatusCondition(member.Status.Conditions, network.Ready).ObservedGeneration != member.Generation || r.pending(name))
	})
}

// pending says whether the node is still assigned what was rolled back: the way back has not been written.
func (r *rollout) pending(name string) bool {
	had := r.had(name)
	return had != nil && !had.Committed
}

// begin chooses the instant.
func (r *rollout) begin() (reason, message string) {
	offset := int32(0)
	for at, name := range r.selected {
		member := r.members[name]
		if absent := r.w.absence(member); absent != "" {
			return "RuntimeAbsent", fmt.Sprintf("node %s: %s. Or have the schedule not select it", name, absent)
		}
		if member.Status.Clock == nil {
			return "RuntimeAbsent", fmt.Sprintf("node %s: taktd has not looked at its clock yet", name)
		}
		if of := member.Status.Clock.TAIOffsetSeconds; at == 0 {
			offset = of
		} else if of != offset {
			return "ClocksDisagree", fmt.Sprintf("TAI - UTC is %d s on node %s and %d s on node %s, so that there is no common instant: have the kernels of all nodes told (`takt clock`)", offset, r.selected[0], of, name)
		}
	}
	base, _ := r.of.Spec.BaseNanoseconds()
	cycle := int64(r.of.Spec.CycleTime)
	earliest := r.w.Now.UnixNano() + int64(offset)*int64(time.Second) + int64(r.w.Lead)
	begins := base
	if begins < earliest {
		begins += (earliest - base + cycle - 1) / cycle * cycle
	}
	r.status.State, r.status.BeginsNanoseconds, r.status.Targets, r.status.ObservedGeneration = network.Installing, begins, r.selected, r.of.Generation
	r.status.Silent = nil
	return "", ""
}

// install has all nodes install it, and decides when all have answered, or one has refused.
func (r *rollout) install() metav1.Condition {
	revision, generation := r.revision(), r.of.Generation
	missing, refused, why, expired := []string{}, "", "", false
	late := func(offset int64) bool {
		return r.w.Now.UnixNano()+offset > revision.BeginsNanoseconds-int64(lateMargin(len(r.status.Targets)))
	}
	offset := int64(0)
	for _, name := range r.status.Targets {
		if r.members[name] == nil {
			continue
		}
		if clock := r.members[name].Status.Clock; clock != nil {
			offset = int64(clock.TAIOffsetSeconds) * int64(time.Second)
		}
		switch state, message := r.state(name, &revision); state {
		case network.Pending, network.Running:
		case network.Expired:
			expired = true
			if refused == "" && !late(offset) {
				refused, why = name, message // by its clock alone
			}
		case network.Refused:
			if refused == "" {
				refused, why = name, message
			}
		default:
			missing = append(missing, name)
		}
	}
	switch {
	case refused != "":
		r.status.State = network.RolledBack
		r.keep()
		return condition(network.InForce, false, generation, network.RolledBack, fmt.Sprintf("node %s refuses: %s. All nodes have what they had before. It is not tried again by itself, also when nothing stands in its way any more: change the schedule (its baseTime by a cycle moves nothing), or which nodes it selects", refused, strings.TrimRight(why, ". ")))
	case len(missing) > 0 && late(offset):
		r.status.State, r.status.Silent = network.RolledBack, missing
		r.keep()
		return condition(network.InForce, false, generation, network.RolledBack, fmt.Sprintf("node %s has not answered in time: %s. All nodes that can be reached have what they had before. It is tried again when the node speaks, or when the schedule changes",
			missing[0], strings.TrimRight(cmp.Or(r.absent(missing[0]), "see that takt-node runs there"), ". ")))
	case len(missing) == 0 && !expired && !late(offset):
		r.status.State = network.Installed
		return r.maintain()
	case len(missing) == 0:
		// All would have it, and there was no controller to say so: it takes another instant.
		if reason, message := r.begin(); reason != "" {
			r.status.State = ""
			r.keep()
			return condition(network.InForce, false, generation, reason, message)
		}
		revision = r.revision()
		fallthrough
	default:
		for _, name := range r.status.Targets {
			if r.members[name] == nil {
				continue
			}
			assignment := network.Assignment{Revision: revision, Previous: cmp.Or(r.before(name), r.others(name))}
			if had := r.had(name); had != nil && had.Generation == revision.Generation && had.BeginsNanoseconds == revision.BeginsNanoseconds {
				assignment.Previous = had.Previous
			}
			r.give(name, assignment)
		}
		r.keep() // nodes that it is for no more have what they had until all others have taken it
		return condition(network.InForce, false, generation, network.Installing, fmt.Sprintf("begins at %s on %d nodes", instant(revision.BeginsNanoseconds), len(r.status.Targets)))
	}
}

// maintain gives an installed schedule to the nodes that it selects by now.
func (r *rollout) maintain() metav1.Condition {
	revision, generation := r.revision(), r.of.Generation
	t, begun, warned := &tally{}, true, ""
	for _, name := range r.selected {
		r.give(name, network.Assignment{Revision: revision, Committed: true})
		absent := r.absent(name)
		switch state, message := r.state(name, &revision); state {
		case network.Pending, network.Running:
			if absent != "" {
				// What it said last is old.
				t.not("RuntimeAbsent", name, absent)
				continue
			}
			t.do, t.of = t.do+1, t.of+1
			begun = begun && state == network.Running
			if warned == "" && message != "" {
				warned = fmt.Sprintf(". On node %s: %s", name, message)
			}
		case network.Refused:
			t.not(network.Refused, name, message)
		default:
			t.not("Waiting", name, cmp.Or(absent, "it has not said yet that it has it"))
		}
	}
	if t.do < t.of {
		return condition(network.InForce, false, generation, t.reason, fmt.Sprintf("%s nodes: %s", t.count(), t.message))
	}
	if !begun {
		return condition(network.InForce, false, generation, network.Installing, fmt.Sprintf("all %d nodes have it, and it begins at %s%s", t.of, instant(revision.BeginsNanoseconds), warned))
	}
	return condition(network.InForce, true, generation, network.Installed, fmt.Sprintf("on %d nodes from %s%s", t.of, instant(revision.BeginsNanoseconds), warned))
}

// instant is one for people.
func instant(nanos int64) string {
	return fmt.Sprintf("%d.%09d s TAI", nanos/int64(time.Second), nanos%int64(time.Second))
}
