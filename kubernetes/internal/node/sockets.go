package node

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/enforce"
	"github.com/takt-dev/takt/kubernetes/internal/gate"
	"github.com/takt-dev/takt/kubernetes/internal/quote"
)

func gateSocket(run string) string { return filepath.Join(run, "gate.sock") }

// listen makes a socket, in place of one that an earlier agent left.
func listen(path string, mode fs.FileMode) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot replace socket: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("cannot listen: %w", err)
	}
	if err := os.Chmod(path, mode); err != nil {
		listener.Close()
		return nil, fmt.Errorf("cannot set the rights of a socket: %w", err)
	}
	return listener, nil
}

func listenGate(run string) (*net.UnixListener, error) { return listen(gateSocket(run), 0o600) }

// serveGate answers the gate: may the container of this ID, whose first process is this one, start? The
// answer comes when it is under reservation, if it has one.
func (n *Node) serveGate(ctx context.Context, listener *net.UnixListener) {
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	var connections sync.WaitGroup
	defer connections.Wait()
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			return
		}
		connections.Go(func() {
			defer conn.Close()
			answer := gate.Answer{}
			if err := n.passGate(ctx, conn); err != nil {
				answer.Error = quote.Text(quote.Plain(err))
			}
			// A gate that has gone away has failed already, and the container with it.
			_ = json.NewEncoder(conn).Encode(answer)
		})
	}
}

func (n *Node) passGate(ctx context.Context, conn *net.UnixConn) error {
	defer n.metrics.hook("gate")()
	if err := conn.SetDeadline(time.Now().Add(gate.Patience)); err != nil {
		return err
	}
	var request gate.Request
	if err := json.NewDecoder(bufio.NewReaderSize(conn, 4096)).Decode(&request); err != nil {
		return fmt.Errorf("cannot read the gate's question: %w", err)
	}
	n.mu.Lock()
	c := n.containers[request.ID]
	n.mu.Unlock()
	if err := n.checkDenials(request.ID, c, request.Seccomp); err != nil {
		return err
	}
	if c == nil && n.attended.has(request.ID) {
		return nil
	}
	if c == nil {
		return fmt.Errorf("%s has not seen container %s being created: is it connected with the container runtime (NRI)? The kubelet will try again", PluginName, request.ID)
	}
	return n.enforce(ctx, c, request.Pid, false)
}

// serveAsks opens the socket of a claim whose threads ask for so many reservations. The returned function closes it.
func (n *Node) serveAsks(ctx context.Context, claim types.UID, reservations int) (stop func(), err error) {
	dir := n.records.askDir(claim)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("cannot make the socket of claim %s: %w", claim, err)
	}
	// Whoever is in the container may ask; who that is, the kernel says.
	listener, err := listen(filepath.Join(dir, askSocket), 0o666)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var served sync.WaitGroup
	served.Go(func() {
		enforce.ServeAsks(ctx, listener, reservations, func() (enforce.Asker, error) { return n.askerOf(claim) })
	})
	return func() { cancel(); served.Wait() }, nil
}

// askerOf serves the containers that a claim's socket is in: one for each of its requests for threads that ask.
func (n *Node) askerOf(claim types.UID) (enforce.Asker, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all askers
	if p := n.claims[claim]; p != nil {
		for _, request := range p.Requests {
			c := n.holders[key(claim, request.Name)]
			if c == nil || !c.running() || request.Parameters.Selection() != reservation.SelectAsk {
				continue
			}
			if !slices.ContainsFunc(all, func(other asker) bool { return other.c == c }) {
				all = append(all, asker{n, c})
			}
		}
	}
	if len(all) == 0 {
		return nil, errors.New("no container of this claim runs")
	}
	return all, nil
}

// askers serve a thread by the container that it is in.
type askers []asker

// Ask implements enforce.Asker.
func (a askers) Ask(process, inner int) (grant enforce.Grant, err error) {
	for _, of := range a {
		if grant, err = of.Ask(process, inner); !errors.Is(err, enforce.ErrStranger) {
			return grant, err
		}
	}
	return grant, err
}

// Return implements enforce.Asker.
func (a askers) Return(process, inner int) (err error) {
	for _, of := range a {
		if err = of.Return(process, inner); err == nil {
			return nil
		}
	}
	return err
}

// asker serves the threads of one container.
type asker struct {
	n *Node
	c *container
}

func (a asker) with(do func(enforce.Enforcement) error) error {
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	if a.c.enforcement == nil {
		return errors.New("the container has ended")
	}
	return do(a.c.enforcement)
}

// Ask implements enforce.Asker.
func (a asker) Ask(process, inner int) (grant enforce.Grant, err error) {
	err = a.with(func(e enforce.Enforcement) error {
		grant, err = e.Ask(process, inner)
		return err
	})
	if errors.Is(err, enforce.ErrRefused) {
		a.n.metrics.failed(atAsk)
	}
	return grant, err
}

// Return implements enforce.Asker.
func (a asker) Return(process, inner int) error {
	return a.with(func(e enforce.Enforcement) error { return e.Return(process, inner) })
}
