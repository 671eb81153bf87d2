package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
)

// leaving is what serves the kubelet while an agent waits to take all away: claims are given back, and none is prepared.
type leaving struct {
	n *Node
	// helpers are the drivers that are registered; found says that something was in the way when it was last looked.
	helpers []*kubeletplugin.Helper
	found   bool

	mu sync.Mutex
	// refused are the pods of claims that were not prepared: the kubelet gives these back as well.
	refused map[types.UID][]Pod
}

// serve registers the drivers, once.
func (l *leaving) serve(ctx context.Context) error {
	serves := []string{reservation.Driver}
	if l.n.config.Network != nil {
		serves = drivers
	}
	for _, driver := range serves[len(l.helpers):] {
		plugins := filepath.Join(l.n.config.KubeletPlugins, driver)
		if err := os.MkdirAll(plugins, 0o750); err != nil {
			return fmt.Errorf("cannot make the plugin's directory: %w", err)
		}
		helper, err := kubeletplugin.Start(ctx, l,
			kubeletplugin.DriverName(driver),
			kubeletplugin.NodeName(l.n.name),
			kubeletplugin.KubeClient(l.n.client),
			kubeletplugin.PluginDataDirectoryPath(plugins),
			kubeletplugin.RegistrarDirectoryPath(l.n.config.KubeletRegistry),
		)
		if err != nil {
			return fmt.Errorf("cannot serve the kubelet: %w", err)
		}
		l.helpers = append(l.helpers, helper)
	}
	return nil
}

func (l *leaving) stop() {
	for _, helper := range l.helpers {
		helper.Stop()
	}
	l.helpers = nil
}

// waiting are the pods whose claims were refused and not given back yet.
func (l *leaving) waiting() (pods []Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, of := range l.refused {
		pods = append(pods, of...)
	}
	return pods
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (l *leaving) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		l.refused[claim.UID] = reservedFor(claim)
		results[claim.UID] = kubeletplugin.PrepareResult{
			Err: fmt.Errorf("takt-node is being uninstalled on node %s: delete the pod to have it placed elsewhere", l.n.name),
		}
	}
	return results, nil
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (l *leaving) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	results := map[types.UID]error{}
	for _, claim := range claims {
		err := errors.Join(l.n.records.remove(claim.UID), l.n.records.removeGate(claim.UID))
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot give a claim back", "claim", klog.KRef(claim.Namespace, claim.Name))
		} else {
			delete(l.refused, claim.UID)
		}
		results[claim.UID] = err
	}
	return results, nil
}

// HandleError implements kubeletplugin.DRAPlugin.
func (l *leaving) HandleError(ctx context.Context, err error, msg string) {
	klog.FromContext(ctx).Error(err, msg)
}
