package takt_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	takt "github.com/takt-dev/takt/bindings/go"
)

func participant(t *testing.T, name string) *takt.Participant {
	session, err := takt.Open(takt.Options{Name: name})
	session = must(t, session, err)
	t.Cleanup(func() { _ = session.Close() })
	participant, err := session.Participant(name)
	participant = must(t, participant, err)
	t.Cleanup(participant.Close)
	return participant
}

func TestTopics(t *testing.T) {
	ctx := patience(t)
	writer, reader := participant(t, "writer"), participant(t, "reader")
	options := takt.PublisherOptions{QoS: takt.QoS{Reliable: true}, History: 2, Encoding: takt.Text}
	publisher, err := writer.Publisher("go/1", options)
	publisher = must(t, publisher, err)
	for _, text := range []string{"a", "b", "c"} {
		_, err := publisher.Publish(ctx, []byte(text))
		must(t, 0, err)
	}
	// One that comes later, by a pattern, gets what was kept; and then what comes.
	late, err := reader.Subscriber("go/*", takt.SubscriberOptions{History: 5})
	late = must(t, late, err)
	take := func(text string, number uint64, kept bool) {
		t.Helper()
		sample, err := late.Take(ctx)
		sample = must(t, sample, err)
		defer sample.Release()
		if string(sample.Data) != text || sample.Topic != "go/1" || sample.Number != number || sample.Kept != kept ||
			sample.Encoding != takt.Text {
			t.Fatalf("%q: %+v", sample.Data, sample)
		}
	}
	take("b", 1, true)
	take("c", 2, true)
	_, err = publisher.WaitSubscriber(ctx)
	must(t, 0, err)
	token, err := publisher.Publish(ctx, nil)
	must(t, token, err)
	take("", 3, false)
	for {
		outcome, err := publisher.Outcome(token)
		if must(t, outcome, err) != takt.Pending {
			break
		}
	}
	if sample, err := late.TryTake(); sample != nil || err != nil {
		t.Fatal(sample, err)
	}
	counters, err := late.Counters()
	if must(t, counters, err).Channels.Delivered < 3 || counters.Foreign != 0 || counters.Malformed != 0 {
		t.Fatal(counters)
	}
	topics, err := reader.Topics(300*time.Millisecond, time.Minute)
	if must(t, topics, err); len(topics) == 0 || topics[0] != (takt.Topic{Name: "go/1", Publishers: 1, Subscribers: 1}) {
		t.Fatal(topics)
	}
}

func TestWhatIsKeptIsBoundedInBytes(t *testing.T) {
	ctx := patience(t)
	writer, reader := participant(t, "writer"), participant(t, "reader")
	publisher, err := writer.Publisher("go/bounded", takt.PublisherOptions{History: 5, HistoryBytes: 2 * (24 + 3)})
	publisher = must(t, publisher, err)
	if lost, err := publisher.Lost(); lost != 0 || err != nil {
		t.Fatal(lost, err)
	}
	if problem := writer.Problem(); problem != "" {
		t.Fatal(problem)
	}
	if warning := publisher.Warning(); warning != "" {
		t.Fatal(warning)
	}
	for _, text := range []string{"one", "two", "six"} {
		token, err := publisher.Publish(ctx, []byte(text))
		must(t, token, err)
		for { // A subscriber would get it as it comes.
			if outcome, err := publisher.Outcome(token); must(t, outcome, err) != takt.Pending {
				break
			}
		}
	}
	late, err := reader.Subscriber("go/bounded", takt.SubscriberOptions{History: 5})
	late = must(t, late, err)
	for _, text := range []string{"two", "six"} {
		sample, err := late.Take(ctx)
		if sample = must(t, sample, err); string(sample.Data) != text {
			t.Fatalf("%q", sample.Data)
		}
		sample.Release()
	}
}

func TestAnotherTopicOnTheSameChannelIsTold(t *testing.T) {
	ctx := patience(t)
	session, err := takt.Open(takt.Options{})
	session = must(t, session, err)
	t.Cleanup(func() { _ = session.Close() })
	subscriber, err := participant(t, "reader").Subscriber("go/collides", takt.SubscriberOptions{})
	subscriber = must(t, subscriber, err)
	if warning := subscriber.Warning(); warning != "" {
		t.Fatal(warning)
	}
	stream, err := session.Stream(takt.QoS{})
	stream = must(t, stream, err)
	name := sha256.Sum256([]byte("topic/go/collides"))
	source, err := stream.Source(binary.BigEndian.Uint64(name[:])|1<<63, 0)
	source = must(t, source, err)
	header := [24]byte{1} // As docs/reference/topics.md has it.
	token, err := source.Send(ctx, header[:])
	must(t, token, err)
	for {
		sample, err := subscriber.TryTake()
		if must(t, sample, err) != nil {
			t.Fatal(sample)
		}
		counters, err := subscriber.Counters()
		if must(t, counters, err).Foreign == 1 {
			break
		}
	}
	if warning := subscriber.Warning(); !strings.Contains(warning, "another topic") ||
		!strings.Contains(warning, "go/collides") {
		t.Fatal(warning)
	}
}

func TestAPatternGivesBackWhatNobodyWrites(t *testing.T) {
	ctx := patience(t)
	writer, reader := participant(t, "writer"), participant(t, "reader")
	publisher, err := writer.Publisher("go/goes/1", takt.PublisherOptions{})
	publisher = must(t, publisher, err)
	pattern, err := reader.Subscriber("go/goes/*", takt.SubscriberOptions{})
	pattern = must(t, pattern, err)
	var held *takt.Sample
	for held == nil {
		token, err := publisher.Publish(ctx, []byte("tried"))
		must(t, token, err)
		held, err = pattern.TryTake()
		must(t, held, err)
	}
	if _, err := pattern.Prune(); !errors.Is(err, takt.ErrInvalidArgument) {
		t.Fatal(err)
	}
	held.Release()
	publisher.Close()
	for { // It is left for as long as it may come back, and until its last message is taken.
		short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		sample, err := pattern.Take(short)
		cancel()
		if err == nil {
			sample.Release()
		} else if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			t.Fatal(err)
		}
		pruned, err := pattern.Prune()
		if must(t, pruned, err) == 1 {
			break
		}
	}
	if warning := pattern.Warning(); warning != "" {
		t.Fatal(warning)
	}
}

func TestAWaitForATopicEndsWithItsContext(t *testing.T) {
	reader := participant(t, "reader")
	subscriber, err := reader.Subscriber("go/silent", takt.SubscriberOptions{})
	subscriber = must(t, subscriber, err)
	publisher, err := reader.Publisher("go/unheard", takt.PublisherOptions{})
	publisher = must(t, publisher, err)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if _, err := subscriber.Take(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if _, err := publisher.WaitSubscriber(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

func TestWhatIsNoTopicIsRefused(t *testing.T) {
	writer := participant(t, "writer")
	for _, topic := range []string{"", "/a", "a//b", "a/*"} {
		if _, err := writer.Publisher(topic, takt.PublisherOptions{}); !errors.Is(err, takt.ErrInvalidArgument) {
			t.Fatal(topic, err)
		}
	}
	if _, err := writer.Subscriber("a*", takt.SubscriberOptions{}); !errors.Is(err, takt.ErrInvalidArgument) {
		t.Fatal(err)
	}
}
