package node

import (
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/containerd/nri/pkg/api"
	"golang.org/x/sys/unix"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/cni"
)

// allowed says whether a pod may use the networks that have attached it, as their TaktNetworks have it. A container whose
// pod may not gets no socket: without one, being attached is of no use to it.
func (n *Node) allowed(sandbox *api.PodSandbox, attached []string) error {
	if n.cluster == nil {
		return nil
	}
	for _, name := range attached {
		if err := n.cluster.allows(sandbox, name); err != nil {
			return err
		}
	}
	return nil
}

func (m *member) allows(sandbox *api.PodSandbox, ifName string) error {
	path := filepath.Join(m.n.config.Network.Sockets, sandbox.GetId(), ifName, cni.SocketName)
	m.mu.Lock()
	synced := m.synced
	m.mu.Unlock()
	if !synced {
		return errors.New("takt-node has not heard from the API server yet who may use which network: it will be tried again")
	}
	listener, err := m.listener(path)
	if err != nil {
		return err
	}
	found, there, _ := m.nets.GetStore().GetByKey(listener.GetEndpoint().GetNetwork())
	if !there {
		// The cluster says nothing of it: it is the node's own.
		return nil
	}
	wanted := found.(*network.TaktNetwork)
	allowed, excess := wanted.Spec.Allows(sandbox.GetNamespace(), listener.GetClasses())
	if !allowed {
		return refuse(codeNotAllowed, "namespace %s may not use network %s: add it to access of the TaktNetwork, or remove the pod's annotation %s", sandbox.GetNamespace(), wanted.Name, cni.Annotation)
	}
	if len(excess) > 0 {
		return refuse(codeNotAllowed, "namespace %s may not use classes %v of network %s: add them to access of the TaktNetwork, or take them out of takt-cni's configuration", sandbox.GetNamespace(), excess, wanted.Name)
	}
	return nil
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
