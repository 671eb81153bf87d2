package cluster

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const prometheus = "http://127.0.0.1:9090/api/v1/"

// ask is an answer of Prometheus.
func ask(path string, into any) error {
	answer, err := http.Get(prometheus + path)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	var told struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(answer.Body).Decode(&told); err != nil {
		return err
	}
	if told.Status != "success" {
		return fmt.Errorf("%s: %s", path, told.Error)
	}
	return json.Unmarshal(told.Data, into)
}

// series is how many an expression has now.
func series(expression string) (int, error) {
	var found struct{ Result []json.RawMessage }
	err := ask("query?query="+url.QueryEscape(expression), &found)
	return len(found.Result), err
}

// absent are metrics of what one node does not have: peers, and a controller that has its key changed.
var absent = []string{"takt_peer_up", "takt_node_key_rotation_given_up", "takt_node_key_rotation_started_timestamp_seconds"}

// podMonitor is what the Prometheus operator reads of the chart's.
type podMonitor struct {
	Metadata metav1.ObjectMeta
	Spec     struct {
		Selector            metav1.LabelSelector
		NamespaceSelector   struct{ MatchNames []string }
		PodMetricsEndpoints []struct{ Port, Path string }
	}
}

// watched are the chart's PodMonitor and its rules, as Prometheus reads them.
func watched(t *testing.T) (monitor podMonitor, rules []byte) {
	t.Helper()
	text, err := os.ReadFile(os.Getenv("TAKT_WATCHED_CHART"))
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range strings.Split(string(text), "\n---\n") {
		var of struct {
			Kind string
			Spec json.RawMessage
		}
		if err := yaml.Unmarshal([]byte(document), &of); err != nil {
			t.Fatalf("%v of %s", err, document)
		}
		switch of.Kind {
		case "PodMonitor":
			if err := yaml.UnmarshalStrict([]byte(document), &struct {
				APIVersion, Kind string
				*podMonitor      `json:",inline"`
			}{podMonitor: &monitor}); err != nil {
				t.Fatal(err)
			}
		case "PrometheusRule":
			rules = of.Spec
		}
	}
	if len(monitor.Spec.PodMetricsEndpoints) != 2 || rules == nil {
		t.Fatalf("the chart has %+v and rules %s", monitor, rules)
	}
	return monitor, rules
}

var notOfLabels = regexp.MustCompile("[^a-zA-Z0-9_]")

// discovered are the ports of all pods of a namespace as Prometheus' role pod tells of them. Debian's Prometheus is built without it.
func discovered(t *testing.T, namespace string) string {
	t.Helper()
	pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	type group struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	var groups []group
	for _, pod := range pods.Items {
		for _, container := range pod.Spec.Containers {
			for _, port := range container.Ports {
				const of = "__meta_kubernetes_"
				labels := map[string]string{
					of + "namespace": pod.Namespace, of + "pod_name": pod.Name, of + "pod_phase": string(pod.Status.Phase),
					of + "pod_container_name": container.Name, of + "pod_container_port_name": port.Name,
				}
				for name, value := range pod.Labels {
					name = notOfLabels.ReplaceAllString(name, "_")
					labels[of+"pod_label_"+name], labels[of+"pod_labelpresent_"+name] = value, "true"
				}
				groups = append(groups, group{[]string{net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(port.ContainerPort)))}, labels})
			}
		}
	}
	text, err := json.Marshal(groups)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "pods.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// scrapes is what the operator makes of a PodMonitor (its generatePodMonitorConfig): of the pods in the monitor's namespace, those with its
// labels and of these the ports with its names.
func (m podMonitor) scrapes(t *testing.T) string {
	t.Helper()
	if len(m.Spec.Selector.MatchExpressions) > 0 || len(m.Spec.NamespaceSelector.MatchNames) > 0 {
		t.Fatalf("more is selected by than this makes of it: %+v", m.Spec)
	}
	pods := discovered(t, m.Metadata.Namespace)
	var config strings.Builder
	config.WriteString("scrape_configs:\n")
	for at, endpoint := range m.Spec.PodMetricsEndpoints {
		fmt.Fprintf(&config, "- job_name: podMonitor/%s/%s/%d\n  metrics_path: %s\n", m.Metadata.Namespace, m.Metadata.Name, at, cmp.Or(endpoint.Path, "/metrics"))
		fmt.Fprintf(&config, "  file_sd_configs: [{files: [%q]}]\n  relabel_configs:\n", pods)
		config.WriteString("  - {action: drop, source_labels: [__meta_kubernetes_pod_phase], regex: (Failed|Succeeded)}\n")
		for label, value := range m.Spec.Selector.MatchLabels {
			name := notOfLabels.ReplaceAllString(label, "_")
			fmt.Fprintf(&config, "  - {action: keep, source_labels: [__meta_kubernetes_pod_label_%s, __meta_kubernetes_pod_labelpresent_%s], regex: (%s);true}\n", name, name, regexp.QuoteMeta(value))
		}
		fmt.Fprintf(&config, "  - {action: keep, source_labels: [__meta_kubernetes_pod_container_port_name], regex: %s}\n", endpoint.Port)
		for _, named := range [][2]string{{"__meta_kubernetes_namespace", "namespace"}, {"__meta_kubernetes_pod_container_name", "container"}, {"__meta_kubernetes_pod_name", "pod"}} {
			fmt.Fprintf(&config, "  - {source_labels: [%s], target_label: %s}\n", named[0], named[1])
		}
		fmt.Fprintf(&config, "  - {target_label: job, replacement: %s/%s}\n  - {target_label: endpoint, replacement: %s}\n", m.Metadata.Namespace, m.Metadata.Name, endpoint.Port)
	}
	return config.String()
}

// A Prometheus with the chart's rules, that finds and scrapes a node as its PodMonitor has it done: what the dashboards show is there, and
// no alert is pending but those that should be.
func TestATimeSensitivePodIsSeenByPrometheus(t *testing.T) {
	program := os.Getenv("TAKT_PROMETHEUS")
	if program == "" {
		t.Skip("there is no Prometheus: run make test-cluster-network")
	}
	monitoring := os.Getenv("TAKT_MONITORING")
	here := t.TempDir()
	monitor, rules := watched(t)
	rulesFile := filepath.Join(here, "rules.yml")
	if err := os.WriteFile(rulesFile, rules, 0o600); err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%q]\n%s", rulesFile, monitor.scrapes(t))
	file := filepath.Join(here, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	server := exec.Command(program, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(here, "data"), "--web.listen-address=127.0.0.1:9090", "--log.level=warn")
	server.Stderr = os.Stderr
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})

	until(t, "what the PodMonitor selects is scraped: both ports of the agent's pod, and nothing else", func() bool {
		all, err := series("up")
		if err != nil {
			return false
		}
		up, err := series(`up{container="takt-node", endpoint=~"metrics|taktd", namespace="kube-system"} == 1`)
		return err == nil && all == 2 && up == 2
	})

	// A pod with a reservation, and one that talks to another.
	create(t, claim("watched", 1, 100_000, twoInTwenty), pod("watched", "watched", "busy"))
	running(t, "watched")
	create(t, python("listener", nil, listening))
	says(t, "listener", "listening")
	create(t, python("talker", timeSensitive, talking, addressOf(t, "listener")))
	says(t, "listener", "early")
	until(t, "Prometheus has seen it", func() bool {
		number, err := series(`takt_class_sent_total{class="5"} >= 20`)
		return err == nil && number == 1
	})
	// Rates need several looks at both.
	until(t, "Prometheus has seen it for a while", func() bool {
		number, err := series(`count_over_time(takt_class_sent_total{class="5"}[1m]) >= 5 or count_over_time(takt_reservation_cpu_seconds_total[1m]) >= 5`)
		return err == nil && number == 2
	})

	metric := regexp.MustCompile(`\btakt_[a-z_]+`)
	for _, name := range []string{"networks.json", "reservations.json"} {
		text, err := os.ReadFile(filepath.Join(monitoring, name))
		if err != nil {
			t.Fatal(err)
		}
		var dashboard struct {
			Panels []struct {
				Title   string
				Targets []struct{ Expr string }
			}
		}
		if err := json.Unmarshal(text, &dashboard); err != nil {
			t.Fatal(err)
		}
		for _, panel := range dashboard.Panels {
			for _, target := range panel.Targets {
				// What Grafana puts in.
				expression := strings.NewReplacer("$__rate_interval", "30s", "$namespace", ".*").Replace(target.Expr)
				shown, err := series(expression)
				if err != nil {
					t.Errorf("%s, %s: %v", name, panel.Title, err)
					continue
				}
				none := false
				for _, of := range metric.FindAllString(expression, -1) {
					number, err := series(of)
					if err != nil || (number == 0) != slices.Contains(absent, of) {
						t.Errorf("%s, %s: %s has %d series, %v", name, panel.Title, of, number, err)
					}
					if number == 0 {
						none = true
					}
				}
				// What asks for more than nothing, of what does not happen, has no answer.
				if shown == 0 && !none && !strings.HasSuffix(expression, "> 0") {
					t.Errorf("%s, %s: nothing is shown for %s", name, panel.Title, expression)
				}
			}
		}
	}

	var evaluated struct {
		Groups []struct {
			Rules []struct{ Name, Query, State, Health, LastError string }
		}
	}
	count := 0
	until(t, "all rules are evaluated", func() bool {
		count = 0
		if err := ask("rules", &evaluated); err != nil {
			t.Fatal(err)
		}
		for _, group := range evaluated.Groups {
			for _, rule := range group.Rules {
				if rule.Health == "unknown" {
					return false
				}
				count++
				if rule.Health != "ok" {
					t.Fatalf("%s: %s", rule.Name, rule.LastError)
				}
			}
		}
		return count > 0
	})
	// What an alert looks at is among what was scraped.
	for _, group := range evaluated.Groups {
		for _, rule := range group.Rules {
			for _, of := range metric.FindAllString(rule.Query, -1) {
				number, err := series(of)
				if err != nil || (number == 0) != slices.Contains(absent, of) {
					t.Errorf("%s looks at %s, of which there are %d series, %v", rule.Name, of, number, err)
				}
			}
		}
	}
	// The machine's clock follows nothing, the busy pod uses all it has, and a virtual machine may be kept from giving it that in time.
	holds := []string{"TaktClockNotSynchronised", "TaktReservationTooSmall", "TaktReservationLate"}
	for _, group := range evaluated.Groups {
		for _, rule := range group.Rules {
			if rule.State != "inactive" && !slices.Contains(holds, rule.Name) {
				t.Errorf("%s is %s where all goes well", rule.Name, rule.State)
			}
		}
	}
	// What goes wrong is seen: the runtime's end.
	process := taktdOf("node-1")
	if err := syscall.Kill(process, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(process, syscall.SIGCONT) })
	until(t, "the runtime's absence is pending", func() bool {
		number, err := series(`ALERTS{alertname="TaktRuntimeAbsent"}`)
		return err == nil && number == 1
	})
	if err := syscall.Kill(process, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	until(t, "the runtime is there again", func() bool {
		number, err := series(`up{endpoint="taktd"} == 1`)
		return err == nil && number == 1
	})
	remove(t, "talker", "")
	remove(t, "listener", "")
	remove(t, "watched", "watched")
}
