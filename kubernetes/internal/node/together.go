package node

import (
	"context"
	"errors"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
)

// A pod has CPU and network time or neither. Where one of its claims is refused, those that are prepared and that no
// container of it has yet are given back: the kubelet, which asks for the claims of a pod driver by driver, counts none of
// them as prepared until all are, and asks for all again.

// undoing are the pods that a driver has refused a claim of.
type undoing struct {
	n *Node
	// driver has refused them.
	driver  string
	refused []refused
}

type refused struct {
	pod   Pod
	claim *resourceapi.ResourceClaim
	why   error
}

// add notes whose claim was refused. Of one that several pods share nobody knows which of them asks: what the others hold may be
// all that they need.
func (u *undoing) add(pods []Pod, claim *resourceapi.ResourceClaim, why error) {
	if len(pods) == 1 {
		u.refused = append(u.refused, refused{pods[0], claim, why})
	}
}

// done gives back what they hold, when all of their claims have been looked at.
func (u *undoing) done(ctx context.Context) {
	if u.n.gates == nil {
		return // there is CPU time alone
	}
	for _, r := range u.refused {
		if err := u.n.giveBack(ctx, r, u.driver); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot give back what a refused pod holds", "pod", klog.KRef(r.pod.Namespace, r.pod.Name))
			u.n.metrics.failed(atUnprepare)
		}
	}
}

func (n *Node) giveBack(ctx context.Context, r refused, driver string) error {
	code, _ := coded(r.why)
	because := refuse(codeTogether, "claim %s of pod %s was refused (%s), and a pod gets all of its claims or none: they are tried again together", r.claim.Name, r.pod.Name, code)
	// What was refused has been told why; a claim may be of both drivers.
	told := func(claim types.UID, by string) bool { return claim == r.claim.UID && by == driver }
	var mistakes []error
	held := n.gates.all(r.pod.UID)
	var there listeners
	var silent error
	if slices.ContainsFunc(held, func(c *gateClaim) bool { return c.Place != "" }) {
		bounded, cancel := context.WithTimeout(ctx, askTaktd)
		there, silent = n.gates.listeners(bounded)
		cancel()
	}
	for _, c := range held {
		if c.Place != "" && (silent != nil || there[c.Place] != nil) {
			continue // its sandbox is there: all of the pod's claims had been prepared
		}
		if err := n.gates.release(ctx, c.Claim); err != nil {
			mistakes = append(mistakes, err)
			continue
		}
		n.gates.refuse(c, c.consumed(), because)
		if !told(c.Claim, reservation.NetworkDriver) {
			n.status.put(claimStatus{record: c.record(), gates: c.Requests, condition: denied(reasonGateRefused, because)})
		}
	}
	for _, record := range n.unheld(r.pod.UID) {
		if err := n.unprepare(ctx, record.Claim); err != nil {
			mistakes = append(mistakes, err)
		} else if !told(record.Claim, reservation.Driver) {
			n.status.set(record, denied(reasonRefused, because), nil)
		}
	}
	return errors.Join(mistakes...)
}

// unheld are the prepared claims for CPU time that are a pod's alone and that no container has.
func (n *Node) unheld(pod types.UID) (found []*Record) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for uid, claim := range n.claims {
		held := slices.ContainsFunc(claim.Requests, func(r Request) bool { return n.holders[key(uid, r.Name)] != nil })
		if !held && len(claim.Pods) == 1 && claim.Pods[0].UID == pod {
			found = append(found, claim.Record)
		}
	}
	return found
}
