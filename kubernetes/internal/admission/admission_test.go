package admission

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
)

//go:embed testdata/capacities.csv
var table string

func TestCapacitiesAreThoseOfTheTableThatPlanningUses(t *testing.T) {
	for _, line := range strings.Split(strings.TrimSpace(table), "\n")[1:] {
		fields := strings.Split(line, ",")
		var cores, devices int
		var most, bound, widest int64
		if _, err := fmt.Sscan(strings.Join(fields[:5], " "), &cores, &devices, &most, &bound, &widest); err != nil {
			t.Fatal(line, err)
		}
		if got := strings.Trim(fmt.Sprint(Capacities(cores, devices, most, bound)), "[]"); got != fields[5] {
			t.Errorf("%s: capacities are %s", line, got)
		}
		if got := Widest(cores, devices, bound); got != widest {
			t.Errorf("%s: widest is %d", line, got)
		}
	}
}

func TestTheExampleThatWasAdmittedAndLateIsNotAdmitted(t *testing.T) {
	// 4.5/10, 4.5/10 and 9/10.001 ms on two cores: each core's sum is at most 900000.
	densities := []int64{450_000, 450_000, 899_911}
	if Schedulable(2, densities) {
		t.Error("the test finds them schedulable")
	}
	for most := int64(1); most <= 900_000; most += 997 {
		capacities := Capacities(2, 2, most, 900_000)
		if most >= 899_911 && capacities[0]+capacities[1] >= 450_000+450_000+899_911 {
			t.Errorf("with most %d they fit %v", most, capacities)
		}
	}
}

func TestWhateverFitsThePublishedCapacitiesIsSchedulable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cores := rapid.IntRange(1, 64).Draw(t, "cores")
		devices := rapid.IntRange(1, cores).Draw(t, "devices")
		bound := rapid.Int64Range(100_000, 950_000).Draw(t, "bound")
		most := rapid.Int64Range(1, bound).Draw(t, "most")
		left := Capacities(cores, devices, most, bound)
		for i, capacity := range left {
			if capacity < 0 || capacity > bound {
				t.Fatalf("capacity %d of device %d is not from 0 to the bound %d", capacity, i, bound)
			}
		}
		if left[0] < min(most, Widest(cores, devices, bound)) {
			t.Fatalf("no device has room for one of %d: %v", most, left)
		}
		var densities []int64
		for range rapid.IntRange(1, 200).Draw(t, "claims") {
			density := rapid.Int64Range(1, most).Draw(t, "density")
			if at := slices.IndexFunc(left, func(room int64) bool { return room >= density }); at >= 0 {
				left[at] -= density
				densities = append(densities, density)
			}
		}
		if !Schedulable(cores, densities) {
			t.Fatalf("%v fit and are not schedulable", densities)
		}
	})
}

func TestTheBoundOnTardinessIsThePublishedOne(t *testing.T) {
	const ms = 1_000_000
	// m = 2: (greatest Q - least Q) / 2 + greatest Q.
	got, ok := Tardiness(2, []Server{{Runtime: 45 * ms / 10, Period: 10 * ms}, {Runtime: 45 * ms / 10, Period: 10 * ms}, {Runtime: 9 * ms, Period: 10_001_000}})
	if want := uint64(9*ms + 2_250_000); !ok || got != want {
		t.Errorf("bound is %d, %t, want %d", got, ok, want)
	}
	if got, ok := Tardiness(2, []Server{{Runtime: 9 * ms, Period: 10 * ms}, {Runtime: 9 * ms, Period: 10 * ms}}); !ok || got != 0 {
		t.Errorf("no more than cores: %d, %t", got, ok)
	}
	if _, ok := Tardiness(2, []Server{{Runtime: 9 * ms, Period: 10 * ms}, {Runtime: 9 * ms, Period: 10 * ms}, {Runtime: 3 * ms, Period: 10 * ms}}); ok {
		t.Error("more than there is has a bound")
	}
	if got, ok := Tardiness(4, nil); !ok || got != 0 {
		t.Errorf("nothing is late by %d, %t", got, ok)
	}
}

// Its twin in Rust says None to the same (more_than_there_is_has_no_bound).
func TestADeadlineBeforeThePeriodsEndIsInTheProofAndHasNoBoundWithoutOne(t *testing.T) {
	const ms = 1_000_000
	// Their Q/P sum up to 0.8 of one core, their Q/D to more than one.
	early := []Server{{Runtime: 5 * ms, Deadline: 6 * ms, Period: 10 * ms}, {Runtime: 3 * ms, Period: 10 * ms}}
	if got, ok := Tardiness(1, early); ok {
		t.Errorf("late by %d at most", got)
	}
	if got, ok := Tardiness(2, early); !ok || got != 0 {
		t.Errorf("a core for each: %d, %t", got, ok)
	}
	if _, ok := Tardiness(2, []Server{{Runtime: 5 * ms, Deadline: 4 * ms, Period: 10 * ms}}); ok {
		t.Error("more than there is before its deadline has a bound")
	}
}

func TestOneCoreTakesAllThatTheKernelAdmits(t *testing.T) {
	if got := Capacities(1, 1, 900_000, 900_000)[0]; got != 900_000 {
		t.Errorf("one core gives %d", got)
	}
	if got := Total(1, reservation.WholeCore); got != reservation.WholeCore {
		t.Errorf("one core has %d", got)
	}
}
