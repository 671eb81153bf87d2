package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authentication "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/takt-dev/takt/kubernetes/internal/report"
)

// api is what of an API server is asked: lists of pods, and the way to an agent.
func api(t *testing.T, programs uint32) (kubeconfig string) {
	t.Helper()
	agent := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "takt-node-x", Labels: map[string]string{"app.kubernetes.io/name": "takt-node"}},
		Spec:       corev1.PodSpec{NodeName: "one", ServiceAccountName: "takt-node", Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: 9464}}}}},
	}
	talker := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "talker", Annotations: map[string]string{"takt.dev/time-sensitive": "true"}},
		Spec:       corev1.PodSpec{NodeName: "one"}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	answer := func(w http.ResponseWriter, what any) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(what); err != nil {
			t.Error(err)
		}
	}
	list := func(pods ...corev1.Pod) corev1.PodList {
		return corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: pods}
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/v1/namespaces/kube-system/pods":
			answer(w, list(agent))
		case "/api/v1/namespaces/takt/pods":
			answer(w, list())
		case "/api/v1/namespaces/default/pods":
			answer(w, list(talker))
		case "/api/v1/namespaces/kube-system/serviceaccounts/takt-node-view/token":
			var asked authentication.TokenRequest
			body, err := io.ReadAll(r.Body)
			if err == nil {
				_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, &asked)
			}
			if err != nil || r.Method != http.MethodPost || !slices.Equal(asked.Spec.Audiences, []string{"takt-node"}) {
				t.Errorf("%v, %s %+v", err, r.Method, asked)
			}
			asked.TypeMeta = metav1.TypeMeta{Kind: "TokenRequest", APIVersion: "authentication.k8s.io/v1"}
			asked.Status.Token = "shown"
			answer(w, asked)
		case "/api/v1/namespaces/kube-system/pods/http:takt-node-x:9464/proxy/pods":
			if r.Header.Get("Takt-Token") != "shown" {
				t.Errorf("the agent is shown %q", r.Header)
			}
			answer(w, report.Node{
				Node: "one",
				Networks: &report.Networks{Attached: []report.Attached{{Namespace: "default", Pod: "talker", Interface: "eth0", Network: "pods", Programs: programs, Veth: veths[programs], Counts: report.Counts{Launches: launches[programs], RefusedBy: refused[programs], Around: map[string]uint64{"no-route": 3}},
					Schedules: []report.Schedule{{Datapath: "udp", Name: "line", Running: true, Cycle: "1ms", OtherTraffic: "taprio"}, {Datapath: "udp", Cycle: "500us"}, {Datapath: "xdp", Running: true, Cycle: "2ms", OtherTrafficProblem: "no taprio"}},
					GateTime:  []report.GateTime{{Claim: "time", Request: "gate", Class: 5, Frames: 2, Frame: 1514, Period: "1ms"}}}}},
				Reserved: []report.Reserved{{Namespace: "default", Pod: "talker", Container: "main", Runtime: "4ms", Period: "10ms", Threads: 1}, {Namespace: "default", Pod: "talker", Container: "log", Runtime: "1ms", Period: "20ms", Threads: 2}},
			})
		default:
			t.Error("asked for", r.URL.Path)
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	kubeconfig = filepath.Join(t.TempDir(), "config")
	text := `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u}],
		clusters: [{name: c, cluster: {server: "` + server.URL + `"}}]}`
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// veths are what the agent says of the pod's veth, by how many programs it has.
var veths = map[uint32]*report.Veth{2: {Device: "veth1", Taking: true, Required: true}}

// launches are what the agent says of the pod's launch times, and how they are shown.
var (
	launches = map[uint32]report.Launches{2: {Left: 90, Late: 2, Missed: 7}, 1: {Left: 5}}
	refused  = map[uint32]map[string]uint64{2: {"window": 4, "excess": 3}}
	shown    = map[uint32][]string{2: {"90", "(2", "late,", "7", "missed,", "3", "refused:", "excess,", "4", "refused:", "window)"}, 1: {"5"}, 0: {"-"}}
)

func TestPodsAreShownAsATableAndAsJSON(t *testing.T) {
	for programs, code := range map[uint32]int{2: 0, 1: 0, 0: 3} {
		kubeconfig := api(t, programs)
		var out, errs bytes.Buffer
		if got := run(context.Background(), []string{"-kubeconfig", kubeconfig}, &out, &errs); got != code || errs.Len() > 0 {
			t.Errorf("status %d and not %d: %s", got, code, &errs)
		}
		lines := strings.Split(out.String(), "\n")
		state := "ok"
		if programs == 0 {
			state = "no program of it has attached: is it dynamically linked, and does it ask for launch times (SO_TXTIME)?"
		}
		want := []string{"default", "talker", "one", "pods", "(eth0)", string('0' + rune(programs)), "-", "launches", "3", "no-route", "line", "udp", "1ms", "(others", "by", "taprio),", "udp", "500us", "(pending),", "xdp", "2ms", "(others", "beside", "it:", "no", "taprio)", "main", "4ms/10ms,", "log", "2x1ms/20ms", "class", "5", "2x1514B/1ms"}
		want = slices.Replace(want, 7, 8, shown[programs]...)
		if veths[programs] != nil {
			want = slices.Replace(want, 6, 7, "taking,", "required")
		}
		if fields := strings.Fields(strings.TrimSuffix(lines[1], state)); strings.Join(fields, " ") != strings.Join(want, " ") {
			t.Errorf("%q and not %q", fields, want)
		}
		out.Reset()
		run(context.Background(), []string{"-kubeconfig", kubeconfig, "-agents", "takt", "-agents", "kube-system", "-o", "json"}, &out, &errs)
		var told struct{ Pods []report.Pod }
		if err := json.Unmarshal(out.Bytes(), &told); err != nil || len(told.Pods) != 1 || told.Pods[0].Reserved[0].Runtime != "4ms" {
			t.Errorf("%v: %s", err, &out)
		}
	}
}

func TestMistakesInTheCommandAreToldWithTheRemedy(t *testing.T) {
	for args, want := range map[string]string{
		"pods":                      "not expected",
		"-o yaml":                   "write json",
		"-A -n default":             "contradict",
		"-colour":                   "not defined",
		"-agents=":                  "a namespace has a name",
		"-kubeconfig /nowhere/file": "no such file",
		"key node-1":                "not expected",
		"key -all":                  "for rotate",
		"key rotate":                "one or the other",
		"key rotate -all node-1":    "one or the other",
		"key rotate -o json node-1": "without rotate",
	} {
		var out, errs bytes.Buffer
		code := run(context.Background(), strings.Fields(args), &out, &errs)
		if expected := map[bool]int{true: 1, false: 2}[strings.HasPrefix(args, "-kubeconfig")]; code != expected || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: %d, %s", args, code, &errs)
		}
	}
}
