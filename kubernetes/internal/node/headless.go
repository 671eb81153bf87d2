package node

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// headlessPace is how often the pods are looked at whose containers have lost their first thread.
const headlessPace = time.Second

// endHeadless ends what nobody else does, until the context ends: runc takes a container whose first thread has
// ended for one that has stopped, and sends it no signal, while its other threads run. The kubelet would try for ever.
func (n *Node) endHeadless(ctx context.Context) {
	ticker := time.NewTicker(headlessPace)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, c := range n.runningContainers() {
			if init := c.init.Load(); init != nil && init.Headless() {
				n.endIfDeleted(ctx, c)
			}
		}
	}
}

// endIfDeleted does for a container what its runtime would: SIGTERM when its pod is being deleted, SIGKILL when the
// pod's grace is over.
func (n *Node) endIfDeleted(ctx context.Context, c *container) {
	logger := klog.FromContext(ctx)
	ask, cancel := context.WithTimeout(ctx, askAPI)
	defer cancel()
	pod, err := n.client.CoreV1().Pods(c.pod.Namespace).Get(ask, c.pod.Name, metav1.GetOptions{})
	gone := apierrors.IsNotFound(err) || (err == nil && pod.UID != c.pod.UID)
	if err != nil && !gone {
		logger.Error(err, "Cannot see whether a pod is being deleted", "pod", klog.KRef(c.pod.Namespace, c.pod.Name))
		return
	}
	if !gone && pod.DeletionTimestamp == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if gone || !time.Now().Before(pod.DeletionTimestamp.Time) {
		logger.Info("Ending a container whose first thread had ended, and which its runtime takes for stopped", "pod", klog.KRef(c.pod.Namespace, c.pod.Name), "container", c.name)
		n.release(ctx, c)
		return
	}
	if init := c.init.Load(); !c.asked && init != nil && init.Headless() {
		c.asked = true
		if err := unix.Kill(init.Process, unix.SIGTERM); err != nil {
			logger.Error(err, "Cannot ask a container to end", "pod", klog.KRef(c.pod.Namespace, c.pod.Name))
		}
		n.event(c.pod, corev1.EventTypeNormal, reasonHeadless, "container %s is asked to end by this agent: its first thread has ended, so that the container runtime takes it for stopped", c.name)
	}
}
