package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/takt-dev/takt/kubernetes/bench/draw"
)

// Arm is one budget of a figure under one of the arms.
type Arm struct {
	Name string `json:"name"`
	// Responses are of batches, in seconds, in the order in which they came.
	Responses []float64 `json:"responses_s"`
	Images    int       `json:"images"`
	// Used is the CPU time of head and workers, all of their threads.
	Used time.Duration `json:"cpu_ns"`
}

// average and least are in frames per second: the least is that of the slowest batch.
func (a *Arm) average() float64 {
	sum := 0.0
	for _, r := range a.Responses {
		sum += r
	}
	return float64(a.Images) / sum
}

func (a *Arm) least(batch int) float64 { return float64(batch) / slices.Max(a.Responses) }

// cores is the CPU time used over the time it took.
func (a *Arm) cores() float64 {
	sum := 0.0
	for _, r := range a.Responses {
		sum += r
	}
	return a.Used.Seconds() / sum
}

// slow is the rate that all batches but one of twenty reach.
func (a *Arm) slow(batch int) float64 {
	sorted := slices.Sorted(slices.Values(a.Responses))
	return float64(batch) / sorted[min(len(sorted)*95/100, len(sorted)-1)]
}

// Point is a budget in percent of a core.
type Point struct {
	Budget int   `json:"budget_percent"`
	Arms   []Arm `json:"arms"`
}

// Result is one figure.
type Result struct {
	figure
	Points []*Point `json:"points"`
}

type report struct {
	Method  string    `json:"method"`
	Machine string    `json:"machine"`
	Command string    `json:"command"`
	Results []*Result `json:"figures"`
	began   time.Time
}

func newReport(o options) *report {
	r := &report{
		Method: fmt.Sprintf("Ray from PyPI: a head and as many workers as this: %d, each in a group as a pod is; the neighbour is %d busy processes without limit, "+
			"which has requested what is left of the machine. Reservations: the thread that classifies has SCHED_DEADLINE, budget every %s, by the code of takt-node; "+
			"the other threads of its pod are ordinary ones with a request of %d thousandths of a core. Limits: request and limit of the pod are the budget, as in the "+
			"paper. Limits and rest: they are the budget and those thousandths. %d rounds of %g s each, in turns. No Kubernetes runs.",
			o.workers, o.hogs, o.period, o.rest, o.rounds, o.seconds),
		Machine: fmt.Sprintf("%d CPUs, %s/%s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH),
		Command: strings.Join(os.Args, " "), began: time.Now(),
	}
	for _, f := range figures {
		r.Results = append(r.Results, &Result{figure: f})
	}
	return r
}

func (r *report) add(at, budget, arm int, a answer, used time.Duration) {
	result := r.Results[at]
	i := slices.IndexFunc(result.Points, func(p *Point) bool { return p.Budget == budget })
	if i < 0 {
		i = len(result.Points)
		point := &Point{Budget: budget}
		for _, arm := range arms {
			point.Arms = append(point.Arms, Arm{Name: arm.name})
		}
		result.Points = append(result.Points, point)
	}
	to := &result.Points[i].Arms[arm]
	to.Responses, to.Images, to.Used = append(to.Responses, a.Responses...), to.Images+a.Images, to.Used+used
	fmt.Fprintf(os.Stderr, "%4.0f s  %-42s %2d %% %-16s average %.1f, least %.1f FPS\n",
		time.Since(r.began).Seconds(), result.Title, budget, to.Name, to.average(), to.least(result.Batch))
}

func (r *report) table() string {
	var text strings.Builder
	for _, result := range r.Results {
		fmt.Fprintf(&text, "%s (%s), frames per second\n%8s", result.Title, result.Paper, "budget")
		for _, arm := range arms {
			fmt.Fprintf(&text, " | %-34s", arm.name+": average, p5, least, cores")
		}
		text.WriteString("\n")
		for _, p := range result.Points {
			fmt.Fprintf(&text, "%6d %%", p.Budget)
			for i := range p.Arms {
				a := &p.Arms[i]
				fmt.Fprintf(&text, " | %8.1f %8.1f %8.1f %7.2f", a.average(), a.slow(result.Batch), a.least(result.Batch), a.cores())
			}
			text.WriteString("\n")
		}
		text.WriteString("\n")
	}
	return text.String() + "p5: what all batches but one of twenty reach; least: the slowest batch; cores: what head and workers used, all threads.\n" + r.Method + "\n"
}

func (r *report) finish(out string) error {
	fmt.Print(r.table())
	if out == "" {
		return nil
	}
	return draw.Report(out, r, r.table(), 2, r.panels())
}

// panels are average and least of every figure, side by side.
func (r *report) panels() []draw.Panel {
	var panels []draw.Panel
	for _, result := range r.Results {
		for _, what := range []struct {
			name string
			of   func(*Arm) float64
		}{{"average", (*Arm).average}, {"least", func(a *Arm) float64 { return a.least(result.Batch) }}} {
			var lines []draw.Series
			for i, arm := range arms {
				line := draw.Series{Name: arm.name, Colour: i, Dashed: !arm.reserved}
				for _, p := range result.Points {
					line.X, line.Y = append(line.X, float64(p.Budget)), append(line.Y, what.of(&p.Arms[i]))
				}
				lines = append(lines, line)
			}
			panels = append(panels, draw.Panel{
				Title: result.Title + ": " + what.name, X: draw.Axis{Label: "budget, % of a core"}, Y: draw.Axis{Label: "frames per second", FromZero: true},
				Lines: lines,
			})
		}
	}
	return panels
}
