package node

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestThreadsOfOneLabelAreOneFigure(t *testing.T) {
	all := tally{last: map[int]sampled{
		11: {inner: 1, name: "sh\xff", waited: 5}, 12: {inner: 1, name: "sh?", waited: 7}, 13: {inner: 2, name: "sh?", waited: 1}, 14: {name: "ended", waited: 9},
	}}.waited()
	if len(all) != 2 || all[threadLabel{1, "sh?"}] != 12 || all[threadLabel{2, "sh?"}] != 1 {
		t.Errorf("figures are %v", all)
	}
}

// twice is a collector that says one figure twice.
type twice struct{ *prometheus.Desc }

func (c twice) Describe(to chan<- *prometheus.Desc) { to <- c.Desc }

func (c twice) Collect(to chan<- prometheus.Metric) {
	for range 2 {
		to <- prometheus.MustNewConstMetric(c.Desc, prometheus.GaugeValue, 1)
	}
}

func TestOneFigureThatCannotBeSaidCostsNoOther(t *testing.T) {
	m := &metrics{registry: prometheus.NewRegistry()}
	healthy := prometheus.NewGauge(prometheus.GaugeOpts{Name: "healthy"})
	m.registry.MustRegister(twice{prometheus.NewDesc("doubled", "", nil, nil)}, healthy)
	page := httptest.NewRecorder()
	m.handler().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if page.Code != http.StatusOK || !strings.Contains(page.Body.String(), "healthy 0") {
		t.Errorf("%d: %s", page.Code, page.Body)
	}
}
