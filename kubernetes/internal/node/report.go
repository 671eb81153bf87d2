package node

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/cni"
	"github.com/takt-dev/takt/kubernetes/internal/quote"
	"github.com/takt-dev/takt/kubernetes/internal/report"
)

// serveReport answers report.Path.
func (n *Node) serveReport(w http.ResponseWriter, request *http.Request) {
	if status, err := n.viewers.admit(request.Context(), request); err != nil {
		http.Error(w, err.Error(), status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(n.podsNow(request.Context())); err != nil {
		klog.FromContext(request.Context()).Error(err, "Cannot tell of pods")
	}
}

// podsNow is what the agent knows of the node's pods.
func (n *Node) podsNow(ctx context.Context) report.Node {
	told := report.Node{Node: n.name, Reserved: n.reserved()}
	if n.config.Network != nil {
		attached, sockets, err := n.attached(ctx)
		told.Networks = &report.Networks{Attached: attached, Waiting: n.gates.waiting(sockets)}
		if err != nil {
			told.Networks.Problem = quote.Text(quote.Plain(err))
		}
	}
	return told
}

// attached are the pods that taktd knows by a socket of takt-cni, and these.
func (n *Node) attached(ctx context.Context) ([]report.Attached, map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askTaktd)
	defer cancel()
	d, disconnect, err := n.networks()
	if err != nil {
		return []report.Attached{}, nil, err
	}
	defer disconnect()
	all, err := d.admin.ListListeners(ctx, &adminv1.ListListenersRequest{})
	if err != nil {
		return []report.Attached{}, nil, err
	}
	schedules, err := d.admin.ListSchedules(ctx, &adminv1.ListSchedulesRequest{})
	if err != nil {
		return []report.Attached{}, nil, err
	}
	links, now := n.schedules(schedules), time.Now()
	found, sockets := []report.Attached{}, map[string]bool{}
	for _, status := range all.GetListeners() {
		listener := status.GetListener()
		if !strings.HasPrefix(listener.GetPath(), filepath.Clean(n.config.Network.Sockets)+"/") || strings.HasPrefix(listener.GetPath(), n.gates.claimsDirectory()+"/") {
			continue
		}
		one := report.Attached{
			Network: listener.GetEndpoint().GetNetwork(), Addresses: listener.GetEndpoint().GetAddresses(), Classes: listener.GetClasses(), Schedules: links,
			Untold: n.cluster.untold(listener.GetEndpoint()), Programs: status.GetSessions(), Counts: countsOf(status),
		}
		one.Recent = n.lately.since(now, listener.GetPath(), one.Counts)
		one.Namespace, one.Pod, one.Interface = cni.Named(cni.Whole(filepath.Dir(listener.GetPath()), listener.GetIdentity()))
		_, unserved := n.cluster.unserved(one.Network)
		one.Unserved = quote.Text(unserved)
		one.Note = n.cluster.tooLong(one.Interface, listener.GetEndpoint())
		sockets[listener.GetPath()] = true
		one.GateTime = n.gates.at(listener.GetPath())
		if veth := n.veths.at(listener.GetPath()); veth != nil {
			one.Veth = veth.state()
			if one.Veth.Taking && one.Programs > 0 {
				// Its own session is no program of the pod's.
				one.Programs--
			}
		}
		found = append(found, one)
	}
	slices.SortFunc(found, func(a, b report.Attached) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Interface, b.Interface))
	})
	return found, sockets, nil
}

// schedules are those of the node's links, that which runs before that which will.
func (n *Node) schedules(all *adminv1.ListSchedulesResponse) (found []report.Schedule) {
	for _, link := range all.GetLinks() {
		for _, one := range []*adminv1.GateSchedule{link.GetOperational(), link.GetPending()} {
			if one == nil {
				continue
			}
			schedule := report.Schedule{
				Datapath: link.GetDatapath(), Name: n.cluster.scheduleAt(link.GetDatapath(), one.GetBaseTimeNs()),
				Running: one == link.GetOperational(), Cycle: reservation.Duration(one.GetCycleTimeNs()).String(),
			}
			if schedule.Running {
				schedule.OtherTraffic, schedule.OtherTrafficProblem = link.GetOtherTrafficBy(), link.GetOtherTrafficProblem()
			}
			found = append(found, schedule)
		}
	}
	return found
}

// reserved are the containers that run with reservations.
func (n *Node) reserved() []report.Reserved {
	found := []report.Reserved{}
	for _, c := range n.runningContainers() {
		c.mu.Lock()
		for i, grant := range c.grants {
			one := report.Reserved{
				Pod: c.pod.Name, Namespace: c.pod.Namespace, Container: c.name, Cores: grant.Cores,
				Runtime: grant.Parameters.Runtime.String(), Period: grant.Parameters.Period.String(),
			}
			if i < len(c.tallies) {
				one.Threads = len(c.tallies[i].state.Threads)
			}
			if uid, request, err := parseKey(grant.Key); err == nil {
				one.Request = request
				n.mu.Lock()
				if claim := n.claims[uid]; claim != nil {
					one.Claim = claim.Name
				}
				n.mu.Unlock()
			}
			found = append(found, one)
		}
		c.mu.Unlock()
	}
	slices.SortFunc(found, func(a, b report.Reserved) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container), cmp.Compare(a.Request, b.Request))
	})
	return found
}
