package controller

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/objects"
)

// worldOf has nodes whose runtimes are ready; each is labelled with its name.
func worldOf(names ...string) *World {
	w := &World{Nodes: map[string]*corev1.Node{}, Pods: map[string]*corev1.Pod{}, Now: time.Unix(1_800_000_000, 0), Lead: 10 * time.Second}
	for at, name := range names {
		w.Nodes[name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.0.2.%d", at+1)}}}}
		member := &network.TaktNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		member.Status.Clock = &network.Clock{State: "Synchronised", TAIOffsetSeconds: 37}
		meta.SetStatusCondition(&member.Status.Conditions, metav1.Condition{Type: network.Ready, Status: metav1.ConditionTrue, Reason: "Serving"})
		w.Members = append(w.Members, member)
	}
	return w
}

// next is the world after a round whose writes have all been done, and in which each node has taken what it is told, and what is
// committed has begun.
func (w *World) next() *Plan {
	p := w.Make()
	for _, member := range w.Members {
		member.Spec = p.Specs[member.Name]
		member.Status.Schedules = nil
		for _, a := range member.Spec.Schedules {
			state := network.Pending
			if a.Committed {
				state = network.Running
			}
			member.Status.Schedules = append(member.Status.Schedules, network.LinkState{
				Datapath: a.Datapath, Name: a.Name, UID: a.UID, Generation: a.Generation, BeginsNanoseconds: a.BeginsNanoseconds, State: state,
			})
		}
	}
	for _, schedule := range w.Schedules {
		schedule.Status = p.Schedules[schedule.Name]
	}
	for _, one := range w.Networks {
		one.Status = p.Networks[one.Name]
	}
	w.Now = w.Now.Add(100 * time.Millisecond)
	return p
}

// named is a schedule of an age.
func scheduleOf(name string, age time.Duration, node string) *network.GateSchedule {
	g := gates(name, map[string]string{"name": node}, 7, 0)
	g.UID, g.Generation, g.CreationTimestamp = types.UID(name), 1, metav1.NewTime(time.Unix(1_700_000_000, 0).Add(-age))
	return g
}

func (w *World) has(node string) (found []string) {
	for _, member := range w.Members {
		if member.Name != node {
			continue
		}
		for _, a := range member.Spec.Schedules {
			found = append(found, a.Name+" on "+a.Datapath)
		}
	}
	return found
}

func TestALinkIsGivenToOneScheduleWhateverTheirSelectorsBecome(t *testing.T) {
	for _, age := range []time.Duration{-time.Hour, time.Hour} {
		w := worldOf("node-1", "node-2")
		a, b := scheduleOf("a", 0, "node-1"), scheduleOf("b", age, "node-2")
		w.Schedules = []*network.GateSchedule{a, b}
		for range 4 {
			w.next()
		}
		if !slices.Equal(w.has("node-1"), []string{"a on udp"}) || !slices.Equal(w.has("node-2"), []string{"b on udp"}) {
			t.Fatalf("the nodes have %v and %v", w.has("node-1"), w.has("node-2"))
		}
		// b selects all nodes now: the link of node-1 stays a's, whichever is older.
		b.Spec.NodeSelector, b.Generation = nil, 2
		for range 4 {
			p := w.next()
			if !slices.Equal(w.has("node-1"), []string{"a on udp"}) || !slices.Equal(w.has("node-2"), []string{"b on udp"}) {
				t.Fatalf("age %v: the nodes have %v and %v", age, w.has("node-1"), w.has("node-2"))
			}
			if !is(p.Schedules["b"].Conditions, network.Accepted, false, "ScheduleConflict", "GateSchedule a") || !is(p.Schedules["a"].Conditions, network.InForce, true, network.Installed, "") {
				t.Fatalf("age %v: a is %+v, b is %+v", age, p.Schedules["a"].Conditions, p.Schedules["b"].Conditions)
			}
		}
		// a gives way: b has both, and node-1 never had two.
		a.Spec.NodeSelector.MatchLabels["name"], a.Generation = "node-3", 2
		for range 6 {
			w.next()
			if len(w.has("node-1")) > 1 {
				t.Fatalf("node-1 has %v", w.has("node-1"))
			}
		}
		if !slices.Equal(w.has("node-1"), []string{"b on udp"}) || !slices.Equal(w.has("node-2"), []string{"b on udp"}) {
			t.Errorf("age %v: the nodes have %v and %v", age, w.has("node-1"), w.has("node-2"))
		}
	}
}

// answer has all nodes say the same of what they are assigned.
func (w *World) answer(state, message string) {
	for _, member := range w.Members {
		for at := range member.Status.Schedules {
			member.Status.Schedules[at].State, member.Status.Schedules[at].Message = state, message
		}
	}
}

func TestAScheduleThatWasNotCommittedInTimeTakesAnotherInstant(t *testing.T) {
	for _, state := range []string{network.Pending, network.Expired} {
		w := worldOf("node-1", "node-2")
		g := scheduleOf("line", 0, "")
		g.Spec.NodeSelector = nil
		w.Schedules = []*network.GateSchedule{g}
		w.next()
		first := w.Members[0].Spec.Schedules[0]
		// All nodes have it, and there was no controller until there was no time to say so.
		w.Now = w.Now.Add(w.Lead - objects.CommitMargin)
		w.answer(state, "it was not committed")
		p := w.next()
		again := w.Members[0].Spec.Schedules[0]
		if again.Committed || again.BeginsNanoseconds < first.BeginsNanoseconds+int64(w.Lead-objects.CommitMargin) || again.Previous != nil || p.Schedules["line"].State != network.Installing {
			t.Errorf("%s: it was %+v and is %+v, %s", state, first, again, p.Schedules["line"].State)
		}
		if w.next(); !w.Members[0].Spec.Schedules[0].Committed {
			t.Errorf("%s: it is not committed: %+v", state, w.Members[0].Spec.Schedules[0])
		}
	}
	// By the clock of a node alone it is too late.
	w := worldOf("node-1")
	w.Schedules = []*network.GateSchedule{scheduleOf("line", 0, "node-1")}
	w.next()
	w.answer(network.Expired, "it was not committed")
	if p := w.next(); !is(p.Schedules["line"].Conditions, network.InForce, false, network.RolledBack, "node node-1 refuses: it was not committed") {
		t.Errorf("it is %+v", p.Schedules["line"].Conditions)
	}
}

// round is the world after a round whose writes have all been done: only nodes that are named answer what they are assigned.
func (w *World) round(state string, answer ...string) *Plan {
	p := w.Make()
	for _, member := range w.Members {
		if !reflect.DeepEqual(member.Spec, p.Specs[member.Name]) {
			member.Spec = p.Specs[member.Name]
			member.Generation++
		}
		if !slices.Contains(answer, member.Name) {
			continue
		}
		member.Status.Conditions[0].ObservedGeneration, member.Status.Schedules = member.Generation, nil
		for _, a := range member.Spec.Schedules {
			member.Status.Schedules = append(member.Status.Schedules, network.LinkState{
				Datapath: a.Datapath, Name: a.Name, UID: a.UID, Generation: a.Generation, BeginsNanoseconds: a.BeginsNanoseconds, State: state,
			})
		}
	}
	for _, schedule := range w.Schedules {
		schedule.Status = p.Schedules[schedule.Name]
	}
	return p
}

func TestAScheduleThatASilentNodeHasRolledBackIsTriedAgainWhenItSpeaks(t *testing.T) {
	w := worldOf("node-1", "node-2")
	g := scheduleOf("line", 0, "")
	g.Spec.NodeSelector = nil
	w.Schedules = []*network.GateSchedule{g}
	w.round(network.Pending, "node-1")
	w.Now = w.Now.Add(w.Lead)
	if p := w.round(network.Pending, "node-1"); !is(p.Schedules["line"].Conditions, network.InForce, false, network.RolledBack, "node-2 has not answered in time") {
		t.Fatalf("it is %+v", p.Schedules["line"].Conditions)
	}
	for range 3 {
		if p := w.round(network.Pending, "node-1"); p.Schedules["line"].State != network.RolledBack {
			t.Fatalf("it is tried again while the node is silent: %+v", p.Schedules["line"])
		}
	}
	// It speaks, and takes it this time.
	w.round(network.Pending, "node-1", "node-2")
	for range 2 {
		w.round(network.Pending, "node-1", "node-2")
	}
	if g.Status.State != network.Installed || g.Status.Silent != nil {
		t.Errorf("it is %+v", g.Status)
	}
	// One that has refused speaks all the time.
	g.Generation = 2
	for range 4 {
		w.round(network.Refused, "node-1", "node-2")
	}
	if g.Status.State != network.RolledBack || !is(g.Status.Conditions, network.InForce, false, network.RolledBack, "It is not tried again by itself, also when nothing stands in its way any more: change the schedule (its baseTime by a cycle moves nothing)") {
		t.Errorf("it is %+v", g.Status)
	}
	// As it is told.
	g.Spec.BaseTime, g.Generation = "0.001", 3
	for range 3 {
		w.round(network.Running, "node-1", "node-2")
	}
	if !is(g.Status.Conditions, network.InForce, true, network.Installed, "") {
		t.Errorf("it is %+v", g.Status)
	}
}

// What was committed before is in the TaktNodes alone.
func TestATaktNodeThatIsMadeAnewGetsBackWhatTheOthersHave(t *testing.T) {
	w := worldOf("node-1", "node-2")
	g := scheduleOf("line", 0, "")
	g.Spec.NodeSelector = nil
	w.Schedules = []*network.GateSchedule{g}
	anew := func() {
		status := w.Members[1].Status
		status.Schedules = nil
		w.Members[1] = &network.TaktNode{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}, Status: status}
	}
	for range 3 {
		w.round(network.Pending, "node-1", "node-2")
	}
	first := w.Members[0].Spec.Schedules[0]
	g.Generation = 2
	w.round(network.Pending, "node-1")
	anew()
	w.round(network.Pending, "node-1")
	if now := w.Members[1].Spec.Schedules; len(now) != 1 || now[0].Generation != 2 || now[0].Previous == nil || now[0].Previous.Generation != 1 {
		t.Fatalf("while it is installed the node has %+v", now)
	}
	w.round(network.Refused, "node-1", "node-2")
	w.round(network.Refused, "node-1", "node-2")
	anew()
	w.round(network.Refused, "node-1")
	if now := w.Members[1].Spec.Schedules; g.Status.State != network.RolledBack || len(now) != 1 || now[0].BeginsNanoseconds != first.BeginsNanoseconds || !now[0].Committed {
		t.Errorf("it is %s, and the node has %+v", g.Status.State, now)
	}
}

func TestANodeThatIsGoneIsNotBelieved(t *testing.T) {
	for _, ready := range []corev1.ConditionStatus{corev1.ConditionUnknown, corev1.ConditionFalse, corev1.ConditionTrue} {
		w := worldOf("node-1", "node-2")
		w.serve("tsn", 42)
		g := scheduleOf("line", 0, "")
		g.Spec.NodeSelector = nil
		w.Schedules = []*network.GateSchedule{g}
		w.Nodes["node-2"].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, Reason: "NodeStatusUnknown"}}
		p := w.Make()
		const said = "node node-2: the node is not ready (NodeStatusUnknown)"
		if gone := ready != corev1.ConditionTrue; is(p.Networks["tsn"].Conditions, network.Served, false, "RuntimeAbsent", said) != gone ||
			is(p.Schedules["line"].Conditions, network.InForce, false, "RuntimeAbsent", said) != gone {
			t.Errorf("the node's Ready is %s: %+v, %+v", ready, p.Networks["tsn"].Conditions, p.Schedules["line"].Conditions)
		}
	}
}

func TestThereIsTimeToTellAllNodes(t *testing.T) {
	// Writing to a thousand nodes takes 8 s: once with the schedule, once with the decision.
	for _, nodes := range []int{1, 1000} {
		margin, write := lateMargin(nodes), time.Duration(nodes)*8*time.Millisecond
		if margin < objects.CommitMargin+write || MinLead+time.Duration(nodes)*eachNode < margin+write+2*time.Second {
			t.Errorf("%d nodes have to have answered %v before", nodes, margin)
		}
	}
}

func TestASchedulesTargetsTakeNobodysLink(t *testing.T) {
	// While b waits for node-2, node-1 is selected by it no more, and a begins there.
	w := worldOf("node-1", "node-2")
	b := scheduleOf("b", time.Hour, "")
	b.Spec.NodeSelector = nil
	w.Schedules = []*network.GateSchedule{b}
	w.Make()
	p := w.Make()
	b.Status = p.Schedules["b"]
	for _, member := range w.Members {
		member.Spec = p.Specs[member.Name]
	}
	b.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"name": "node-2"}}
	w.Schedules = append(w.Schedules, scheduleOf("a", 0, "node-1"))
	for range 3 {
		for name, spec := range w.Make().Specs {
			if len(spec.Schedules) > 1 {
				t.Fatalf("%s is given %+v", name, spec.Schedules)
			}
		}
		w.next()
	}
}

func TestAScheduleThatIsBeingInstalledIsNothingToBeWarnedOf(t *testing.T) {
	w := worldOf("node-1")
	w.Schedules = []*network.GateSchedule{scheduleOf("line", 0, "node-1")}
	told := map[string]bool{}
	for range 3 {
		for _, event := range w.next().Events {
			told[fmt.Sprint(event.Warning, " ", event.Reason)] = true
		}
	}
	if !told["false "+network.Installing] || told["true "+network.Installing] || !told["false "+network.Installed] {
		t.Errorf("told %v", told)
	}
}

func TestAScheduleIsInForceWhenItHasBegunOnAllNodes(t *testing.T) {
	w := worldOf("node-1", "node-2")
	g := scheduleOf("line", 0, "")
	g.Spec.NodeSelector = nil
	w.Schedules = []*network.GateSchedule{g}
	both := []string{"node-1", "node-2"}
	for generation := range int64(2) {
		g.Generation = generation + 1
		w.round(network.Pending, both...)
		for range 2 {
			p := w.round(network.Pending, both...)
			if now := p.Schedules["line"]; now.State != network.Installed || now.Nodes != "2/2" || !is(now.Conditions, network.InForce, false, network.Installing, "all 2 nodes have it, and it begins at "+instant(now.BeginsNanoseconds)) {
				t.Errorf("before its instant it is %+v", now)
			}
		}
		w.round(network.Running, "node-1")
		if p := w.round(network.Running, "node-1"); !is(p.Schedules["line"].Conditions, network.InForce, false, network.Installing, "") {
			t.Errorf("by one node's clock it is %+v", p.Schedules["line"].Conditions)
		}
		w.round(network.Running, both...)
		if p := w.round(network.Running, both...); !is(p.Schedules["line"].Conditions, network.InForce, true, network.Installed, "on 2 nodes from ") {
			t.Errorf("when it has begun it is %+v", p.Schedules["line"].Conditions)
		}
	}
}

func TestAScheduleThatIsNoLongerAcceptedSaysWhereItRunsOn(t *testing.T) {
	w := worldOf("node-1", "node-2")
	w.serve("tsn", 42)
	g := scheduleOf("line", 0, "")
	g.Spec.NodeSelector, g.Spec.Network = nil, "tsn"
	w.Schedules = []*network.GateSchedule{g}
	for range 4 {
		w.next()
	}
	if now := g.Status; now.Nodes != "2/2" || !is(now.Conditions, network.InForce, true, network.Installed, "") {
		t.Fatalf("it is %+v", now)
	}
	g.Spec.Network, g.Generation = "nonet", 2
	const runs = "there is no TaktNetwork nonet: create it, or name another one; what ran before runs on, on 2 nodes: delete the object to open the gates"
	for range 2 {
		if now := w.next().Schedules["line"]; now.Nodes != "2/2" || !is(now.Conditions, network.Accepted, false, "UnknownNetwork", runs) || !is(now.Conditions, network.InForce, false, "NotAccepted", runs) {
			t.Errorf("it is %+v", now)
		}
	}
	// One that has never run runs on nowhere.
	never := scheduleOf("never", 0, "")
	never.Spec.NodeSelector, never.Spec.Network = nil, "nonet"
	w.Schedules = append(w.Schedules, never)
	if now := w.next().Schedules["never"]; now.Nodes != "0/0" || is(now.Conditions, network.InForce, false, "NotAccepted", "runs on") {
		t.Errorf("it is %+v", now)
	}
}

// A letter wrong in a selector of nodes opens no gates and cuts no pod off.
func TestWhatRunsGoesOnWhenASelectorSelectsNobodyAnyMore(t *testing.T) {
	for _, kind := range []string{"network", "schedule"} {
		w := worldOf("node-1", "node-2")
		tsn := w.serve("tsn", 42)
		w.run("talker", "node-1", time.Hour, "", "02:00:00:00:00:01", "10.50.0.1/16")
		g := scheduleOf("line", 0, "")
		g.Spec.NodeSelector = nil
		if kind == "network" {
			g.Spec.Network = "tsn"
		}
		w.Schedules = []*network.GateSchedule{g}
		for range 4 {
			w.next()
		}
		before := w.Members[0].Spec.Schedules[0]
		typo := &metav1.LabelSelector{MatchLabels: map[string]string{"tsn": "yse"}}
		if kind == "network" {
			tsn.Spec.NodeSelector = typo
		} else {
			g.Spec.NodeSelector, g.Generation = typo, 2
		}
		for range 3 {
			p := w.next()
			if got := w.Members[0].Spec.Schedules; len(got) != 1 || got[0].BeginsNanoseconds != before.BeginsNanoseconds || !got[0].Committed {
				t.Errorf("%s: node-1 is assigned %+v", kind, got)
			}
			if got := p.stations("node-1"); len(got) != 1 || p.Specs["node-1"].Stations[0].VTEP == "" {
				t.Errorf("%s: node-1 has %q", kind, got)
			}
			if now := p.Schedules["line"]; now.Nodes != "2/2" || kind == "schedule" && !is(now.Conditions, network.InForce, false, "NoNodes", "what ran before runs on, on 2 nodes") {
				t.Errorf("%s: it is %+v", kind, now)
			}
			if now := p.Networks["tsn"]; kind == "network" && !is(now.Conditions, network.Served, false, "NoNodes", "Until then what was there goes on as it was") {
				t.Errorf("it is %+v", now)
			}
		}
		tsn.Spec.NodeSelector = nil
		if p := w.next(); !is(p.Networks["tsn"].Conditions, network.Served, true, "Serving", "2 nodes") {
			t.Errorf("it is %+v", p.Networks["tsn"])
		}
	}
}

// A mistake in a schedule that runs is nobody else's chance.
func TestAScheduleThatIsNoLongerAcceptedKeepsItsLinks(t *testing.T) {
	for _, age := range []time.Duration{-time.Hour, time.Hour} {
		for reason, mistake := range map[string]func(*network.GateSchedule){
			"Invalid":        func(g *network.GateSchedule) { g.Spec.CycleTime = g.Spec.EntriesTime() - 1 },
			"UnknownNetwork": func(g *network.GateSchedule) { g.Spec.NodeSelector, g.Spec.Network = nil, "nonet" },
		} {
			w := worldOf("node-1", "node-2")
			a, b := scheduleOf("a", 0, "node-1"), scheduleOf("b", age, "node-2")
			w.Schedules = []*network.GateSchedule{a, b}
			for range 4 {
				w.next()
			}
			b.Spec.NodeSelector, b.Generation = nil, 2
			w.next()
			good := *a.Spec.DeepCopy()
			mistake(a)
			a.Generation = 2
			for range 6 {
				p := w.next()
				if !slices.Equal(w.has("node-1"), []string{"a on udp"}) || !is(p.Schedules["a"].Conditions, network.Accepted, false, reason, "runs on, on 1 nodes") {
					t.Fatalf("age %v, %s: node-1 has %v, a is %+v", age, reason, w.has("node-1"), p.Schedules["a"].Conditions)
				}
			}
			a.Spec, a.Generation = good, 3
			for range 4 {
				w.next()
			}
			if !is(a.Status.Conditions, network.InForce, true, network.Installed, "") {
				t.Errorf("age %v, %s: a is %+v", age, reason, a.Status.Conditions)
			}
		}
	}
}

// selecting selects nodes by their names.
func selecting(names ...string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "name", Operator: "In", Values: names}}}
}

// An edit that selects fewer nodes opens no gates before it is taken, and none at all when it is refused.
func TestANodeThatIsNoLongerSelectedKeepsWhatItHadUntilTheOthersHaveTakenTheChange(t *testing.T) {
	w := worldOf("node-1", "node-2")
	a := scheduleOf("a", 0, "")
	a.Spec.NodeSelector = selecting("node-1", "node-2")
	w.Schedules = []*network.GateSchedule{a}
	all := []string{"node-1", "node-2"}
	for range 3 {
		w.round(network.Running, all...)
	}
	begins := w.Members[1].Spec.Schedules[0].BeginsNanoseconds
	kept := func(when string) {
		t.Helper()
		if got := w.Members[1].Spec.Schedules; len(got) != 1 || got[0].Name != "a" || got[0].Generation != 1 || got[0].BeginsNanoseconds != begins || !got[0].Committed {
			t.Errorf("%s: node-2 is assigned %+v", when, got)
		}
	}
	a.Spec.NodeSelector, a.Generation = selecting("node-1"), 2
	for range 2 {
		w.round(network.Pending)
		kept("while the others are asked")
	}
	for range 3 {
		w.round(network.Refused, "node-1")
		kept("when one has refused")
	}
	if !is(a.Status.Conditions, network.InForce, false, network.RolledBack, "node node-1 refuses") {
		t.Errorf("it is %+v", a.Status.Conditions)
	}
	a.Generation = 3
	for range 4 {
		w.round(network.Running, all...)
	}
	if !slices.Equal(w.has("node-1"), []string{"a on udp"}) || w.has("node-2") != nil || !is(a.Status.Conditions, network.InForce, true, network.Installed, "on 1 nodes") {
		t.Errorf("node-1 has %v, node-2 has %v, it is %+v", w.has("node-1"), w.has("node-2"), a.Status.Conditions)
	}
}

// Two that are to have each other's nodes get them, and what is taken back comes back.
func TestSchedulesMayExchangeNodes(t *testing.T) {
	for _, age := range []time.Duration{-time.Hour, time.Hour} {
		w := worldOf("node-1", "node-2")
		a, b := scheduleOf("a", 0, "node-1"), scheduleOf("b", age, "node-2")
		w.Schedules = []*network.GateSchedule{a, b}
		all := []string{"node-1", "node-2"}
		exchange := func(generation int64, ofA, ofB, state string) {
			a.Spec.NodeSelector, b.Spec.NodeSelector = selecting(ofA), selecting(ofB)
			a.Generation, b.Generation = generation, generation
			for range 8 {
				w.round(state, all...)
				if len(w.has("node-1")) != 1 || len(w.has("node-2")) != 1 {
					t.Fatalf("age %v: node-1 has %v, node-2 has %v", age, w.has("node-1"), w.has("node-2"))
				}
			}
		}
		exchange(1, "node-1", "node-2", network.Running)
		exchange(2, "node-2", "node-1", network.Refused)
		if !slices.Equal(w.has("node-1"), []string{"a on udp"}) || !slices.Equal(w.has("node-2"), []string{"b on udp"}) {
			t.Errorf("age %v: after it was refused node-1 has %v, node-2 has %v", age, w.has("node-1"), w.has("node-2"))
		}
		exchange(3, "node-2", "node-1", network.Running)
		if !slices.Equal(w.has("node-1"), []string{"b on udp"}) || !slices.Equal(w.has("node-2"), []string{"a on udp"}) {
			t.Errorf("age %v: node-1 has %v, node-2 has %v", age, w.has("node-1"), w.has("node-2"))
		}
	}
}

// What gives way is there again where the one that was to take its place is refused.
func TestARefusedScheduleLeavesNodesWhatRanOnThere(t *testing.T) {
	w := worldOf("node-1", "node-2")
	a := scheduleOf("a", time.Hour, "")
	a.Spec.NodeSelector = nil
	w.Schedules = []*network.GateSchedule{a}
	for range 4 {
		w.next()
	}
	begins := w.Members[0].Spec.Schedules[0].BeginsNanoseconds
	a.Spec.NodeSelector, a.Generation = &metav1.LabelSelector{MatchLabels: map[string]string{"tsn": "yse"}}, 2
	b := scheduleOf("b", 0, "")
	b.Spec.NodeSelector = nil
	w.Schedules = append(w.Schedules, b)
	p := w.Make()
	// The status of b is not taken: nothing gives way to it.
	p.hold(w.Members, map[types.UID]bool{"b": true})
	if got := p.Specs["node-1"].Schedules; len(got) != 1 || got[0].Name != "a" {
		t.Errorf("node-1 is assigned %+v", got)
	}
	w.next()
	if got := w.has("node-1"); !slices.Equal(got, []string{"b on udp"}) {
		t.Fatalf("node-1 has %v", got)
	}
	w.answer(network.Refused, "class 5 is closed")
	for range 3 {
		w.next()
		if got := w.Members[0].Spec.Schedules; len(got) != 1 || got[0].Name != "a" || got[0].BeginsNanoseconds != begins || !got[0].Committed {
			t.Errorf("node-1 is assigned %+v", got)
		}
	}
	if !is(b.Status.Conditions, network.InForce, false, network.RolledBack, "class 5 is closed") {
		t.Errorf("b is %+v", b.Status.Conditions)
	}
}

// What a node has said is old once its runtime is away.
func TestAScheduleIsNotInForceWhereTheRuntimeIsAway(t *testing.T) {
	w := worldOf("node-1", "node-2")
	w.Schedules = []*network.GateSchedule{scheduleOf("one", 0, "node-1")}
	w.Schedules[0].Spec.NodeSelector = nil
	for range 4 {
		w.next()
	}
	if now := w.next().Schedules["one"]; now.Nodes != "2/2" || !is(now.Conditions, network.InForce, true, network.Installed, "2 nodes") {
		t.Fatalf("it is %+v", now)
	}
	w.Members[1].Status.Schedules[0].Message = "error: class 5 is never open"
	if now := w.Make().Schedules["one"]; !is(now.Conditions, network.InForce, true, network.Installed, "On node node-2: error: class 5 is never open") {
		t.Errorf("it is %+v", now)
	}
	ready := metav1.Condition{Type: network.Ready, Status: metav1.ConditionFalse, Reason: "RuntimeAbsent", Message: "taktd does not answer: start it."}
	meta.SetStatusCondition(&w.Members[0].Status.Conditions, ready)
	if now := w.next().Schedules["one"]; now.Nodes != "1/2" || !is(now.Conditions, network.InForce, false, "RuntimeAbsent", "1/2 nodes: node node-1: taktd does not answer: start it") {
		t.Errorf("it is %+v", now)
	}
	if len(w.has("node-1")) != 1 {
		t.Error("it is taken back")
	}
}

// A cycle ends when it ends (IEEE 802.1Q, clause 8.6.9.1): entries that it cuts are nobody's intention.
func TestEntriesThatTheCycleCutsAreRefused(t *testing.T) {
	w := worldOf("node-1")
	schedule := scheduleOf("line", 0, "node-1")
	schedule.Spec.CycleTime = schedule.Spec.EntriesTime() - 1
	w.Schedules = []*network.GateSchedule{schedule}
	is := meta.FindStatusCondition(w.next().Schedules["line"].Conditions, network.Accepted)
	if is == nil || is.Status != metav1.ConditionFalse || is.Reason != "Invalid" || !strings.Contains(is.Message, "write cycleTime "+schedule.Spec.EntriesTime().String()) {
		t.Errorf("it is %+v", is)
	}
	if has := w.has("node-1"); len(has) > 0 {
		t.Errorf("node-1 is given %v", has)
	}
	schedule.Spec.CycleTime++
	schedule.Generation++
	if is := meta.FindStatusCondition(w.next().Schedules["line"].Conditions, network.Accepted); is.Status != metav1.ConditionTrue {
		t.Errorf("a cycle as long as its entries: %+v", is)
	}
}

// The API server takes any operator.
func TestASelectorThatCannotBeReadIsNamed(t *testing.T) {
	w := worldOf("node-1")
	selector := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "name", Operator: "Foo", Values: []string{"node-1"}}}}
	schedule := scheduleOf("line", 0, "node-1")
	schedule.Spec.NodeSelector = selector
	w.Schedules = []*network.GateSchedule{schedule}
	w.Networks = []*network.TaktNetwork{{ObjectMeta: metav1.ObjectMeta{Name: "pods"}, Spec: network.TaktNetworkSpec{NodeSelector: selector}}}
	p := w.Make()
	for what, all := range map[string][]metav1.Condition{"schedule": p.Schedules["line"].Conditions, "network": p.Networks["pods"].Conditions} {
		is := meta.FindStatusCondition(all, network.Accepted)
		if is == nil || is.Status != metav1.ConditionFalse || is.Reason != "Invalid" || !strings.Contains(is.Message, `"Foo" is not a valid label selector operator`) || !strings.Contains(is.Message, "write operator In") {
			t.Errorf("%s: %+v", what, is)
		}
	}
	if len(p.Events) != 2 || !p.Events[0].Warning {
		t.Errorf("told %+v", p.Events)
	}
	if len(p.Specs["node-1"].Networks)+len(p.Specs["node-1"].Schedules) > 0 {
		t.Errorf("assigned %+v", p.Specs["node-1"])
	}
}
