package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/bench/draw"
)

// The experiment of kubernetsn-icc2023 (figures 3 and 4), from pods: a talker on node-2 sends a datagram in every millisecond to a
// listener on node-1, over a link with a rate. All pods are unprivileged; talker and listener have CPU time by claim,
// best effort keeps to a core where the lane is not, as what a network card would do for it is done by the cores here.
const (
	counted, warmUp = 1000, 50
	talkersClass    = 5
	listenersPort   = 6000
	drainsPort      = 6001
	// Where `takt bench-socket talker` has the launch time in a datagram.
	launchAt = 4
)

// arm is a way from the talker to the listener.
type arm struct {
	Name string `json:"name"`
	// Mode is how the talker meets its instants, as `takt bench-socket talker` has it.
	Mode  string `json:"talker"`
	bare  bool
	takts bool
}

var arms = []arm{
	{Name: "node, sleeping", Mode: "sleep", bare: true},
	{Name: "node, spinning", Mode: "spin", bare: true},
	{Name: "pods, sleeping", Mode: "sleep"},
	{Name: "pods, spinning", Mode: "spin"},
	{Name: "pods with Takt", Mode: "launch", takts: true},
}

// nanoseconds are how often each value occurred.
type nanoseconds map[uint64]uint64

// UnmarshalJSON takes what `takt bench-socket` prints.
func (n *nanoseconds) UnmarshalJSON(text []byte) error {
	var told struct{ Buckets [][2]uint64 }
	if err := json.Unmarshal(text, &told); err != nil {
		return err
	}
	*n = nanoseconds{}
	for _, bucket := range told.Buckets {
		(*n)[bucket[0]] += bucket[1]
	}
	return nil
}

func (n nanoseconds) add(other nanoseconds) {
	for value, count := range other {
		n[value] += count
	}
}

// distribution are the values that occurred, in microseconds, and of each the share of all that are no longer.
func (n nanoseconds) distribution() (values, shares []float64) {
	all, until := uint64(0), uint64(0)
	for _, count := range n {
		all += count
	}
	for _, value := range slices.Sorted(maps.Keys(n)) {
		until += n[value]
		values, shares = append(values, float64(value)/1000), append(shares, float64(until)/float64(all))
	}
	return values, shares
}

// drawn is the distribution, as far as it can be told apart in a picture.
func (n nanoseconds) drawn(name string, colour int) draw.Series {
	line, before := draw.Series{Name: name, Colour: colour}, 0.0
	values, shares := n.distribution()
	for at, share := range shares {
		if at == 0 || share >= before+1.0/200 || at == len(shares)-1 {
			line.X, line.Y = append(line.X, values[at]), append(line.Y, share)
			before = share
		}
	}
	return line
}

// quantile is in microseconds.
func (n nanoseconds) quantile(q float64) float64 {
	values, shares := n.distribution()
	if len(values) == 0 {
		return 0
	}
	at, _ := slices.BinarySearch(shares, q)
	return values[min(at, len(values)-1)]
}

// cell is what an arm gave with one size, alone or beside best effort, in all rounds.
type cell struct {
	Arm    string `json:"arm"`
	Bytes  int    `json:"bytes"`
	Beside bool   `json:"besideBestEffort"`

	Sent     int `json:"sent"`
	Received int `json:"received"`
	// Early came before their launch times.
	Early int `json:"early"`

	// Latency is from the launch time to the return of the listener's call, jitter how far from a period two of them are apart.
	Latency nanoseconds `json:"latencyNs"`
	Jitter  nanoseconds `json:"jitterNs"`
	// Arrival is to the kernel's own stamp in the listener's node: without its wake-up.
	Arrival nanoseconds `json:"arrivalNs"`
	// Departure is how far from its launch time each was at the other end of the cable that the talker's node sends on.
	Departure nanoseconds `json:"departureNs"`
	// Captured are those that were seen there, all at a time.
	Captured int `json:"captured"`
}

type isochronous struct {
	Method  string  `json:"method"`
	Machine string  `json:"machine"`
	Cells   []*cell `json:"cells"`
}

// socketProgram is a pod that runs a part of the experiment; of a node's network if it is bare.
func socketProgram(name string, annotations map[string]string, bare bool, words ...string) *corev1.Pod {
	p := python(name, annotations, "")
	p.Spec.HostNetwork = bare
	mount(p, "takt", filepath.Join(os.Getenv("TAKT_BUILT"), "takt"), "/takt")
	p.Spec.Containers[0].Command = append([]string{"/takt", "bench-socket"}, words...)
	return p
}

// cpuTime is a claim for as much of a core as a talker needs that spins.
func cpuTime(name string) *resourcev1.ResourceClaim {
	return claim(name, 1, 400_000, `"runtime":"400us","period":"1ms"`)
}

// answer waits for a pod's end and reads what it has printed.
func answer(t *testing.T, name string, into any) {
	t.Helper()
	var phase corev1.PodPhase
	until(t, name+" has ended", func() bool {
		p, err := client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			phase = p.Status.Phase
		}
		return phase == corev1.PodSucceeded || phase == corev1.PodFailed
	})
	text, err := client.CoreV1().Pods("default").GetLogs(name, &corev1.PodLogOptions{}).DoRaw(ctx)
	if err == nil && phase == corev1.PodSucceeded {
		err = json.Unmarshal(text, into)
	}
	if err != nil || phase != corev1.PodSucceeded {
		t.Fatalf("%s: %s, %v: %.1000s", name, phase, err, text)
	}
}

func TestAnIsochronousTalkerInPods(t *testing.T) {
	rounds, err := strconv.Atoi(os.Getenv("TAKT_BENCH_ROUNDS"))
	if err != nil || rounds < 1 {
		t.Skip("a measurement: run make bench-isochronous")
	}
	rate, err := strconv.ParseUint(os.Getenv("TAKT_RATE"), 10, 63)
	if err != nil {
		t.Fatal("the link needs a rate")
	}
	of := taktObjects(t)
	served(t, of)
	// The talker's class has a quarter of each period alone, the others have the rest (IEEE 802.1Qbv).
	made := &network.GateSchedule{ObjectMeta: metav1.ObjectMeta{Name: "line"}}
	made.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/hostname": "node-2"}}
	made.Spec.Datapath, made.Spec.Rate, made.Spec.CycleTime = "xdp", int64(rate), 1_000_000
	made.Spec.Entries = []network.GateEntry{{Gates: []int32{talkersClass}, Interval: 250_000}, {Gates: []int32{0, 1, 2, 3, 4, 6, 7}, Interval: 750_000}}
	if _, err := of.Schedules.Create(ctx, made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = of.Schedules.Delete(ctx, "line", metav1.DeleteOptions{}) })
	until(t, "the schedule is in force", func() bool {
		now, err := of.Schedules.Get(ctx, "line", metav1.GetOptions{})
		return err == nil && conditionIs(now.Status.Conditions, network.InForce, true, network.Installed, "on 1 node")
	})

	sizes := []int{64, 256, 1024}
	report := isochronous{
		Method: fmt.Sprintf("One datagram in every millisecond from a pod on one node to a pod on another, %d rounds of %d datagrams each way in turns, link of %d Mbit/s; "+
			"beside best effort another pod offers 120 %% of that, on a core where the lane is not. Talker and listener have a claim for CPU time. Both nodes, and the cluster's own parts, share the machine.", rounds, counted, rate/1_000_000),
		Machine: fmt.Sprintf("%d CPUs, %s/%s, load %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, load()),
	}
	cells := map[string]*cell{}
	for _, beside := range []bool{false, true} {
		for _, size := range sizes {
			for _, way := range arms {
				c := &cell{Arm: way.Name, Bytes: size, Beside: beside, Latency: nanoseconds{}, Jitter: nanoseconds{}, Arrival: nanoseconds{}, Departure: nanoseconds{}}
				cells[fmt.Sprint(way.Name, size, beside)] = c
				report.Cells = append(report.Cells, c)
			}
		}
	}
	run := 0
	once := func(way arm, size int, into *cell) {
		run++
		names := [2]string{fmt.Sprintf("listener-%d", run), fmt.Sprintf("talker-%d", run)}
		var talks, listens map[string]string
		if way.takts {
			talks, listens = timeSensitive, receiving
		}
		count := strconv.Itoa(counted + warmUp)
		create(t, cpuTime(names[0]), on("node-1", claiming(names[0], socketProgram(names[0], listens, way.bare, "listener", "--ordinary", "--at", fmt.Sprint("0.0.0.0:", listenersPort),
			"--count", count, "--warm-up", strconv.Itoa(warmUp), "--wait-seconds", "60"))))
		running := func(name string) bool {
			p, err := client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
			return err == nil && p.Status.Phase != corev1.PodPending
		}
		until(t, names[0]+" listens", func() bool { return running(names[0]) })
		address := addressOf(t, names[0])
		if way.takts {
			until(t, "the listener is known to the talker's node", func() bool { return len(placed(t, "node-2", address)) == 1 })
		}
		before, _ := departures(t, "node-2")
		cable, stop := watchCable(t, "switch2", listenersPort, launchAt), make(chan struct{})
		var watching sync.WaitGroup
		var seen atomic.Int64
		watching.Go(func() {
			cable.each(t, stop, func(_, late int64) {
				if late < 0 {
					late = -late
				}
				if seen.Add(1) > warmUp {
					into.Departure[uint64(late)]++
				}
			})
		})
		create(t, cpuTime(names[1]), on("node-2", claiming(names[1], socketProgram(names[1], talks, way.bare, "talker", "--ordinary", "--to", fmt.Sprint(address, ":", listenersPort),
			"--size", strconv.Itoa(size), "--count", count, "--mode", way.Mode, "--class", strconv.Itoa(talkersClass)))))
		var sent struct{ Sent int }
		answer(t, names[1], &sent)
		var heard struct {
			Received, Early          int
			Latency, Jitter, Arrival nanoseconds
		}
		answer(t, names[0], &heard)
		into.Sent, into.Received, into.Early = into.Sent+sent.Sent, into.Received+heard.Received, into.Early+heard.Early
		into.Latency.add(heard.Latency)
		into.Jitter.add(heard.Jitter)
		into.Arrival.add(heard.Arrival)
		until(t, "all that came were captured", func() bool { return seen.Load() >= int64(heard.Received) })
		close(stop)
		watching.Wait()
		into.Captured += int(seen.Load())
		if way.takts {
			until(t, "the runtime, and not the kernel, has sent them", func() bool {
				now, _ := departures(t, "node-2")
				return now >= before+uint64(sent.Sent)
			})
			if heard.Early > 0 {
				t.Errorf("%d of %d datagrams came before their launch times", heard.Early, heard.Received)
			}
		}
		for _, name := range names {
			remove(t, name, name)
		}
	}
	began := time.Now()
	for round := range rounds {
		for _, beside := range []bool{false, true} {
			if beside {
				create(t, on("node-1", socketProgram("drain", nil, false, "drain", "--core", "1", "--at", fmt.Sprint("0.0.0.0:", drainsPort), "--seconds", "100000")))
				create(t, on("node-2", socketProgram("flood", nil, false, "flood", "--core", "1", "--to", fmt.Sprint(addressOf(t, "drain"), ":", drainsPort), "--rate", strconv.FormatUint(rate/10*12, 10))))
				addressOf(t, "flood")
			}
			for _, size := range sizes {
				// In turns, each first once.
				for i := range arms {
					way := arms[(i+round)%len(arms)]
					once(way, size, cells[fmt.Sprint(way.Name, size, beside)])
				}
			}
			if beside {
				remove(t, "flood", "")
				remove(t, "drain", "")
			}
		}
		fmt.Printf("round %d of %d done after %v\n", round+1, rounds, time.Since(began).Round(time.Second))
	}
	table := report.table()
	t.Log("\n" + table)
	if out := os.Getenv("TAKT_BENCH_OUT"); out != "" {
		if err := draw.Report(out, report, table, 2, report.panels()); err != nil {
			t.Error(err)
		}
	}
}

func (r isochronous) table() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%-16s %5s %6s | %9s %9s %9s | %9s %9s | %9s %9s | %8s %6s\n", "microseconds", "bytes", "beside",
		"latency50", "p90", "p99", "jitter50", "p90", "leaves50", "p90", "lost", "early")
	for _, c := range r.Cells {
		beside := "no"
		if c.Beside {
			beside = "yes"
		}
		fmt.Fprintf(&text, "%-16s %5d %6s | %9.1f %9.1f %9.1f | %9.1f %9.1f | %9.2f %9.2f | %8d %6d\n", c.Arm, c.Bytes, beside,
			c.Latency.quantile(0.5), c.Latency.quantile(0.9), c.Latency.quantile(0.99), c.Jitter.quantile(0.5), c.Jitter.quantile(0.9),
			c.Departure.quantile(0.5), c.Departure.quantile(0.9), c.Sent-c.Received, c.Early)
	}
	return text.String()
}

// panels are the median by size and the distribution with 256 bytes, alone and beside best effort.
func (r isochronous) panels() []draw.Panel {
	var panels []draw.Panel
	for _, beside := range []bool{false, true} {
		where := "alone"
		if beside {
			where = "beside best effort"
		}
		medians := draw.Panel{Title: "Median latency, " + where, X: draw.Axis{Label: "payload, bytes", Log: true}, Y: draw.Axis{Label: "µs from the launch time", Log: true}}
		spread := draw.Panel{Title: "256 bytes, " + where, X: draw.Axis{Label: "µs from the launch time", Log: true}, Y: draw.Axis{Label: "share that are no later", FromZero: true}}
		for at, way := range arms {
			line := draw.Series{Name: way.Name, Colour: at}
			for _, c := range r.Cells {
				if c.Arm != way.Name || c.Beside != beside {
					continue
				}
				line.X, line.Y = append(line.X, float64(c.Bytes)), append(line.Y, c.Latency.quantile(0.5))
				if c.Bytes == 256 {
					spread.Lines = append(spread.Lines, c.Latency.drawn(way.Name, at))
				}
			}
			medians.Lines = append(medians.Lines, line)
		}
		panels = append(panels, medians, spread)
	}
	return panels
}
