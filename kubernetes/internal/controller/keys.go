package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/quote"
)

const (
	// DefaultKeyRotation is how old nodes' keys become. Those of datagrams follow from them by handshakes and are replaced every ten
	// minutes; how long a private key that was copied is of use is what this bounds, and an hour's work of the cluster in a month costs
	// nothing.
	DefaultKeyRotation = 30 * 24 * time.Hour
	// MinKeyRotation is the least: a node answers to its key of before for 11 minutes.
	MinKeyRotation = time.Hour
	// keyPatience is how long the change of a node's key may take: an agent is away for less while it is upgraded.
	keyPatience = 10 * time.Minute
	// keyRetry is when a change that was given up is begun again.
	keyRetry = time.Hour
	// keyQuiet is how long something is waited for before it is said.
	keyQuiet = 30 * time.Second
	// mostAwaited is how many nodes a message names.
	mostAwaited = 3
)

// Events of a TaktNode.
const (
	reasonKeyStarted = "KeyRotationStarted"
	reasonKeyWaits   = "KeyRotationWaits"
	reasonKeyRotated = "KeyRotated"
	reasonKeyGivenUp = "KeyRotationGivenUp"
)

// planKeys has nodes change their keys, one after the other. At any time the others take the key that a node has: they are told of
// what it says that it has or is going to have, and it takes its next key when all that may have channels with it have said that they
// know it. Whoever ends at whatever time, what was written is where it goes on; and a change that is given up leaves the next key
// with the node and with the others, for the next one.
func (w *World) planKeys(p *Plan, specs map[string]*network.TaktNodeSpec) {
	ended, busy := time.Time{}, false
	for _, member := range w.Members {
		spec := specs[member.Name]
		had := member.Spec.KeyRotation
		if had == nil {
			continue
		}
		now := had.DeepCopy()
		now.Began, now.Since = w.past(now.Began), w.past(now.Since)
		w.goOn(member, spec, now)
		if now.State != had.State {
			now.Since = w.second()
		}
		if !now.GoesOn() {
			now.Without = nil
			ended = latest(ended, now.Since.Time)
		}
		busy = busy || had.GoesOn() // until its end is written
		w.calm(member.Name, had, now)
		spec.KeyRotation = now
		p.tellKey(member, had, now)
	}
	for _, member := range w.Members {
		asked, err := member.KeyAsked()
		switch fixed := w.fixed(member, specs[member.Name]); {
		case err != nil:
			p.Events = append(p.Events, Event{About: member, Warning: true, Once: true, Reason: reasonKeyWaits, Message: "no other key is asked for: " + err.Error()})
		case asked != nil && fixed != "":
			p.Events = append(p.Events, Event{About: member, Warning: true, Once: true, Reason: reasonKeyWaits, Message: "another key was asked for, and the change cannot begin: " + fixed})
		}
	}
	// All nodes hear of each change, and have to be told of others as well.
	if busy || w.Now.Sub(ended) < time.Duration(len(w.Members))*eachNode {
		return
	}
	var due []*network.TaktNode
	for _, member := range w.Members {
		if w.due(member, specs[member.Name]) != "" {
			due = append(due, member)
		}
	}
	if len(due) == 0 {
		return
	}
	next := slices.MinFunc(due, func(a, b *network.TaktNode) int {
		return cmp.Or(w.turn(a)-w.turn(b), w.keySince(a).Compare(w.keySince(b)), cmp.Compare(a.Name, b.Name))
	})
	why, spec := w.due(next, specs[next.Name]), specs[next.Name]
	asked, _ := next.RotateKeyAt()
	// A key that was made before may be known to whom the present one is: it is asked for as long as the node has no fresh one.
	if w.asks(next) != "" && next.Status.Runtime.NextKey != "" {
		asked, why = nil, why+", first to the next key that is there already, then to a fresh one"
	}
	spec.KeyRotation = &network.KeyRotation{State: network.Preparing, Began: w.second(), Since: w.second(), Asked: asked, From: next.Status.Runtime.Key}
	p.Events = append(p.Events, Event{About: next, Reason: reasonKeyStarted, Message: "the node's key is being changed: " + why})
}

// turn is 0 of a node that is asked for, 2 of one whose last change was given up: those that fail for ever take no other's turn.
func (w *World) turn(member *network.TaktNode) int {
	switch had := member.Spec.KeyRotation; {
	case w.asks(member) != "" && !member.KeyTried():
		return 0
	case had != nil && had.State == network.GivenUp:
		return 2
	}
	return 1
}

// past is an instant that was written by a clock that may have been ahead of this one: it is not waited for.
func (w *World) past(at metav1.Time) metav1.Time {
	if at.After(w.Now) {
		return w.second()
	}
	return at
}

// keySince is since when a node is seen with its key, as its clock said. A clock that was ahead by less than keys become old is waited for:
// the key counts as new. By more, it may be for ever: then the key counts as old as the node's object is, or as what became of its last change.
func (w *World) keySince(member *network.TaktNode) time.Time {
	since := member.Status.Runtime.KeySince.Time
	if !since.After(w.Now) {
		return since
	}
	if since.Sub(w.Now) <= w.KeyRotation {
		return w.Now
	}
	since = w.past(member.CreationTimestamp).Time
	if had := member.Spec.KeyRotation; had != nil {
		since = latest(since, w.past(had.Since).Time)
	}
	return since
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// second is the time as the API server keeps it.
func (w *World) second() metav1.Time { return metav1.NewTime(w.Now.Truncate(time.Second)) }

// asks says that the annotation asks for a change that has not begun; empty: it does not.
func (w *World) asks(member *network.TaktNode) string {
	at, _ := member.KeyAsked()
	if at == nil {
		return ""
	}
	return "it was asked for at " + at.UTC().Format(time.RFC3339)
}

// fixed is why the change of a node's key cannot begin, with what to do; empty: it can.
func (w *World) fixed(member *network.TaktNode, spec *network.TaktNodeSpec) string {
	if why := cmp.Or(member.KeyFixed(), w.absence(member)); why != "" || spec.Peer != nil {
		return why
	}
	return cmp.Or(spec.PeerProblem, "it has no Node object, or says no port of its taktd")
}

// due is why a node's key is to be changed; empty if it is not, or cannot be now.
func (w *World) due(member *network.TaktNode, spec *network.TaktNodeSpec) string {
	runtime, had := member.Status.Runtime, spec.KeyRotation
	if had.GoesOn() || w.fixed(member, spec) != "" {
		return ""
	}
	if why := w.asks(member); why != "" {
		if member.KeyTried() && w.Now.Sub(w.past(had.Since).Time) < keyRetry {
			return ""
		}
		return why
	}
	if w.KeyRotation <= 0 || w.Now.Sub(w.keySince(member)) < w.KeyRotation {
		return ""
	}
	// Whatever a node says of its key's age, it has its turn as often as the others.
	pause := w.KeyRotation
	if had != nil && had.State == network.GivenUp {
		pause = min(pause, keyRetry)
	}
	if had != nil && w.Now.Sub(w.past(had.Since).Time) < pause {
		return ""
	}
	return fmt.Sprintf("it has been the same since %s, and keys become %v old", runtime.KeySince.UTC().Format(time.RFC3339), w.KeyRotation)
}

// goOn is the next state of a change, by what the nodes have said.
func (w *World) goOn(member *network.TaktNode, spec *network.TaktNodeSpec, r *network.KeyRotation) {
	key := ""
	if member.Status.Runtime != nil {
		key = member.Status.Runtime.Key
	}
	over := w.Now.Sub(r.Began.Time) >= keyPatience
	switch {
	case r.State == network.Rotated:
		// What has been mended meanwhile is said no more.
		if r.Message != "" && key == r.To {
			r.Message = ""
			if awaited := w.keepers(member, r); len(awaited) > 0 {
				r.Message = stillTaken(awaited)
			}
		} else if r.Message != "" && key != "" {
			r.Message = anotherKey
		}
	case r.State == network.GivenUp:
		// It was told to take the key, and has said so too late.
		if key != "" && key == r.To {
			r.State, r.Message = network.Rotated, ""
		}
	case key == "":
		r.State, r.Message = network.GivenUp, "the node has no key any more"
	case key == r.To:
		r.State, r.Message = network.Rotated, ""
		awaited := w.keepers(member, r)
		switch {
		case len(awaited) > 0 && over:
			r.Message = stillTaken(awaited)
		case len(awaited) > 0:
			r.State = network.Finishing
			w.wait(r, nodesText(awaited)+" to take the key of before no more: see its condition Ready")
		}
	case key != r.From:
		r.State, r.Message = network.Rotated, anotherKey
	default:
		w.prepare(member, spec, r)
		if over {
			r.State, r.Message = network.GivenUp, "the key stays as it was, "+cmp.Or(strings.TrimSuffix(r.Message, "."), "the change took too long")
		}
	}
}

const anotherKey = "the node has another key than was to follow: somebody else has changed it"

func stillTaken(by []string) string {
	return network.StillTaken + nodesText(by) + ": see its condition Ready"
}

// keepers are the nodes that are there and take the key of before beside the one that has followed.
func (w *World) keepers(member *network.TaktNode, r *network.KeyRotation) []string {
	return w.await(member, func(other *network.TaktNode) bool { return !slices.Contains(other.Status.NextKeys, r.To) })
}

// prepare is a change whose node has the key of before.
func (w *World) prepare(member *network.TaktNode, spec *network.TaktNodeSpec, r *network.KeyRotation) {
	r.State, r.To, r.Without = network.Preparing, member.Status.Runtime.NextKey, nil
	problem := cmp.Or(member.Status.KeyProblem, w.absence(member))
	switch {
	case spec.Peer == nil:
		w.wait(r, "an address: "+spec.PeerProblem)
		return
	case r.To == "":
		w.wait(r, "the node's next key: "+cmp.Or(problem, "see its takt-node"))
		return
	}
	knows := func(other *network.TaktNode) bool { return slices.Contains(other.Status.NextKeys, r.To) }
	if awaited := w.await(member, knows); len(awaited) > 0 {
		w.wait(r, nodesText(awaited)+" to know the node's next key: see its condition Ready, and whether takt-node runs there and is as new as the controller")
		return
	}
	var away []string
	for _, other := range w.Members {
		if other.Name != member.Name && hasKey(other) && !knows(other) {
			away = append(away, other.Name)
		}
	}
	if len(away) > network.MostWithout {
		w.wait(r, fmt.Sprintf("nodes that are away, which are %d and may be %d", len(away), network.MostWithout))
		return
	}
	r.State, r.Without = network.Switching, away
	w.wait(r, "the node to take its next key: "+cmp.Or(problem, "see its takt-node"))
}

// wait says what a change waits for, if that lasts.
func (w *World) wait(r *network.KeyRotation, what string) {
	r.Message = ""
	if w.Now.Sub(r.Began.Time) >= keyQuiet {
		r.Message = quote.Text("it waits for " + what)
	}
}

// calm has a message of a state last for keyQuiet: all nodes are woken by each one.
func (w *World) calm(node string, had, now *network.KeyRotation) {
	if now.Message == had.Message {
		return
	}
	ago, is := w.Now.Sub(w.Worded[node]), !w.Worded[node].IsZero()
	if now.State == had.State && had.Message != "" && now.Message != "" && is && ago >= 0 && ago < keyQuiet {
		now.Message = had.Message
		return
	}
	if w.Worded == nil {
		w.Worded = map[string]time.Time{}
	}
	w.Worded[node] = w.Now
}

// hasKey says whether a node may have channels with others by their keys.
func hasKey(member *network.TaktNode) bool {
	return member.Status.Runtime != nil && member.Status.Runtime.Key != ""
}

// await are the nodes that are there, beside this one, and of which something does not hold yet. One that is away hears of it when it
// is back.
func (w *World) await(member *network.TaktNode, holds func(*network.TaktNode) bool) (awaited []string) {
	for _, other := range w.Members {
		ready := meta.FindStatusCondition(other.Status.Conditions, network.Ready)
		absent := ready != nil && ready.Status != metav1.ConditionTrue && ready.Reason == "RuntimeAbsent"
		if other.Name != member.Name && hasKey(other) && !absent && w.Nodes[other.Name] != nil && w.silent(other.Name) == "" && !holds(other) {
			awaited = append(awaited, other.Name)
		}
	}
	return awaited
}

// nodesText names nodes.
func nodesText(nodes []string) string {
	named := strings.Join(nodes[:min(len(nodes), mostAwaited)], ", ")
	switch more := len(nodes) - mostAwaited; {
	case len(nodes) == 1:
		return "node " + named
	case more > 0:
		return fmt.Sprintf("nodes %s and %d more", named, more)
	}
	return "nodes " + named
}

// tellKey tells what has changed.
func (p *Plan) tellKey(about *network.TaktNode, had, now *network.KeyRotation) {
	tell := func(warning bool, reason, message string) {
		p.Events = append(p.Events, Event{About: about, Warning: warning, Reason: reason, Message: message})
	}
	switch {
	case equality.Semantic.DeepEqual(had, now):
	case now.State == network.Rotated && had.State != now.State:
		tell(now.Message != "", reasonKeyRotated, strings.TrimSuffix("the node has another key: "+now.Message, ": "))
	case now.State == network.GivenUp && had.State != now.State:
		tell(true, reasonKeyGivenUp, now.Message)
	case now.Message != "" && now.Message != had.Message:
		tell(true, reasonKeyWaits, now.Message)
	}
}
