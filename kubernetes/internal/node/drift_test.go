package node

import (
	"maps"
	"testing"
	"time"

	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

// what a thread outside of all claims has: 200,000 parts per million.
var outsiders = sched.Attr{Policy: sched.Deadline, Runtime: 4_000_000, Deadline: 20_000_000, Period: 20_000_000}

// churn is what a kernel counts second by second, beyond lost, when each second a thread of a claim ends that is counted
// for another second or two.
func churn(second int) int64 { return int64(second%7) * 30_000 }

// Threads that come and go keep the agent from nothing: the machine's threads are looked at once in a while, those outside of
// all claims are believed when they were seen twice, and what the kernel never gives back is taken for lost.
func TestThreadsThatComeAndGoHideNoDrift(t *testing.T) {
	const lost, patience, unlooked = 80_000, 10 * time.Second, time.Minute
	began := time.Now()
	d := drift{looked: began}
	var looks []int
	for second := range 240 {
		counted := churn(second) + lost
		if second >= 120 {
			counted += outsiders.Share()
		}
		if second == 120 && d.rest != lost {
			t.Errorf("what is lost is taken for %d", d.rest)
		}
		due, whole := d.note(counted, began.Add(time.Duration(second)*time.Second), patience, unlooked)
		if !due {
			continue
		}
		looks = append(looks, second)
		seen := map[int]sched.Attr{second: outsiders} // of a claim, and between two scans
		if second >= 120 {
			seen[7] = outsiders
		}
		believed := d.believe(seen, false)
		if _, wrongly := believed[second]; wrongly {
			t.Fatalf("second %d: a thread that was seen once is believed", second)
		}
		d.outside = nil
		for attr := range maps.Values(believed) {
			d.outside = append(d.outside, attr)
		}
		if d.rest = d.restOf(d.strangers(), whole); !beyondSlack(d.rest) {
			d.rest = 0
		}
	}
	if len(looks) < 5 {
		t.Errorf("looked at in seconds %v", looks)
	}
	if d.strangers() != outsiders.Share() || d.rest != lost {
		t.Errorf("at last strangers have %d, and %d is lost; looked at in seconds %v", d.strangers(), d.rest, looks)
	}
}

// What the kernel counts for a thread that has just ended is no drift.
func TestWhatGoesAwayIsNoDrift(t *testing.T) {
	began := time.Now()
	d := drift{looked: began}
	for second := range 300 {
		due, whole := d.note(churn(second), began.Add(time.Duration(second)*time.Second), 10*time.Second, time.Minute)
		if due {
			if d.rest = d.restOf(0, whole); beyondSlack(d.rest) {
				t.Fatalf("second %d: %d is lost", second, d.rest)
			}
		}
	}
}
