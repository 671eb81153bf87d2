package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/apitest"
	"github.com/takt-dev/takt/kubernetes/internal/controller"
	"github.com/takt-dev/takt/kubernetes/internal/objects"
)

// asReplica has this program be a replica.
const asReplica = "TAKT_TEST_REPLICA"

func TestMain(m *testing.M) {
	if os.Getenv(asReplica) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestAnotherReplicaGoesOnWhereTheLeaderIsGone(t *testing.T) {
	ctx, rest := context.Background(), apitest.Start(t, "../../../deploy/helm/takt-node/crds")
	kube, err := kubernetes.NewForConfig(rest)
	if err != nil {
		t.Fatal(err)
	}
	client, err := objects.New(rest)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := apitest.Kubeconfig(t, rest)
	replicas := map[string]*exec.Cmd{}
	start := func(name string) {
		t.Helper()
		replica, said := exec.Command(os.Args[0], "-kubeconfig", kubeconfig, "-namespace", "default", "-identity", name, "-listen", "127.0.0.1:0"), &bytes.Buffer{}
		replica.Env, replica.Stderr = append(os.Environ(), asReplica+"=1"), said
		if err := replica.Start(); err != nil {
			t.Fatal(err)
		}
		replicas[name] = replica
		t.Cleanup(func() {
			_ = replica.Process.Kill()
			_ = replica.Wait()
			if t.Failed() {
				t.Logf("%s: %s", name, said)
			}
		})
	}
	// leads waits until another replica does, and does what it is there for.
	leads := func(before, what string) (name string) {
		t.Helper()
		began := time.Now()
		apitest.Until(t, what+": another one leads", func() bool {
			found, err := kube.CoordinationV1().Leases("default").Get(ctx, controller.Name, metav1.GetOptions{})
			if err != nil || found.Spec.HolderIdentity == nil {
				return false
			}
			name = *found.Spec.HolderIdentity
			return name != "" && name != before
		})
		made, err := client.Networks.Create(ctx, &network.TaktNetwork{ObjectMeta: metav1.ObjectMeta{GenerateName: "tsn-"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		apitest.Until(t, what+": a network is looked at", func() bool {
			found, err := client.Networks.Get(ctx, made.Name, metav1.GetOptions{})
			return err == nil && meta.FindStatusCondition(found.Status.Conditions, network.Accepted) != nil
		})
		t.Logf("%s: after %.1f s replica %s leads", what, time.Since(began).Seconds(), name)
		return name
	}
	end := func(name string, signal syscall.Signal) {
		t.Helper()
		if err := replicas[name].Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		_ = replicas[name].Wait()
	}
	start("one")
	start("two")
	first := leads("", "started")
	// It does not come back, as that of a machine which is gone.
	end(first, syscall.SIGKILL)
	second := leads(first, "the leader is killed")
	start(first)
	// It says that it goes.
	end(second, syscall.SIGTERM)
	if third := leads(second, "the leader is ended"); third != first {
		t.Errorf("%s leads", third)
	}
}
