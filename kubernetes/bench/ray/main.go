// Command ray measures a Ray job beside a CPU-hungry neighbour, with and without CPU reservations: figures 8
// to 10 of KubeDeadline (ECRTS 2025) in small. It is run by run.sh, in namespaces of its own.
//
// There is no Kubernetes here: with two cores, its own programs would be the neighbour. What it would do to
// the pods' groups is done directly: requests and limits as the kubelet writes them, reservations by the code
// of takt-node (package enforce). Ray is a head and workers, each a pod: `ray start` as KubeRay does it.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/takt-dev/takt/kubernetes/internal/enforce"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "hog" {
		for {
		}
	}
	o := options{}
	flag.StringVar(&o.python, "python", "", "the Python that has Ray")
	flag.StringVar(&o.script, "script", "bench/ray/classify.py", "the Ray job")
	flag.StringVar(&o.out, "out", "", "folder for report.json, report.txt and report.svg; none are written without it")
	flag.StringVar(&o.budgets, "budgets", "30,40,50,60,70,80,90", "percent of a core that the pod under test has")
	flag.IntVar(&o.workers, "workers", 1, "how many workers; they share the workers' budget evenly")
	flag.IntVar(&o.rest, "rest", 300, "thousandths of a core that a pod requests beside a reservation, for the threads of Ray itself")
	flag.IntVar(&o.hogs, "hogs", 4, "how many processes the neighbour has, all of them always busy")
	flag.IntVar(&o.rounds, "rounds", 2, "how often everything is run")
	flag.Float64Var(&o.seconds, "seconds", 3, "how long each run is")
	flag.DurationVar(&o.period, "period", 100*time.Millisecond, "period of the reservations; limits have 100 ms, as the kubelet writes them")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "ray:", err)
		os.Exit(1)
	}
}

type options struct {
	python, script, out, budgets string
	workers, rest, hogs, rounds  int
	seconds                      float64
	period                       time.Duration
}

// figure is one of the paper's: what is varied, and what the others have meanwhile.
type figure struct {
	Title   string `json:"title"`
	Paper   string `json:"paper"`
	Where   string `json:"where"`
	Network string `json:"network"`
	Batch   int    `json:"batch"`
	// Other is what the head has while the workers are varied and the other way round, in thousandths of a core.
	Other int `json:"other_milli"`
}

// arms are what is compared.
var arms = []struct {
	name     string
	reserved bool
	// more says that the limit has what Ray's own threads need beside the budget.
	more bool
}{
	{name: "reservations", reserved: true},
	{name: "limits"},
	{name: "limits and rest", more: true},
}

// Two cores admit 1800 thousandths, so that the workers together have what each of the paper's four had.
var figures = []figure{
	{"head, small network, one image at a time", "figure 8", "head", "small", 1, 500},
	{"workers, small network, batches of 8", "figure 9", "workers", "small", 8, 600},
	{"workers, large network, batches of 8", "figure 10", "workers", "large", 8, 600},
}

// job is the Ray job: it runs in the head's pod.
type job struct {
	to   *json.Encoder
	from *bufio.Scanner
}

type request struct {
	Where   string  `json:"where"`
	Network string  `json:"network"`
	Batch   int     `json:"batch"`
	Seconds float64 `json:"seconds"`
}

type answer struct {
	Ready     bool      `json:"ready"`
	Responses []float64 `json:"responses_s"`
	Images    int       `json:"images"`
	Wrong     int       `json:"wrong"`
}

func (j *job) read() (a answer, err error) {
	for j.from.Scan() {
		// Ray may write lines of its own.
		if line := j.from.Bytes(); len(line) > 0 && line[0] == '{' {
			return a, json.Unmarshal(line, &a)
		}
	}
	return a, errors.Join(errors.New("the Ray job has ended"), j.from.Err())
}

func (j *job) ask(r request) (answer, error) {
	if err := j.to.Encode(r); err != nil {
		return answer{}, fmt.Errorf("the Ray job has ended: %w", err)
	}
	return j.read()
}

// bench is everything that runs.
type bench struct {
	options
	cgroups
	head    *pod
	workers []*pod
	job     *job
}

func run(o options) error {
	budgets, err := percents(o.budgets)
	if err != nil {
		return err
	}
	if o.python == "" || o.workers < 1 || o.rounds < 1 || o.seconds <= 0 {
		return errors.New("-python is missing, or -workers, -rounds or -seconds is not above 0: use bench/ray/run.sh")
	}
	if os.Getpid() > 1000 && os.Getenv("TAKT_RAY_INSIDE") == "" {
		return errors.New("this is to run in namespaces of its own: use bench/ray/run.sh")
	}
	if o.script, err = filepath.Abs(o.script); err != nil {
		return err
	}
	if o.out != "" {
		if o.out, err = filepath.Abs(o.out); err != nil {
			return err
		}
	}
	work, err := os.MkdirTemp("", "takt-ray-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := os.Chdir(work); err != nil {
		return err
	}
	c, err := openCgroups()
	if err != nil {
		return err
	}
	b := &bench{options: o, cgroups: c}
	defer func() {
		if err := c.remove(); err != nil {
			fmt.Fprintln(os.Stderr, "ray:", err)
		}
	}()
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-end
		_ = errors.Join(c.remove(), os.RemoveAll(work))
		os.Exit(143)
	}()
	if err := b.begin(work); err != nil {
		return err
	}
	report := newReport(o)
	for round := range o.rounds {
		for at := range figures {
			for i, budget := range budgets {
				// Who goes first changes from one to the next.
				for turn := range arms {
					arm := (round + i + turn) % len(arms)
					if err := b.measure(report, at, budget, arm); err != nil {
						return fmt.Errorf("%s, %d %%, %s: %w\n%s", figures[at].Title, budget, arms[arm].name, err, logs())
					}
				}
			}
		}
	}
	return report.finish(o.out)
}

func percents(list string) ([]int, error) {
	var all []int
	for word := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 || n > 90 {
			return nil, fmt.Errorf("-budgets %q: %q is not from 1 to 90, the percent of a core that the kernel gives", list, word)
		}
		all = append(all, n)
	}
	return all, nil
}

// environment keeps libraries to one thread and Ray from the network, and has Ray be patient with nodes that
// their limits keep from answering.
var environment = []string{"OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1", "RAY_USAGE_STATS_ENABLED=0", "RAY_health_check_failure_threshold=1000"}

const address = "127.0.0.1:6379"

// begin starts Ray, the job, and then the neighbour.
func (b *bench) begin(work string) error {
	ray := filepath.Join(filepath.Dir(b.python), "ray")
	start := func(name, resource string, more ...string) (*pod, error) {
		command := append([]string{ray, "start", "--block", "--node-ip-address=127.0.0.1", "--num-cpus=1", "--object-store-memory=200000000",
			"--resources=" + fmt.Sprintf(`{"%s": 1}`, resource)}, more...)
		p, err := b.start(name, name, 1000, environment, command...)
		if err != nil {
			return nil, err
		}
		if err := p.run(); err != nil {
			return nil, fmt.Errorf("cannot start Ray: %w", err)
		}
		return p, await("Ray on "+name, func() bool {
			text, err := os.ReadFile(name + ".log")
			return err == nil && strings.Contains(string(text), "Ray runtime started")
		})
	}
	// One after another: nodes of one machine that begin at once get in each other's way.
	var err error
	if b.head, err = start("head", "head", "--head", "--port=6379", "--include-dashboard=false", "--temp-dir="+work); err != nil {
		return err
	}
	for i := range b.options.workers {
		name := fmt.Sprintf("worker-%d", i)
		p, err := start(name, name, "--address="+address)
		if err != nil {
			return err
		}
		b.workers = append(b.workers, p)
	}
	// The job is a process of the head's pod, as `ray job submit` makes it.
	driver, err := b.start("head", "job", 1000, environment, b.python, b.script, address, strconv.Itoa(b.options.workers))
	if err != nil {
		return err
	}
	to, err := driver.cmd.StdinPipe()
	if err != nil {
		return err
	}
	from, err := driver.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := driver.cmd.Start(); err != nil {
		return fmt.Errorf("cannot start the Ray job: %w", err)
	}
	b.job = &job{json.NewEncoder(to), bufio.NewScanner(from)}
	b.job.from.Buffer(nil, 16<<20)
	if a, err := b.job.read(); err != nil || !a.Ready {
		return fmt.Errorf("the Ray job did not begin: %w\n%s", err, logs())
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for range b.hogs {
		hog, err := b.start("neighbour", "neighbour", 2, []string{"GOMAXPROCS=1"}, self, "hog")
		if err != nil {
			return err
		}
		if err := hog.run(); err != nil {
			return err
		}
	}
	return nil
}

func await(what string, holds func() bool) error {
	for began := time.Now(); !holds(); time.Sleep(200 * time.Millisecond) {
		if time.Since(began) > 2*time.Minute {
			return fmt.Errorf("%s does not come\n%s", what, logs())
		}
	}
	return nil
}

// logs is the end of what everybody has said.
func logs() string {
	var all strings.Builder
	files, _ := filepath.Glob("*.log")
	inside, _ := filepath.Glob("session_latest/logs/*raylet*.*")
	exits, _ := filepath.Glob("session_latest/logs/*exit*")
	for _, file := range slices.Concat(files, inside, exits) {
		text, _ := os.ReadFile(file)
		fmt.Fprintf(&all, "%s: %s\n", file, text[max(0, len(text)-2000):])
	}
	return all.String()
}

// threadName is what Ray calls the thread that works for the class Classifier.
const threadName = "ray::Classifier"

// measure runs the job once with one budget, in one of the arms.
func (b *bench) measure(report *report, at, budget, arm int) (err error) {
	f := figures[at]
	head, workers := budget*10, f.Other
	if f.Where == "workers" {
		head, workers = f.Other, budget*10
	}
	b.head.milli = head
	for _, p := range b.workers {
		p.milli = workers / len(b.workers)
	}
	pods := append([]*pod{b.head}, b.workers...)
	rest := b.rest
	if !arms[arm].reserved && !arms[arm].more {
		rest = 0
	}
	// The neighbour has requested what is left of the machine, and has no limit.
	if err := b.requests("neighbour", max(0, runtime.NumCPU()*1000-head-workers-len(pods)*rest)); err != nil {
		return err
	}
	for _, p := range pods {
		requested, limit := p.milli+rest, p.milli+rest
		if arms[arm].reserved {
			requested, limit = rest, 0
		}
		if err := errors.Join(b.requests(p.name, requested), b.limits(p.name, limit)); err != nil {
			return err
		}
		if arms[arm].reserved {
			release, reserveErr := p.reserve(enforce.Deadline{}, threadName, b.period)
			if reserveErr != nil {
				return reserveErr
			}
			defer func() {
				held, releaseErr := release()
				if releaseErr == nil && held != 1 {
					releaseErr = fmt.Errorf("pod %s: %d threads are called %s, not one", p.name, held, threadName)
				}
				err = errors.Join(err, releaseErr)
			}()
		}
	}
	used := func() (sum time.Duration) {
		for _, p := range pods {
			one, _ := b.used(p.name)
			sum += one
		}
		return sum
	}
	// What was saved or owed before is gone after a period or two.
	if _, err := b.job.ask(request{f.Where, f.Network, f.Batch, 0.3}); err != nil {
		return err
	}
	before := used()
	a, err := b.job.ask(request{f.Where, f.Network, f.Batch, b.seconds})
	if err != nil {
		return err
	}
	if a.Wrong > 0 {
		return fmt.Errorf("%d images of %d were classified wrongly", a.Wrong, a.Images)
	}
	report.add(at, budget, arm, a, used()-before)
	return nil
}
