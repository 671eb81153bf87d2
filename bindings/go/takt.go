// Package takt is the channel API of Takt over libtakt.so (include/takt.h), by cgo.
//
//	session, err := takt.Open(takt.Options{})
//	stream, err := session.Stream(takt.QoS{})
//	source, err := stream.Source(7, 0)
//	sink, err := stream.Sink(7, takt.SinkOptions{})
//	source.Send(ctx, []byte("hello"))
//	message, err := sink.Receive(ctx)
//	defer message.Release()
//	fmt.Println(string(message.Data))
//
// Messages are written and read in place: Data of a Buffer or Message is shared memory, which may not be touched after
// Emit, Abandon or Release. Waits end with their context. A Source or Sink is used by one goroutine at a time. Errors are
// *Error with the code and the sentence; errors.Is compares codes.
//
// What was emitted arrives however a program ends. With AllowEmbedded and no daemon, close the session before os.Exit and at the
// end of main: Go runs no exit handlers of libraries.
package takt

/*
#cgo LDFLAGS: -ltakt
#include <stdlib.h>
#include "takt.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
	"unsafe"
)

// Error is why a call failed.
type Error struct {
	// Code is a TAKT_E_ number of takt.h.
	Code int
	text string
}

func (e *Error) Error() string { return e.text }

// Is compares codes.
func (e *Error) Is(target error) bool {
	var other *Error
	return errors.As(target, &other) && other.Code == e.Code
}

// What errors.Is compares with.
var (
	ErrDisconnected    = &Error{-1, "takt: the runtime went away"}
	ErrWouldBlock      = &Error{-2, "takt: nothing available now"}
	ErrTimedOut        = &Error{-3, "takt: the deadline passed"}
	ErrInvalidArgument = &Error{-4, "takt: an argument is out of range"}
	ErrNotPermitted    = &Error{-5, "takt: not permitted"}
	ErrTooLarge        = &Error{-7, "takt: the message is too long"}
	ErrNoRuntime       = &Error{-14, "takt: no runtime answers"}
	ErrClosed          = &Error{-16, "takt: closed"}
	ErrInterrupted     = &Error{-17, "takt: the wait was interrupted"}
	ErrNotAvailable    = &Error{-18, "takt: the node does not have it"}
)

// check runs a call on a thread that keeps its last error until it is read.
func check(call func() C.int) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	code := int(call())
	if code >= 0 {
		return code, nil
	}
	return 0, &Error{code, "takt: " + C.GoString(C.takt_last_error())}
}

// Options says how to open a session. The zero value is as usual.
type Options struct {
	// Socket is the runtime's; empty: $TAKT_SOCKET, else the default.
	Socket string
	// Name is for operators.
	Name string
	// TxBytes and RxBytes are the memory to send from and to receive into; 0: the runtime's choice.
	TxBytes, RxBytes uint64
	// AllowEmbedded runs a runtime inside this process if none answers.
	AllowEmbedded bool
	// NoReconnect ends the session when the runtime goes away.
	NoReconnect bool
}

// Session is an application attached to the runtime of its node.
type Session struct{ session *C.takt_session }

// Open attaches to the runtime.
func Open(options Options) (*Session, error) {
	from := C.takt_session_options{size: C.sizeof_takt_session_options}
	if options.Socket != "" {
		from.socket = C.CString(options.Socket)
		defer C.free(unsafe.Pointer(from.socket))
	}
	if options.Name != "" {
		from.name = C.CString(options.Name)
		defer C.free(unsafe.Pointer(from.name))
	}
	from.tx_bytes, from.rx_bytes = C.uint64_t(options.TxBytes), C.uint64_t(options.RxBytes)
	from.allow_embedded, from.no_reconnect = flag(options.AllowEmbedded), flag(options.NoReconnect)
	var session *C.takt_session
	if _, err := check(func() C.int { return C.takt_session_open(&from, &session) }); err != nil {
		return nil, err
	}
	return &Session{session}, nil
}

func flag(set bool) C.int {
	if set {
		return 1
	}
	return 0
}

// Attached says whether the session is attached to a runtime at this moment.
func (s *Session) Attached() bool {
	attached, err := check(func() C.int { return C.takt_session_attached(s.session) })
	return err == nil && attached == 1
}

// Close ends the session in order, with its streams, sources and sinks: what was emitted is sent.
func (s *Session) Close() error {
	if s.session == nil {
		return nil
	}
	_, err := check(func() C.int { return C.takt_session_end(s.session) })
	C.takt_session_close(s.session)
	s.session = nil
	return err
}

// QoS are the quality requirements of a stream. The zero value is what costs least.
type QoS struct {
	// Fast bypasses the kernel's network stack where the node can.
	Fast bool
	// Unlimited: cores may spin.
	Unlimited bool
	// TimeSensitive schedules the stream in TrafficClass, 0 to 7.
	TimeSensitive bool
	TrafficClass  int
	// Reliable: what is emitted arrives in order, and is sent again until every sink has it.
	Reliable bool
	// Latest: in order, and sent again until every sink's node has it or a newer one is emitted, which never waits.
	// Not with Reliable.
	Latest bool
	// Deadline: of a reliable stream, it is sent again only if it can arrive so long after it was emitted; 0: always.
	Deadline time.Duration
	// SlowSinks is what a reliable source does about a sink that has no room.
	SlowSinks SlowSinks
	// Patience is how long EvictSlow waits; 0: 10 s.
	Patience time.Duration
	// Datapath is one that it is to be over, and no other, such as "xdp"; empty: the node chooses.
	Datapath string
}

// SlowSinks is what a reliable source does about a sink that has no room: an enum takt_slow_sinks.
type SlowSinks int

const (
	// EvictSlow waits for the patience; then the sink does without, until it has room again.
	EvictSlow SlowSinks = iota
	// WaitForSlow waits, and all other sinks with it.
	WaitForSlow
	// DropForSlow lets the sink do without what it has no room for.
	DropForSlow
)

// Stream is a set of channels of one quality.
type Stream struct{ stream *C.takt_stream }

func (qos QoS) reliability() C.int {
	if qos.Latest && qos.Reliable {
		return -1 // neither: it is refused by name
	}
	if qos.Latest {
		return C.TAKT_LATEST
	}
	return flag(qos.Reliable)
}

// native is the same in C, and what to call when that is not used any more.
func (qos QoS) native() (C.takt_qos, func()) {
	var datapath *C.char
	if qos.Datapath != "" {
		datapath = C.CString(qos.Datapath)
	}
	return C.takt_qos{
		size:             C.sizeof_takt_qos,
		acceleration:     flag(qos.Fast),
		resource_use:     flag(qos.Unlimited),
		time_sensitivity: flag(qos.TimeSensitive),
		traffic_class:    C.int(qos.TrafficClass),
		reliability:      qos.reliability(),
		slow_sinks:       C.int(qos.SlowSinks),
		deadline_ns:      C.uint64_t(qos.Deadline.Nanoseconds()),
		patience_ns:      C.uint64_t(qos.Patience.Nanoseconds()),
		datapath:         datapath,
	}, func() { C.free(unsafe.Pointer(datapath)) }
}

// Stream opens a stream.
func (s *Session) Stream(qos QoS) (*Stream, error) {
	from, free := qos.native()
	defer free()
	var stream *C.takt_stream
	if _, err := check(func() C.int { return C.takt_stream_open(s.session, &from, &stream) }); err != nil {
		return nil, err
	}
	return &Stream{stream}, nil
}

// Datapath is the name of the datapath that carries the stream.
func (s *Stream) Datapath() string {
	return text(func(to *C.char, size C.size_t) C.int { return C.takt_stream_datapath(s.stream, to, size) })
}

// Warning says why the datapath is not what was asked for; empty if it is.
func (s *Stream) Warning() string {
	return text(func(to *C.char, size C.size_t) C.int { return C.takt_stream_warning(s.stream, to, size) })
}

func text(read func(*C.char, C.size_t) C.int) string {
	length, err := check(func() C.int { return read(nil, 0) })
	if err != nil || length == 0 {
		return ""
	}
	to := (*C.char)(C.malloc(C.size_t(length + 1)))
	defer C.free(unsafe.Pointer(to))
	if _, err := check(func() C.int { return read(to, C.size_t(length+1)) }); err != nil {
		return ""
	}
	return C.GoString(to)
}

// Close gives the stream up; it closes with the last of its sources and sinks.
func (s *Stream) Close() {
	C.takt_stream_close(s.stream)
	s.stream = nil
}

// stretch is the longest stretch of a wait without a deadline.
const stretch = time.Hour

// wait makes a call that waits, until it ends or the context does.
func wait(ctx context.Context, wake func(), call func(ns C.int64_t) C.int) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	// Both wake: the one that waits, when the context ends; its own end, when it does not.
	var mutex sync.Mutex
	over := false
	stop := context.AfterFunc(ctx, func() {
		mutex.Lock()
		defer mutex.Unlock()
		if !over {
			wake()
		}
	})
	defer func() {
		mutex.Lock()
		over = true
		mutex.Unlock()
		stop()
	}()
	for {
		n, err := check(func() C.int { return call(C.int64_t(stretch)) })
		switch {
		case ctx.Err() != nil && errors.Is(err, ErrInterrupted):
			return 0, ctx.Err()
		case errors.Is(err, ErrTimedOut), errors.Is(err, ErrInterrupted):
			// A signal of Go's own scheduler, or a wake that came after its wait.
		default:
			return n, err
		}
	}
}

// Source is the writing end of a channel.
type Source struct{ source *C.takt_source }

// Source opens the writing end of a channel. depth: most messages under way, a power of two up to 65536; 0: 1024.
func (s *Stream) Source(channel uint64, depth uint32) (*Source, error) {
	var source *C.takt_source
	open := func() C.int {
		return C.takt_source_open(s.stream, C.uint64_t(channel), C.uint32_t(depth), &source)
	}
	if _, err := check(open); err != nil {
		return nil, err
	}
	return &Source{source}, nil
}

// Close closes the source. What was emitted is still sent.
func (s *Source) Close() {
	C.takt_source_close(s.source)
	s.source = nil
}

// AtOnceHere says whether sinks of this node get messages with a launch time at once, from the next one on.
func (s *Source) AtOnceHere(atOnce bool) error {
	var flag C.int
	if atOnce {
		flag = 1
	}
	_, err := check(func() C.int { return C.takt_source_at_once_here(s.source, flag) })
	return err
}

// MaxMessage is the longest message in bytes.
func (s *Source) MaxMessage() int {
	most, _ := check(func() C.int { return C.takt_source_max_message(s.source) })
	return most
}

func (s *Source) wake() { C.takt_wake_source(s.source) }

// WaitReader waits until somebody listens; how many do.
func (s *Source) WaitReader(ctx context.Context) (int, error) {
	return wait(ctx, s.wake, func(ns C.int64_t) C.int { return C.takt_source_wait_reader(s.source, ns) })
}

// Buffer is memory for one message.
type Buffer struct {
	// Data is shared memory to write the message into, with arbitrary content.
	Data   []byte
	source *Source
	buffer C.takt_buffer
}

// Buffer waits for a buffer of length bytes.
func (s *Source) Buffer(ctx context.Context, length int) (*Buffer, error) {
	if length < 0 {
		return nil, &Error{ErrInvalidArgument.Code, fmt.Sprintf("takt: `length` is %d: it must be 0 or more", length)}
	}
	buffer := &Buffer{source: s}
	get := func(ns C.int64_t) C.int { return C.takt_buffer_get(s.source, C.size_t(length), ns, &buffer.buffer) }
	if _, err := wait(ctx, s.wake, get); err != nil {
		return nil, err
	}
	buffer.Data = unsafe.Slice((*byte)(buffer.buffer.data), length)
	return buffer, nil
}

// Emit sends the first length bytes of Data, as its length is then: a token for Outcome. Data is gone afterwards.
func (b *Buffer) Emit() (int64, error) {
	return b.emit(func(token *C.int64_t) C.int { return C.takt_emit(b.source.source, &b.buffer, token) })
}

// EmitAt sends at launch, TAI nanoseconds.
func (b *Buffer) EmitAt(launch int64) (int64, error) {
	return b.emit(func(token *C.int64_t) C.int {
		return C.takt_emit_at(b.source.source, &b.buffer, C.int64_t(launch), token)
	})
}

func (b *Buffer) emit(send func(*C.int64_t) C.int) (int64, error) {
	var token C.int64_t
	b.buffer.length = C.size_t(len(b.Data))
	_, err := check(func() C.int { return send(&token) })
	if b.buffer.data == nil {
		b.Data = nil
	}
	return int64(token), err
}

// Abandon gives the buffer back without sending it. Nothing happens after Emit.
func (b *Buffer) Abandon() {
	b.Data = nil
	if b.buffer.data != nil {
		C.takt_buffer_abandon(b.source.source, &b.buffer)
	}
}

// Send copies data and sends it as one message: a token for Outcome.
func (s *Source) Send(ctx context.Context, data []byte) (int64, error) {
	buffer, err := s.Buffer(ctx, len(data))
	if err != nil {
		return 0, err
	}
	copy(buffer.Data, data)
	return buffer.Emit()
}

// Forward sends a received message without a copy if it is of the same session, and gives it up: a token for Outcome. After
// an error the message is held as before.
func (s *Source) Forward(ctx context.Context, message *Message) (int64, error) {
	var token C.int64_t
	forward := func(ns C.int64_t) C.int {
		return C.takt_forward(s.source, message.sink.sink, &message.message, ns, &token)
	}
	if _, err := wait(ctx, s.wake, forward); err != nil {
		return 0, err
	}
	message.Data = nil
	return int64(token), nil
}

// Outcome is what became of an emitted message: an enum takt_outcome.
type Outcome int

// What may become of a message. On reliable streams it is Pending until every sink has it; on others Sent is not
// acknowledged.
const (
	Pending Outcome = iota
	Sent
	NoSink
	Unreachable
	Lost
	Unknown
	Late
	NotScheduled
	Refused
	Undelivered
)

// Outcome says what became of a message.
func (s *Source) Outcome(token int64) (Outcome, error) {
	outcome, err := check(func() C.int { return C.takt_emit_outcome(s.source, C.int64_t(token)) })
	return Outcome(outcome), err
}

// SinkOptions says how to open a sink.
type SinkOptions struct {
	// Depth is the most messages waiting or held, a power of two up to 65536; 0: 1024.
	Depth uint32
	// NoLocal leaves out what this very session emits.
	NoLocal bool
	// Latest: the newest message alone, which takes the place of one that was not received.
	Latest bool
}

// Sink is a reading end of a channel.
type Sink struct{ sink *C.takt_sink }

// Sink opens a reading end of a channel.
func (s *Stream) Sink(channel uint64, options SinkOptions) (*Sink, error) {
	from := C.takt_sink_options{
		size:     C.sizeof_takt_sink_options,
		depth:    C.uint32_t(options.Depth),
		no_local: flag(options.NoLocal),
		latest:   flag(options.Latest),
	}
	var sink *C.takt_sink
	open := func() C.int { return C.takt_sink_open_with(s.stream, C.uint64_t(channel), &from, &sink) }
	if _, err := check(open); err != nil {
		return nil, err
	}
	return &Sink{sink}, nil
}

// Close closes the sink. Messages that are held may not be touched any more.
func (s *Sink) Close() {
	C.takt_sink_close(s.sink)
	s.sink = nil
}

// Message is a received message.
type Message struct {
	// Data is shared memory, to be read only, until Release.
	Data []byte
	// Sequence is its number at its source; a gap is a loss.
	Sequence uint64
	// SendTime is when the sender's runtime took it, TAI nanoseconds.
	SendTime int64
	// Sender is the sender, under a number that is random at each start.
	Sender uint32
	// TrafficClass is the class that it was sent in.
	TrafficClass int
	sink         *Sink
	message      C.takt_buffer
}

// Receive waits for the next message.
func (s *Sink) Receive(ctx context.Context) (*Message, error) {
	message := &Message{sink: s}
	consume := func(ns C.int64_t) C.int { return C.takt_consume(s.sink, ns, &message.message) }
	if _, err := wait(ctx, func() { C.takt_wake(s.sink) }, consume); err != nil {
		return nil, err
	}
	return message.describe()
}

// TryReceive is the next message, or nil if none waits.
func (s *Sink) TryReceive() (*Message, error) {
	message := &Message{sink: s}
	_, err := check(func() C.int { return C.takt_consume(s.sink, C.TAKT_NOWAIT, &message.message) })
	if errors.Is(err, ErrWouldBlock) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return message.describe()
}

func (m *Message) describe() (*Message, error) {
	info := C.takt_message_info{size: C.sizeof_takt_message_info}
	if _, err := check(func() C.int { return C.takt_message_information(m.sink.sink, &m.message, &info) }); err != nil {
		return nil, err
	}
	m.Data = unsafe.Slice((*byte)(m.message.data), int(m.message.length))
	m.Sequence, m.SendTime = uint64(info.sequence), int64(info.send_time_ns)
	m.Sender, m.TrafficClass = uint32(info.sender), int(info.traffic_class)
	return m, nil
}

// Release gives the memory back. A second call does nothing.
func (m *Message) Release() {
	m.Data = nil
	if m.message.data != nil && m.sink.sink != nil {
		C.takt_release(m.sink.sink, &m.message)
	}
}

// Available is how many messages wait.
func (s *Sink) Available() int {
	count, _ := check(func() C.int { return C.takt_data_available(s.sink) })
	return count
}

// Warning says what the memory for received messages cannot do for this sink; empty if nothing.
func (s *Sink) Warning() string {
	return text(func(to *C.char, size C.size_t) C.int { return C.takt_sink_warning(s.sink, to, size) })
}

// Counters are what happened to a sink's messages since it was opened.
type Counters struct {
	Delivered, DroppedFull, DroppedMemory, Lost, LostAtDisconnect, Superseded uint64
}

// Counters reads them.
func (s *Sink) Counters() (Counters, error) {
	now := C.takt_sink_counters{size: C.sizeof_takt_sink_counters}
	if _, err := check(func() C.int { return C.takt_sink_read_counters(s.sink, &now) }); err != nil {
		return Counters{}, err
	}
	return counters(now), nil
}

func counters(of C.takt_sink_counters) Counters {
	return Counters{
		uint64(of.delivered), uint64(of.dropped_full), uint64(of.dropped_memory), uint64(of.lost),
		uint64(of.lost_at_disconnect),
		uint64(of.superseded),
	}
}
