package report

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	authentication "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func pod(namespace, name, node string, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: annotations},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

func agent(name, node string) *corev1.Pod {
	agent := pod("kube-system", name, node, nil)
	agent.Labels = map[string]string{"app.kubernetes.io/name": "takt-node"}
	return agent
}

func TestEveryPodThatTaktServesIsShownWithWhatItLacks(t *testing.T) {
	sensitive := map[string]string{"takt.dev/time-sensitive": "true"}
	done := pod("default", "done", "one", sensitive)
	done.Status.Phase = corev1.PodSucceeded
	host := pod("default", "host", "one", sensitive)
	host.Spec.HostNetwork = true
	objects := []runtime.Object{
		agent("takt-node-1", "one"), agent("takt-node-2", "two"), agent("takt-node-3", "three"), agent("reservations-4", "four"), agent("networks-4", "four"),
		agent("cpu-only", "seven"),
		pod("default", "receives", "one", map[string]string{"takt.dev/time-sensitive": "true", "takt.dev/path": "preload"}),
		pod("default", "misses-all", "one", sensitive), pod("default", "misses-some", "one", sensitive), pod("default", "undeclared", "one", sensitive), pod("default", "untimely", "one", nil), pod("default", "untold", "one", sensitive), pod("default", "long", "one", sensitive), pod("default", "stopped", "one", sensitive), pod("default", "mended", "one", sensitive), pod("default", "yes", "one", map[string]string{"takt.dev/time-sensitive": "yes"}), pod("default", "unserved", "one", sensitive), pod("default", "untold-too", "one", nil),
		pod("default", "talker", "one", sensitive), pod("default", "idle", "one", sensitive), pod("default", "left-out", "one", sensitive), pod("default", "halfway", "one", map[string]string{"takt.dev/preload.main": "required"}),
		pod("default", "by-veth", "one", map[string]string{"takt.dev/path": "veth"}), pod("default", "no-preload", "one", map[string]string{"takt.dev/preload": "off"}),
		pod("default", "static", "one", sensitive), pod("default", "gateless", "one", sensitive), pod("default", "unheard", "one", sensitive),
		pod("default", "refused", "one", sensitive), pod("default", "lost", "one", nil), pod("default", "waits", "one", nil),
		pod("default", "silent", "two", sensitive), pod("default", "nowhere", "", sensitive), pod("default", "no-taktd", "three", sensitive),
		pod("default", "no-agent", "six", sensitive), pod("default", "no-networks", "seven", sensitive), done, host,
		pod("default", "reserved", "four", nil), pod("default", "attached", "four", nil), pod("default", "ordinary", "one", map[string]string{"takt.dev/time-sensitive": "false"}),
		pod("other", "talker", "one", sensitive),
	}
	leaving := agent("leaving", "eight")
	leaving.Spec.Containers = []corev1.Container{{Args: []string{"-config=/etc/takt-node/config.yaml", "-uninstall"}}}
	client := fake.NewClientset(append(objects, leaving, pod("default", "left-alone", "eight", sensitive))...)
	answers := map[string]Node{
		"takt-node-1": {Networks: &Networks{Attached: []Attached{
			{Namespace: "default", Pod: "talker", Interface: "eth0", Network: "pods", Programs: 1}, {Namespace: "default", Pod: "idle", Interface: "eth0", Network: "pods"},
			{Namespace: "default", Pod: "receives", Interface: "eth0", Network: "pods"}, {Namespace: "default", Pod: "long", Interface: "eth0", Network: "pods", Programs: 1, Note: "the MTU"},
			{Namespace: "default", Pod: "unserved", Interface: "eth0", Network: "pods", Programs: 1, Untold: true, Unserved: "there is no TaktNetwork"},
			{Namespace: "default", Pod: "misses-all", Interface: "eth0", Classes: []uint32{0}, Programs: 1, Counts: Counts{Launches: Launches{Missed: 300}}},
			{Namespace: "default", Pod: "misses-some", Interface: "eth0", Classes: []uint32{0}, Programs: 1, Counts: Counts{Launches: Launches{Left: 300, Missed: 7}, Refused: 7, RefusedBy: map[string]uint64{RefusedWindow: 7}}},
			{Namespace: "default", Pod: "stopped", Interface: "eth0", Classes: []uint32{5}, Programs: 1, Counts: Counts{Launches: Launches{Left: 4068, Missed: 489}}, Recent: &Recent{Seconds: 60, Counts: Counts{Launches: Launches{Missed: 400}}}},
			{Namespace: "default", Pod: "mended", Interface: "eth0", Classes: []uint32{5}, Programs: 1, Counts: Counts{Launches: Launches{Left: 100, Missed: 489}}, Recent: &Recent{Seconds: 60, Counts: Counts{Launches: Launches{Left: 90}}}},
			{Namespace: "default", Pod: "undeclared", Interface: "eth0", Classes: []uint32{0, 5}, Programs: 1, Counts: Counts{Launches: Launches{Left: 1, Missed: 300}, Refused: 300, RefusedBy: map[string]uint64{RefusedUndeclared: 300}}},
			{Namespace: "default", Pod: "untimely", Interface: "net1", Classes: []uint32{5}, Programs: 1, Counts: Counts{Refused: 9, RefusedBy: map[string]uint64{RefusedWindow: 5, RefusedExcess: 4}}},
			{Namespace: "default", Pod: "untold", Interface: "eth0", Network: "pods", Untold: true}, {Namespace: "default", Pod: "untold-too", Interface: "net1", Network: "tsn", Untold: true},
			{Namespace: "default", Pod: "static", Interface: "eth0", Network: "pods", Veth: &Veth{Device: "veth1", Taking: true}},
			{Namespace: "default", Pod: "gateless", Interface: "eth0", Network: "pods", Programs: 1, GateTime: []GateTime{{Claim: "kept"}, {Claim: "gates", Problem: "no window"}}},
			{Namespace: "default", Pod: "unheard", Interface: "eth0", Network: "pods", Programs: 1, Veth: &Veth{Device: "veth2", Problem: "Linux 6.11 is needed"}},
			{Namespace: "default", Pod: "done", Interface: "eth0", Network: "pods"},
			{Namespace: "default", Pod: "lost", Interface: "eth0", Network: "pods", GateTime: []GateTime{{Claim: "gates", Problem: "no window"}}},
		}, Waiting: []Waiting{
			{Namespace: "default", Pod: "refused", Network: "pods", GateTime: []GateTime{{Claim: "gates", Problem: "GateTimeExceeded"}}},
			{Namespace: "default", Pod: "waits", Network: "pods", GateTime: []GateTime{{Claim: "gates", Problem: "GateTimeExceeded"}}},
			{Namespace: "other", Pod: "waits", Network: "pods", GateTime: []GateTime{{Claim: "gates", Problem: "GateTimeExceeded"}}},
		}}},
		"takt-node-3":    {Networks: &Networks{Problem: "connection refused"}},
		"reservations-4": {Reserved: []Reserved{{Namespace: "default", Pod: "reserved", Container: "main", Runtime: "4ms", Period: "10ms"}}},
		"networks-4":     {Networks: &Networks{Attached: []Attached{{Namespace: "default", Pod: "attached"}}}},
		"cpu-only":       {},
	}
	ask := func(_ context.Context, agent *corev1.Pod) (Node, error) {
		answer, there := answers[agent.Name]
		if !there {
			return Node{}, errors.New("timed out")
		}
		return answer, nil
	}
	pods, problems, err := Cluster(context.Background(), client, ask, "default", Agents)
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for _, pod := range pods {
		problem, _, _ := strings.Cut(pod.Problem, ":")
		shown = append(shown, fmt.Sprintf("%s %d %d %s", pod.Pod, len(pod.Attached), len(pod.Reserved), problem))
	}
	want := []string{
		"attached 1 0 ", "by-veth 0 0 it asks for launch times, and no network has attached it", "done 1 0 ", "gateless 1 0 claim gates has lost its gate time", "halfway 0 0 it asks for launch times, and no network has attached it", "host 0 0 it is in its node's own network, where no network attaches it", "idle 1 0 no program of it has attached", "left-alone 0 0 takt-node is being uninstalled on its node", "left-out 0 0 no network has attached it",
		"long 1 0 ", "lost 1 0 claim gates has lost its gate time",
		"mended 1 0 ", "misses-all 1 0 eth0 (classes [0])", "misses-some 1 0 ",
		"no-agent 0 0 its node has no takt-node", "no-networks 0 0 the agent of its node serves no networks", "no-taktd 0 0 taktd of its node does not answer",
		"nowhere 0 0 not placed yet", "receives 1 0 ", "refused 0 0 claim gates has no gate time", "reserved 0 1 ", "silent 0 0 the agent of its node does not answer", "static 1 0 ", "stopped 1 0 eth0 (classes [5]), in the last 60 s", "talker 1 0 ",
		"undeclared 1 0 eth0 (classes [0 5])", "unheard 1 0 launch times are not taken at veth2, the veth of eth0", "unserved 1 0 its node does not serve network pods, that of eth0", "untimely 1 0 net1 (classes [5])",
		"untold 1 0 other nodes have not been told of eth0 in network pods", "untold-too 1 0 other nodes have not been told of net1 in network tsn", "waits 0 0 claim gates has no gate time", "yes 0 0 its annotation takt.dev/time-sensitive is \"yes\"",
	}
	if !slices.Equal(shown, want) {
		t.Errorf("shown are %q and not %q", shown, want)
	}
	for _, pod := range pods {
		if noted := pod.Note != ""; noted != (pod.Pod == "receives" || pod.Pod == "long") {
			t.Errorf("%s has note %q", pod.Pod, pod.Note)
		}
	}
	for name, want := range map[string][]string{
		"stopped":    {"400 of 400 launches missed"},
		"yes":        {`write "true" or "false"`},
		"misses-all": {"300 of 300 launches missed", "another class", "takt status on its node"},
		"undeclared": {"300 of 301 launches missed", "300 frames refused (undeclared)", "the destination or channel of the claim"},
		"untimely":   {"5 frames refused (window)", "between offset and offset + window", "4 frames refused (excess)"},
	} {
		at := slices.IndexFunc(pods, func(p Pod) bool { return p.Pod == name })
		for _, one := range want {
			if !strings.Contains(pods[at].Problem, one) {
				t.Errorf("%s: %q is not in %q", name, one, pods[at].Problem)
			}
		}
	}
	if len(problems) != 3 || !strings.Contains(problems[0], "node eight: takt-node is being uninstalled, and says in its log what it waits for: kubectl logs -n kube-system leaving") ||
		!strings.Contains(problems[1], "node three: taktd does not answer: connection refused") || !strings.Contains(problems[2], "kube-system/takt-node-2 does not answer: timed out") {
		t.Errorf("problems %q", problems)
	}
	all, _, err := Cluster(context.Background(), client, ask, "", Agents)
	if err != nil || len(all) != len(pods)+1 || all[len(all)-1].Namespace != "other" {
		t.Errorf("%v, %v", all, err)
	}
}

// Of a pod that has not started it is not known what it would lack.
func TestAPodThatHasNotStartedIsToldWhatItsContainersSay(t *testing.T) {
	waiting := func(reason, message string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: "main", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}
	}
	ended := func(status corev1.ContainerStatus, reason, message string) corev1.ContainerStatus {
		status.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: reason, Message: message}
		return status
	}
	running := corev1.ContainerStatus{Name: "side", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	before := corev1.ContainerStatus{Name: "first", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}}}
	creating, attached := waiting("ContainerCreating", ""), []Attached{{Namespace: "default", Pod: "talker", Interface: "eth0", Network: "pods"}}
	const left, unknown = "no network has attached it: put takt-cni into the CNI configuration of its node, and delete the pod, so that it is made again", "its containers have not started: see its events (kubectl describe pod)"
	for name, tc := range map[string]struct {
		phase    corev1.PodPhase
		init     []corev1.ContainerStatus
		statuses []corev1.ContainerStatus
		attached []Attached
		waits    string
		want     string
	}{
		"no sandbox":            {corev1.PodPending, nil, []corev1.ContainerStatus{creating}, nil, "", unknown},
		"nothing said":          {corev1.PodPending, nil, nil, attached, "", unknown},
		"refused":               {corev1.PodPending, nil, []corev1.ContainerStatus{creating, waiting("CreateContainerError", "NotAllowed: \x1b[2J")}, attached, "", `its container main has not started: CreateContainerError: NotAllowed: \x1b[2J`},
		"refused at its start":  {corev1.PodRunning, nil, []corev1.ContainerStatus{ended(waiting("CrashLoopBackOff", "back-off 10s"), "StartError", "NotReserved")}, nil, "", "its container main has not started: StartError: NotReserved"},
		"refused before others": {corev1.PodPending, []corev1.ContainerStatus{waiting("ImagePullBackOff", "no such image")}, []corev1.ContainerStatus{creating}, nil, "", "its container main has not started: ImagePullBackOff: no such image"},
		"refused after others":  {corev1.PodPending, []corev1.ContainerStatus{before}, []corev1.ContainerStatus{waiting("CreateContainerError", "NotAllowed")}, attached, "", "its container main has not started: CreateContainerError: NotAllowed"},
		"one runs":              {corev1.PodPending, nil, []corev1.ContainerStatus{creating, running}, nil, "", left},
		"has run":               {corev1.PodRunning, nil, []corev1.ContainerStatus{ended(waiting("CrashLoopBackOff", "back-off 10s"), "Error", "")}, attached, "", unattached},
		"without gate time":     {corev1.PodPending, nil, []corev1.ContainerStatus{creating}, nil, "GateTimeExceeded", "claim gates has no gate time: GateTimeExceeded"},
	} {
		talker := pod("default", "talker", "one", map[string]string{"takt.dev/time-sensitive": "true"})
		talker.Status = corev1.PodStatus{Phase: tc.phase, InitContainerStatuses: tc.init, ContainerStatuses: tc.statuses}
		client := fake.NewClientset(agent("takt-node-1", "one"), talker)
		ask := func(context.Context, *corev1.Pod) (Node, error) {
			networks := &Networks{Attached: tc.attached}
			if tc.waits != "" {
				networks.Waiting = []Waiting{{Namespace: "default", Pod: "talker", GateTime: []GateTime{{Claim: "gates", Problem: tc.waits}}}}
			}
			return Node{Networks: networks}, nil
		}
		pods, _, err := Cluster(context.Background(), client, ask, "default", Agents)
		if err != nil || len(pods) != 1 || pods[0].Problem != tc.want {
			t.Errorf("%s: %+v and not %q, %v", name, pods, tc.want, err)
		}
	}
}

// What the preload refuses, gives up or leaves to the kernel does not leave at its time either.
func TestWhatGoesAroundTheRuntimeIsNoHealthyPod(t *testing.T) {
	required, wanted := map[string]string{"takt.dev/time-sensitive": "true", "takt.dev/preload": "required"}, map[string]string{"takt.dev/time-sensitive": "true"}
	for name, tc := range map[string]struct {
		annotations map[string]string
		left        uint64
		around      map[string]uint64
		want        []string
	}{
		"out of reach":            {required, 0, map[string]uint64{"station-out-of-reach": 2332, "no-runtime": 2}, []string{"eth0 (classes [0]): 2332 datagrams with a launch time refused (station-out-of-reach)", "not of this network", "condition Served"}},
		"of one container":        {map[string]string{"takt.dev/time-sensitive": "true", "takt.dev/preload.main": "required"}, 0, map[string]uint64{"no-route": 1}, []string{"1 datagrams with a launch time refused (no-route)"}},
		"silent":                  {required, 3, map[string]uint64{"next-hop-silent": 2332}, []string{"2332 datagrams with a launch time given up (next-hop-silent)", "does not answer"}},
		"left to the kernel":      {wanted, 0, map[string]uint64{"this-machine": 7}, []string{"7 datagrams with a launch time left to the kernel", "(this-machine)", "the pod itself"}},
		"of a reason to come":     {wanted, 0, map[string]uint64{"eclipse": 7}, []string{"(eclipse): see docs/reference/preload.md"}},
		"at the begin":            {required, 300, map[string]uint64{"no-runtime": 7}, nil},
		"as many as the veth has": {wanted, 300, map[string]uint64{"control-message": 300}, nil},
	} {
		client := fake.NewClientset(agent("takt-node-1", "one"), pod("default", "talker", "one", tc.annotations))
		ask := func(context.Context, *corev1.Pod) (Node, error) {
			return Node{Networks: &Networks{Attached: []Attached{{Namespace: "default", Pod: "talker", Interface: "eth0", Classes: []uint32{0}, Programs: 1, Counts: Counts{Launches: Launches{Left: tc.left}, Around: tc.around}}}}}, nil
		}
		pods, _, err := Cluster(context.Background(), client, ask, "default", Agents)
		if err != nil || len(pods) != 1 || tc.want == nil && pods[0].Problem != "" {
			t.Errorf("%s: %+v, %v", name, pods, err)
			continue
		}
		for _, want := range tc.want {
			if !strings.Contains(pods[0].Problem, want) {
				t.Errorf("%s: %q is not in %q", name, want, pods[0].Problem)
			}
		}
	}
}

// Who may do something in a namespace or two sees the pods of the one, by the agents in the other, and is told what right lacks.
func TestWhoMayListPodsOfANamespaceSeesThem(t *testing.T) {
	elsewhere := agent("takt-node-1", "one")
	elsewhere.Namespace = "takt"
	other := agent("takt-node-2", "two")
	other.Namespace = "takt"
	client := fake.NewClientset(elsewhere, other, pod("factory", "talker", "one", map[string]string{"takt.dev/time-sensitive": "true"}))
	may := map[string]bool{}
	client.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if may[action.GetNamespace()] {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no"))
	})
	asked := []string{}
	ask := func(_ context.Context, agent *corev1.Pod) (Node, error) {
		asked = append(asked, agent.Name)
		return Node{Networks: &Networks{Attached: []Attached{{Namespace: "factory", Pod: "talker", Interface: "eth0", Programs: 1}}}}, nil
	}
	for _, tc := range []struct {
		may       []string
		namespace string
		at        []string
		wrong     string
	}{
		{[]string{"factory"}, "", []string{Agents}, "list pods in all namespaces: name one by -n"},
		{[]string{"factory"}, "factory", []string{"takt"}, "list pods in namespace takt: have role takt-node-view bound to you there"},
		{[]string{"factory", Agents}, "factory", []string{Agents}, "no agents in namespace kube-system: name the one where takt-node runs by -agents"},
		{[]string{"factory", "takt"}, "factory", []string{"takt"}, ""},
		{[]string{"factory", "takt", Agents}, "factory", []string{Agents, "takt"}, ""},
	} {
		clear(may)
		for _, namespace := range tc.may {
			may[namespace] = true
		}
		pods, problems, err := Cluster(context.Background(), client, ask, tc.namespace, tc.at...)
		if tc.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), tc.wrong) {
				t.Errorf("%+v: %v", tc, err)
			}
			continue
		}
		if err != nil || len(pods) != 1 || pods[0].Problem != "" || len(problems) > 0 {
			t.Errorf("%+v: %v, %q, %v", tc, pods, problems, err)
		}
	}
	// The agent of a node without such pods has nothing to say.
	if want := []string{"takt-node-1", "takt-node-1"}; !slices.Equal(asked, want) {
		t.Errorf("asked are %q", asked)
	}
}

// The label of the agents is anybody's; the namespace where they run is not.
func TestAPodThatPassesForAnAgentIsNotBelieved(t *testing.T) {
	attached := func(network string) Node {
		return Node{Networks: &Networks{Attached: []Attached{{Namespace: "factory", Pod: "talker", Interface: "eth0", Network: network, Programs: 1}}}}
	}
	impostor, evicted, half := agent("a-takt-node", "one"), agent("evicted", "one"), agent("half", "one")
	impostor.Namespace = "factory"
	evicted.Status.Phase = corev1.PodFailed
	talker := pod("factory", "talker", "one", map[string]string{"takt.dev/time-sensitive": "true"})
	timeout := errors.New("timed out\x1b[2J")
	for name, tc := range map[string]struct {
		beside   *corev1.Pod
		says     func() (Node, error)
		problems int
	}{
		"alone":                          {nil, nil, 0},
		"silent, elsewhere":              {impostor, func() (Node, error) { return Node{}, timeout }, 0},
		"of other networks, elsewhere":   {impostor, func() (Node, error) { return attached("another"), nil }, 0},
		"evicted":                        {evicted, func() (Node, error) { return Node{}, timeout }, 0},
		"the other half of one, silent":  {half, func() (Node, error) { return Node{}, timeout }, 1},
		"the other half of one, answers": {half, func() (Node, error) { return Node{}, nil }, 0},
	} {
		objects := []runtime.Object{agent("takt-node-1", "one"), talker}
		if tc.beside != nil {
			objects = append(objects, tc.beside)
		}
		ask := func(_ context.Context, of *corev1.Pod) (Node, error) {
			if of.Name == "takt-node-1" {
				return attached("pods"), nil
			}
			return tc.says()
		}
		for _, namespace := range []string{"factory", ""} {
			pods, problems, err := Cluster(context.Background(), fake.NewClientset(objects...), ask, namespace, Agents)
			if err != nil || len(problems) != tc.problems || len(pods) != 1 || pods[0].Problem != "" || len(pods[0].Attached) != 1 || pods[0].Attached[0].Network != "pods" {
				t.Errorf("%s: %+v, %q, %v", name, pods, problems, err)
			}
			if strings.Contains(strings.Join(problems, ""), "\x1b") {
				t.Errorf("%s: a terminal is told %q", name, problems)
			}
		}
	}
}

func TestWhatAnAgentSaysIsReadInBoundsAndPrintable(t *testing.T) {
	said := `{"node": "one", "networks": {"problem": "a\u001b]0;b\n\u202e", "attached": [{"pod": "é \"q\"", "launches": {"left": 18446744073709551615}, "refusedBy": {"\u009bx": 3}}]}}`
	told, err := read(strings.NewReader(said))
	if err != nil || told.Node != "one" || told.Networks.Problem != `a\x1b]0;b\n\u202e` {
		t.Fatalf("%+v, %v", told.Networks, err)
	}
	if of := told.Networks.Attached[0]; of.Pod != `é "q"` || of.Launches.Left != 18446744073709551615 || of.RefusedBy[`\u009bx`] != 3 {
		t.Errorf("%+v", of)
	}
	endless := io.MultiReader(strings.NewReader(`{"node": "`), forever{})
	if _, err := read(endless); err == nil || !strings.Contains(err.Error(), "longer than 16 MiB") {
		t.Errorf("an answer without end: %v", err)
	}
	if _, err := read(strings.NewReader("<html>")); err == nil || !strings.Contains(err.Error(), "not of this version") {
		t.Errorf("another page: %v", err)
	}
}

// forever reads as the same letter.
type forever struct{}

func (forever) Read(to []byte) (int, error) {
	for at := range to {
		to[at] = 'a'
	}
	return len(to), nil
}

// What lacks is named, and an agent of an earlier release, which knows no tokens, is asked without.
func TestAnAgentIsAskedWithATokenOrToldWhatRightLacks(t *testing.T) {
	client := fake.NewClientset()
	asked, verdict := 0, error(nil)
	client.PrependReactor("create", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
		asked++
		request := action.(clienttesting.CreateAction).GetObject().(*authentication.TokenRequest)
		request.Status.Token = "token"
		return true, request, verdict
	})
	of := agent("takt-node-1", "one")
	of.Spec.ServiceAccountName = "takt-node"
	for _, tc := range []struct {
		err          error
		token, wrong string
	}{
		{nil, "token", ""},
		{apierrors.NewNotFound(schema.GroupResource{Resource: "serviceaccounts"}, "takt-node-view"), "", ""},
		{apierrors.NewForbidden(schema.GroupResource{Resource: "serviceaccounts"}, "takt-node-view", errors.New("no")), "", "create serviceaccounts/token of takt-node-view in namespace kube-system"},
	} {
		verdict, asked = tc.err, 0
		all := &tokens{client: client, known: map[string]string{}}
		for range 2 {
			token, err := all.of(context.Background(), of)
			if token != tc.token || tc.wrong == "" && err != nil || tc.wrong != "" && (err == nil || !strings.Contains(err.Error(), tc.wrong)) {
				t.Errorf("%v: %q, %v", tc.err, token, err)
			}
		}
		if tc.wrong == "" && asked != 1 {
			t.Errorf("%v: asked for %d tokens", tc.err, asked)
		}
	}
}

func TestThereIsARemedyForEachReasonThatTaktdCounts(t *testing.T) {
	source, err := os.ReadFile("../../../crates/system/session/src/unserved.rs")
	if err != nil {
		t.Fatal(err)
	}
	_, list, found := strings.Cut(string(source), "pub const NAMES")
	_, list, opens := strings.Cut(list, "= [")
	list, _, closes := strings.Cut(list, "];")
	if !found || !opens || !closes {
		t.Fatal("takt_session::unserved::NAMES is written otherwise: read it here")
	}
	var reasons []string
	for line := range strings.Lines(list) {
		reasons = append(reasons, strings.Trim(line, " \",\n"))
	}
	reasons = slices.Sorted(slices.Values(slices.DeleteFunc(reasons, func(name string) bool { return name == "" })))
	if known := slices.Sorted(maps.Keys(remedies)); !slices.Equal(reasons, known) {
		t.Errorf("taktd counts %v, and there are remedies for %v", reasons, known)
	}
}
