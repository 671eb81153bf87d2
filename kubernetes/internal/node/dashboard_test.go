package node

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestTheDashboardShowsMetricsThatThereAre(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/grafana/reservations.json")
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
	s := newSite(t)
	described := make(chan *prometheus.Desc, 100)
	s.agent.metrics.registry.Describe(described)
	close(described)
	name := regexp.MustCompile(`fqName: "([a-z_]+)"`)
	there := map[string]bool{}
	for desc := range described {
		there[name.FindStringSubmatch(desc.String())[1]] = true
	}
	shown := map[string]bool{}
	metric := regexp.MustCompile(`takt_[a-z_]+`)
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			for _, found := range metric.FindAllString(target.Expr, -1) {
				found = strings.TrimSuffix(found, "_bucket")
				shown[found] = true
				if !there[found] {
					t.Errorf("panel %q shows %s, which there is not", panel.Title, found)
				}
			}
		}
	}
	for found := range there {
		if strings.HasPrefix(found, "takt_reservation_") && !shown[found] {
			t.Errorf("no panel shows %s", found)
		}
	}
}
