package topology

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxCPU is the largest CPU number that is believed; the kernel's NR_CPUS is at most 8192.
const MaxCPU = 8191

// ParseCPUList reads the kernel's list format, "0-3,8", into ascending numbers without repetition. An
// empty text is an empty list.
func ParseCPUList(text string) ([]int, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, nil
	}
	var cpus []int
	for part := range strings.SplitSeq(text, ",") {
		from, to, ranged := strings.Cut(part, "-")
		first, err := parseCPU(from)
		if err != nil {
			return nil, fmt.Errorf("CPU list %q: %w", text, err)
		}
		last := first
		if ranged {
			if last, err = parseCPU(to); err != nil {
				return nil, fmt.Errorf("CPU list %q: %w", text, err)
			}
		}
		if last < first {
			return nil, fmt.Errorf("CPU list %q: range %q ends before it begins", text, part)
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	slices.Sort(cpus)
	return slices.Compact(cpus), nil
}

func parseCPU(text string) (int, error) {
	cpu, err := strconv.ParseUint(text, 10, 16)
	if err != nil || cpu > MaxCPU {
		return 0, fmt.Errorf("%q is not a CPU number from 0 to %d", text, MaxCPU)
	}
	return int(cpu), nil
}

// FormatCPUList writes what ParseCPUList reads, with ranges.
func FormatCPUList(cpus []int) string {
	sorted := slices.Compact(slices.Sorted(slices.Values(cpus)))
	var parts []string
	for i := 0; i < len(sorted); {
		j := i
		for j+1 < len(sorted) && sorted[j+1] == sorted[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, strconv.Itoa(sorted[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", sorted[i], sorted[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}
