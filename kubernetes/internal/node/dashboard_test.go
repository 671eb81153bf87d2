package node

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

func TestTheDashboardShowsMetricsThatThereAre(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/helm/takt-node/monitoring/reservations.json")
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

// The runtime's metrics are those of a real taktd: what is drawn and told must be there under this name.
func TestWhatIsToldOfNetworksIsMeasured(t *testing.T) {
	s := newSite(t)
	s.config.Network = &NetworkConfig{AdminSocket: filepath.Join(s.dir, "admin.sock")}
	s.taktd(fmt.Sprintf("[metrics]\naddress = \"0.0.0.0:9465\"\n[[listener]]\npath = %q\nidentity = \"one\"\nclasses = [0]\nread = [\"1-9\"]\n", filepath.Join(s.dir, "one.sock")))
	// Tenants are told of once they have had a session.
	tenant := exec.Command(built(t, "takt")[0], "sub", "7", "--socket", filepath.Join(s.dir, "one.sock"))
	s.until("there is the socket", func() bool {
		_, err := os.Stat(filepath.Join(s.dir, "one.sock"))
		return err == nil
	})
	if err := tenant.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tenant.Process.Kill(); tenant.Wait() })
	there := map[string]bool{"up": true, "ALERTS": true}
	s.until("taktd's metrics are read", func() bool {
		page, err := insideOf(s.daemon, "127.0.0.1:9465")
		for _, found := range regexp.MustCompile(`(?m)^# TYPE (takt_[a-z_]+) (\w+)`).FindAllStringSubmatch(page, -1) {
			name := found[1]
			if found[2] == "counter" {
				name += "_total"
			}
			there[name] = true
		}
		// It looks at its clock a moment after it is ready.
		return err == nil && there["takt_clock_state"] && there["takt_tenant_ended_sessions_total"]
	})
	described := make(chan *prometheus.Desc, 100)
	s.agent.metrics.registry.Describe(described)
	close(described)
	for desc := range described {
		there[regexp.MustCompile(`fqName: "([a-z_]+)"`).FindStringSubmatch(desc.String())[1]] = true
	}
	for _, file := range []string{"networks.json", "alerts.yaml", "alerts.test.yaml"} {
		text, err := os.ReadFile("../../../deploy/helm/takt-node/monitoring/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`\btakt_[a-z_]+`).FindAllString(string(text), -1) {
			if !there[name] {
				t.Errorf("%s has %s, which there is not", file, name)
			}
		}
	}
}

// insideOf is the page of metrics of a server in the network namespace of a process.
func insideOf(process int, address string) (page string, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		// The thread ends with the goroutine: it is in another network namespace.
		runtime.LockOSThread()
		var namespace netns.NsHandle
		if namespace, err = netns.GetFromPid(process); err != nil {
			return
		}
		defer namespace.Close()
		if err = netns.Set(namespace); err != nil {
			return
		}
		var loopback netlink.Link
		if loopback, err = netlink.LinkByName("lo"); err == nil {
			err = netlink.LinkSetUp(loopback)
		}
		var conn net.Conn
		if err == nil {
			conn, err = net.Dial("tcp", address)
		}
		if err != nil {
			return
		}
		defer conn.Close()
		var text []byte
		if _, err = io.WriteString(conn, "GET /metrics HTTP/1.0\r\n\r\n"); err == nil {
			text, err = io.ReadAll(conn)
		}
		page = string(text)
	}()
	<-done
	return page, err
}
