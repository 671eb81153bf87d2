package takt_test

import (
	"context"
	"errors"
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
