package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	kubeconfig := apitest.Kubeconfig(t, rest)
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
	if said := does(1, "rotate", "node-3"); !strings.Contains(said, "node node-3: takt-node has not said anything yet") {
		t.Errorf("it says %q", said)
	}
	// One that has ended is none that waits.
	made, err := client.Nodes.Get(ctx, "node-2", metav1.GetOptions{})
	if err == nil {
		made.Spec.KeyRotation = &network.KeyRotation{State: network.Rotated, Began: now, Since: now, From: "two", Message: "somebody else has changed it"}
		_, err = client.Nodes.Update(ctx, made, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := table(0); !strings.Contains(got, "Rotated 90m somebody else") {
		t.Errorf("it shows %q", got)
	}
	if told := does(0, "-o", "json"); strings.Contains(told, "beforeTaken") {
		t.Errorf("it says %q", told)
	}
	// One whose key of before is taken by others is none that is done.
	made, err = client.Nodes.Get(ctx, "node-2", metav1.GetOptions{})
	if err == nil {
		made.Spec.KeyRotation.Message = network.StillTaken + "node node-1: see its condition Ready"
		_, err = client.Nodes.Update(ctx, made, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := table(4); !strings.Contains(got, "Rotated 90m the key of before is still taken by node node-1") {
		t.Errorf("it shows %q", got)
	}
	var taken struct{ Nodes []nodeKey }
	if err := json.Unmarshal([]byte(does(4, "-o", "json")), &taken); err != nil || len(taken.Nodes) != 3 || taken.Nodes[0].BeforeTaken || !taken.Nodes[1].BeforeTaken {
		t.Errorf("%v: %+v", err, taken)
	}
	// Who has no key is not asked.
	if said := does(0, "rotate", "-all"); strings.Count(said, "is asked") != 2 {
		t.Errorf("it says %q", said)
	}
	var told struct{ Nodes []nodeKey }
	if err := json.Unmarshal([]byte(does(4, "-o", "json")), &told); err != nil || len(told.Nodes) != 3 || told.Nodes[1].State != asked || told.Nodes[1].Message != "" {
		t.Errorf("%v: %+v", err, told)
	}
}

func TestAKeyThatIsAskedForSaysWhyItsChangeCannotBeginAndIsAskedForAnewWhateverClocksSay(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	ahead := metav1.NewTime(now.Add(time.Hour))
	node := &network.TaktNode{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Annotations: map[string]string{network.RotateKey: "2127-01-31T12:00:00.25Z"}}}
	for _, step := range []struct {
		does           func()
		state, message string
	}{
		{func() {}, asked, "not said anything"},
		{func() { node.Status.Runtime = &network.Runtime{} }, asked, "no key"},
		{func() { node.Status.Runtime.Key = "key" }, asked, "custom resources"},
		{func() { node.Status.Runtime.KeySince = &ahead }, asked, ""},
		{func() { node.Annotations[network.RotateKey] = "soon" }, asked, `"soon", which is no instant`},
		{func() {
			at := metav1.NewTime(time.Date(2127, 1, 31, 12, 0, 0, 0, time.UTC))
			node.Annotations[network.RotateKey] = "2127-01-31T12:00:00.25Z"
			node.Spec.KeyRotation = &network.KeyRotation{State: network.Rotated, Began: at, Since: at, Asked: &at}
		}, network.Rotated, ""},
	} {
		step.does()
		if one := keyOf(node); one.State != step.state || (one.Message == "") != (step.message == "") || !strings.Contains(one.Message, step.message) {
			t.Errorf("it shows %+v and not %s: %s", one, step.state, step.message)
		}
	}
	for range 2 {
		at := instant(node, now)
		if !at.After(ahead.Time) {
			t.Errorf("it is asked for at %v", at)
		}
		node.Annotations[network.RotateKey] = at.UTC().Format(time.RFC3339)
		if one := keyOf(node); one.State != asked || one.Message != "" {
			t.Errorf("asked for at %v it is %+v", at, one)
		}
		node.Spec.KeyRotation.Asked, _ = node.RotateKeyAt()
	}
}
