package takt

/*
#include <stdlib.h>
#include "takt.h"

extern void taktTopic(void *user, takt_topic *topic);

static inline int takt_go_topics(takt_participant *participant, uint64_t quiet_ns, uint64_t most_ns, uintptr_t user) {
    return takt_topics(participant, quiet_ns, most_ns, (takt_topic_callback)taktTopic, (void *)user);
}
*/
import "C"

import (
	"context"
	"errors"
	"runtime"
	"runtime/cgo"
	"time"
	"unsafe"
)

// Participant is a program's place among those that publish and subscribe by topic: a name in levels, such as
// plant/7/temperature. Subscribers may ask by a pattern: * stands for one level, ** for any number of them.
type Participant struct{ participant *C.takt_participant }

// Participant takes part. name is what others see in their lists; empty: the program's.
func (s *Session) Participant(name string) (*Participant, error) {
	var told *C.char
	if name != "" {
		told = C.CString(name)
		defer C.free(unsafe.Pointer(told))
	}
	var participant *C.takt_participant
	open := func() C.int { return C.takt_participant_open(s.session, told, &participant) }
	if _, err := check(open); err != nil {
		return nil, err
	}
	return &Participant{participant}, nil
}

// Close gives the participant up; it goes with the last of its publishers and subscribers.
func (p *Participant) Close() {
	C.takt_participant_close(p.participant)
	p.participant = nil
}

// Topic is a topic, with how many write and read it.
type Topic struct {
	Name                    string
	Publishers, Subscribers int
}

//export taktTopic
func taktTopic(user unsafe.Pointer, topic *C.takt_topic) {
	found := cgo.Handle(uintptr(user)).Value().(*[]Topic)
	*found = append(*found, Topic{C.GoString(topic.name), int(topic.publishers), int(topic.subscribers)})
}

// Topics are those that are known once nothing new has been heard of for quiet, or after most.
func (p *Participant) Topics(quiet, most time.Duration) ([]Topic, error) {
	var found []Topic
	handle := cgo.NewHandle(&found)
	defer handle.Delete()
	_, err := check(func() C.int {
		return C.takt_go_topics(
			p.participant, C.uint64_t(quiet.Nanoseconds()), C.uint64_t(most.Nanoseconds()), C.uintptr_t(handle))
	})
	return found, err
}

// Problem says why others do not hear of its topics, or not of all, and how many late joiners did not get all that its publishers
// keep; empty if nothing is wrong.
func (p *Participant) Problem() string {
	return text(func(to *C.char, size C.size_t) C.int { return C.takt_participant_problem(p.participant, to, size) })
}

// Encoding is how the messages of a topic are to be read: declared, not checked. From 256 on they are the programs' own.
type Encoding int

const (
	Bytes Encoding = iota
	Text
	JSON
	CBOR
)

// PublisherOptions say how to open a publisher. The zero value is as usual.
type PublisherOptions struct {
	QoS QoS
	// Depth: most messages under way, a power of two up to 65536; 0: 256.
	Depth uint32
	// History is how many of its last messages it keeps for late joiners.
	History uint32
	// HistoryBytes is how many bytes of them, with 24 more of each; 0: 64 MiB. The newest one is always kept.
	HistoryBytes uint64
	Encoding     Encoding
}

// Publisher writes a topic. One goroutine at a time.
type Publisher struct{ publisher *C.takt_publisher }

// Publisher opens a publisher of a topic.
func (p *Participant) Publisher(topic string, options PublisherOptions) (*Publisher, error) {
	name := C.CString(topic)
	defer C.free(unsafe.Pointer(name))
	qos, free := options.QoS.native()
	defer free()
	var pinner runtime.Pinner
	defer pinner.Unpin()
	pinner.Pin(&qos)
	from := C.takt_publisher_options{
		size:          C.sizeof_takt_publisher_options,
		qos:           &qos,
		depth:         C.uint32_t(options.Depth),
		history:       C.uint32_t(options.History),
		encoding:      C.int(options.Encoding),
		history_bytes: C.size_t(options.HistoryBytes),
	}
	var publisher *C.takt_publisher
	open := func() C.int { return C.takt_publisher_open(p.participant, name, &from, &publisher) }
	if _, err := check(open); err != nil {
		return nil, err
	}
	return &Publisher{publisher}, nil
}

// Close closes the publisher. What was published is still sent, what it has kept is gone.
func (p *Publisher) Close() {
	C.takt_publisher_close(p.publisher)
	p.publisher = nil
}

// slice is how long a publisher waits before it looks after its context: it cannot be woken.
const slice = 20 * time.Millisecond

func inSlices(ctx context.Context, call func(ns C.int64_t) C.int) (int, error) {
	for {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		n, err := check(func() C.int { return call(C.int64_t(slice)) })
		if !errors.Is(err, ErrTimedOut) && !errors.Is(err, ErrInterrupted) {
			return n, err
		}
	}
}

// Publish copies data and publishes it: a token for Outcome.
func (p *Publisher) Publish(ctx context.Context, data []byte) (int64, error) {
	var token C.int64_t
	publish := func(ns C.int64_t) C.int {
		return C.takt_publish(p.publisher, unsafe.Pointer(unsafe.SliceData(data)), C.size_t(len(data)), ns, &token)
	}
	_, err := inSlices(ctx, publish)
	return int64(token), err
}

// WaitSubscriber waits until the topic has a subscriber; how many it has.
func (p *Publisher) WaitSubscriber(ctx context.Context) (int, error) {
	return inSlices(ctx, func(ns C.int64_t) C.int { return C.takt_publisher_wait_subscriber(p.publisher, ns) })
}

// Warning says why its datapath is not what was asked for, and which topic of another participant has the same channel; empty
// if neither.
func (p *Publisher) Warning() string {
	return text(func(to *C.char, size C.size_t) C.int { return C.takt_publisher_warning(p.publisher, to, size) })
}

// Lost is how many messages there were whose outcome the runtime did not tell before it went away.
func (p *Publisher) Lost() (uint64, error) {
	var count C.uint64_t
	_, err := check(func() C.int { return C.takt_publisher_lost(p.publisher, &count) })
	return uint64(count), err
}

// Outcome says what became of a message.
func (p *Publisher) Outcome(token int64) (Outcome, error) {
	outcome, err := check(func() C.int { return C.takt_publish_outcome(p.publisher, C.int64_t(token)) })
	return Outcome(outcome), err
}

// SubscriberOptions say how to open a subscriber. The zero value is as usual.
type SubscriberOptions struct {
	// QoS: Fast and Unlimited; the rest is the matter of publishers.
	QoS QoS
	// Depth: most messages of a topic waiting or held, a power of two up to 65536; 0: 256.
	Depth uint32
	// History is how many of the last messages of each publisher it wants to begin with.
	History uint32
	// NoLocal: without what this very session publishes.
	NoLocal bool
	// Latest: the newest message of a topic alone, which takes the place of one that was not taken.
	Latest bool
}

// Subscriber reads a topic, or all topics that a pattern matches. One goroutine at a time.
type Subscriber struct{ subscriber *C.takt_subscriber }

// Subscriber opens a subscriber of a topic, or of all that a pattern matches.
func (p *Participant) Subscriber(topic string, options SubscriberOptions) (*Subscriber, error) {
	name := C.CString(topic)
	defer C.free(unsafe.Pointer(name))
	qos, free := options.QoS.native()
	defer free()
	var pinner runtime.Pinner
	defer pinner.Unpin()
	pinner.Pin(&qos)
	from := C.takt_subscriber_options{
		size:     C.sizeof_takt_subscriber_options,
		qos:      &qos,
		depth:    C.uint32_t(options.Depth),
		history:  C.uint32_t(options.History),
		no_local: flag(options.NoLocal),
		latest:   flag(options.Latest),
	}
	var subscriber *C.takt_subscriber
	open := func() C.int { return C.takt_subscriber_open(p.participant, name, &from, &subscriber) }
	if _, err := check(open); err != nil {
		return nil, err
	}
	return &Subscriber{subscriber}, nil
}

// Close closes the subscriber. Samples that are held become invalid.
func (s *Subscriber) Close() {
	C.takt_subscriber_close(s.subscriber)
	s.subscriber = nil
}

// Sample is a message of a topic.
type Sample struct {
	// Data is shared memory, to be read only, until Release.
	Data  []byte
	Topic string
	// Number is that of the message among those of its publisher, from 0; a gap is a loss.
	Number uint64
	// SendTime is when the publisher's runtime took it, and if it was kept when it took it again, TAI nanoseconds.
	SendTime int64
	// Publisher is random at each opening.
	Publisher uint32
	Encoding  Encoding
	// Kept: it was published before the subscriber joined, and may come after later ones.
	Kept       bool
	subscriber *Subscriber
	sample     C.takt_sample
}

// Take waits for the next message.
func (s *Subscriber) Take(ctx context.Context) (*Sample, error) {
	sample := &Sample{subscriber: s}
	take := func(ns C.int64_t) C.int { return C.takt_take(s.subscriber, ns, &sample.sample) }
	if _, err := wait(ctx, func() { C.takt_subscriber_wake(s.subscriber) }, take); err != nil {
		return nil, err
	}
	return sample.describe(), nil
}

// TryTake is the next message, or nil if none waits.
func (s *Subscriber) TryTake() (*Sample, error) {
	sample := &Sample{subscriber: s}
	_, err := check(func() C.int { return C.takt_take(s.subscriber, C.TAKT_NOWAIT, &sample.sample) })
	if errors.Is(err, ErrWouldBlock) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return sample.describe(), nil
}

func (s *Sample) describe() *Sample {
	of := &s.sample
	s.Data = unsafe.Slice((*byte)(of.data), int(of.length))
	s.Topic, s.Number, s.SendTime = C.GoString(of.topic), uint64(of.number), int64(of.send_time_ns)
	s.Publisher, s.Encoding, s.Kept = uint32(of.publisher), Encoding(of.encoding), of.kept != 0
	return s
}

// Release gives the memory back. A second call does nothing.
func (s *Sample) Release() {
	s.Data = nil
	if s.sample.reserved[0] != 0 && s.subscriber.subscriber != nil {
		C.takt_sample_release(s.subscriber.subscriber, &s.sample)
	}
}

// Warning says what the subscriber does not get, if anything, and why: topics of a pattern that could not be opened, and a
// topic with the same channel as one that it reads; empty if nothing.
func (s *Subscriber) Warning() string {
	return text(func(to *C.char, size C.size_t) C.int { return C.takt_subscriber_warning(s.subscriber, to, size) })
}

// Prune gives back the channels of topics that a pattern has matched and that have had no publisher for ten seconds, and says how
// many there were. Without it a pattern holds a channel for each topic that it has ever read. Not while samples are held.
func (s *Subscriber) Prune() (int, error) {
	return check(func() C.int { return C.takt_subscriber_prune(s.subscriber) })
}

// SubscriberCounters are what happened to a subscriber's messages since it was opened.
type SubscriberCounters struct {
	// Channels are those of its channels.
	Channels Counters
	// Foreign were written by another topic with the same channel, Malformed by no publisher; Unopened topics matched a
	// pattern and could not be opened.
	Foreign, Malformed, Unopened uint64
}

// Counters reads them.
func (s *Subscriber) Counters() (SubscriberCounters, error) {
	now := C.takt_subscriber_counters{size: C.sizeof_takt_subscriber_counters}
	if _, err := check(func() C.int { return C.takt_subscriber_read_counters(s.subscriber, &now) }); err != nil {
		return SubscriberCounters{}, err
	}
	return SubscriberCounters{
		counters(now.channels), uint64(now.foreign), uint64(now.malformed), uint64(now.unopened),
	}, nil
}
