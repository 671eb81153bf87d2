package takt_test

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	takt "github.com/takt-dev/takt/bindings/go"
)

// The tests run at the runtime that $TAKT_SOCKET names.

func must[T any](t *testing.T, value T, err error) T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func patience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func open(t *testing.T) *takt.Stream {
	session, err := takt.Open(takt.Options{Name: "go test"})
	session = must(t, session, err)
	t.Cleanup(func() { _ = session.Close() })
	if _, err := session.Stream(takt.QoS{Datapath: "absent"}); !errors.Is(err, takt.ErrNotAvailable) {
		t.Fatal(err)
	}
	stream, err := session.Stream(takt.QoS{})
	return must(t, stream, err)
}

func ends(t *testing.T, stream *takt.Stream, channel uint64) (*takt.Source, *takt.Sink) {
	sink, err := stream.Sink(channel, takt.SinkOptions{})
	sink = must(t, sink, err)
	t.Cleanup(sink.Close)
	source, err := stream.Source(channel, 0)
	source = must(t, source, err)
	t.Cleanup(source.Close)
	return source, sink
}

// TestMain is also the programs that end in some way with everything open.
func TestMain(m *testing.M) {
	way := os.Getenv("TAKT_TEST_END")
	if way == "" {
		os.Exit(m.Run())
	}
	// With the runtime inside, for the test of all languages together.
	channel, err := strconv.ParseUint(os.Getenv("TAKT_TEST_CHANNEL"), 10, 64)
	embedded := err == nil
	if !embedded {
		channel = 21
	}
	session, err := takt.Open(takt.Options{AllowEmbedded: embedded})
	if err != nil {
		panic(err)
	}
	stream, _ := session.Stream(takt.QoS{})
	source, err := stream.Source(channel, 0)
	if err != nil {
		panic(err)
	}
	if embedded {
		if _, err := source.WaitReader(context.Background()); err != nil {
			panic(err)
		}
	}
	for number := uint32(0); number < 1000; number++ {
		token, err := source.Send(context.Background(), binary.LittleEndian.AppendUint32(nil, number))
		if err != nil {
			panic(err)
		}
		for number == 0 && embedded {
			// What nobody has heard of nobody can miss.
			if outcome, err := source.Outcome(token); err != nil || outcome != takt.Pending {
				break
			}
		}
	}
	switch way {
	case "panic":
		panic("enough")
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "terminate":
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
		select {}
	case "close":
		_ = session.Close()
	}
	os.Exit(0)
}

func TestNothingIsLostByTheWaysInWhichAProgramEnds(t *testing.T) {
	source, near := ends(t, open(t), 21)
	session, err := takt.Open(takt.Options{Socket: os.Getenv("TAKT_TEST_FAR_SOCKET"), Name: "go test"})
	session = must(t, session, err)
	t.Cleanup(func() { _ = session.Close() })
	stream, err := session.Stream(takt.QoS{})
	stream = must(t, stream, err)
	far, err := stream.Sink(21, takt.SinkOptions{})
	far = must(t, far, err)
	t.Cleanup(far.Close)
	sinks := []*takt.Sink{near, far}
	for near.Available() == 0 || far.Available() == 0 {
		_, err := source.Send(patience(t), nil)
		must(t, source, err)
		time.Sleep(time.Millisecond)
		// They leave room for what is to come, however many a busy machine takes.
		for _, sink := range sinks {
			for sink.Available() > 1 {
				message, err := sink.Receive(patience(t))
				message = must(t, message, err)
				message.Release()
			}
		}
	}
	for _, way := range []string{"exit", "panic", "kill", "terminate", "close"} {
		program := exec.Command(os.Args[0])
		program.Env = append(os.Environ(), "TAKT_TEST_END="+way)
		_ = program.Run() // ends as it likes
		for _, sink := range sinks {
			for number := uint32(0); number < 1000; {
				message, err := sink.Receive(patience(t))
				message = must(t, message, err)
				if len(message.Data) > 0 { // not one of those that looked for the sinks
					if got := binary.LittleEndian.Uint32(message.Data); got != number {
						t.Fatalf("%s: message %d where %d is to come", way, got, number)
					}
					number++
				}
				message.Release()
			}
		}
	}
}

func TestMessagesAreWrittenAndReadInPlace(t *testing.T) {
	source, sink := ends(t, open(t), 1)
	buffer, err := source.Buffer(patience(t), 100)
	buffer = must(t, buffer, err)
	copy(buffer.Data, "hello")
	buffer.Data = buffer.Data[:5]
	token, err := buffer.Emit()
	token = must(t, token, err)
	buffer.Abandon()
	message, err := sink.Receive(patience(t))
	message = must(t, message, err)
	if string(message.Data) != "hello" || message.Sequence != 0 || message.SendTime == 0 {
		t.Fatalf("received %+v", message)
	}
	message.Release()
	message.Release()
	for {
		outcome, err := source.Outcome(token)
		if must(t, outcome, err) == takt.Sent {
			break
		}
	}
	counters, err := sink.Counters()
	if must(t, counters, err).Delivered != 1 || sink.Available() != 0 {
		t.Fatalf("%+v", counters)
	}
	if again, err := sink.TryReceive(); again != nil || err != nil {
		t.Fatal(again, err)
	}
}

func TestWaitsEndWithTheirContext(t *testing.T) {
	stream := open(t)
	source, sink := ends(t, stream, 2)
	for i := 0; i < 20; i++ {
		ctx, cancel := context.WithCancel(context.Background())
		go cancel()
		if _, err := sink.Receive(ctx); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := sink.Receive(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	// A cancellation that came late ends no later wait.
	if _, err := source.Send(patience(t), []byte("on")); err != nil {
		t.Fatal(err)
	}
	message, err := sink.Receive(patience(t))
	must(t, message, err).Release()
	alone, err := stream.Source(3, 0)
	alone = must(t, alone, err)
	defer alone.Close()
	ctx, cancel = context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if _, err := alone.WaitReader(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if readers, err := source.WaitReader(patience(t)); err != nil || readers != 1 {
		t.Fatal(readers, err)
	}
}

func TestErrorsNameTheValue(t *testing.T) {
	stream := open(t)
	source, _ := ends(t, stream, 4)
	if _, err := source.Buffer(patience(t), source.MaxMessage()+1); !errors.Is(err, takt.ErrTooLarge) {
		t.Fatal(err)
	}
	if _, err := stream.Source(4, 3); !errors.Is(err, takt.ErrInvalidArgument) || !strings.Contains(err.Error(), "3") {
		t.Fatal(err)
	}
	if _, err := takt.Open(takt.Options{Socket: "/nonexistent/takt.sock"}); !errors.Is(err, takt.ErrNoRuntime) {
		t.Fatal(err)
	}
}

func TestAClosedSessionRefusesEverything(t *testing.T) {
	session, err := takt.Open(takt.Options{})
	session = must(t, session, err)
	stream, err := session.Stream(takt.QoS{})
	stream = must(t, stream, err)
	source, sink := ends(t, stream, 5)
	if err := session.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := source.Send(patience(t), nil); !errors.Is(err, takt.ErrClosed) {
		t.Fatal(err)
	}
	if _, err := sink.Receive(patience(t)); !errors.Is(err, takt.ErrClosed) {
		t.Fatal(err)
	}
}

func TestManyGoroutinesUseASession(t *testing.T) {
	stream := open(t)
	failures := make(chan error, 8)
	for channel := uint64(100); channel < 108; channel++ {
		source, sink := ends(t, stream, channel)
		ctx := patience(t)
		go func() {
			for number := uint32(0); number < 500; number++ {
				if _, err := source.Send(ctx, binary.LittleEndian.AppendUint32(nil, number)); err != nil {
					failures <- err
					return
				}
				message, err := sink.Receive(ctx)
				if err != nil {
					failures <- err
					return
				}
				if binary.LittleEndian.Uint32(message.Data) != number {
					failures <- errors.New("another message")
					return
				}
				message.Release()
			}
			failures <- nil
		}()
	}
	for i := 0; i < 8; i++ {
		if err := <-failures; err != nil {
			t.Fatal(err)
		}
	}
}

func TestAReceivedMessageGoesOnWithoutACopy(t *testing.T) {
	ctx := patience(t)
	here, there := open(t), open(t)
	source, err := there.Source(31, 0)
	source = must(t, source, err)
	sink, err := here.Sink(31, takt.SinkOptions{})
	sink = must(t, sink, err)
	onward, err := here.Source(32, 0)
	onward = must(t, onward, err)
	far, err := there.Sink(32, takt.SinkOptions{})
	far = must(t, far, err)
	for range 100 {
		if _, err := source.Send(ctx, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		message, err := sink.Receive(ctx)
		message = must(t, message, err)
		if _, err := onward.Forward(ctx, message); err != nil || message.Data != nil {
			t.Fatal(err, message.Data)
		}
		if _, err := onward.Forward(ctx, message); !errors.Is(err, takt.ErrInvalidArgument) {
			t.Fatalf("forwarded twice: %v", err)
		}
		message.Release()
		heard, err := far.Receive(ctx)
		heard = must(t, heard, err)
		if string(heard.Data) != "hello" {
			t.Fatalf("%q", heard.Data)
		}
		heard.Release()
	}
}

func TestTheNewestAlone(t *testing.T) {
	session, err := takt.Open(takt.Options{Name: "go test"})
	session = must(t, session, err)
	t.Cleanup(func() { _ = session.Close() })
	if _, err := session.Stream(takt.QoS{Latest: true, Reliable: true}); err == nil {
		t.Error("the newest alone, and every message: one of both is given up without a word")
	}
	stream, err := session.Stream(takt.QoS{Latest: true})
	stream = must(t, stream, err)
	source, err := stream.Source(22, 0)
	source = must(t, source, err)
	t.Cleanup(source.Close)
	sink, err := stream.Sink(22, takt.SinkOptions{Latest: true})
	sink = must(t, sink, err)
	t.Cleanup(sink.Close)
	for number := byte(0); number < 50; number++ {
		_, err := source.Send(patience(t), []byte{number})
		must(t, source, err)
	}
	for counters := (takt.Counters{}); counters.Delivered < 50; {
		counters, err = sink.Counters()
		must(t, sink, err)
		time.Sleep(time.Millisecond)
	}
	message, err := sink.Receive(patience(t))
	message = must(t, message, err)
	if len(message.Data) != 1 || message.Data[0] != 49 {
		t.Errorf("received %v", message.Data)
	}
	message.Release()
	if left := sink.Available(); left != 0 {
		t.Errorf("%d messages are left", left)
	}
	counters, err := sink.Counters()
	must(t, sink, err)
	if counters.Superseded != 49 {
		t.Errorf("%+v", counters)
	}
}
