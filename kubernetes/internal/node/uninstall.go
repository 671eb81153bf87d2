package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/cni"
)

// uninstallAgain is the pause before it is looked again whether what stands in the way has gone.
const uninstallAgain = 2 * time.Second

// broughtByTaktd is the directory beside the gate with what the chart's taktd brings for containers and for veths.
const broughtByTaktd = "takt-runtime"

// brought is that directory, where containers get what the chart's taktd has brought; empty where they get it from packages: what has its name
// then is somebody else's.
func (c *Config) brought() string {
	directory := filepath.Join(filepath.Dir(c.Gate), broughtByTaktd)
	if c.Network == nil || !strings.HasPrefix(c.Network.Preload, directory+"/") {
		return ""
	}
	return directory
}

// drivers are the agent's.
var drivers = []string{reservation.Driver, reservation.NetworkDriver}

var errSettling = errors.New("what was in the way has gone just now")

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
	leaving := &leaving{n: n, refused: map[types.UID][]Pod{}}
	defer leaving.stop()
	for {
		err := n.uninstall(ctx, leaving)
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

// uninstall does it once. It begins with nothing that pods which are still there would need, and serves the kubelet that ends them.
func (n *Node) uninstall(ctx context.Context, leaving *leaving) error {
	if way := n.inTheWay(ctx, leaving); way != nil {
		leaving.found = true
		return errors.Join(way, leaving.serve(ctx))
	}
	if leaving.found {
		// Whose last trace went a moment ago, the kubelet may not have ended yet.
		leaving.found = false
		return errSettling
	}
	leaving.stop()
	mistakes := []error{remove(networkCDIFile(n.config.CDIDirectory), n.config.Gate), n.backend.Close()}
	if n.config.Network != nil {
		if brought := n.config.brought(); brought != "" {
			mistakes = append(mistakes, remove(brought))
		}
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
	for _, driver := range drivers {
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

// inTheWay is all that has to go before the agent can.
func (n *Node) inTheWay(ctx context.Context, leaving *leaving) error {
	var way []string
	note := func(format string, args ...any) { way = append(way, fmt.Sprintf(format, args...)) }
	if err := n.retract(ctx); err != nil {
		note("%v", err)
	}
	pods := leaving.waiting()
	found, err := n.records.load()
	if err != nil {
		note("%v", err)
	}
	for _, record := range found {
		pods = append(pods, record.Pods...)
	}
	gates, _, err := n.records.loadGates()
	if err != nil {
		note("%v", err)
	}
	for _, c := range gates {
		pods = append(pods, c.Pod)
	}
	var claiming []string
	for _, pod := range pods {
		claiming = append(claiming, pod.Namespace+"/"+pod.Name)
	}
	slices.Sort(claiming)
	claiming = slices.Compact(claiming)
	if len(claiming) > 0 {
		note("pods with claims for CPU time or networks are on the node, and need the agent to end: delete %s", strings.Join(claiming, ", "))
	}
	attached, err := n.stillAttached(ctx)
	if err != nil {
		note("%v", err)
	}
	attached = slices.DeleteFunc(attached, func(at string) bool {
		namespace, name, _ := cni.Named(at)
		return slices.Contains(claiming, namespace+"/"+name)
	})
	if len(attached) > 0 {
		note("pods are attached by takt-cni, and could not be ended without it: delete %s; if a pod has gone already, remove its directory below %s",
			strings.Join(attached, ", "), n.config.Network.Sockets)
	}
	if n.config.Network != nil {
		used, err := n.configured()
		if err != nil {
			note("cannot see whether a network of the node names takt-cni, without which none of its pods could start then: %v", err)
		} else if used != "" {
			note("%s names takt-cni, without which no pod of the node could start: take it out there first", used)
		}
	}
	if len(way) == 0 {
		return nil
	}
	return errors.New(strings.Join(way, "; and "))
}

// retract takes back what the node offers: nothing more is placed there.
func (n *Node) retract(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askAPI)
	defer cancel()
	api := n.client.ResourceV1().ResourceSlices()
	found, err := api.List(ctx, metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + n.name})
	if err != nil {
		return fmt.Errorf("cannot see what the node offers: %w", err)
	}
	var mistakes []error
	for _, slice := range found.Items {
		if slice.Spec.NodeName == nil || *slice.Spec.NodeName != n.name || !slices.Contains(drivers, slice.Spec.Driver) {
			continue
		}
		if err := api.Delete(ctx, slice.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			mistakes = append(mistakes, fmt.Errorf("cannot take back what the node offers: %w", err))
		}
	}
	return errors.Join(mistakes...)
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
func (n *Node) configured() (string, error) {
	directory := cniConfigurations
	if n.config.Network != nil {
		directory = n.config.Network.Configurations
	}
	entries, err := os.ReadDir(filepath.Join(n.host, directory))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(n.host, directory, entry.Name()))
		if err == nil && strings.Contains(string(text), `"takt-cni"`) {
			return filepath.Join(directory, entry.Name()), nil
		}
	}
	return "", nil
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
