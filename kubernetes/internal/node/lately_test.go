package node

import (
	"testing"
	"time"

	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/report"
)

// counted is a listener of which so much has left, and so much has been refused.
func counted(left, missed, undeclared uint64) *adminv1.ListenerStatus {
	return &adminv1.ListenerStatus{
		Listener: &adminv1.Listener{Path: "/a"}, Undeclared: undeclared,
		Counters: &adminv1.SessionCounters{Launched: left, LaunchesMissed: missed},
		Unserved: []*adminv1.Unserved{{Reason: "no-route", Count: left / 2}},
	}
}

func TestWhatIsSaidOfAPodIsOfTheLastMinute(t *testing.T) {
	var l lately
	now := time.Unix(1_800_000_000, 0)
	is := func(of *adminv1.ListenerStatus, seconds int, left, missed, refused, around uint64) {
		t.Helper()
		got := l.since(now, "/a", countsOf(of))
		if got == nil || got.Seconds != seconds || got.Launches != (report.Launches{Left: left, Missed: missed}) || got.Refused != refused ||
			got.RefusedBy[report.RefusedUndeclared] != refused || got.Around["no-route"] != around {
			t.Errorf("after %d s: %+v", seconds, got)
		}
	}
	if l.since(now, "/a", countsOf(counted(100, 0, 0))) != nil {
		t.Error("there are recent counts of what nobody has looked at")
	}
	l.note(now, []*adminv1.ListenerStatus{counted(100, 0, 7)})
	now = now.Add(5 * time.Second)
	if l.since(now, "/a", countsOf(counted(150, 0, 7))) != nil {
		t.Error("5 s say something")
	}
	for range 30 {
		now = now.Add(time.Second)
		l.note(now, []*adminv1.ListenerStatus{counted(200, 0, 7)})
	}
	is(counted(200, 30, 8), 35, 100, 30, 1, 50)
	// The first ones have been forgotten: nothing has left for a minute.
	for range 90 {
		now = now.Add(time.Second)
		l.note(now, []*adminv1.ListenerStatus{counted(200, 30, 8)})
	}
	if got := l.since(now, "/a", countsOf(counted(200, 90, 8))); got.Launches != (report.Launches{Missed: 60}) || got.Seconds < 60 || got.Seconds > 70 {
		t.Errorf("%+v", got)
	}
	// One that was not there then, and one of a taktd that has begun anew.
	if got := l.since(now, "/b", countsOf(counted(3, 0, 0))); got.Launches.Left != 3 {
		t.Errorf("%+v", got)
	}
	if got := l.since(now, "/a", countsOf(counted(5, 1, 0))); got.Launches != (report.Launches{Left: 5, Missed: 1}) {
		t.Errorf("%+v", got)
	}
}
