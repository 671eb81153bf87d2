// Command takt-controller keeps a cluster's TaktNodes in step with its pods, nodes, networks and schedules: see package
// controller. Of several replicas one leads.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/controller"
	"github.com/takt-dev/takt/kubernetes/internal/objects"
)

// A leader that is not heard of for so long gives way to another replica. Without a leader nodes go on as they are.
const lease = 15 * time.Second

func main() {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API server; the pod's own way if empty")
	namespace := flag.String("namespace", os.Getenv("POD_NAMESPACE"), "where the lease of the leader is")
	identity := flag.String("identity", os.Getenv("POD_NAME"), "name of this replica")
	lead := flag.Duration("lead", controller.DefaultLead, "how long nodes have to take a schedule before it begins; 40ms more for each node")
	rotation := flag.Duration("key-rotation", controller.DefaultKeyRotation, "how old nodes' keys become before they are changed, one node after the other; 0: they are changed where it is asked for")
	listen := flag.String("listen", ":9465", "address of /healthz")
	klog.InitFlags(nil)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *kubeconfig, *namespace, *identity, *lead, *rotation, *listen); err != nil {
		fmt.Fprintln(os.Stderr, "takt-controller:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kubeconfig, namespace, identity string, lead, rotation time.Duration, listen string) error {
	if namespace == "" || identity == "" {
		return errors.New("no namespace or no identity: set -namespace and -identity, or POD_NAMESPACE and POD_NAME")
	}
	if lead < controller.MinLead || lead > controller.MaxLead {
		return fmt.Errorf("-lead %v is not from %v to %v: write another controller.lead, or leave it out for %v", lead, controller.MinLead, controller.MaxLead, controller.DefaultLead)
	}
	if rotation != 0 && rotation < controller.MinKeyRotation {
		return fmt.Errorf("-key-rotation %v is neither 0 nor at least %v: write another controller.keyRotation, or leave it out for %v", rotation, controller.MinKeyRotation, controller.DefaultKeyRotation)
	}
	rest, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("cannot reach the API server: %w", err)
	}
	// A rollout to a thousand nodes writes a thousand objects; the API server's own fairness bounds the rest.
	rest.QPS, rest.Burst = 200, 400
	kube, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return fmt.Errorf("cannot reach the API server: %w", err)
	}
	client, err := objects.New(rest)
	if err != nil {
		return err
	}
	known := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(known), network.AddToScheme(known)); err != nil {
		return err
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: kube.CoreV1().Events("")})
	events := broadcaster.NewRecorder(known, corev1.EventSource{Component: controller.Name})

	health := leaderelection.NewLeaderHealthzAdaptor(lease)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: namespace, Name: controller.Name}, Client: kube.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity, EventRecorder: events},
		},
		LeaseDuration: lease, RenewDeadline: lease * 2 / 3, RetryPeriod: lease / 6, ReleaseOnCancel: true, Name: controller.Name, WatchDog: health,
		Callbacks: leaderelection.LeaderCallbacks{
			// Each time it leads it looks at everything anew.
			OnStartedLeading: func(ctx context.Context) {
				c := controller.New(kube, client, events, lead)
				c.KeyRotation = rotation
				if err := c.Run(ctx); err != nil {
					klog.FromContext(ctx).Error(err, "The controller has ended")
				}
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("cannot elect a leader: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		if err := health.Check(r); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	server := &http.Server{Addr: listen, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	defer server.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		elector.Run(ctx)
	}()
	select {
	case err := <-failed:
		return fmt.Errorf("cannot serve health at %s: %w", listen, err)
	case <-ended:
		if ctx.Err() == nil {
			// Started again, it takes part in the next election.
			return errors.New("the lease is another replica's")
		}
		return nil
	}
}
