package report

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	authentication "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/quote"
)

// Selector finds the agents of a cluster.
const Selector = "app.kubernetes.io/name=takt-node"

// Agents is the namespace where they run, unless somebody says otherwise.
const Agents = "kube-system"

// atOnce is how many agents are asked at a time.
const atOnce = 16

// Pod is what a cluster's agents say of one pod.
type Pod struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Node      string `json:"node"`
	// TimeSensitive: it asks for launch times by its annotations.
	TimeSensitive bool       `json:"timeSensitive"`
	Attached      []Attached `json:"attached,omitempty"`
	// Waiting are claims for gate time that it has nowhere.
	Waiting  []Waiting  `json:"waiting,omitempty"`
	Reserved []Reserved `json:"reserved,omitempty"`
	// Note is what it may lack, if it launches anything, or anything long: nobody knows whether it does.
	Note string `json:"note,omitempty"`
	// Problem is what keeps it from what it asks for; empty: nothing is known of any.
	Problem string `json:"problem,omitempty"`
}

// agents are those of some namespaces. Whoever may make pods elsewhere can give them the agents' label.
func agents(ctx context.Context, client kubernetes.Interface, namespaces []string) (all []corev1.Pod, err error) {
	for _, namespace := range namespaces {
		found, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: Selector})
		if apierrors.IsForbidden(err) {
			return nil, fmt.Errorf("cannot list the agents: that needs the right to list pods in namespace %s: have role takt-node-view bound to you there, or name the namespace where takt-node runs by -agents: %w", namespace, err)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot list the agents: %w", err)
		}
		all = append(all, found.Items...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("there are no agents in namespace %s: name the one where takt-node runs by -agents", strings.Join(namespaces, ", "))
	}
	// What was evicted stays for a while, beside its successor.
	return slices.DeleteFunc(all, func(agent corev1.Pod) bool { return ended(&agent) }), nil
}

// errLeaves: an agent takes away what is Takt's on its node, and knows of no pods.
var errLeaves = errors.New("takt-node is being uninstalled")

// leaves says whether an agent was told to.
func leaves(agent *corev1.Pod) bool {
	return slices.ContainsFunc(agent.Spec.Containers, func(c corev1.Container) bool { return slices.Contains(c.Args, "-uninstall") })
}

// Cluster asks the agents of the nodes that have pods of a namespace (all: ""), and returns those of them that are time-sensitive,
// attached, reserved or waiting for gate time or for a node with what they claim, and what is wrong with agents. These are looked for in the namespaces at.
func Cluster(ctx context.Context, client kubernetes.Interface, ask func(context.Context, *corev1.Pod) (Node, error), namespace string, at ...string) ([]Pod, []string, error) {
	pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if apierrors.IsForbidden(err) && namespace == "" {
		return nil, nil, fmt.Errorf("cannot list the pods: that needs the right to list pods in all namespaces: name one by -n: %w", err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list the pods: %w", err)
	}
	agents, err := agents(ctx, client, at)
	if err != nil {
		return nil, nil, err
	}
	agents = slices.DeleteFunc(agents, func(agent corev1.Pod) bool {
		return namespace != "" && !slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool { return pod.Spec.NodeName == agent.Spec.NodeName })
	})
	type answer struct {
		Node
		err error
	}
	answers := make([]answer, len(agents))
	var asked sync.WaitGroup
	free := make(chan struct{}, atOnce)
	for i := range agents {
		free <- struct{}{}
		asked.Go(func() {
			defer func() { <-free }()
			if leaves(&agents[i]) {
				answers[i].err = errLeaves
				return
			}
			answers[i].Node, answers[i].err = ask(ctx, &agents[i])
		})
	}
	asked.Wait()

	said := map[string]*Node{}
	silent := map[string]error{}
	problems := []string{}
	for i, agent := range agents {
		node := agent.Spec.NodeName
		switch {
		case answers[i].err == errLeaves:
			silent[node] = errLeaves
			problems = append(problems, fmt.Sprintf("node %s: %v, and says in its log what it waits for: kubectl logs -n %s %s", node, errLeaves, agent.Namespace, agent.Name))
		case answers[i].err != nil:
			silent[node] = answers[i].err
			problems = append(problems, quote.Printable(fmt.Sprintf("node %s: its agent %s/%s does not answer: %v", node, agent.Namespace, agent.Name, answers[i].err)))
		case said[node] == nil:
			said[node] = &answers[i].Node
			if networks := answers[i].Networks; networks != nil && networks.Problem != "" {
				problems = append(problems, fmt.Sprintf("node %s: taktd does not answer: %s", node, networks.Problem))
			}
		default:
			// Two releases on one node: one for each half.
			said[node].Reserved = append(said[node].Reserved, answers[i].Reserved...)
			if said[node].Networks == nil {
				said[node].Networks = answers[i].Networks
			}
		}
	}
	slices.Sort(problems)
	placeless, err := unplaced(ctx, client, pods.Items)
	if err != nil {
		problems = append(problems, err.Error())
	}
	found := []Pod{}
	for _, pod := range pods.Items {
		one := Pod{Namespace: pod.Namespace, Pod: pod.Name, Node: pod.Spec.NodeName, TimeSensitive: timed(pod.Annotations)}
		node := said[pod.Spec.NodeName]
		if node != nil {
			for _, reserved := range node.Reserved {
				if reserved.Namespace == pod.Namespace && reserved.Pod == pod.Name {
					one.Reserved = append(one.Reserved, reserved)
				}
			}
			if node.Networks != nil {
				for _, attached := range node.Networks.Attached {
					if attached.Namespace == pod.Namespace && attached.Pod == pod.Name {
						one.Attached = append(one.Attached, attached)
					}
				}
				for _, waiting := range node.Networks.Waiting {
					if waiting.Namespace == pod.Namespace && waiting.Pod == pod.Name {
						one.Waiting = append(one.Waiting, waiting)
					}
				}
			}
		}
		claims := placeless[pod.Namespace+"/"+pod.Name]
		if claims != "" {
			one.Problem = claims
		} else if one.TimeSensitive {
			one.Problem = lacks(&pod, &one, node, silent[pod.Spec.NodeName])
			if !ended(&pod) && one.Problem == "" && !slices.ContainsFunc(one.Attached, takes) {
				// By its own word at the preload alone: one that only receives never attaches.
				one.Note = unattached
			}
		} else if !ended(&pod) {
			one.Problem = cmp.Or(ungated(&one), untold(&one), unsent(&pod, &one))
		}
		for _, attached := range one.Attached {
			if attached.Note != "" && one.Note == "" && !ended(&pod) {
				one.Note = attached.Note
			}
		}
		if one.TimeSensitive || claims != "" || len(one.Attached)+len(one.Reserved)+len(one.Waiting) > 0 {
			found = append(found, one)
		}
	}
	slices.SortFunc(found, func(a, b Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Pod, b.Namespace+"/"+b.Pod)
	})
	return found, problems, nil
}

// misspelt says that a pod is neither time-sensitive nor not: it does not start where takt-cni looks at that.
func misspelt(annotations map[string]string) string {
	value, there := annotations[reservation.TimeSensitive]
	if !there || value == "true" || value == "false" {
		return ""
	}
	return "its annotation " + reservation.TimeSensitive + " is " + quote.Value(value) + ": write \"true\" or \"false\""
}

// timed says whether a pod asks for launch times: by its annotation, or by one that promises them.
func timed(annotations map[string]string) bool {
	if misspelt(annotations) != "" {
		return true
	}
	for key, value := range annotations {
		switch {
		case key == reservation.TimeSensitive && value == "true",
			key == "takt.dev/path" && (value == "veth" || value == "both"),
			key == "takt.dev/other-traffic" && value == "runtime":
			return true
		}
	}
	return requires(annotations)
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// ungated is what keeps a pod from gate time that it claims; empty: nothing does.
func ungated(one *Pod) string {
	for _, waiting := range one.Waiting {
		for _, claimed := range waiting.GateTime {
			if claimed.Problem != "" {
				return "claim " + claimed.Claim + " has no gate time: " + claimed.Problem
			}
		}
	}
	for _, attached := range one.Attached {
		for _, claimed := range attached.GateTime {
			if claimed.Problem != "" {
				return "claim " + claimed.Claim + " has lost its gate time: " + claimed.Problem
			}
		}
	}
	return ""
}

// untold is what keeps other nodes from a pod; empty: nothing does.
func untold(one *Pod) string {
	for _, attached := range one.Attached {
		if attached.Unserved != "" {
			return "its node does not serve network " + attached.Network + ", that of " + attached.Interface + ": " + attached.Unserved
		}
		if attached.Untold {
			return "other nodes have not been told of " + attached.Interface + " in network " + attached.Network + ": see the pod's events (kubectl describe pod), and kubectl describe taktnetwork " + attached.Network
		}
	}
	return ""
}

// startError is the reason of a container that has ended before its program began, as when an agent refuses it.
const startError = "StartError"

// ends are those that a container's status knows of.
func ends(c *corev1.ContainerStatus) []*corev1.ContainerStateTerminated {
	return slices.DeleteFunc([]*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated},
		func(end *corev1.ContainerStateTerminated) bool { return end == nil })
}

// started says whether a container of a pod runs, or has run. One that goes before them, once, is none of them.
func started(pod *corev1.Pod) bool {
	refused := false
	for _, container := range pod.Status.ContainerStatuses {
		if container.State.Running != nil {
			return true
		}
		for _, end := range ends(&container) {
			if end.Reason != startError {
				return true
			}
			refused = true
		}
	}
	return pod.Status.Phase != corev1.PodPending && !refused
}

// unstarted says why no container of a pod has started, as far as its status does.
func unstarted(pod *corev1.Pod) string {
	for _, container := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		reason, message := "", ""
		if waiting := container.State.Waiting; waiting != nil {
			reason, message = waiting.Reason, waiting.Message
		}
		for _, end := range ends(&container) {
			reason, message = end.Reason, end.Message
		}
		if message != "" {
			return "its container " + container.Name + " has not started: " + quote.Printable(reason+": "+message)
		}
	}
	return "its containers have not started: see its events (kubectl describe pod)"
}

// unattached is what a pod lacks whose launch times nobody takes, unless it has none.
const unattached = "no program of it has attached: is it dynamically linked, and does it ask for launch times (SO_TXTIME)?"

// lacks is what keeps a time-sensitive pod from launch times.
func lacks(pod *corev1.Pod, one *Pod, node *Node, silent error) string {
	switch {
	case ended(pod):
		return ""
	case misspelt(pod.Annotations) != "":
		return misspelt(pod.Annotations)
	case pod.Spec.NodeName == "":
		return notPlaced
	case silent == errLeaves:
		return "takt-node is being uninstalled on its node: delete the pod"
	case silent != nil && (node == nil || node.Networks == nil):
		return "the agent of its node does not answer"
	case node == nil:
		return "its node has no takt-node"
	case node.Networks == nil:
		return "the agent of its node serves no networks: set network.enabled of the chart"
	case node.Networks.Problem != "":
		return "taktd of its node does not answer: systemctl status taktd"
	case len(one.Attached) == 0 && ungated(one) != "":
		return ungated(one)
	case len(one.Attached) == 0 && pod.Spec.HostNetwork:
		return "it is in its node's own network, where no network attaches it: remove hostNetwork, or its annotations takt.dev/*"
	case !started(pod):
		return cmp.Or(ungated(one), untold(one), unstarted(pod))
	case len(one.Attached) == 0 && pod.Annotations[reservation.TimeSensitive] != "true":
		return "it asks for launch times, and no network has attached it: annotate it with " + reservation.TimeSensitive + ": \"true\""
	case len(one.Attached) == 0:
		return "no network has attached it: put takt-cni into the CNI configuration of its node, and delete the pod, so that it is made again"
	}
	for _, attached := range one.Attached {
		if attached.Veth != nil && attached.Veth.Problem != "" {
			return "launch times are not taken at " + attached.Veth.Device + ", the veth of " + attached.Interface + ": " + attached.Veth.Problem
		}
	}
	switch {
	case ungated(one) != "":
		return ungated(one)
	case untold(one) != "":
		return untold(one)
	case pod.Annotations["takt.dev/path"] == "preload":
	case !slices.ContainsFunc(one.Attached, takes):
		return unattached
	}
	return unsent(pod, one)
}

// refusals say of each reason what is refused, and what helps.
var refusals = []struct{ why, says string }{
	{RefusedUndeclared, "of no claimed stream: send in claimed classes to the destination or channel of the claim alone, or in another class"},
	{RefusedWindow, "without a launch time or with one outside of the claim's window: launch between offset and offset + window of a period, or change these in the claim"},
	{RefusedSize, "longer than the claim's bytes: claim as many as are sent"},
	{RefusedExcess, "more than the claim has in a period: claim as many as are sent"},
}

// takes says whether launch times are taken of what a pod sends by an interface.
func takes(a Attached) bool { return a.Programs > 0 || a.Veth != nil && a.Veth.Taking }

// remedies say of each reason why datagrams went around the runtime (docs/reference/preload.md) what it is, and what helps.
var remedies = map[string]string{
	"no-runtime":             "taktd was away, or did not take what the pod's programs send: systemctl status taktd and takt listener list on its node",
	"foreign-source-address": "their source is no address that the pod has in this network: bind the socket to one that it has, or to none",
	"other-interface":        "they leave by another interface of the pod: correct its routes, or name that interface by takt.dev/interface",
	"this-machine":           "their destination is the pod itself: send them without a launch time",
	"no-route":               "the pod has no route to their destination, or one through a tunnel of its own: correct the destination or the route",
	"station-out-of-reach":   "their destination is not of this network: send to its subnets and stations, and see whether condition Served of the TaktNetwork is true; takt network list on the pod's node has whom it reaches",
	"next-hop-silent":        "the destination, or the router to it, does not answer (ARP, neighbour discovery): see whether its address is right and it runs",
	"control-message":        "they have a control message that the runtime does not know: leave it out (docs/reference/preload.md, What is taken)",
	"send-flag":              "they are sent with a flag that the runtime does not know: leave it out (docs/reference/preload.md, What is taken)",
	"socket-option":          "their socket has an option that the runtime does not honour: leave it out (docs/reference/preload.md, What is taken)",
	"vlan-tag":               "they have a VLAN tag, or a priority in it, that the pod may not use: leave it out, or name it in vlans and classes of takt-cni",
	"foreign-frame":          "they are ARP, neighbour discovery or from another address than the pod's: send such frames without a launch time",
	"malformed":              "they have no destination, cannot be read, or are too long: correct what the program sends",
	"socket-kind":            "their socket is neither a UDP nor a packet socket: use one of these",
	"signal-handler":         "they are sent by a signal handler within another send, or by a vfork child: send them elsewhere",
}

// around says why datagrams went around the runtime, where these are more than what left by it: of what is the reason for most.
func around(counts *Counts, required bool) string {
	var all, most uint64
	why := ""
	for _, reason := range slices.Sorted(maps.Keys(counts.Around)) {
		count := counts.Around[reason]
		if all += count; count > most {
			most, why = count, reason
		}
	}
	if all <= counts.Launches.Left {
		return ""
	}
	became := "left to the kernel, which does not keep it"
	switch {
	case why == "next-hop-silent":
		became = "given up"
	case required:
		became = "refused"
	}
	return fmt.Sprintf("%d datagrams with a launch time %s (%s): %s", most, became, why, cmp.Or(remedies[why], "see docs/reference/preload.md"))
}

// requires says whether a pod, or a container of it, wants refused what the runtime does not send.
func requires(annotations map[string]string) bool {
	for key, value := range annotations {
		if (key == "takt.dev/preload" || strings.HasPrefix(key, "takt.dev/preload.")) && value == "required" {
			return true
		}
	}
	return false
}

// unsent is what keeps what a pod launches from leaving, where that is most of it; empty: nothing does.
func unsent(pod *corev1.Pod, one *Pod) string {
	for _, attached := range one.Attached {
		counts, when := attached.Counts, ""
		if attached.Recent != nil {
			counts, when = attached.Recent.Counts, fmt.Sprintf(", in the last %d s", attached.Recent.Seconds)
		}
		texts := slices.DeleteFunc([]string{missed(&counts), around(&counts, requires(pod.Annotations))}, func(text string) bool { return text == "" })
		if len(texts) > 0 {
			return fmt.Sprintf("%s (classes %v)%s: %s", attached.Interface, attached.Classes, when, strings.Join(texts, "; "))
		}
	}
	return ""
}

// missed says why what taktd was given did not leave, where that is more than what did.
func missed(counts *Counts) string {
	launches := counts.Launches
	if max(launches.Missed, counts.Refused) <= launches.Left {
		return ""
	}
	var reasons []string
	for _, refused := range refusals {
		if count := counts.RefusedBy[refused.why]; count > 0 {
			reasons = append(reasons, fmt.Sprintf("%d frames refused (%s), %s", count, refused.why, refused.says))
		}
	}
	if len(reasons) == 0 {
		reasons = []string{"late, outside the schedule, without a path, or in another class (SO_PRIORITY, DSCP, takt.dev/class): see takt status on its node"}
	}
	text := strings.Join(reasons, "; ")
	if launches.Missed > 0 {
		text = fmt.Sprintf("%d of %d launches missed: %s", launches.Missed, launches.Missed+launches.Left, text)
	}
	return text
}

// tokens are those that are shown to agents, each asked for once.
type tokens struct {
	client kubernetes.Interface
	mu     sync.Mutex
	known  map[string]string
}

// of is the token for an agent: of the account of its release that may see what it says; empty if an earlier release has none.
func (t *tokens) of(ctx context.Context, agent *corev1.Pod) (string, error) {
	name := agent.Spec.ServiceAccountName + "-view"
	t.mu.Lock()
	defer t.mu.Unlock()
	token, known := t.known[agent.Namespace+"/"+name]
	if known {
		return token, nil
	}
	seconds := int64(600)
	made, err := t.client.CoreV1().ServiceAccounts(agent.Namespace).CreateToken(ctx, name,
		&authentication.TokenRequest{Spec: authentication.TokenRequestSpec{Audiences: []string{Audience}, ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case apierrors.IsForbidden(err):
		return "", fmt.Errorf("that needs the right to create serviceaccounts/token of %s in namespace %s: have role takt-node-view bound to you there: %w", name, agent.Namespace, err)
	case err != nil:
		return "", err
	default:
		token = made.Status.Token
	}
	t.known[agent.Namespace+"/"+name] = token
	return token, nil
}

// Ask asks an agent by way of the API server: whoever asks needs the rights of role takt-node-view where it runs.
func Ask(client kubernetes.Interface) func(context.Context, *corev1.Pod) (Node, error) {
	tokens := &tokens{client: client, known: map[string]string{}}
	return func(ctx context.Context, agent *corev1.Pod) (Node, error) {
		for _, container := range agent.Spec.Containers {
			for _, port := range container.Ports {
				if port.Name != "metrics" {
					continue
				}
				token, err := tokens.of(ctx, agent)
				if err != nil {
					return Node{}, err
				}
				request := client.CoreV1().RESTClient().Get().Namespace(agent.Namespace).Resource("pods").SubResource("proxy").
					Name(fmt.Sprintf("http:%s:%d", agent.Name, port.ContainerPort)).Suffix(Path)
				if token != "" {
					request.SetHeader(TokenHeader, token)
				}
				body, err := request.Stream(ctx)
				if apierrors.IsForbidden(err) {
					return Node{}, fmt.Errorf("that needs the right to get pods/proxy in namespace %s: have role takt-node-view bound to you there: %w", agent.Namespace, err)
				}
				if err != nil {
					return Node{}, err
				}
				defer body.Close()
				return read(body)
			}
		}
		return Node{}, fmt.Errorf("it has no port named metrics")
	}
}

// longest is what an agent may say: many times as much as of the most pods that a node has.
const longest = 16 << 20

// read is what an agent says. Its texts are printable: some of them are of pods' programs.
func read(body io.Reader) (Node, error) {
	text, err := io.ReadAll(io.LimitReader(body, longest+1))
	if err != nil {
		return Node{}, err
	}
	if len(text) > longest {
		return Node{}, fmt.Errorf("its answer is longer than %d MiB", longest>>20)
	}
	var said any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	err = decoder.Decode(&said)
	if err == nil {
		text, err = json.Marshal(printable(said))
	}
	var told Node
	if err == nil {
		err = json.Unmarshal(text, &told)
	}
	if err != nil {
		return Node{}, fmt.Errorf("its answer is not of this version: %w", err)
	}
	return told, nil
}

// printable is a JSON value with printable texts.
func printable(value any) any {
	switch value := value.(type) {
	case string:
		return quote.Printable(value)
	case []any:
		for at := range value {
			value[at] = printable(value[at])
		}
	case map[string]any:
		all := make(map[string]any, len(value))
		for key, of := range value {
			all[quote.Printable(key)] = printable(of)
		}
		return all
	}
	return value
}
