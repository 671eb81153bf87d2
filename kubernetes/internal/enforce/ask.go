package enforce

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

// Limits of the socket in a container: its other end is hostile.
const (
	askLine        = 64
	askConnections = 16
	askPatience    = 10 * time.Second
	// askRate is how many requests a second are answered. Each costs the agent a look at all of the container's threads, and
	// keeps its scans waiting meanwhile.
	askRate = 10
	// connectRate is how many connections a second are taken on, whether something is asked by them or not.
	connectRate = 100
)

// turns has requests answered one after the other, and no more of them than a container may make.
type turns struct {
	one  chan struct{}
	rate *rate.Limiter
}

// newTurns lets as many requests as there are reservations be answered at once: threads ask when a program begins.
func newTurns(reservations int) *turns {
	return &turns{one: make(chan struct{}, 1), rate: rate.NewLimiter(askRate, max(reservations, 1))}
}

// wait waits for a request's turn; end ends it. An error says that the context has ended before.
func (t *turns) wait(ctx context.Context) (end func(), err error) {
	select {
	case t.one <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := t.rate.Wait(ctx); err != nil {
		<-t.one
		return nil, err
	}
	return func() { <-t.one }, nil
}

// Asker is what threads ask: an Enforcement.
type Asker interface {
	Ask(process, inner int) (Grant, error)
	Return(process, inner int) error
}

// ServeAsks answers threads on the socket of one claim, which has so many reservations for them, until the context ends. A thread writes
// "reserve TID\n" or "return TID\n", TID being its own gettid(), and reads
// "ok RUNTIME DEADLINE PERIOD\n" in nanoseconds, "ok\n", or "error MESSAGE\n". Who asks is what the kernel
// says of the socket's other end, never what the text says.
func ServeAsks(ctx context.Context, listener *net.UnixListener, reservations int, asker func() (Asker, error)) {
	turns := newTurns(reservations)
	var connections sync.WaitGroup
	defer connections.Wait()
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	places := make(chan struct{}, askConnections)
	connects := rate.NewLimiter(connectRate, askConnections)
	for {
		if connects.Wait(ctx) != nil {
			return
		}
		conn, err := listener.AcceptUnix()
		if err != nil {
			return
		}
		select {
		case places <- struct{}{}:
		default:
			fmt.Fprintf(conn, "error more than %d threads ask at once: try again\n", askConnections)
			conn.Close()
			continue
		}
		connections.Go(func() {
			defer func() { conn.Close(); <-places }()
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			defer stop()
			serveAsk(ctx, conn, turns, asker)
		})
	}
}

func serveAsk(ctx context.Context, conn *net.UnixConn, turns *turns, asker func() (Asker, error)) {
	process, err := peer(conn)
	if err != nil {
		return
	}
	reader := bufio.NewReaderSize(conn, askLine)
	for {
		if err := conn.SetDeadline(time.Now().Add(askPatience)); err != nil {
			return
		}
		line, err := reader.ReadSlice('\n')
		if err == bufio.ErrBufferFull {
			fmt.Fprintf(conn, "error a request has at most %d bytes: write \"reserve TID\" or \"return TID\"\n", askLine)
			return
		}
		if err != nil {
			return
		}
		end, err := turns.wait(ctx)
		if err != nil {
			return
		}
		text := answer(string(line), process, asker)
		end()
		if err := conn.SetDeadline(time.Now().Add(askPatience)); err != nil {
			return
		}
		if _, err := conn.Write([]byte(text + "\n")); err != nil {
			return
		}
	}
}

func answer(line string, process int, asker func() (Asker, error)) string {
	verb, number, _ := strings.Cut(strings.TrimSpace(line), " ")
	inner, err := strconv.Atoi(number)
	if err != nil || inner <= 0 || (verb != "reserve" && verb != "return") {
		return fmt.Sprintf("error %q is not a request: write \"reserve TID\" or \"return TID\" with the thread's gettid()", line)
	}
	to, err := asker()
	if err != nil {
		return "error " + oneLine(err)
	}
	if verb == "return" {
		if err := to.Return(process, inner); err != nil {
			return "error " + oneLine(err)
		}
		return "ok"
	}
	grant, err := to.Ask(process, inner)
	if err != nil {
		return "error " + oneLine(err)
	}
	p := grant.Parameters
	return fmt.Sprintf("ok %d %d %d", p.Runtime.Nanoseconds(), p.RelativeDeadline().Nanoseconds(), p.Period.Nanoseconds())
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// peer is the process at the other end.
func peer(conn *net.UnixConn) (int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var credentials *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		credentials, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if failed != nil {
		return 0, failed
	}
	return int(credentials.Pid), nil
}
