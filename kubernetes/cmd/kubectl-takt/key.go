package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/tools/clientcmd"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/objects"
	"github.com/takt-dev/takt/kubernetes/internal/quote"
)

const keyHelp = `Shows the keys of the cluster's nodes and what becomes of them, or asks for other ones.

Usage: kubectl takt key [-o json]
       kubectl takt key rotate NODE... | -all

Options:
`

const keyMore = `
rotate sets the annotation ` + network.RotateKey + ` of the nodes' TaktNodes to the present instant. The controller has one node after the
other change its key, without losing a message: see STATE.

Exit status: 0; 1 if the cluster cannot be asked; 2 for a mistake in the command; 3 if a change was given up, or waits for something or
cannot begin; 4 if none was, and one has ended while other nodes still take the key of before (beforeTaken in JSON): whoever has that
key can use it there. 0 also while a change goes on that does not wait yet: state in JSON says so.

It needs the right to list taktnodes, and for rotate to patch them. Who may do that directs the frames and channels of the cluster.

Examples:
  kubectl takt key
  kubectl takt key rotate worker-3
  kubectl takt key rotate -all
`

// nodeKey is what is shown of a node.
type nodeKey struct {
	Node string `json:"node"`
	Key  string `json:"key,omitempty"`
	// Since is since when it is seen with it.
	Since *metav1.Time `json:"since,omitempty"`
	// State is that of the change of the key, or Asked if it has not begun.
	State      string       `json:"state,omitempty"`
	StateSince *metav1.Time `json:"stateSince,omitempty"`
	Message    string       `json:"message,omitempty"`
	// BeforeTaken: the key has changed, and others still take the key of before.
	BeforeTaken bool `json:"beforeTaken,omitempty"`
}

// asked is the state of a change that has not begun.
const asked = "Asked"

func keyOf(node *network.TaktNode) nodeKey {
	one := nodeKey{Node: node.Name}
	if runtime := node.Status.Runtime; runtime != nil {
		one.Key, one.Since = runtime.Key, runtime.KeySince
	}
	rotation := node.Spec.KeyRotation
	if rotation != nil {
		one.State, one.StateSince, one.Message = rotation.State, &rotation.Since, rotation.Message
		one.BeforeTaken = rotation.BeforeTaken()
	}
	switch at, err := node.KeyAsked(); {
	case rotation.GoesOn() || node.KeyTried():
	case err != nil:
		one.State, one.StateSince, one.Message = asked, nil, err.Error()
	case at != nil:
		one.State, one.StateSince, one.Message = asked, at, cmp.Or(node.KeyFixed(), node.Spec.PeerProblem)
		if ready := meta.FindStatusCondition(node.Status.Conditions, network.Ready); one.Message == "" && ready != nil && ready.Status != metav1.ConditionTrue {
			one.Message = ready.Message
		}
	}
	return one
}

func key(ctx context.Context, args []string, out, errs io.Writer) int {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	flags := flag.NewFlagSet("kubectl-takt key", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.StringVar(&rules.ExplicitPath, "kubeconfig", "", "how to reach the API server; KUBECONFIG or ~/.kube/config if empty")
	current := flags.String("context", "", "the context of the kubeconfig")
	output := flags.String("o", "", "json; a table if empty")
	all := flags.Bool("all", false, "rotate: all nodes that have keys")
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), keyHelp)
		flags.PrintDefaults()
		fmt.Fprint(flags.Output(), keyMore)
	}
	err := flags.Parse(args)
	rotate := err == nil && flags.Arg(0) == "rotate"
	if rotate {
		err = flags.Parse(flags.Args()[1:])
	}
	mistake := func(format string, args ...any) int {
		fmt.Fprintf(errs, "kubectl-takt: "+format+"\n", args...)
		return 2
	}
	switch names := flags.Args(); {
	case err == flag.ErrHelp:
		return 0
	case err != nil:
		return 2
	case !rotate && len(names) > 0:
		return mistake("%q is not expected: see kubectl takt key -h", names[0])
	case !rotate && *all:
		return mistake("-all is for rotate: see kubectl takt key -h")
	case rotate && *all == (len(names) > 0):
		return mistake("rotate is for nodes by name, or for all of them: write one or the other, NODE... or -all")
	case *output != "" && (rotate || *output != "json"):
		return mistake("-o %s is not known: write json, without rotate, or leave it out", *output)
	}
	client, err := keyClient(clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: *current}))
	if err == nil && rotate {
		err = rotateKeys(ctx, client, flags.Args(), out)
		if err == nil {
			return 0
		}
	}
	var keys []nodeKey
	if err == nil {
		keys, err = keysOf(ctx, client)
	}
	if err == nil && *output == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(map[string]any{"nodes": keys})
	} else if err == nil {
		err = keyTable(out, keys, time.Now())
	}
	if err != nil {
		fmt.Fprintln(errs, "kubectl-takt:", err)
		return 1
	}
	if slices.ContainsFunc(keys, func(k nodeKey) bool { return k.Message != "" && k.State != network.Rotated }) {
		return 3
	}
	if slices.ContainsFunc(keys, func(k nodeKey) bool { return k.BeforeTaken }) {
		return 4
	}
	return 0
}

func keyClient(config clientcmd.ClientConfig) (*objects.Client, error) {
	rest, err := config.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("cannot reach the API server: %w", err)
	}
	return objects.New(rest)
}

func keysOf(ctx context.Context, client *objects.Client) ([]nodeKey, error) {
	found, err := client.Nodes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("cannot list TaktNodes: %w", err)
	}
	keys := []nodeKey{}
	for at := range found.Items {
		keys = append(keys, keyOf(&found.Items[at]))
	}
	slices.SortFunc(keys, func(a, b nodeKey) int { return cmp.Compare(a.Node, b.Node) })
	return keys, nil
}

// rotateKeys asks for other keys of these nodes, none: of all that have one. Where that is in vain it is refused.
func rotateKeys(ctx context.Context, client *objects.Client, names []string, out io.Writer) error {
	found, err := client.Nodes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("cannot list TaktNodes: %w", err)
	}
	all := map[string]*network.TaktNode{}
	for at := range found.Items {
		all[found.Items[at].Name] = &found.Items[at]
	}
	if len(names) == 0 {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if runtime := all[name].Status.Runtime; runtime != nil && runtime.Key != "" {
				names = append(names, name)
			}
		}
	}
	var refused []error
	for _, name := range names {
		refused = append(refused, rotateKey(ctx, client, name, all[name], out))
	}
	return errors.Join(refused...)
}

func rotateKey(ctx context.Context, client *objects.Client, name string, node *network.TaktNode, out io.Writer) error {
	if node == nil {
		return fmt.Errorf("cannot ask for another key of node %s: it has no TaktNode: see `kubectl get taktnodes`", name)
	}
	if why := node.KeyFixed(); why != "" {
		return fmt.Errorf("cannot ask for another key of node %s: %s", name, why)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{network.RotateKey: instant(node, time.Now()).UTC().Format(time.RFC3339)}}})
	if err != nil {
		return err
	}
	if _, err := client.Nodes.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("cannot ask for another key of node %s: %w", name, err)
	}
	twice := ""
	if node.Status.Runtime.NextKey != "" {
		twice = ", twice: first to the next key that is there already, then to a fresh one"
	}
	fmt.Fprintf(out, "node %s is asked to change its key%s\n", name, twice)
	return nil
}

// instant is the present one, or what is later than all that the node's TaktNode says where another clock was ahead: an earlier one
// would count as done.
func instant(node *network.TaktNode, now time.Time) time.Time {
	before := []*metav1.Time{node.Status.Runtime.KeySince}
	if at, err := node.RotateKeyAt(); err == nil {
		before = append(before, at)
	}
	if rotation := node.Spec.KeyRotation; rotation != nil {
		before = append(before, &rotation.Began)
	}
	for _, at := range before {
		if at != nil && now.Sub(at.Time) < time.Second {
			now = at.Add(time.Second)
		}
	}
	return now
}

func keyTable(out io.Writer, keys []nodeKey, now time.Time) error {
	to := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(to, "NODE\tKEY\tAGE\tSTATE\tSINCE\tMESSAGE")
	ago := func(at *metav1.Time) string {
		if at == nil {
			return ""
		}
		return duration.HumanDuration(now.Sub(at.Time))
	}
	for _, one := range keys {
		fmt.Fprintf(to, "%s\t%s\t%s\t%s\t%s\t%s\n", one.Node, or(quote.Printable(one.Key)), or(ago(one.Since)), or(one.State), or(ago(one.StateSince)), or(quote.Printable(one.Message)))
	}
	return to.Flush()
}
