package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/cni"
)

// uninstallAgain is the pause before it is looked again whether what stands in the way has gone.
const uninstallAgain = 2 * time.Second

// Uninstall takes away from the node what agents have brought and entered, says on /readyz when nothing is left, and waits
// for the context to end: a DaemonSet runs it again otherwise.
func (n *Node) Uninstall(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	var serving sync.WaitGroup
	defer serving.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	left := errors.New("not done yet")
	if n.config.Listen != "" {
		mux := http.NewServeMux()
		mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
		mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			if left != nil {
				http.Error(w, left.Error(), http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "nothing is left")
		})
		server, err := listenHTTP(n.config.Listen, mux)
		if err != nil {
			return err
		}
		serving.Go(func() { server.serve(ctx) })
	}
	for {
		err := n.uninstall(ctx)
		mu.Lock()
		left = err
		mu.Unlock()
		again := time.After(uninstallAgain)
		if err == nil {
			logger.Info("Nothing is left on the node: the release can be uninstalled")
			again = nil
		} else {
			logger.Error(err, "Something is in the way: trying again")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-again:
		}
	}
}

// uninstall does it once. It begins with nothing that pods which are still there would need.
func (n *Node) uninstall(ctx context.Context) error {
	found, err := n.records.load()
	if err != nil {
		return err
	}
	var pods []string
	for _, record := range found {
		for _, pod := range record.Pods {
			pods = append(pods, pod.Namespace+"/"+pod.Name)
		}
	}
	gates, _, err := n.records.loadGates()
	if err != nil {
		return err
	}
	for _, c := range gates {
		pods = append(pods, c.Pod.Namespace+"/"+c.Pod.Name)
	}
	if len(pods) > 0 {
		return fmt.Errorf("pods with claims for CPU time or gate time are on the node, and the kubelet could not end them without the agent: delete %s", strings.Join(pods, ", "))
	}
	if used := n.configured(); n.config.Network != nil && used != "" {
		return fmt.Errorf("%s names takt-cni, without which no pod of the node could start: take it out there first", used)
	}
	attached, err := n.stillAttached(ctx)
	if err != nil {
		return err
	}
	if len(attached) > 0 {
		return fmt.Errorf("pods are attached by takt-cni, and could not be ended without it: delete %s; if a pod has gone already, remove its directory below %s",
			strings.Join(attached, ", "), n.config.Network.Sockets)
	}
	mistakes := []error{remove(networkCDIFile(n.config.CDIDirectory), n.config.Gate)}
	if n.config.Network != nil {
		n.veths.keep(ctx, nil)
		mistakes = append(mistakes, n.removeVethGroups(), n.leaveTaktd(ctx), remove(filepath.Join(n.config.Network.Plugins, "takt-cni"), n.config.Network.Sockets))
	}
	if err := errors.Join(mistakes...); err != nil {
		// The note of what was entered is still needed.
		return err
	}
	entries, err := os.ReadDir(n.config.RunDirectory)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot see what the agent has left: %w", err)
	}
	var rest []string
	for _, entry := range entries {
		rest = append(rest, filepath.Join(n.config.RunDirectory, entry.Name()))
	}
	for _, driver := range []string{reservation.Driver, reservation.NetworkDriver} {
		rest = append(rest, filepath.Join(n.config.KubeletPlugins, driver), filepath.Join(n.config.KubeletRegistry, driver+"-reg.sock"))
	}
	if err := remove(rest...); err != nil {
		return err
	}
	// In the agent's own view they are mounts. They may have been somebody else's before, and hold something.
	for _, directory := range []string{n.config.RunDirectory, filepath.Dir(n.config.Gate)} {
		_ = os.Remove(filepath.Join(n.host, directory))
	}
	return nil
}

// remove takes files and directories away.
func remove(paths ...string) error {
	var mistakes []error
	for _, path := range paths {
		if err := os.RemoveAll(path); err != nil {
			mistakes = append(mistakes, fmt.Errorf("cannot remove %s: %w", path, err))
		}
	}
	return errors.Join(mistakes...)
}

// stillAttached are the attachments of pods that are on the node, by name. Where takt-cni was taken out of a list, the container
// runtime may not have called it for those that have ended since: what they have left is in nobody's way.
func (n *Node) stillAttached(ctx context.Context) (names []string, err error) {
	if n.config.Network == nil {
		return nil, nil
	}
	all, err := cni.AllKept(n.config.Network.Sockets)
	if err != nil {
		return nil, err
	}
	for _, at := range all {
		namespace, name, _ := cni.Named(at.Name)
		if namespace != "" {
			bounded, cancel := context.WithTimeout(ctx, askAPI)
			pod, err := n.client.CoreV1().Pods(namespace).Get(bounded, name, metav1.GetOptions{})
			cancel()
			if apierrors.IsNotFound(err) || err == nil && (pod.Spec.NodeName != n.name || at.UID != "" && string(pod.UID) != at.UID) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("cannot see whether pod %s/%s, which takt-cni has attached, has gone: %w; if it has, and the API server cannot be reached, remove %s", namespace, name, err, filepath.Dir(at.Directory))
			}
		}
		names = append(names, at.Name)
	}
	return names, nil
}

// removeVethGroups takes away the cgroups of what took launch times at veths.
func (n *Node) removeVethGroups() error {
	var mistakes []error
	for _, group := range vethGroups(n.host) {
		for _, key := range groupsIn(group) {
			mistakes = append(mistakes, removeGroup(filepath.Join(group, key)))
		}
		mistakes = append(mistakes, removeGroup(group))
	}
	return errors.Join(mistakes...)
}

// configured is a network configuration of the node that names takt-cni; empty if there is none.
func (n *Node) configured() string {
	directory := filepath.Join(n.host, "etc/cni/net.d")
	entries, err := os.ReadDir(directory)
	if err != nil {
		return ""
	}
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(directory, entry.Name()))
		if err == nil && strings.Contains(string(text), `"takt-cni"`) {
			return filepath.Join("/etc/cni/net.d", entry.Name())
		}
	}
	return ""
}

// leaveTaktd takes out of taktd what agents and takt-cni have entered. One that is not there has nothing of it: what it keeps
// over a restart needs directories that go.
func (n *Node) leaveTaktd(ctx context.Context) error {
	d, disconnect, err := n.networks()
	if err != nil {
		return err
	}
	defer disconnect()
	m := &member{n: n, admin: d.admin}
	e, err := m.loadEntered()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askTaktd)
	defer cancel()
	all, err := d.admin.ListListeners(ctx, &adminv1.ListListenersRequest{})
	if status.Code(err) == codes.Unavailable {
		if len(e.Schedules) > 0 {
			return fmt.Errorf("taktd does not answer at %s, and keeps schedules of the cluster over a restart: start it, or remove %s", n.config.Network.AdminSocket, m.enteredFile())
		}
		return nil
	}
	if err != nil {
		return err
	}
	var mistakes []error
	note := func(what string, err error) {
		// A network that taktd has no more has no stations.
		if err != nil && status.Code(err) != codes.NotFound && status.Code(err) != codes.InvalidArgument {
			mistakes = append(mistakes, fmt.Errorf("cannot take %s out of taktd: %w", what, err))
		}
	}
	for _, one := range all.GetListeners() {
		if path := one.GetListener().GetPath(); strings.HasPrefix(path, filepath.Clean(n.config.Network.Sockets)+"/") {
			_, err := d.admin.RemoveListener(ctx, &adminv1.RemoveListenerRequest{Path: path})
			note(path, err)
		}
	}
	schedules, err := d.admin.ListSchedules(ctx, &adminv1.ListSchedulesRequest{})
	note("schedules", err)
	for datapath, bases := range e.Schedules {
		if link := linkOf(schedules, datapath); len(present(link)) > 0 && owns(bases, link) {
			_, err := d.admin.RemoveSchedule(ctx, &adminv1.RemoveScheduleRequest{Datapath: datapath})
			note("the schedule of "+datapath, err)
		}
	}
	for key := range e.Stations {
		parts := strings.Split(key, " ")
		_, err := d.admin.RemoveStation(ctx, &adminv1.RemoveStationRequest{Network: parts[0], Mac: parts[1], Vtep: parts[2]})
		note("station "+key, err)
	}
	for address := range e.Peers {
		_, err := d.admin.RemovePeer(ctx, &adminv1.RemovePeerRequest{Address: address})
		note("peer "+address, err)
	}
	return errors.Join(mistakes...)
}
