package cluster

import (
	"crypto/tls"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/takt-dev/takt/kubernetes/bench/draw"
)

// component is one of those that a pod with a claim waits for, by the histogram that it keeps of itself.
type component struct {
	Name   string `json:"name"`
	server *string
	metric string
	labels map[string]string
	// Of what a histogram is, kept apart for pods with and without claims.
	With, Without *histogram
}

// histogram counts how many durations were at most each bound, in seconds.
type histogram struct {
	Bounds []float64 `json:"bounds_s"`
	// Counts are of each interval, the last one of everything above.
	Counts []uint64 `json:"counts"`
	Count  uint64   `json:"count"`
	Sum    float64  `json:"sum_s"`
}

func (h *histogram) mean() float64 { return 1000 * h.Sum / float64(h.Count) }

// quantile is in milliseconds, by a straight line inside the interval; of the first and the last interval
// only the bound is known.
func (h *histogram) quantile(q float64) string {
	rank, below := q*float64(h.Count), 0.0
	for i, n := range h.Counts {
		if below+float64(n) < rank || n == 0 {
			below += float64(n)
			continue
		}
		switch i {
		case 0:
			return fmt.Sprintf("< %g", 1000*h.Bounds[0])
		case len(h.Bounds):
			return fmt.Sprintf("> %g", 1000*h.Bounds[i-1])
		}
		return fmt.Sprintf("%.3f", 1000*(h.Bounds[i-1]+(h.Bounds[i]-h.Bounds[i-1])*(rank-below)/float64(n)))
	}
	return "-"
}

// add takes in what came between two readings.
func (h *histogram) add(before, after *histogram) {
	if after == nil {
		return
	}
	if h.Counts == nil {
		h.Bounds, h.Counts = after.Bounds, make([]uint64, len(after.Counts))
	}
	for i := range h.Counts {
		h.Counts[i] += after.Counts[i]
	}
	h.Count, h.Sum = h.Count+after.Count, h.Sum+after.Sum
	if before != nil {
		for i := range h.Counts {
			h.Counts[i] -= before.Counts[i]
		}
		h.Count, h.Sum = h.Count-before.Count, h.Sum-before.Sum
	}
}

// read sums the histograms of a metric that have these labels; nil if there is none.
func read(families map[string]*dto.MetricFamily, metric string, labels map[string]string) *histogram {
	family := families[metric]
	if family == nil {
		return nil
	}
	var sum *histogram
	for _, m := range family.Metric {
		matches := 0
		for _, label := range m.Label {
			if want, ok := labels[label.GetName()]; ok && strings.HasSuffix(label.GetValue(), want) {
				matches++
			}
		}
		if matches < len(labels) || m.Histogram == nil {
			continue
		}
		one := &histogram{Count: m.Histogram.GetSampleCount(), Sum: m.Histogram.GetSampleSum()}
		below := uint64(0)
		for _, bucket := range m.Histogram.Bucket {
			if math.IsInf(bucket.GetUpperBound(), 0) {
				continue
			}
			one.Bounds = append(one.Bounds, bucket.GetUpperBound())
			one.Counts = append(one.Counts, bucket.GetCumulativeCount()-below)
			below = bucket.GetCumulativeCount()
		}
		one.Counts = append(one.Counts, one.Count-below)
		if sum == nil {
			sum = &histogram{}
		}
		sum.add(nil, one)
	}
	return sum
}

// agentMetrics is where the one agent's are.
func agentMetrics(t *testing.T) string {
	t.Helper()
	agents, err := client.CoreV1().Pods("kube-system").List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=takt-node"})
	if err != nil || len(agents.Items) != 1 {
		t.Fatalf("agents are %v, %v", agents, err)
	}
	return "http://" + agents.Items[0].Status.PodIP + ":9464/metrics"
}

func scrape(t *testing.T, address string) map[string]*dto.MetricFamily {
	t.Helper()
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: time.Minute}
	page, err := web.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer page.Body.Close()
	if page.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(page.Body)
		t.Fatalf("%s: %s: %s", address, page.Status, text)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(page.Body)
	if err != nil {
		t.Fatalf("%s: %v", address, err)
	}
	return families
}

// startTime is from a pod's creation to the moment at which the API server knows that it runs.
func startTime(t *testing.T, p *corev1.Pod) time.Duration {
	t.Helper()
	events, err := client.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + p.Name})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	began := time.Now()
	if _, err := client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for {
		select {
		case event := <-events.ResultChan():
			if now, ok := event.Object.(*corev1.Pod); ok && event.Type != watch.Deleted && now.Status.Phase == corev1.PodRunning {
				return time.Since(began)
			}
		case <-time.After(2 * time.Minute):
			t.Fatalf("pod %s does not run", p.Name)
		}
	}
}

// costs is the report.
type costs struct {
	Method     string            `json:"method"`
	Machine    string            `json:"machine"`
	Published  map[string]string `json:"published"`
	Components []*component      `json:"components"`
	// Times from creation to running, in milliseconds, sorted.
	With    []float64 `json:"start_with_claim_ms"`
	Without []float64 `json:"start_without_claim_ms"`
}

// It measures, and asserts nothing of what it measures: `make bench-cluster` runs it.
func TestTheCostOfAnAllocation(t *testing.T) {
	pods, err := strconv.Atoi(os.Getenv("TAKT_BENCH_PODS"))
	if err != nil || pods < 1 {
		t.Skip("a measurement: run make bench-cluster")
	}
	scheduler, kubelet, agent := "https://127.0.0.1:10259/metrics", "https://127.0.0.1:10250/metrics", agentMetrics(t)
	of := func(name string, server *string, metric string, labels ...string) *component {
		c := &component{Name: name, server: server, metric: metric, labels: map[string]string{}, With: &histogram{}, Without: &histogram{}}
		for i := 0; i < len(labels); i += 2 {
			c.labels[labels[i]] = labels[i+1]
		}
		return c
	}
	const point = "scheduler_framework_extension_point_duration_seconds"
	report := costs{
		Method: "Pods one after another, in turns ten with a claim (1 and 2 cores by turns) and ten without, in the cluster of one node of " +
			"kubernetes/test/cluster. Components by the histograms that scheduler, kubelet and takt-node keep, read before and after each ten; " +
			"quantiles by a straight line inside a histogram's interval.",
		Machine:   fmt.Sprintf("%d CPUs, %s/%s, load %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, load()),
		Published: map[string]string{"central controller": "2 to 466 ms, mean 48.5", "kubelet plugin": "1.96 to 52.66 ms, mean 6.2"},
		Components: []*component{
			of("scheduler: PreFilter", &scheduler, point, "extension_point", "PreFilter"),
			of("scheduler: Filter (allocator)", &scheduler, point, "extension_point", "Filter"),
			of("scheduler: Reserve", &scheduler, point, "extension_point", "Reserve"),
			of("scheduler: PreBind (writes the claim)", &scheduler, point, "extension_point", "PreBind"),
			of("kubelet: NodePrepareResources, its call", &kubelet, "dra_grpc_operations_duration_seconds", "method_name", "/NodePrepareResources"),
			of("takt-node: prepare a claim", &agent, "takt_node_prepare_seconds"),
			of("takt-node: CreateContainer (NRI)", &agent, "takt_node_hook_seconds", "hook", "CreateContainer"),
			of("takt-node: gate (OCI hook)", &agent, "takt_node_hook_seconds", "hook", "gate"),
			of("takt-node:   of it enforcement", &agent, "takt_node_enforce_seconds"),
			of("takt-node: StartContainer (NRI)", &agent, "takt_node_hook_seconds", "hook", "StartContainer"),
			of("takt-node: StopContainer (NRI)", &agent, "takt_node_hook_seconds", "hook", "StopContainer"),
			of("takt-node: unprepare a claim", &agent, "takt_node_unprepare_seconds"),
		},
	}
	readAll := func() []*histogram {
		pages := map[string]map[string]*dto.MetricFamily{}
		var all []*histogram
		for _, c := range report.Components {
			if pages[*c.server] == nil {
				pages[*c.server] = scrape(t, *c.server)
			}
			all = append(all, read(pages[*c.server], c.metric, c.labels))
		}
		return all
	}
	const block = 10
	for done := 0; done < pods; done += block {
		for _, claimed := range []bool{true, false} {
			before := readAll()
			for i := done; i < min(done+block, pods); i++ {
				name := fmt.Sprintf("cost-%d", i)
				p := pod(name, name, "idle")
				if claimed {
					create(t, claim(name, int64(1+i%2), 100_000, twoInTwenty))
				} else {
					p.Name += "-plain"
					p.Spec.ResourceClaims, p.Spec.Containers[0].Resources = nil, corev1.ResourceRequirements{}
				}
				took := float64(startTime(t, p)) / float64(time.Millisecond)
				if claimed {
					report.With = append(report.With, took)
					remove(t, p.Name, name)
				} else {
					report.Without = append(report.Without, took)
					remove(t, p.Name, "")
				}
			}
			after := readAll()
			for i, c := range report.Components {
				if to := c.With; claimed {
					to.add(before[i], after[i])
				} else {
					c.Without.add(before[i], after[i])
				}
			}
		}
	}
	slices.Sort(report.With)
	slices.Sort(report.Without)
	for _, c := range report.Components {
		if c.With.Count == 0 {
			t.Errorf("%s: nothing was counted in %s %v", c.Name, c.metric, c.labels)
		}
	}
	text := report.table()
	t.Log("\n" + text)
	if out := os.Getenv("TAKT_BENCH_OUT"); out != "" {
		if err := report.save(out, text); err != nil {
			t.Error(err)
		}
	}
}

// quantile is of sorted values.
func quantile(sorted []float64, q float64) float64 {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

func (r costs) table() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%-40s %6s %9s %9s %9s %9s\n", "milliseconds, pods with a claim", "n", "mean", "p50", "p90", "p99")
	for _, c := range r.Components {
		if c.With.Count > 0 {
			fmt.Fprintf(&text, "%-40s %6d %9.3f %9s %9s %9s\n", c.Name, c.With.Count, c.With.mean(), c.With.quantile(0.5), c.With.quantile(0.9), c.With.quantile(0.99))
		}
	}
	for i, all := range [][]float64{r.With, r.Without} {
		name, sum := []string{"pod: creation to running, with", "pod: creation to running, without"}[i], 0.0
		for _, v := range all {
			sum += v
		}
		fmt.Fprintf(&text, "%-40s %6d %9.1f %9.1f %9.1f %9.1f\n", name, len(all), sum/float64(len(all)), quantile(all, 0.5), quantile(all, 0.9), quantile(all, 0.99))
	}
	for _, who := range []string{"central controller", "kubelet plugin"} {
		fmt.Fprintf(&text, "published, %s: %s ms\n", who, strings.Replace(r.Published[who], " ms", "", 1))
	}
	return text.String()
}

func (r costs) save(dir, table string) error {
	return draw.Report(dir, r, table, 2, r.panels())
}

// panels are one histogram for each component that a pod waits for.
func (r costs) panels() []draw.Panel {
	var panels []draw.Panel
	for _, c := range r.Components {
		h := c.With
		if h.Count == 0 {
			continue
		}
		bars := draw.Series{Name: fmt.Sprintf("%d, mean %.2f ms", h.Count, h.mean())}
		from := h.Bounds[0] / 2
		for i, n := range h.Counts[:len(h.Bounds)] {
			bars.X = append(bars.X, 1000*from)
			bars.Y = append(bars.Y, float64(n))
			from = h.Bounds[i]
		}
		bars.X = append(bars.X, 1000*from)
		// Empty intervals at both ends say nothing.
		for len(bars.Y) > 1 && bars.Y[0] == 0 {
			bars.X, bars.Y = bars.X[1:], bars.Y[1:]
		}
		for len(bars.Y) > 1 && bars.Y[len(bars.Y)-1] == 0 {
			bars.X, bars.Y = bars.X[:len(bars.X)-1], bars.Y[:len(bars.Y)-1]
		}
		panel := draw.Panel{
			Title: c.Name, X: draw.Axis{Label: "ms", Log: true}, Y: draw.Axis{Label: "how often", FromZero: true}, Bars: []draw.Series{bars},
		}
		if strings.Contains(c.Name, "prepare a claim") && !strings.Contains(c.Name, "un") {
			panel.Mark, panel.MarkName = 6.2, "the paper's mean"
		}
		panels = append(panels, panel)
	}
	return panels
}

// What a pod's start takes longer if it is time-sensitive. Asserts nothing about time.
func TestTheStartOfATimeSensitivePod(t *testing.T) {
	pods, err := strconv.Atoi(os.Getenv("TAKT_BENCH_PODS"))
	if err != nil || pods < 1 || os.Getenv("TAKT_TAKTD") == "" {
		t.Skip("a measurement: run make bench-start")
	}
	names := []string{"not time-sensitive", "time-sensitive"}
	took := make([][]float64, 2)
	for number := range 2 * pods {
		// In turns, each first once.
		which := (number + number/2) % 2
		var annotations map[string]string
		if which == 1 {
			annotations = timeSensitive
		}
		p := unprivileged(fmt.Sprintf("start-%d", number), "takt.test/guest:1", annotations, "/guest", "idle")
		took[which] = append(took[which], float64(startTime(t, p))/float64(time.Millisecond))
		remove(t, p.Name, "")
	}
	for which, all := range took {
		slices.Sort(all)
		t.Logf("%-20s %4d pods from creation to running: p50 %7.1f ms, p90 %7.1f ms", names[which], len(all), quantile(all, 0.5), quantile(all, 0.9))
	}
}
