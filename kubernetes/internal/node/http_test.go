package node

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func TestNobodyHasTheAgentsPortForHimself(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	server, err := listenHTTP("127.0.0.1:0", mux)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	go server.serve(ctx)
	address := server.listener.Addr().String()
	ask := func(conn net.Conn) {
		t.Helper()
		if _, err := fmt.Fprintf(conn, "GET /healthz HTTP/1.1\r\nHost: %s\r\n\r\n", address); err != nil {
			t.Fatal(err)
		}
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("%v, %v", answer, err)
		}
		if _, err := io.Copy(io.Discard, answer.Body); err != nil {
			t.Fatal(err)
		}
	}
	var all []net.Conn
	for range 200 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ask(conn)
		all = append(all, conn)
	}
	most := len(all) - connectionsEach
	for at, conn := range all[:most] {
		if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); err == nil || isTimeout(err) {
			t.Fatalf("connection %d of one address is still open: %v", at, err)
		}
	}
	ask(all[most])
	other, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	ask(other)
	if of := server.server; of.ReadTimeout <= 0 || of.WriteTimeout <= 0 || of.IdleTimeout <= 0 || of.MaxHeaderBytes <= 0 {
		t.Errorf("what is slow, idle or long is not bounded: %+v", of)
	}
	listener := server.listener.(*fairListener)
	listener.mu.Lock()
	defer listener.mu.Unlock()
	if len(listener.open) != 2 {
		t.Errorf("%d addresses have connections", len(listener.open))
	}
}

func isTimeout(err error) bool {
	failed, is := err.(net.Error)
	return is && failed.Timeout()
}

// waiting is a collector that has nothing to say before it may.
type waiting struct {
	*prometheus.Desc
	may chan struct{}
}

func (c waiting) Describe(to chan<- *prometheus.Desc) { to <- c.Desc }

func (c waiting) Collect(chan<- prometheus.Metric) { <-c.may }

func TestOnlySoManyPagesOfMetricsAreUnderWay(t *testing.T) {
	m := &metrics{registry: prometheus.NewRegistry()}
	may := make(chan struct{})
	m.registry.MustRegister(waiting{prometheus.NewDesc("waits", "", nil, nil), may})
	handler := m.handler()
	codes := make(chan int)
	for range pagesAtOnce + 1 {
		go func() {
			page := httptest.NewRecorder()
			handler.ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			codes <- page.Code
		}()
	}
	// All others wait.
	if code := <-codes; code != http.StatusServiceUnavailable {
		t.Errorf("one more is answered %d", code)
	}
	close(may)
	for range pagesAtOnce {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("one of those that may be is answered %d", code)
		}
	}
}
