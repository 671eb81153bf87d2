package cluster

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// absent are metrics of what one node does not have.
var absent = []string{"takt_peer_up"}

// A Prometheus with the chart's rules, that scrapes a node as its PodMonitor has it done: what the dashboards show is there, and
// no alert is pending but those that should be.
func TestATimeSensitivePodIsSeenByPrometheus(t *testing.T) {
	program := os.Getenv("TAKT_PROMETHEUS")
	if program == "" {
		t.Skip("there is no Prometheus: run make test-cluster-network")
	}
	agents, err := client.CoreV1().Pods("kube-system").List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=takt-node"})
	if err != nil || len(agents.Items) != 1 {
		t.Fatalf("agents are %v, %v", agents, err)
	}
	monitoring := os.Getenv("TAKT_MONITORING")
	here := t.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%q]\nscrape_configs:\n", filepath.Join(monitoring, "alerts.yaml"))
	for endpoint, address := range map[string]string{"metrics": agents.Items[0].Status.PodIP + ":9464", "taktd": "127.0.0.1:9465"} {
		config += fmt.Sprintf("- {job_name: %q, static_configs: [{targets: [%q], labels: {endpoint: %q, container: takt-node}}]}\n", endpoint, address, endpoint)
	}
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

	var rules struct {
		Groups []struct {
			Rules []struct{ Name, State, Health, LastError string }
		}
	}
	count := 0
	until(t, "all rules are evaluated", func() bool {
		count = 0
		if err := ask("rules", &rules); err != nil {
			t.Fatal(err)
		}
		for _, group := range rules.Groups {
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
	// The machine's clock follows nothing, the busy pod uses all it has, and a virtual machine may be kept from giving it that in time.
	holds := []string{"TaktClockNotSynchronised", "TaktReservationTooSmall", "TaktReservationLate"}
	for _, group := range rules.Groups {
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
