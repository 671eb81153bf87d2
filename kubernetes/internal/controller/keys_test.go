package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/apitest"
)

// keyed are nodes with keys, of which the first has had its own for longest.
func keyed(names ...string) *World {
	w := worldOf(names...)
	w.KeyRotation = 24 * time.Hour
	for at, member := range w.Members {
		since := metav1.NewTime(w.Now.Add(time.Duration(at)*time.Minute - 23*time.Hour))
		member.UID = types.UID("of-" + member.Name)
		member.Status.Runtime = &network.Runtime{Version: "test", Address: "0.0.0.0", Port: 7400, Key: "key-of-" + member.Name, KeySince: &since}
	}
	return w
}

func (w *World) of(name string) *network.TaktNode {
	for _, member := range w.Members {
		if member.Name == name {
			return member
		}
	}
	return nil
}

// agents do what they are to do with their keys, as takt-node does, without these.
func (w *World) agents(without ...string) {
	for _, member := range w.Members {
		if strings.Contains(strings.Join(without, " "), member.Name) {
			continue
		}
		r, runtime := member.Spec.KeyRotation, member.Status.Runtime
		if r.GoesOn() && r.From == runtime.Key {
			switch r.State {
			case network.Preparing:
				if runtime.NextKey == "" {
					runtime.NextKey = "next-of-" + member.Name
					if runtime.Key == runtime.NextKey {
						runtime.NextKey = "fresh-of-" + member.Name
					}
				}
			case network.Switching:
				runtime.Key, runtime.NextKey = r.To, ""
				since := metav1.NewTime(w.Now)
				runtime.KeySince = &since
			}
		}
		member.Status.NextKeys = nil
		for _, other := range w.Members {
			if r := other.Spec.KeyRotation; other != member && r.GoesOn() && r.To != "" && other.Spec.Peer != nil && other.Spec.Peer.NextKey == r.To {
				member.Status.NextKeys = append(member.Status.NextKeys, r.To)
			}
		}
	}
}

// until has the controller and the agents act until a node's change is in this state, and returns what was told.
func (w *World) until(t *testing.T, name, state string, without ...string) (told []string) {
	t.Helper()
	for range 5000 {
		p := w.next()
		for _, event := range p.Events {
			told = append(told, event.About.(metav1.Object).GetName()+" "+event.Reason+": "+event.Message)
		}
		w.agents(without...)
		if r := w.of(name).Spec.KeyRotation; r != nil && r.State == state {
			return told
		}
		w.Now = w.Now.Add(time.Second)
	}
	t.Fatalf("%s is not %s: %+v, told %q", name, state, w.of(name).Spec.KeyRotation, told)
	return nil
}

func TestKeysThatAreOldAreChangedOneAfterTheOther(t *testing.T) {
	w := keyed("node-1", "node-2", "node-3")
	for range 5 {
		w.next()
	}
	if w.of("node-1").Spec.KeyRotation != nil {
		t.Fatalf("a key of 23 hours is changed: %+v", w.of("node-1").Spec.KeyRotation)
	}
	w.Now = w.Now.Add(2 * time.Hour)
	for _, name := range []string{"node-1", "node-2", "node-3"} {
		told := w.until(t, name, network.Rotated)
		for _, member := range w.Members {
			if member.Spec.KeyRotation.GoesOn() {
				t.Errorf("%s changes its key while %s has just changed its own", member.Name, name)
			}
		}
		if key := w.of(name).Spec.Peer; key.Key != "next-of-"+name || key.NextKey != "" {
			t.Errorf("others know %+v", key)
		}
		if all := strings.Join(told, "\n"); !strings.Contains(all, name+" KeyRotationStarted: ") || !strings.Contains(all, name+" KeyRotated: ") || strings.Contains(all, "Waits") {
			t.Errorf("told %q", told)
		}
	}
	for range 100 {
		w.next()
		w.agents()
	}
	for _, member := range w.Members {
		if member.Spec.KeyRotation.State != network.Rotated {
			t.Errorf("%s changes its key again", member.Name)
		}
	}
}

func TestAKeyIsChangedWhenItIsAskedForAndOnce(t *testing.T) {
	w := keyed("node-1", "node-2")
	w.KeyRotation = 0
	w.Now = w.Now.Add(1000 * time.Hour)
	ask := func(when string) { w.of("node-2").Annotations = map[string]string{network.RotateKey: when} }
	for _, nothing := range []string{"", "now", "2026"} {
		ask(nothing)
		w.next()
		if w.of("node-1").Spec.KeyRotation != nil || w.of("node-2").Spec.KeyRotation != nil {
			t.Fatalf("a key is changed by %q", nothing)
		}
	}
	ask("2127-01-31T12:00:00Z")
	w.until(t, "node-2", network.Rotated)
	for range 100 {
		w.next()
		w.agents()
		if w.of("node-2").Spec.KeyRotation.GoesOn() {
			t.Fatal("it is changed twice")
		}
	}
	ask("2127-01-31T12:00:01Z")
	w.next()
	if !w.of("node-2").Spec.KeyRotation.GoesOn() || w.of("node-1").Spec.KeyRotation != nil {
		t.Error("it is not changed again")
	}
}

// A key that waits since a change was given up may have been read together with the node's own.
func TestAChangeThatIsAskedForEndsWithAKeyThatWasMadeAfterwards(t *testing.T) {
	w := keyed("node-1", "node-2", "node-3")
	w.Now = w.Now.Add(65 * time.Minute)
	w.until(t, "node-1", network.GivenUp, "node-3")
	one := w.of("node-1")
	if one.Status.Runtime.NextKey != "next-of-node-1" {
		t.Fatalf("no key waits: %+v", one.Status.Runtime)
	}
	w.KeyRotation = 0
	one.Annotations = map[string]string{network.RotateKey: w.Now.Add(time.Second).UTC().Format(time.RFC3339Nano)}
	w.Now = w.Now.Add(2 * time.Second)
	// It is begun at once, and is not what others wait for when it fails.
	began := w.Now
	w.until(t, "node-1", network.Preparing, "node-3")
	if w.Now.Sub(began) > time.Minute {
		t.Errorf("it begins after %v", w.Now.Sub(began))
	}
	w.until(t, "node-1", network.GivenUp, "node-3")
	began = w.Now
	w.of("node-2").Annotations = map[string]string{network.RotateKey: w.Now.UTC().Format(time.RFC3339)}
	w.until(t, "node-2", network.Preparing)
	if w.Now.Sub(began) > time.Minute {
		t.Errorf("another one begins after %v", w.Now.Sub(began))
	}
	told := w.until(t, "node-1", network.Rotated)
	if one.Status.Runtime.Key != "next-of-node-1" || w.Now.Sub(began) < keyRetry-time.Second {
		t.Errorf("after %v it has %+v: %q", w.Now.Sub(began), one.Status.Runtime, told)
	}
	told = append(told, w.until(t, "node-1", network.Preparing)...)
	told = append(told, w.until(t, "node-1", network.Rotated)...)
	if one.Status.Runtime.Key != "fresh-of-node-1" || one.Spec.KeyRotation.Asked == nil || !strings.Contains(strings.Join(told, "\n"), "then to a fresh one") {
		t.Errorf("it has %+v: %+v, %q", one.Status.Runtime, one.Spec.KeyRotation, told)
	}
	for range 100 {
		w.next()
		w.agents()
		if one.Spec.KeyRotation.GoesOn() {
			t.Fatal("it is changed once more")
		}
	}
}

// One whose agent is away is waited for and named; then the next node's turn comes, and the first one is tried again later.
func TestAChangeThatIsGivenUpNamesForWhomItWaitedAndHoldsUpNoOther(t *testing.T) {
	w := keyed("node-1", "node-2", "node-3")
	w.Now = w.Now.Add(2 * time.Hour)
	told := strings.Join(w.until(t, "node-1", network.GivenUp, "node-3"), "\n")
	for _, want := range []string{"node-1 KeyRotationWaits: it waits for node node-3 to know", "node-1 KeyRotationGivenUp: the key stays as it was, it waits for node node-3"} {
		if !strings.Contains(told, want) {
			t.Errorf("told %q and not %q", told, want)
		}
	}
	one := w.of("node-1")
	if one.Status.Runtime.Key != "key-of-node-1" || one.Spec.Peer.NextKey != "next-of-node-1" {
		t.Errorf("it has %+v, others know %+v", one.Status.Runtime, one.Spec.Peer)
	}
	began := w.Now
	w.until(t, "node-2", network.Preparing)
	if w.Now.Sub(began) > time.Minute {
		t.Errorf("the next one begins %v later", w.Now.Sub(began))
	}
	w.until(t, "node-2", network.Rotated)
	w.until(t, "node-3", network.Rotated)
	w.until(t, "node-1", network.Preparing)
	if after := w.Now.Sub(began); after < keyRetry-time.Second || after > keyRetry+time.Minute {
		t.Errorf("it is tried again after %v", after)
	}
	w.until(t, "node-1", network.Rotated)
}

// The controller of before had a clock that was ahead, and so had the node.
func TestAClockThatWasAheadHoldsUpNoChange(t *testing.T) {
	for state, ends := range map[string]string{network.Preparing: network.GivenUp, network.Rotated: network.Rotated, network.GivenUp: network.GivenUp} {
		w := keyed("node-1", "node-2")
		ahead := metav1.NewTime(w.Now.Add(1000 * time.Hour))
		one := w.of("node-1")
		one.Status.Runtime.KeySince = &ahead
		one.Spec.KeyRotation = &network.KeyRotation{State: state, Began: ahead, Since: ahead, From: "key-of-node-1"}
		w.until(t, "node-1", ends, "node-1", "node-2")
		if r := one.Spec.KeyRotation; r.Began.After(w.Now) || r.Since.After(w.Now) {
			t.Errorf("%s: %+v is to come", state, r)
		}
		w.Now = w.Now.Add(time.Minute)
		w.of("node-2").Annotations = map[string]string{network.RotateKey: "2127-01-31T12:00:00Z"}
		w.until(t, "node-2", network.Rotated)
		one.Annotations = map[string]string{network.RotateKey: "2127-01-31T12:00:00Z"}
		w.until(t, "node-1", network.Rotated)
	}
	// It steps back in the middle of a change, which is given up in time.
	w := keyed("node-1", "node-2")
	w.Now = w.Now.Add(2 * time.Hour)
	w.until(t, "node-1", network.Preparing, "node-1")
	w.Now = w.Now.Add(-time.Hour)
	began := w.Now
	w.until(t, "node-1", network.GivenUp, "node-1")
	if took := w.Now.Sub(began); took > keyPatience+2*time.Second {
		t.Errorf("it is given up after %v", took)
	}
}

// A node's clock that is a little ahead of the controller's makes no key old, however old the node is.
func TestAKeyOfAClockThatIsALittleAheadIsNew(t *testing.T) {
	w := keyed("node-1")
	one, ahead := w.of("node-1"), metav1.NewTime(w.Now.Add(2*time.Second))
	one.CreationTimestamp = metav1.NewTime(w.Now.Add(-60 * 24 * time.Hour))
	one.Status.Runtime.KeySince = &ahead
	if w.next(); one.Spec.KeyRotation != nil {
		t.Errorf("its key is changed: %+v", one.Spec.KeyRotation)
	}
}

// A clock that stays ahead keeps no node's key for ever: it has its turn as often as others, and no more.
func TestAKeyGrowsOldWhateverTheNodesClockSays(t *testing.T) {
	w := keyed("node-1", "node-2")
	ahead := func() {
		one, at := w.of("node-1"), metav1.NewTime(w.Now.Add(1000*time.Hour))
		one.Status.Runtime.KeySince = &at
	}
	one := w.of("node-1")
	one.CreationTimestamp = metav1.NewTime(w.Now)
	made := w.Now
	ahead()
	w.of("node-2").Status.Runtime.KeySince = nil
	var changed []time.Duration
	for range 3 {
		before := one.Status.Runtime.Key
		for one.Status.Runtime.Key == before {
			w.next()
			w.agents()
			ahead()
			if w.Now = w.Now.Add(time.Minute); w.Now.Sub(made) > 100*24*time.Hour {
				t.Fatalf("it has not changed its key since %v", changed)
			}
		}
		one.Status.Runtime.NextKey = ""
		changed = append(changed, w.Now.Sub(made))
	}
	for at, began := range append([]time.Duration{0}, changed[:2]...) {
		if age := changed[at] - began; age < w.KeyRotation || age > w.KeyRotation+time.Hour {
			t.Errorf("a key became %v old, and they become %v: it was changed after %v", age, w.KeyRotation, changed)
		}
	}
}

// One that claims that its key is old, and some that cannot make another one.
func TestNoNodeTakesTheTurnOfOthers(t *testing.T) {
	w := keyed("liar", "node-1", "node-2", "node-3", "node-4", "node-5", "node-6", "node-7", "node-8")
	for at, member := range w.Members[1:] {
		since := metav1.NewTime(w.Now.Add(time.Duration(at)*time.Minute - 25*time.Hour))
		member.Status.Runtime.KeySince = &since
	}
	old := metav1.NewTime(time.Unix(0, 0))
	rotations := 0
	for end := w.Now.Add(3 * time.Hour); w.Now.Before(end); w.Now = w.Now.Add(5 * time.Second) {
		w.of("liar").Status.Runtime.KeySince = &old
		for _, event := range w.next().Events {
			if event.Reason == reasonKeyStarted && event.About.(metav1.Object).GetName() == "liar" {
				rotations++
			}
		}
		w.agents()
		// Their key files cannot be written.
		for _, member := range w.Members[1:8] {
			member.Status.Runtime.NextKey, member.Status.KeyProblem = "", "cannot write"
		}
	}
	if rotations != 1 {
		t.Errorf("the liar had %d turns", rotations)
	}
	if last := w.of("node-8").Spec.KeyRotation; last == nil || last.State != network.Rotated {
		t.Errorf("the last one, which can, has had no turn: %+v", last)
	}
	if first := w.of("node-1").Spec.KeyRotation; first == nil || !first.GoesOn() && first.State != network.GivenUp || w.of("node-1").Status.Runtime.Key != "key-of-node-1" {
		t.Errorf("node-1: %+v", first)
	}
}

// It hears of the key when it is back.
func TestANodeThatIsAwayIsNotWaitedForAndSaidToTheNodeThatTakesItsKey(t *testing.T) {
	for what, away := range map[string]func(*World){
		"its machine": func(w *World) {
			w.Nodes["node-3"].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
		},
		"its runtime": func(w *World) {
			meta.SetStatusCondition(&w.of("node-3").Status.Conditions, metav1.Condition{Type: network.Ready, Status: metav1.ConditionFalse, Reason: "RuntimeAbsent"})
		},
	} {
		w := keyed("node-1", "node-2", "node-3")
		w.Now = w.Now.Add(70 * time.Minute)
		away(w)
		w.until(t, "node-1", network.Switching, "node-3")
		if without := w.of("node-1").Spec.KeyRotation.Without; len(without) != 1 || without[0] != "node-3" {
			t.Errorf("%s: without %q", what, without)
		}
		w.until(t, "node-1", network.Rotated, "node-3")
		if w.of("node-3").Spec.KeyRotation != nil {
			t.Errorf("%s is away, and it is to change its key", what)
		}
	}
}

func TestMoreNodesThanCanBeNamedAreWaitedFor(t *testing.T) {
	var names []string
	for at := range network.MostWithout + 2 {
		names = append(names, fmt.Sprintf("node-%03d", at))
	}
	w := keyed(names...)
	w.Now = w.Now.Add(65 * time.Minute)
	for _, name := range names[1:] {
		w.Nodes[name].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	}
	told := strings.Join(w.until(t, names[0], network.GivenUp, names[1:]...), "\n")
	if !strings.Contains(told, "nodes that are away, which are 65 and may be 64") {
		t.Errorf("told %q", told)
	}
}

func TestAChangeThatIsAskedForAndCannotBeginSaysWhy(t *testing.T) {
	for what, tc := range map[string]struct {
		breaks func(*World, *network.TaktNode)
		wanted string
	}{
		"nothing":  {func(*World, *network.TaktNode) {}, ""},
		"no key":   {func(_ *World, one *network.TaktNode) { one.Status.Runtime.Key = "" }, "no key that others know"},
		"no word":  {func(_ *World, one *network.TaktNode) { one.Status.Runtime = nil }, "not said anything"},
		"earlier":  {func(_ *World, one *network.TaktNode) { one.Status.Runtime.KeySince = nil }, "custom resources"},
		"address":  {func(_ *World, one *network.TaktNode) { one.Status.Runtime.Address = "2001:db8::1" }, "taktd's address is"},
		"no Node":  {func(w *World, _ *network.TaktNode) { delete(w.Nodes, "node-1") }, "no Node object"},
		"mistaken": {func(_ *World, one *network.TaktNode) { one.Annotations[network.RotateKey] = "now" }, `"now", which is no instant`},
		"absent": {func(_ *World, one *network.TaktNode) {
			meta.SetStatusCondition(&one.Status.Conditions, metav1.Condition{Type: network.Ready, Status: metav1.ConditionFalse, Reason: "RuntimeAbsent", Message: "taktd does not answer"})
		}, "taktd does not answer"},
	} {
		w := keyed("node-1", "node-2")
		one := w.of("node-1")
		one.Annotations = map[string]string{network.RotateKey: "2127-01-31T12:00:00.5Z"}
		tc.breaks(w, one)
		told := ""
		for _, event := range w.Make().Events {
			if event.Reason == reasonKeyWaits && event.Once && event.About == one {
				told += event.Message
			}
		}
		if (told == "") != (tc.wanted == "") || !strings.Contains(told, tc.wanted) {
			t.Errorf("%s: told %q", what, told)
		}
	}
}

func TestAnEarlierControllerThatLeadsForAMomentHasNoKeyChangedAgain(t *testing.T) {
	w := keyed("node-1", "node-2")
	one := w.of("node-1")
	one.Annotations = map[string]string{network.RotateKey: w.Now.UTC().Format(time.RFC3339)}
	w.Now = w.Now.Add(time.Second)
	w.until(t, "node-1", network.Rotated)
	one.Spec.KeyRotation = nil // it knows of none
	for range 100 {
		w.next()
		w.agents()
	}
	if one.Spec.KeyRotation != nil || one.Status.Runtime.Key != "next-of-node-1" {
		t.Errorf("it has %+v: %+v", one.Status.Runtime, one.Spec.KeyRotation)
	}
	one.Annotations[network.RotateKey] = w.Now.UTC().Format(time.RFC3339)
	w.until(t, "node-1", network.Rotated)
}

func TestThatAKeyOfBeforeIsStillTakenIsSaidAsLongAsItIs(t *testing.T) {
	w := keyed("node-1", "node-2")
	w.Now = w.Now.Add(65 * time.Minute)
	w.until(t, "node-1", network.Finishing)
	one := w.of("node-1")
	w.of("node-2").Status.NextKeys = []string{one.Spec.KeyRotation.To} // an operator's entry has both
	w.until(t, "node-1", network.Rotated, "node-2")
	for range 3 {
		w.next()
		if message := one.Spec.KeyRotation.Message; !strings.Contains(message, "still taken by node node-2") {
			t.Errorf("it says %q", message)
		}
	}
	w.of("node-2").Status.NextKeys = nil
	w.next()
	if r := one.Spec.KeyRotation; r.Message != "" || r.State != network.Rotated {
		t.Errorf("it says %+v", r)
	}
}

// Each write of a spec wakes the agents of all nodes.
func TestWhatAChangeWaitsForIsNotWrittenEachTimeThatItIsSaidInOtherWords(t *testing.T) {
	w := keyed("node-1", "node-2")
	w.Now = w.Now.Add(2 * time.Hour)
	w.until(t, "node-1", network.Preparing, "node-1")
	words, last := []string{}, ""
	for at := range 300 {
		w.of("node-1").Status.KeyProblem = fmt.Sprintf("problem %d", at)
		w.next()
		w.Now = w.Now.Add(time.Second)
		if now := w.of("node-1").Spec.KeyRotation.Message; now != last {
			words, last = append(words, now), now
		}
	}
	if len(words) < 2 || len(words) > 11 {
		t.Errorf("%d messages in 330 s: %q", len(words), words)
	}
}

// What follows is the same in whatever state the object says that it is: another controller may be an earlier one.
func TestWhatBecomesOfAChangeFollowsFromWhatTheNodeHas(t *testing.T) {
	for _, state := range []string{network.Preparing, network.Switching, network.Finishing} {
		for _, tc := range []struct{ key, next, wanted, message string }{
			{"from", "", network.Preparing, ""},
			{"from", "to", network.Switching, ""},
			{"from", "another", network.Switching, ""},
			{"to", "", network.Rotated, ""},
			{"other", "", network.Rotated, "somebody else has changed it"},
			{"", "", network.GivenUp, "no key any more"},
		} {
			w := keyed("node-1")
			one := w.of("node-1")
			one.Status.Runtime.Key, one.Status.Runtime.NextKey = tc.key, tc.next
			one.Spec.KeyRotation = &network.KeyRotation{State: state, Began: w.second(), Since: w.second(), From: "from", To: "to"}
			w.next()
			if r := one.Spec.KeyRotation; r.State != tc.wanted || !strings.Contains(r.Message, tc.message) || r.State == network.Switching && r.To != tc.next {
				t.Errorf("%s with %q, %q: %+v", state, tc.key, tc.next, r)
			}
		}
	}
}

func TestTheAPIServerKeepsWhatBecomesOfAKeyAndAnotherReplicaGoesOn(t *testing.T) {
	s := newSite(t, "node-1", "node-2")
	since := metav1.NewTime(time.Now().Truncate(time.Second))
	for _, name := range []string{"node-1", "node-2"} {
		s.says(name, func(status *network.TaktNodeStatus) { status.Runtime.KeySince = &since })
	}
	is := func(what string, holds func(*network.TaktNode) bool) {
		t.Helper()
		apitest.Until(t, what, func() bool { return holds(s.member("node-2")) })
		s.start() // another replica
	}
	in := func(state string) func(*network.TaktNode) bool {
		return func(n *network.TaktNode) bool { return n.Spec.KeyRotation != nil && n.Spec.KeyRotation.State == state }
	}
	if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now := s.member("node-2")
		now.Annotations = map[string]string{network.RotateKey: "2127-01-31T12:00:00Z"}
		_, err := s.client.Nodes.Update(ctx, now, metav1.UpdateOptions{})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	is("it begins", in(network.Preparing))
	s.says("node-2", func(status *network.TaktNodeStatus) { status.Runtime.NextKey = "next" })
	is("others are told", func(n *network.TaktNode) bool {
		return n.Spec.Peer != nil && n.Spec.Peer.NextKey == "next" && n.Spec.KeyRotation.To == "next"
	})
	if !in(network.Preparing)(s.member("node-2")) {
		t.Error("it is to take the key before the other one knows it")
	}
	s.says("node-1", func(status *network.TaktNodeStatus) { status.NextKeys = []string{"next"} })
	is("it is to take the key", in(network.Switching))
	s.says("node-2", func(status *network.TaktNodeStatus) { status.Runtime.Key, status.Runtime.NextKey = "next", "" })
	is("the other one is to take the key of before out", in(network.Finishing))
	s.says("node-1", func(status *network.TaktNodeStatus) { status.NextKeys = nil })
	is("it has ended", in(network.Rotated))
	if r := s.member("node-2").Spec.KeyRotation; r.From != "key-of-node-2" || r.To != "next" || r.Asked == nil {
		t.Errorf("it is %+v", r)
	}
	for _, reason := range []string{reasonKeyStarted, reasonKeyRotated} {
		apitest.Until(t, reason+" is told", func() bool { return s.events.have("node-2 Normal " + reason) })
	}
}
