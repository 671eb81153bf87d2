package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/objects"
)

// enoughAttempts is how often a peer is asked in vain before it counts as one that does not answer.
const enoughAttempts = 10

// mostNextKeys is how many keys a status has room for: one node after the other changes its own.
const mostNextKeys = 16

// rotated is what taktd says of itself, after it has made or taken its next key if that is to be done. An error means that it does
// not answer.
func (m *member) rotated(ctx context.Context, self *network.TaktNode) (*adminv1.GetStatusResponse, error) {
	said, err := m.admin.GetStatus(ctx, &adminv1.GetStatusRequest{})
	if err != nil {
		return nil, err
	}
	self.Status.KeyProblem = ""
	done, err := m.rotate(ctx, self, said.GetNode())
	switch {
	case err != nil && away(err):
		return nil, err
	case err != nil:
		self.Status.KeyProblem = shortened(err.Error())
	case done:
		return m.admin.GetStatus(ctx, &adminv1.GetStatusRequest{})
	}
	return said, nil
}

// rotate has taktd make its next key or take it, as the node's TaktNode says, and whether it has. Either may be asked for again
// after anything: there is one next key at a time, and it is the node's once.
func (m *member) rotate(ctx context.Context, self *network.TaktNode, has *adminv1.Node) (bool, error) {
	rotation := self.Spec.KeyRotation
	if !m.n.config.Network.Peers || !rotation.GoesOn() || has.GetKey() != rotation.From {
		return false, nil
	}
	switch {
	case rotation.State == network.Preparing && has.GetNextKey() == "":
		_, err := m.admin.NextKey(ctx, &adminv1.NextKeyRequest{})
		return true, err
	case rotation.State == network.Switching && has.GetNextKey() == rotation.To && self.Spec.Peer != nil && self.Spec.Peer.NextKey == rotation.To:
		if err := m.allKnow(ctx, rotation); err != nil {
			return false, err
		}
		_, err := m.admin.SwitchKey(ctx, &adminv1.SwitchKeyRequest{Key: rotation.To})
		return true, err
	}
	return false, nil
}

// allKnow is why a runtime that answers might lose the node when that takes its next key: the controller has found its node away, or
// it is no node's, which is not to be lost while it is away either. What the controller finds comes by the API server, and what counts here is whether the two have channels.
func (m *member) allKnow(ctx context.Context, rotation *network.KeyRotation) error {
	all, err := m.admin.ListPeers(ctx, &adminv1.ListPeersRequest{})
	if err != nil {
		return err
	}
	// The same one is named at each look.
	slices.SortFunc(all.Peers, func(a, b *adminv1.Peer) int { return strings.Compare(a.GetAddress(), b.GetAddress()) })
	tried := map[string]uint64{}
	for _, peer := range all.GetPeers() {
		if peer.GetState() != adminv1.PeerState_PEER_STATE_UP {
			tried[peer.GetAddress()] = peer.GetAttempts()
		}
	}
	nodes := map[string]bool{}
	members := objects.All[*network.TaktNode](m.nodes)
	slices.SortFunc(members, func(a, b *network.TaktNode) int { return strings.Compare(a.Name, b.Name) })
	for _, node := range members {
		if node.Spec.Peer == nil {
			continue
		}
		address := node.Spec.Peer.Address
		nodes[address] = true
		// A taktd that was started again may not have asked it yet.
		if slices.Contains(rotation.Without, node.Name) && tried[address] < enoughAttempts {
			return fmt.Errorf("node %s has not said that it knows the next key, and answers as a peer, or may: see whether its kubelet and its takt-node reach the API server", node.Name)
		}
	}
	for _, peer := range all.GetPeers() {
		answers := peer.GetState() == adminv1.PeerState_PEER_STATE_UP && peer.GetAuthentication() == adminv1.Authentication_AUTHENTICATION_NODE
		if nodes[peer.GetAddress()] || !answers && (!peer.GetConfigured() || peer.GetKey() == "") {
			continue
		}
		how := "answers"
		if !answers {
			how = "does not answer now"
		}
		return fmt.Errorf("peer %s %s and is no node of this cluster: nobody here knows whether it lists the next key, %s: have it list that as next_key of this node, then run `takt key rotate --switch` here, and have it list that key alone; or take it out here (`takt peer remove %s`, and of taktd's configuration) if it is gone",
			peer.GetAddress(), how, rotation.To, peer.GetAddress())
	}
	return nil
}

// keySince is since when the runtime is seen with its key; nothing if it has none. An instant that has yet to come is of a clock that
// was ahead.
func keySince(before, runtime *network.Runtime, now time.Time) *metav1.Time {
	if runtime.Key == "" {
		return nil
	}
	if before != nil && before.Key == runtime.Key && before.KeySince != nil && !before.KeySince.After(now) {
		return before.KeySince
	}
	since := metav1.NewTime(now.Truncate(time.Second))
	return &since
}

// nextKeys are the keys that nodes whose keys are being changed may use here beside another one. By them the controller knows who may
// take its next key, and whose key of before is taken by nobody any more.
func (m *member) nextKeys(present map[string]*adminv1.Peer) (found []string) {
	for _, node := range objects.All[*network.TaktNode](m.nodes) {
		rotation := node.Spec.KeyRotation
		// One that has ended with a message may be one whose key of before is still taken.
		asks := rotation.GoesOn() || rotation != nil && rotation.State == network.Rotated && rotation.Message != ""
		if node.Name == m.n.name || node.Spec.Peer == nil || !asks || rotation.To == "" {
			continue
		}
		keys := []string{present[node.Spec.Peer.Address].GetKey(), present[node.Spec.Peer.Address].GetNextKey()}
		if slices.Contains(keys, rotation.To) && !slices.Contains(keys, "") && !slices.Contains(found, rotation.To) {
			found = append(found, rotation.To)
		}
	}
	slices.Sort(found)
	return found[:min(len(found), mostNextKeys)]
}

// sayKey has the condition say what the spec does: the controller writes no status of a node.
func sayKey(self *network.TaktNode) {
	rotation := self.Spec.KeyRotation
	if rotation == nil {
		meta.RemoveStatusCondition(&self.Status.Conditions, network.KeyCurrent)
		return
	}
	is := metav1.Condition{Type: network.KeyCurrent, Status: metav1.ConditionFalse, Reason: rotation.State, Message: rotation.Message, ObservedGeneration: self.Generation}
	switch began := rotation.Began.UTC().Format(time.RFC3339); {
	case rotation.State == network.Rotated:
		is.Status = metav1.ConditionTrue
		is.Message = strings.TrimSuffix("the key was changed at "+rotation.Since.UTC().Format(time.RFC3339)+": "+is.Message, ": ")
	case rotation.GoesOn():
		is.Message = strings.TrimSuffix("the key is being changed since "+began+": "+is.Message, ": ")
	}
	is.Message = shortened(is.Message)
	meta.SetStatusCondition(&self.Status.Conditions, is)
}
