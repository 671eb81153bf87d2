// Command allocation measures what it costs the scheduler to find cores for a claim, with the scheduler's own
// allocator, in clusters that exist only as the slices that takt-node publishes: figure 7a of KubeDeadline
// (ECRTS 2025), whose controller costs O(nodes x cores). What the nodes themselves do is measured in a real
// cluster, by `make bench-cluster`.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/takt-dev/takt/kubernetes/bench/draw"
)

func main() {
	nodes := flag.String("nodes", "1,10,100,500,1000,2000,5000", "sizes of clusters")
	cores := flag.Int("cores", 64, "cores of a node, all offered")
	full := flag.String("full", "0,50,90,100", "percent of every node's cores that claims fill")
	claims := flag.Int("claims", 12, "how many claims to allocate in each cluster")
	out := flag.String("out", "", "folder for report.json and report.svg; none are written without it")
	flag.Parse()
	if err := run(*nodes, *cores, *full, *claims, *out); err != nil {
		fmt.Fprintln(os.Stderr, "allocation:", err)
		os.Exit(1)
	}
}

// Report is what report.json has.
type Report struct {
	Method    string    `json:"method"`
	Machine   string    `json:"machine"`
	Command   string    `json:"command"`
	Cores     int       `json:"cores_per_node"`
	Claims    int       `json:"claims_measured"`
	Published Published `json:"published"`
	Points    []Point   `json:"points"`
}

// Published is what the paper measured with its own controller, in milliseconds.
type Published struct {
	Min, Mean, Max float64
}

const method = "One claim after another, of 1 to 4 cores at 300000 ppm, through k8s.io/dynamic-resource-allocation/structured as the scheduler's " +
	"plugin calls it: copy what is allocated, make an allocator, ask it for one node after another until as many fit as the scheduler " +
	"looks for. One thread; the scheduler asks for nodes on 16."

func run(nodes string, cores int, full string, claims int, out string) error {
	sizes, err := numbers("nodes", nodes)
	if err != nil {
		return err
	}
	levels, err := numbers("full", full)
	if err != nil {
		return err
	}
	if cores < 1 || claims < 1 || slices.Max(levels) > 100 || slices.Min(sizes) < 1 {
		return fmt.Errorf("-cores %d, -claims %d, -full %s, -nodes %s: one at least of each, and 100 percent at most", cores, claims, full, nodes)
	}
	report := Report{
		Method: method, Machine: fmt.Sprintf("%d CPUs, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version()),
		Command: strings.Join(os.Args, " "), Cores: cores, Claims: claims, Published: Published{2, 48.5, 466},
	}
	for _, level := range levels {
		for _, size := range sizes {
			fmt.Fprintf(os.Stderr, "%d nodes of %d cores, %d %% full\n", size, cores, level)
			point, err := measure(size, cores, level, claims)
			if err != nil {
				return err
			}
			report.Points = append(report.Points, point)
		}
	}
	table(os.Stdout, report)
	if out == "" {
		return nil
	}
	return save(report, out)
}

func numbers(name, list string) ([]int, error) {
	var all []int
	for word := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("-%s %q: %q is not a number", name, list, word)
		}
		all = append(all, n)
	}
	return all, nil
}

func table(to io.Writer, report Report) {
	fmt.Fprintf(to, "Cost of allocating one claim in milliseconds of one thread, median of %d claims (and the dearest)\n\n", report.Claims)
	fmt.Fprintf(to, "%7s %6s %9s %7s %7s %10s %10s %10s %10s\n", "nodes", "full", "claims", "asked", "found", "state", "a node", "in all", "max")
	for _, p := range report.Points {
		fmt.Fprintf(to, "%7d %4d %% %9d %7d %7d %10.3f %10.3f %10.2f %10.2f\n",
			p.Nodes, p.Full, p.Existing, p.Asked, p.Found, ms(p.State.P50), ms(p.Node.P50), ms(p.Total.P50), ms(p.Total.Max))
	}
	fmt.Fprintf(to, "\nasked, found: nodes that the allocator was asked for, and those that had room; state: copying what is\nallocated and making the allocator. Published for the paper's controller: %g to %g ms, mean %g.\n",
		report.Published.Min, report.Published.Max, report.Published.Mean)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func save(report Report, dir string) error {
	if err := draw.Report(dir, report, "", 2, panels(report)); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "written:", filepath.Join(dir, "report.json"), filepath.Join(dir, "report.svg"))
	return nil
}

// panels are cost over nodes for every level, and cost over the claims that are there for the largest cluster.
func panels(report Report) []draw.Panel {
	overNodes := draw.Panel{
		Title: fmt.Sprintf("Allocating one claim, nodes of %d cores", report.Cores),
		X:     draw.Axis{Label: "nodes", Log: true}, Y: draw.Axis{Label: "ms of one thread, median", Log: true},
	}
	overClaims := draw.Panel{X: draw.Axis{Label: "claims in the cluster, thousands", FromZero: true}, Y: draw.Axis{Label: "ms of one thread, median", FromZero: true}}
	state := draw.Series{Name: "copying the state", Colour: 6}
	node := draw.Series{Name: "asking nodes", Colour: 0}
	largest := 0
	for _, p := range report.Points {
		largest = max(largest, p.Nodes)
	}
	overClaims.Title = fmt.Sprintf("%d nodes, by part", largest)
	lines := map[int]*draw.Series{}
	var order []int
	for _, p := range report.Points {
		if lines[p.Full] == nil {
			lines[p.Full] = &draw.Series{Name: fmt.Sprintf("%d %% full", p.Full), Colour: len(order)}
			order = append(order, p.Full)
		}
		line := lines[p.Full]
		line.X, line.Y = append(line.X, float64(p.Nodes)), append(line.Y, ms(p.Total.P50))
		if p.Nodes == largest {
			state.X, state.Y = append(state.X, float64(p.Existing)/1000), append(state.Y, ms(p.State.P50))
			node.X, node.Y = append(node.X, float64(p.Existing)/1000), append(node.Y, ms(p.Nodewise.P50))
		}
	}
	for _, level := range order {
		overNodes.Lines = append(overNodes.Lines, *lines[level])
	}
	overClaims.Lines = []draw.Series{state, node}
	return []draw.Panel{overNodes, overClaims}
}
