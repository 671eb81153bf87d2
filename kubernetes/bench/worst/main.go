// Command worst runs the mixes of reservations that are nearest to what admission proves on this machine, with real
// threads of SCHED_DEADLINE beside threads that want all of its cores, and says which deadlines were missed and what the
// machine took meanwhile. It needs root, and a machine on which nothing else has reservations.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/takt-dev/takt/kubernetes/internal/sched"
	"github.com/takt-dev/takt/kubernetes/internal/topology"
)

type account struct {
	Kernel string `json:"kernel"`
	Cores  int    `json:"cores"`
	Bound  int64  `json:"boundPPM"`
	Seed   uint64 `json:"seed"`
	Drawn  int    `json:"drawn"`
	Mixes  int    `json:"mixes"`
	// NotRun were refused by the kernel: others have reservations.
	NotRun  int     `json:"notRun"`
	Nearest float64 `json:"nearest"`
	Least   float64 `json:"least"`
	Jobs    int     `json:"jobs"`
	Missed  int     `json:"missed"`
	// ByMachine were late by no more than was taken while they waited, NearMachine by more, though something was; Alone
	// with nothing taken that anybody saw.
	ByMachine int `json:"missedByWhatWasTaken"`
	// Charged were stopped, since the kernel had charged them with more than their runtime: with its own work for them, and
	// with what the machine took within that, where no thread sees it.
	Charged     int     `json:"missedByWhatWasCharged"`
	NearMachine int     `json:"missedByMoreThanWasTaken"`
	Alone       int     `json:"missedWithNothingTaken"`
	Latest      float64 `json:"latestMs"`
	// Worst is the greatest response over the deadline.
	Worst float64 `json:"worstResponseOverDeadline"`
	// Taken is for how much of the time threads saw some core taken, Stolen what the kernel counts of all cores' time, in
	// parts per million.
	Taken  float64 `json:"takenPPM"`
	Stolen float64 `json:"stolenPPM"`
}

func main() {
	count := flag.Int("mixes", 100, "how many mixes run")
	drawn := flag.Int("drawn", 200_000, "of how many the nearest are taken")
	each := flag.Duration("each", time.Second, "how long each runs")
	use := flag.Float64("use", 0.95, "how much of its runtime a job uses: the rest is the kernel's own work for the thread")
	seed := flag.Uint64("seed", 1, "of the dice")
	out := flag.String("out", "", "file for the account as JSON; standard output if empty")
	flag.Parse()
	// Go's runtime stops no thread by a signal; it reads this as it begins.
	const calm = "GODEBUG=asyncpreemptoff=1"
	if !slices.Contains(os.Environ(), calm) {
		err := syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), calm))
		fmt.Fprintln(os.Stderr, "worst: cannot begin anew:", err)
		os.Exit(1)
	}
	if err := run(*count, *drawn, *each, *use, *seed, *out); err != nil {
		fmt.Fprintln(os.Stderr, "worst:", err)
		os.Exit(1)
	}
}

func run(count, drawn int, each time.Duration, use float64, seed uint64, out string) error {
	domain, err := topology.RootDomain("/")
	if err != nil {
		return err
	}
	bound, err := sched.Bound("/")
	if err != nil {
		return err
	}
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return err
	}
	a := account{Kernel: strings.TrimSpace(string(release)), Cores: len(domain), Bound: bound, Seed: seed, Drawn: drawn}
	mixes := nearest(rand.New(rand.NewPCG(seed, seed)), len(domain), bound, drawn, count)
	if len(mixes) == 0 {
		return fmt.Errorf("no mix has more reservations than cores: draw more")
	}
	a.Nearest, a.Least = mixes[0].Near, mixes[len(mixes)-1].Near
	// No thread waits for a page, which one without a reservation may be about to give.
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE); err != nil {
		return fmt.Errorf("cannot lock memory: %w", err)
	}
	// Nothing of Go's own stops a thread meanwhile: no collection, and a processor for each thread.
	debug.SetGCPercent(-1)
	runtime.GOMAXPROCS(256)
	stolenBefore, err := stolen()
	if err != nil {
		return err
	}
	var taken, time uint64
	for _, m := range mixes {
		result, err := execute(m, len(domain), each, use)
		if err != nil {
			a.NotRun++
			fmt.Fprintln(os.Stderr, "worst: a mix was not run:", err)
			continue
		}
		a.Mixes++
		a.add(result)
		taken += within(result.gaps, result.begin, result.begin+uint64(each))
		time += uint64(each)
		runtime.GC()
	}
	stolenAfter, err := stolen()
	if err != nil {
		return err
	}
	if time > 0 {
		a.Taken, a.Stolen = float64(taken)*million/float64(time), float64(stolenAfter-stolenBefore)*million/float64(time)/float64(len(domain))
	}
	text, err := json.MarshalIndent(a, "", " ")
	if err != nil {
		return err
	}
	if out == "" {
		fmt.Println(string(text))
		return nil
	}
	return os.WriteFile(out, append(text, '\n'), 0o644)
}

// add counts the jobs of a mix.
func (a *account) add(r result) {
	for _, j := range r.jobs {
		a.Jobs++
		a.Worst = max(a.Worst, float64(j.done-j.released)/float64(j.deadline))
		if j.done <= j.released+j.deadline {
			continue
		}
		late := j.done - j.released - j.deadline
		a.Missed++
		a.Latest = max(a.Latest, float64(late)/1e6)
		// What was taken before it came may have used up the runtime of others, which they still repay.
		switch taken := within(r.gaps, j.released-min(j.released, j.period), j.done); {
		case taken >= late:
			a.ByMachine++
		case j.stopped:
			a.Charged++
		case taken > 0:
			a.NearMachine++
		default:
			a.Alone++
		}
	}
}

// stolen is what the hypervisor has taken from all cores since the machine was started, as the kernel counts it.
func stolen() (uint64, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	var n [8]uint64
	if _, err := fmt.Sscanf(string(text), "cpu %d %d %d %d %d %d %d %d", &n[0], &n[1], &n[2], &n[3], &n[4], &n[5], &n[6], &n[7]); err != nil {
		return 0, fmt.Errorf("cannot read /proc/stat: %w", err)
	}
	return n[7] * (1_000_000_000 / 100), nil
}
