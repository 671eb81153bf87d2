package main

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/apitest"
	"github.com/takt-dev/takt/kubernetes/internal/objects"
)

func TestOtherKeysAreAskedForAndWhatBecomesOfThemIsShown(t *testing.T) {
	ctx, rest := context.Background(), apitest.Start(t, "../../../deploy/helm/takt-node/crds")
	client, err := objects.New(rest)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"test": {Server: rest.Host, InsecureSkipTLSVerify: true}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"admin": {Token: rest.BearerToken}},
		Contexts:  map[string]*clientcmdapi.Context{"test": {Cluster: "test", AuthInfo: "admin"}}, CurrentContext: "test",
	}, kubeconfig); err != nil {
		t.Fatal(err)
	}
	now := metav1.NewTime(time.Now().Add(-90 * time.Minute).Truncate(time.Second))
	for name, rotation := range map[string]*network.KeyRotation{
		"node-1": nil,
		"node-2": {State: network.GivenUp, Began: now, Since: now, From: "two", Message: "the key stays as it was"},
		"node-3": nil,
	} {
		made, err := client.Nodes.Create(ctx, &network.TaktNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: network.TaktNodeSpec{KeyRotation: rotation}}, metav1.CreateOptions{})
		if err == nil && name != "node-3" {
			made.Status.Runtime = &network.Runtime{Version: "test", Port: 7400, Key: "key-of-" + name, KeySince: &now}
			_, err = client.Nodes.UpdateStatus(ctx, made, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	does := func(code int, args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		args = append([]string{"key"}, args...)
		if got := run(ctx, append(args[:1:1], append([]string{"-kubeconfig", kubeconfig}, args[1:]...)...), &out, &errs); got != code {
			t.Fatalf("%q: status %d and not %d: %s", args, got, code, &errs)
		}
		return out.String() + errs.String()
	}
	table := func(code int) string {
		t.Helper()
		var lines []string
		for line := range strings.Lines(does(code)) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		return strings.Join(lines, "; ")
	}
	const head = "NODE KEY AGE STATE SINCE MESSAGE; "
	if got := table(3); got != head+"node-1 key-of-node-1 90m - - -; node-2 key-of-node-2 90m GivenUp 90m the key stays as it was; node-3 - - - - -" {
		t.Errorf("it shows %q", got)
	}
	if said := does(1, "rotate", "node-1", "node-9"); !strings.Contains(said, "node node-1 is asked") || !strings.Contains(said, "node node-9") {
		t.Errorf("it says %q", said)
	}
	if got := table(3); !strings.Contains(got, "node-1 key-of-node-1 90m Asked") {
		t.Errorf("it shows %q", got)
	}
	// Who has no key is not asked.
	if said := does(0, "rotate", "-all"); strings.Count(said, "is asked") != 2 {
		t.Errorf("it says %q", said)
	}
	var told struct{ Nodes []nodeKey }
	if err := json.Unmarshal([]byte(does(0, "-o", "json")), &told); err != nil || len(told.Nodes) != 3 || told.Nodes[1].State != asked || told.Nodes[1].Message != "" {
		t.Errorf("%v: %+v", err, told)
	}
}
