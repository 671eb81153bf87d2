package node

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/takt-dev/takt/kubernetes/internal/enforce"
)

func TestAStatusThatCannotBeWrittenIsTriedUntilItCanBe(t *testing.T) {
	w := newStatusWriter(nil, &Node{})
	now := time.Now()
	w.set(&Record{Claim: "a"}, condition{reason: reasonLost}, nil)
	for try := range 100 {
		batch := w.take(now)
		if len(batch) != 1 || batch[0].condition.reason != reasonLost {
			t.Fatalf("try %d: %v", try, batch)
		}
		w.again(batch[0], now)
		if early := w.take(now); len(early) != 0 {
			t.Fatalf("try %d: it is tried again at once", try)
		}
		now = now.Add(mostPause)
	}
	// What is newer goes first, and is not held up by what failed.
	old := w.take(now)[0]
	w.set(&Record{Claim: "a"}, condition{reason: reasonReserved}, nil)
	w.again(old, now)
	if batch := w.take(now); len(batch) != 1 || batch[0].condition.reason != reasonReserved {
		t.Errorf("written is %v", batch)
	}
	if _, any := w.next(); any {
		t.Error("something is left")
	}
}

func TestAReservationThatNoThreadHasIsNotSaidToBeKept(t *testing.T) {
	s := newSite(t)
	const nobody = `{"apiVersion":"cpu.takt.dev/v1alpha1","kind":"Reservation","runtime":"2ms","period":"20ms","threads":{"select":"name","name":"no-such*"}}`
	b := s.mustCreate("pod", "main", "idle", s.ready(s.claim("claim", nobody, nil)))
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	s.until("the claim's status says so", func() bool {
		condition, data := s.deviceStatus("claim")
		return condition.Status == metav1.ConditionFalse && condition.Reason == reasonUnheld && len(data.Threads) == 0
	})
	s.until("the pod is told, once its program has had time to begin", func() bool { return len(s.events.of("pod", reasonUnheld)) == 1 })
}

func TestAThreadThatWaitsForRoomIsSaidTo(t *testing.T) {
	code, why := unheld(enforce.State{Waiting: 1, Threads: make([]enforce.ThreadState, 1)})
	if code != reasonWaiting || why == "" {
		t.Errorf("%s: %s", code, why)
	}
}
