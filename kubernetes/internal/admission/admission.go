// Package admission is the schedulability test of reservations that share cores under global EDF, as Linux
// schedules SCHED_DEADLINE within a root domain. It says how much may be published so that whatever the
// cluster's scheduler admits is schedulable. It is pure; all shares are parts per million of a core, a
// reservation's share being its density Q/D (Q/P without a deadline).
//
// Its twin in Rust is crates/reserve/src/admission.rs, for planning before there is a node; both are tested
// against testdata/capacities.csv.
package admission

import (
	"math/bits"
	"slices"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
)

// Policy says what admission promises.
type Policy string

const (
	// Guaranteed admits what is proven to have its runtime by every deadline.
	Guaranteed Policy = "guaranteed"
	// Soft admits all that the kernel does: a runtime may be late by at most Tardiness.
	Soft Policy = "soft"
)

// Total is the sum of densities up to which reservations of at most most each meet their deadlines under
// global EDF on so many cores: m - (m-1)*u_max (Goossens, Funk and Baruah, Real-Time Systems 25, 2003; for
// densities Bertogna, Cirinei and Lipari, ECRTS 2005, theorem 2; for constant bandwidth servers Baruah,
// Goossens and Lipari, RTAS 2002).
func Total(cores int, most int64) int64 {
	return int64(cores)*reservation.WholeCore - int64(cores-1)*most
}

// Widest is the greatest density with which each of the devices can have a reservation of that density and
// Total still holds, at most bound.
func Widest(cores, devices int, bound int64) int64 {
	return min(bound, int64(cores)*reservation.WholeCore/int64(devices+cores-1))
}

// Capacities are what each of the devices may give so that all that fits them, in reservations of at most
// most each, sums up to at most Total; none exceeds bound.
func Capacities(cores, devices int, most, bound int64) []int64 {
	return Within(Total(cores, most), devices, most, bound)
}

// Within shares a total out to the devices, none of which exceeds bound. They are equal if each then has room
// for a reservation of density most, and otherwise as many as possible have that room: the last ones get less,
// or 0.
func Within(total int64, devices int, most, bound int64) []int64 {
	total = max(min(total, int64(devices)*bound), 0)
	capacities := make([]int64, devices)
	if each := total / int64(devices); each >= most {
		for i := range capacities {
			capacities[i] = each
		}
		return capacities
	}
	for i := range capacities {
		capacities[i] = min(total, most)
		total -= capacities[i]
	}
	return capacities
}

// Schedulable says whether reservations of these densities meet their deadlines under global EDF on so many
// cores: the test of Total with the greatest density that is there, or no more reservations than cores.
func Schedulable(cores int, densities []int64) bool {
	var sum, most int64
	for _, density := range densities {
		sum += density
		most = max(most, density)
	}
	return (len(densities) <= cores && most <= reservation.WholeCore) || sum <= Total(cores, most)
}

// Server is one reservation of a thread, in nanoseconds. Deadline is 0 where it is the period's end.
type Server struct{ Runtime, Deadline, Period uint64 }

// early says whether the deadline is before the period's end.
func (s Server) early() bool { return s.Deadline > 0 && s.Deadline < s.Period }

// Tardiness is how late, in nanoseconds, a runtime may be given after its period's end under global EDF on
// so many cores if the shares sum up to no more than the cores:
// (sum of the m-1 greatest Q - least Q) / (m - sum of the m-2 greatest Q/P) + greatest Q (Devi and Anderson,
// RTSS 2005, theorem 1); 0 where they are Schedulable. False if there is no bound, as where a deadline is before its
// period's end, which the theorem does not cover.
func Tardiness(cores int, servers []Server) (nanoseconds uint64, bounded bool) {
	if len(servers) == 0 {
		return 0, true
	}
	var runtimes []uint64
	var shares, densities []int64
	var sum int64
	early := false
	for _, s := range servers {
		within := s.Period
		if s.early() {
			early, within = true, s.Deadline
		}
		if s.Period == 0 || s.Runtime > within {
			return 0, false
		}
		share := ratio(s.Runtime, s.Period)
		runtimes, shares, sum = append(runtimes, s.Runtime), append(shares, share), sum+share
		densities = append(densities, ratio(s.Runtime, within))
	}
	if sum > int64(cores)*reservation.WholeCore {
		return 0, false
	}
	if Schedulable(cores, densities) {
		return 0, true
	}
	if early {
		return 0, false
	}
	slices.Sort(runtimes)
	slices.Sort(shares)
	var late uint64
	for _, runtime := range runtimes[max(0, len(runtimes)-(cores-1)):] {
		late += runtime
	}
	late -= min(late, runtimes[0])
	left := int64(cores) * reservation.WholeCore
	for _, share := range shares[max(0, len(shares)-max(0, cores-2)):] {
		left -= share
	}
	high, low := bits.Mul64(late, reservation.WholeCore)
	if left <= 0 || high >= uint64(left) {
		return 0, false
	}
	quotient, rest := bits.Div64(high, low, uint64(left))
	if rest > 0 {
		quotient++
	}
	return quotient + runtimes[len(runtimes)-1], true
}

// ratio is Q/P or Q/D in parts per million, rounded up; runtime is at most the other.
func ratio(runtime, within uint64) int64 {
	high, low := bits.Mul64(runtime, reservation.WholeCore)
	quotient, rest := bits.Div64(high, low, within)
	if rest > 0 {
		quotient++
	}
	return int64(quotient)
}
