package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/nri/pkg/api"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/cni"
)

// reasonClasses: a pod has fewer classes than its attachment gives.
const reasonClasses = "ClassesNarrowed"

// allowed says whether a pod may use the networks that have attached it, as their TaktNetworks have it. A container whose
// pod may not gets no socket: without one, being attached is of no use to it.
func (n *Node) allowed(ctx context.Context, sandbox *api.PodSandbox, attached []string) error {
	if n.cluster == nil {
		return nil
	}
	if _, is := n.served.Load(sandbox.GetId()); is {
		return nil // what has changed since is for pods that start from then on
	}
	for _, name := range attached {
		if err := n.cluster.allows(ctx, sandbox, name); err != nil {
			return err
		}
	}
	return nil
}

func (m *member) allows(ctx context.Context, sandbox *api.PodSandbox, ifName string) error {
	path := filepath.Join(m.n.config.Network.Sockets, sandbox.GetId(), ifName, cni.SocketName)
	m.mu.Lock()
	synced := m.synced
	m.mu.Unlock()
	if !synced {
		return errors.New("takt-node has not heard from the API server yet who may use which network: it will be tried again")
	}
	listener, err := m.listener(ctx, path)
	if err != nil {
		return err
	}
	name := listener.GetEndpoint().GetNetwork()
	found, there, _ := m.nets.GetStore().GetByKey(name)
	if !there {
		if m.n.config.Network.Unlisted == AllowUnlisted {
			return nil
		}
		// It may have been deleted, and was for some alone: nobody knows any more for whom.
		return refuse(codeNotAllowed, "there is no TaktNetwork %s that says who may use it: create one, correct the network of takt-cni's configuration, or write network.unlisted: allow", name)
	}
	wanted := found.(*network.TaktNetwork)
	allowed, excess := wanted.Spec.Allows(sandbox.GetNamespace(), listener.GetClasses())
	if !allowed {
		return refuse(codeNotAllowed, "namespace %s may not use network %s: add it to access of the TaktNetwork, or remove the pod's annotation %s", sandbox.GetNamespace(), wanted.Name, cni.Annotation)
	}
	if problem := m.tooLong(ifName, listener.GetEndpoint()); problem != "" {
		m.n.event(podOf(sandbox), corev1.EventTypeWarning, network.MTUTooLarge, "%s", problem)
	}
	if len(excess) == 0 {
		return nil
	}
	narrowed := proto.Clone(listener).(*adminv1.Listener)
	narrowed.Classes = slices.DeleteFunc(narrowed.Classes, func(class uint32) bool { return slices.Contains(excess, class) })
	if len(narrowed.GetClasses()) == 0 {
		return refuse(codeNotAllowed, "namespace %s may not use classes %v of network %s, and takt-cni's configuration gives no others: add them to access of the TaktNetwork, or others to the configuration", sandbox.GetNamespace(), excess, wanted.Name)
	}
	// No container of the pod has the socket yet.
	if _, err := m.admin.SetListener(ctx, &adminv1.SetListenerRequest{Listener: narrowed, Keep: true}); err != nil {
		return fmt.Errorf("taktd does not take classes %v from the pod, which its namespace may not use: %w", excess, err)
	}
	m.mu.Lock()
	if m.listeners[path] != nil {
		m.listeners[path] = narrowed
	}
	m.mu.Unlock()
	m.n.event(podOf(sandbox), corev1.EventTypeNormal, reasonClasses, "the pod has classes %v of network %s: its namespace may not use %v (access of the TaktNetwork)", narrowed.GetClasses(), wanted.Name, excess)
	return nil
}

// classesOf are the traffic classes of a network that pods of some namespace may use, with commas between. Without objects nothing is
// narrowed.
func (m *member) classesOf(name string) string {
	may := func(uint32) bool { return true }
	if m != nil {
		if found, there, _ := m.nets.GetStore().GetByKey(name); there {
			may = found.(*network.TaktNetwork).Spec.Offers
		} else if m.n.config.Network.Unlisted != AllowUnlisted {
			may = func(uint32) bool { return false }
		}
	}
	var classes []string
	for class := range uint32(8) {
		if may(class) {
			classes = append(classes, strconv.Itoa(int(class)))
		}
	}
	return strings.Join(classes, ",")
}

// missingBelow says that a path is not there below a root, whose links are followed as from there.
func missingBelow(root, path string) bool {
	directory, err := unix.Open(root, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(directory)
	file, err := unix.Openat2(directory, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err == nil {
		unix.Close(file)
	}
	return errors.Is(err, fs.ErrNotExist)
}
