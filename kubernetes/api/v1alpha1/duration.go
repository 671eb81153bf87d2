package v1alpha1

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/takt-dev/takt/kubernetes/internal/quote"
)

// Duration is a length of time, written with its unit: "500us", "3ms", "1.5s". Every accepted text is
// exact in nanoseconds, so that reading never rounds a reservation down, and is also a duration in CEL,
// so that the admission policy computes with the same number.
//
// +kubebuilder:validation:Type=string
// +kubebuilder:validation:Pattern=`^([0-9]{1,18}ns|[0-9]{1,12}([.][0-9]{1,3})?us|[0-9]{1,9}([.][0-9]{1,6})?ms|[0-9]{1,6}([.][0-9]{1,9})?s)$`
type Duration time.Duration

// units are those of Go and CEL that a reservation can be written in; order matters, "s" ends all of them.
var units = []struct {
	suffix string
	nanos  int64
	digits int
}{
	{"ns", 1, 0},
	{"us", 1_000, 3},
	{"ms", 1_000_000, 6},
	{"s", 1_000_000_000, 9},
}

// ParseDuration reads digits, at most one point, and one unit out of ns, us, ms, s.
func ParseDuration(text string) (Duration, error) {
	for _, unit := range units {
		number, ok := strings.CutSuffix(text, unit.suffix)
		if !ok {
			continue
		}
		whole, fraction, pointed := strings.Cut(number, ".")
		if !digits(whole) || (pointed && !digits(fraction)) {
			break
		}
		if len(fraction) > unit.digits {
			return 0, fmt.Errorf("duration %s is finer than a nanosecond: write at most %d digits after the point of %s",
				quote.Value(text), unit.digits, unit.suffix)
		}
		var total int64
		for _, digit := range whole + fraction + strings.Repeat("0", unit.digits-len(fraction)) {
			value := int64(digit - '0')
			if total > (math.MaxInt64-value)/10 {
				return 0, fmt.Errorf("duration %s is longer than 292 years: reservations have periods of at most seconds", quote.Value(text))
			}
			total = total*10 + value
		}
		return Duration(total), nil
	}
	return 0, fmt.Errorf("duration %s is not a number with one of the units ns, us, ms, s, as in \"3ms\"", quote.Value(text))
}

func digits(text string) bool {
	if text == "" {
		return false
	}
	return strings.Trim(text, "0123456789") == ""
}

// Nanoseconds is the length as the kernel takes it.
func (d Duration) Nanoseconds() uint64 { return uint64(d) }

// String writes the length in the largest unit that keeps it exact and short.
func (d Duration) String() string {
	unit := units[0]
	for _, larger := range units[1:] {
		if int64(d) >= larger.nanos {
			unit = larger
		}
	}
	whole, rest := int64(d)/unit.nanos, int64(d)%unit.nanos
	if rest == 0 {
		return fmt.Sprintf("%d%s", whole, unit.suffix)
	}
	fraction := strings.TrimRight(fmt.Sprintf("%0*d", unit.digits, rest), "0")
	return fmt.Sprintf("%d.%s%s", whole, fraction, unit.suffix)
}

// MarshalJSON writes the length as String does.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalJSON reads what ParseDuration reads, from a JSON string.
func (d *Duration) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return fmt.Errorf("duration %s is not a string with a unit: write it as \"3ms\"", data)
	}
	parsed, err := ParseDuration(text)
	if err != nil {
		return err
	}
	*d = parsed
	return nil
}
