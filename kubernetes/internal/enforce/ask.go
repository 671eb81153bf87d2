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
)

// Limits of the socket in a container: its other end is hostile.
const (
	askLine        = 64
	askConnections = 16
	askPatience    = 10 * time.Second
)

// Asker is what threads ask: an Enforcement.
type Asker interface {
	Ask(process, inner int) (Grant, error)
	Return(process, inner int) error
}

// ServeAsks answers threads on the socket of one container until the context ends. A thread writes
// "reserve TID\n" or "return TID\n", TID being its own gettid(), and reads
// "ok RUNTIME DEADLINE PERIOD\n" in nanoseconds, "ok\n", or "error MESSAGE\n". Who asks is what the kernel
// says of the socket's other end, never what the text says.
func ServeAsks(ctx context.Context, listener *net.UnixListener, asker func() (Asker, error)) {
	var connections sync.WaitGroup
	defer connections.Wait()
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	places := make(chan struct{}, askConnections)
	for {
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
			serveAsk(conn, asker)
		})
	}
}

func serveAsk(conn *net.UnixConn, asker func() (Asker, error)) {
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
		if _, err := conn.Write([]byte(answer(string(line), process, asker) + "\n")); err != nil {
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
