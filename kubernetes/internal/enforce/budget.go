package enforce

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// unit is the kernel's own fixed-point one for bandwidth (BW_SHIFT): its admission test adds these, each
// rounded down, so this package adds the same.
const unit = 1 << 20

// share is a bandwidth in units, per CPU, or a single one that holds for each CPU.
type share []uint64

// unlimited stands for a group that takes from the next one above that has a budget.
var unlimited = share(nil)

func ratio(runtime, period uint64) uint64 {
	high, low := bits.Mul64(runtime, unit)
	quotient, _ := bits.Div64(high, low, period)
	return quotient
}

// runtimeFor is the least runtime whose ratio to the period is at least so many units.
func runtimeFor(units, period uint64) uint64 { return (units*period + unit - 1) / unit }

func (s share) add(other share) share {
	sum := make(share, max(len(s), len(other)))
	copy(sum, s)
	for i, units := range other {
		sum[i] += units
	}
	return sum
}

func (s share) covers(other share) bool {
	for i, units := range other {
		if i >= len(s) || s[i] < units {
			return false
		}
	}
	return true
}

// knob is how one kernel interface writes budgets for real time into a cgroup.
type knob interface {
	// read is what a cgroup may use; unlimited if it has no budget of its own.
	read(dir string) (share, error)
	// write gives an inner cgroup room for what is below it: after it, read is what fit says, which is
	// at least s.
	write(dir string, s share) error
	fit(dir string, s share) (share, error)
	// grant gives a leaf runtime and period on cores; revoke takes it away.
	grant(dir string, g Grant) error
	revoke(dir string) error
	// holds says whether a leaf has what grant gives it, no more and no less.
	holds(dir string, g Grant) (bool, error)
	// share is what grant costs.
	share(g Grant) share
}

// budgets grants top-down: a group may have no more than its parent, whose children may together have no
// more than it. Groups above containers get the sum of what is below them, not more.
type budgets struct {
	mu   sync.Mutex
	root string
	knob knob
}

// grant gives the cgroup at path (below root) its budget, and every group above it what that needs.
func (b *budgets) grant(path string, g Grant) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	leaf := filepath.Join(b.root, path)
	need := b.knob.share(g)
	var above []string
	var needs []share
	for dir := leaf; ; {
		parent := filepath.Dir(dir)
		if parent == b.root {
			break
		}
		sum, err := b.below(parent, filepath.Base(dir), need)
		if err != nil {
			return err
		}
		have, err := b.knob.read(parent)
		if err != nil {
			return err
		}
		if have == nil {
			// What is below an unlimited group takes from the next one above that has a budget.
			need = sum
		} else if have.covers(sum) {
			break // and so do those above
		} else if need, err = b.knob.fit(parent, sum); err != nil {
			return err
		} else {
			above, needs = append(above, parent), append(needs, sum)
		}
		dir = parent
	}
	for i, dir := range slices.Backward(above) {
		if err := b.knob.write(dir, needs[i]); err != nil {
			return errors.Join(refusedBudget(dir, err), b.shrink(filepath.Dir(leaf)))
		}
	}
	if err := b.knob.grant(leaf, g); err != nil {
		return errors.Join(refusedBudget(leaf, err), b.shrink(filepath.Dir(leaf)))
	}
	return nil
}

// keep looks whether the cgroup at path has the budget that it was granted, and grants it anew where something else on the
// node has written another one: then rewritten is true. A cgroup that has gone has nothing to keep.
func (b *budgets) keep(path string, g Grant) (rewritten bool, err error) {
	leaf := filepath.Join(b.root, path)
	is, err := b.knob.holds(leaf, g)
	if is || (err != nil && !exists(leaf)) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot see the budget of cgroup %s: %w", leaf, err)
	}
	if err := b.grant(path, g); err != nil {
		return false, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return true, b.shrink(filepath.Dir(leaf)) // those above may have been given more, too
}

func refusedBudget(dir string, err error) error {
	reason := "see dmesg of the node"
	switch {
	case errors.Is(err, syscall.EINVAL):
		reason = "its admission test has no room: other groups, or kernel.sched_rt_runtime_us, leave too little; offer less bandwidth in the node's configuration"
	case errors.Is(err, syscall.EBUSY):
		reason = "threads that need the present budget run there"
	}
	return fmt.Errorf("%w for cgroup %s: %w: %s", ErrRefused, dir, err, reason)
}

// revoke takes the budget of a cgroup back, which may be gone already, and what the groups above it no
// longer need.
func (b *budgets) revoke(path string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	leaf := filepath.Join(b.root, path)
	var failed error
	if exists(leaf) {
		failed = b.knob.revoke(leaf)
	}
	return errors.Join(failed, b.shrink(filepath.Dir(leaf)))
}

// shrink leaves every group from dir up what is below it.
func (b *budgets) shrink(dir string) error {
	for ; dir != b.root && strings.HasPrefix(dir, b.root); dir = filepath.Dir(dir) {
		if !exists(dir) {
			continue
		}
		have, err := b.knob.read(dir)
		if err != nil {
			return err
		}
		sum, err := b.below(dir, "", nil)
		if err != nil {
			return err
		}
		if have == nil || sum.covers(have) {
			continue
		}
		// A group with real-time threads of its own keeps what it has: nobody else would get it.
		if err := b.knob.write(dir, sum); err != nil && !errors.Is(err, syscall.EBUSY) && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot take budget back from cgroup %s: %w", dir, err)
		}
	}
	return nil
}

// below is the sum of the children's budgets, with that of the named child replaced.
func (b *budgets) below(dir, child string, instead share) (share, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot list cgroup %s: %w", dir, err)
	}
	sum := instead
	for _, entry := range entries {
		if !entry.IsDir() || entry.Name() == child {
			continue
		}
		have, err := b.knob.read(filepath.Join(dir, entry.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has just ended
		}
		if err != nil {
			return nil, err
		}
		sum = sum.add(have)
	}
	if sum == nil {
		sum = share{0}
	}
	return sum, nil
}

// micros is a time in the unit of cgroup files, rounded up.
func micros(nanoseconds uint64) uint64 { return (nanoseconds + 999) / 1000 }

// period is the grant's period in microseconds, rounded down: never later than asked.
func (g Grant) period() uint64 { return g.Parameters.Period.Nanoseconds() / 1000 }

func (g Grant) runtime() uint64 { return min(micros(g.Parameters.Runtime.Nanoseconds()), g.period()) }

func readNumbers(path string) ([]int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var numbers []int64
	for field := range strings.FieldsSeq(string(text)) {
		number, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %q is not a number", path, field)
		}
		numbers = append(numbers, number)
	}
	if len(numbers) == 0 {
		return nil, fmt.Errorf("cannot read %s: it is empty", path)
	}
	return numbers, nil
}

func writeText(path, text string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	return cmp.Or(err, file.Close())
}
