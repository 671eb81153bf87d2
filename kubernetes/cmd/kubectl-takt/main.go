// Command kubectl-takt shows the pods that Takt serves: which are time-sensitive, by which network, and what CPU and gate
// time they have. In the search path it is a plugin: kubectl takt.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"text/tabwriter"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/takt-dev/takt/kubernetes/internal/report"
)

const help = `Shows the pods of a namespace that are time-sensitive, attached to a network of Takt, or have reserved CPU time.

Usage: kubectl takt [-n NAMESPACE | -A] [-agents NAMESPACE]... [-o json]
       kubectl takt key [-h]: the keys of nodes

Options:
`

const more = `
Exit status: 0; 1 if the cluster cannot be asked; 2 for a mistake in the command; 3 if a time-sensitive pod does not get
what it asks for, or an agent does not answer.

It asks the agents (takt-node) through the API server: that needs the right to list pods in NAMESPACE, and where the agents
run to list pods, to get pods/proxy and to create serviceaccounts/token, as role takt-node-view of the chart has it.
Which claims of a pod without a node have room where needs the right to list nodes, resourceclaims, resourceslices and deviceclasses.

Examples:
  kubectl takt
  kubectl takt -A
  kubectl takt key
  kubectl takt -n factory -o json | jq '.pods[] | select(.problem)'
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	if len(args) > 0 && args[0] == "key" {
		return key(ctx, args[1:], out, errs)
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	flags := flag.NewFlagSet("kubectl-takt", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.StringVar(&rules.ExplicitPath, "kubeconfig", "", "how to reach the API server; KUBECONFIG or ~/.kube/config if empty")
	current := flags.String("context", "", "the context of the kubeconfig")
	namespace := flags.String("n", "", "the namespace; that of the context if empty")
	all := flags.Bool("A", false, "all namespaces")
	var agents []string
	flags.Func("agents", "the `NAMESPACE` where agents run ("+report.Agents+" if not said); again for each of several, and of no other they are believed", func(namespace string) error {
		if namespace == "" {
			return errors.New("a namespace has a name")
		}
		agents = append(agents, namespace)
		return nil
	})
	output := flags.String("o", "", "json; a table if empty")
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), help)
		flags.PrintDefaults()
		fmt.Fprint(flags.Output(), more)
	}
	switch err := flags.Parse(args); {
	case err == flag.ErrHelp:
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0:
		fmt.Fprintf(errs, "kubectl-takt: %q is not expected: see kubectl takt -h\n", flags.Arg(0))
		return 2
	case *output != "" && *output != "json":
		fmt.Fprintf(errs, "kubectl-takt: -o %s is not known: write json, or leave it out\n", *output)
		return 2
	case *all && *namespace != "":
		fmt.Fprintln(errs, "kubectl-takt: -n and -A contradict each other: leave one out")
		return 2
	}
	if len(agents) == 0 {
		agents = []string{report.Agents}
	}
	config := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: *current})
	pods, problems, err := ask(ctx, config, *namespace, *all, agents)
	if err != nil {
		fmt.Fprintln(errs, "kubectl-takt:", err)
		return 1
	}
	if *output == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(map[string]any{"pods": pods, "problems": problems})
	} else {
		err = table(out, pods)
	}
	if err != nil {
		fmt.Fprintln(errs, "kubectl-takt:", err)
		return 1
	}
	for _, problem := range problems {
		fmt.Fprintln(errs, problem)
	}
	if len(problems) > 0 || slices.ContainsFunc(pods, func(p report.Pod) bool { return p.Problem != "" }) {
		return 3
	}
	return 0
}

func ask(ctx context.Context, config clientcmd.ClientConfig, namespace string, all bool, agents []string) ([]report.Pod, []string, error) {
	rest, err := config.ClientConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("cannot reach the API server: %w", err)
	}
	// Agents are asked together.
	rest.QPS, rest.Burst = 50, 100
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot reach the API server: %w", err)
	}
	if namespace == "" && !all {
		if namespace, _, err = config.Namespace(); err != nil {
			return nil, nil, err
		}
	}
	return report.Cluster(ctx, client, report.Ask(client), namespace, agents...)
}

// table is a line for each pod, and one below for each problem.
func table(out io.Writer, pods []report.Pod) error {
	if len(pods) == 0 {
		_, err := fmt.Fprintln(out, "No pod here is time-sensitive, attached to a network of Takt, or has reserved CPU time.")
		return err
	}
	to := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(to, "NAMESPACE\tPOD\tNODE\tNETWORK\tPROGRAMS\tVETH\tLAUNCHED\tAROUND\tSCHEDULE\tRESERVED\tGATE TIME\tSTATE")
	for _, pod := range pods {
		var networks, veths, around, schedules, reserved, gates []string
		var programs uint32
		var launches report.Launches
		passed, refused := map[string]uint64{}, map[string]uint64{}
		for _, attached := range pod.Attached {
			networks = append(networks, attached.Network+" ("+attached.Interface+")")
			programs += attached.Programs
			launches.Left += attached.Launches.Left
			launches.Late += attached.Launches.Late
			launches.Missed += attached.Launches.Missed
			if attached.Veth != nil {
				veths = append(veths, vethState(attached.Veth))
			}
			for _, one := range attached.GateTime {
				gates = append(gates, fmt.Sprintf("class %d %dx%dB/%s", one.Class, one.Frames, one.Frame, one.Period))
			}
			for _, one := range attached.Schedules {
				// They are the node's, and the same for all of its interfaces.
				if text := schedule(one); !slices.Contains(schedules, text) {
					schedules = append(schedules, text)
				}
			}
			for reason, count := range attached.RefusedBy {
				refused[reason] += count
			}
			for reason, count := range attached.Around {
				passed[reason] += count
			}
		}
		for _, waiting := range pod.Waiting {
			state := "waits"
			if waiting.Placed {
				state = "lost"
			}
			for _, one := range waiting.GateTime {
				gates = append(gates, fmt.Sprintf("class %d %dx%dB/%s (%s)", one.Class, one.Frames, one.Frame, one.Period, state))
			}
		}
		for _, reason := range slices.Sorted(maps.Keys(passed)) {
			around = append(around, fmt.Sprintf("%d %s", passed[reason], reason))
		}
		for _, one := range pod.Reserved {
			times := ""
			if one.Threads > 1 {
				times = fmt.Sprintf("%dx", one.Threads)
			}
			reserved = append(reserved, fmt.Sprintf("%s %s%s/%s", one.Container, times, one.Runtime, one.Period))
		}
		attached := "-"
		if len(pod.Attached) > 0 {
			attached = fmt.Sprint(programs)
		}
		fmt.Fprintf(to, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", pod.Namespace, pod.Pod, or(pod.Node), or(strings.Join(networks, ", ")), attached,
			or(strings.Join(veths, ", ")), launched(launches, refused), or(strings.Join(around, ", ")), or(strings.Join(schedules, ", ")), or(strings.Join(reserved, ", ")), or(strings.Join(gates, ", ")), or(pod.Problem, ok(pod.Note)))
	}
	return to.Flush()
}

// ok is the state of a pod that has no problem, and maybe a note.
func ok(note string) string {
	if note != "" {
		return "ok (" + note + ")"
	}
	return "ok"
}

// schedule says on which link a gate schedule is, with its cycle, and whether it runs.
func schedule(of report.Schedule) string {
	text := strings.TrimSpace(of.Name+" "+of.Datapath) + " " + of.Cycle
	if !of.Running {
		text += " (pending)"
	}
	switch {
	case of.OtherTrafficProblem != "":
		text += " (others beside it: " + of.OtherTrafficProblem + ")"
	case of.OtherTraffic != "":
		text += " (others by " + of.OtherTraffic + ")"
	}
	return text
}

// vethState says whether launch times are taken at a veth, and what becomes of those that are not.
func vethState(veth *report.Veth) string {
	state := "taking"
	if !veth.Taking {
		state = "not taking"
	}
	if veth.Required {
		state += ", required"
	}
	return state
}

// launched says how many messages with a launch time have left, what has become of the others, and which frames were refused.
func launched(launches report.Launches, refused map[string]uint64) string {
	var notes []string
	if launches.Late > 0 {
		notes = append(notes, fmt.Sprintf("%d late", launches.Late))
	}
	if launches.Missed > 0 {
		notes = append(notes, fmt.Sprintf("%d missed", launches.Missed))
	}
	for _, reason := range slices.Sorted(maps.Keys(refused)) {
		notes = append(notes, fmt.Sprintf("%d refused: %s", refused[reason], reason))
	}
	switch {
	case launches == report.Launches{} && len(refused) == 0:
		return "-"
	case len(notes) == 0:
		return fmt.Sprint(launches.Left)
	}
	return fmt.Sprintf("%d (%s)", launches.Left, strings.Join(notes, ", "))
}

// or is the first text that is not empty, or a dash.
func or(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return "-"
}
