package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/takt-dev/takt/kubernetes/internal/report"
)

// What one who reaches the agent's port may have of it: every pod does.
const (
	// requestPatience is how long a request may take to come, answerPatience its answer from then on, and idlePatience the next one.
	requestPatience = 5 * time.Second
	answerPatience  = 30 * time.Second
	idlePatience    = 30 * time.Second
	// longestHeader has room for a token, and for what the API server adds.
	longestHeader = 16 << 10
	// connectionsEach are how many connections one address has at most.
	connectionsEach = 8
)

// httpServer serves metrics and health.
type httpServer struct {
	listener net.Listener
	server   *http.Server
}

// listenHTTP listens at an address for requests that a handler answers.
func listenHTTP(address string, handler http.Handler) (*httpServer, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("cannot listen for metrics and health on %s: %w", address, err)
	}
	return &httpServer{&fairListener{Listener: listener, open: map[netip.Addr][]net.Conn{}}, &http.Server{
		Handler: handler, ReadTimeout: requestPatience, WriteTimeout: answerPatience, IdleTimeout: idlePatience, MaxHeaderBytes: longestHeader,
	}}, nil
}

func (s *httpServer) serve(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { s.server.Close() })
	defer stop()
	if err := s.server.Serve(s.listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
		klog.FromContext(ctx).Error(err, "Metrics and health have stopped")
	}
}

// fairListener closes the oldest connection of an address that has more than connectionsEach, so that nobody's are at the
// expense of others, such as of the kubelet's probes.
type fairListener struct {
	net.Listener

	mu sync.Mutex
	// open are the connections of each address, the oldest first.
	open map[netip.Addr][]net.Conn
}

// Accept implements net.Listener.
func (l *fairListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	one := &fairConn{Conn: conn, of: l, from: sourceOf(conn.RemoteAddr().String())}
	l.mu.Lock()
	all := append(l.open[one.from], one)
	l.open[one.from] = all
	l.mu.Unlock()
	if len(all) > connectionsEach {
		all[0].Close()
	}
	return one, nil
}

type fairConn struct {
	net.Conn
	of   *fairListener
	from netip.Addr
}

// Close implements net.Conn.
func (c *fairConn) Close() error {
	c.of.mu.Lock()
	c.of.open[c.from] = slices.DeleteFunc(slices.Clone(c.of.open[c.from]), func(one net.Conn) bool { return one == c })
	if len(c.of.open[c.from]) == 0 {
		delete(c.of.open, c.from)
	}
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// sourceOf is who asks, by the address and port of a connection; the zero address if that has another form.
func sourceOf(remote string) netip.Addr {
	from, _ := netip.ParseAddrPort(remote)
	return from.Addr().Unmap()
}

func (n *Node) listenHTTP() (*httpServer, error) {
	mux := http.NewServeMux()
	mux.Handle("/metrics", n.metrics.handler())
	mux.HandleFunc(report.Path, n.serveReport)
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := n.ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return listenHTTP(n.config.Listen, mux)
}

// ready says what keeps the agent from serving pods; nil if nothing does.
func (n *Node) ready() error {
	if n.config.Network == nil && !n.othersServeNetworks() {
		if err := n.gateTimeLeft(); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.connected {
		return fmt.Errorf("not connected with the container runtime on %s: enable NRI there", n.config.NRISocket)
	}
	if n.helper == nil {
		return errors.New("not yet serving the kubelet")
	}
	if status := n.helper.RegistrationStatus(); status == nil || !status.PluginRegistered {
		return fmt.Errorf("the kubelet has not registered the plugin in %s", n.config.KubeletRegistry)
	}
	return nil
}
