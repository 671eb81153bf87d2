// Command takt-node reserves CPU time for containers, and gives those of time-sensitive pods their runtime: see package node.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/takt-dev/takt/kubernetes/internal/enforce"
	"github.com/takt-dev/takt/kubernetes/internal/install"
	"github.com/takt-dev/takt/kubernetes/internal/node"
	"github.com/takt-dev/takt/kubernetes/internal/objects"
)

func main() {
	config := flag.String("config", "/etc/takt-node/config.yaml", "configuration")
	check := flag.Bool("check", false, "say what the configuration offers on this machine, and end")
	name := flag.String("node", os.Getenv("NODE_NAME"), "name of this node in the cluster")
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API server; the pod's own way if empty")
	installGate := flag.String("install-gate", "", "copy this takt-gate to where the configuration says before serving")
	installCNI := flag.String("install-cni", "", "copy this takt-cni to where the configuration says before serving")
	uninstall := flag.Bool("uninstall", false, "take away from this node what takt-node has brought, and wait to be ended")
	klog.InitFlags(nil)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *config, *check, *name, *kubeconfig, *installGate, *installCNI, *uninstall); err != nil {
		fmt.Fprintln(os.Stderr, "takt-node:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, path string, check bool, name, kubeconfig, installGate, installCNI string, uninstall bool) error {
	config, err := node.LoadConfig(path)
	if err != nil {
		return err
	}
	if err := enforce.EndRecount("/"); err != nil {
		return err
	}
	backend, err := config.NewBackend()
	if err != nil {
		return err
	}
	offer, err := config.Offer("/", backend)
	if err != nil {
		return err
	}
	if check {
		fmt.Print(offer)
		return nil
	}
	if name == "" {
		return errors.New("the node has no name: set -node or NODE_NAME")
	}
	client, way, err := reach(kubeconfig)
	if err != nil {
		return fmt.Errorf("cannot reach the API server: %w", err)
	}
	if uninstall {
		agent, err := node.New(name, config, client, nil, backend)
		if err != nil {
			return err
		}
		return agent.Uninstall(ctx)
	}
	if installGate != "" {
		if err := install.File(installGate, config.Gate); err != nil {
			return err
		}
	}
	if installCNI != "" {
		if config.Network == nil {
			return errors.New("-install-cni: the configuration has no network: write one, or leave the option out")
		}
		if err := install.File(installCNI, filepath.Join(config.Network.Plugins, "takt-cni")); err != nil {
			return err
		}
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	events := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: node.PluginName, Host: name})
	agent, err := node.New(name, config, client, events, backend)
	if err != nil {
		return err
	}
	if config.Network != nil && config.Network.Objects {
		cluster, err := objects.New(way)
		if err != nil {
			return err
		}
		leave, err := agent.Join(cluster)
		if err != nil {
			return err
		}
		defer leave()
	}
	return agent.Run(ctx)
}

// reach is how the agent asks the API server.
func reach(kubeconfig string) (kubernetes.Interface, *rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	config.QPS, config.Burst = node.APIRate, node.APIBurst
	client, err := kubernetes.NewForConfig(config)
	return client, config, err
}
