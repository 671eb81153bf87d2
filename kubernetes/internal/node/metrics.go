package node

import (
	"errors"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/admission"
)

// metrics are the agent's own counters; what is known of claims and cores is read when it is asked for, so
// that nothing remains of what has gone.
type metrics struct {
	n        *Node
	registry *prometheus.Registry
	prepare  prometheus.Histogram
	release  prometheus.Histogram
	hooks    *prometheus.HistogramVec
	enforce  prometheus.Histogram
	failures *prometheus.CounterVec
	refusals *prometheus.CounterVec
	skipped  prometheus.Counter
	// collecting is held while what is known is read: for one page at a time, whoever asks for many.
	collecting sync.Mutex
}

var (
	ofCore  = []string{"cpu"}
	ofClaim = []string{"namespace", "claim", "request", "pod", "container"}

	coreBound  = prometheus.NewDesc("takt_node_core_bound_ppm", "Parts per million of the core that may be reserved.", ofCore, nil)
	coreHealth = prometheus.NewDesc("takt_node_core_healthy", "1 if the core is online and the kernel still admits what is reserved on it, as the kubelet is told.", ofCore, nil)
	coreTaken  = prometheus.NewDesc("takt_node_core_reserved_ppm", "Parts per million of the core that prepared claims hold.", ofCore, nil)

	tardiness = prometheus.NewDesc("takt_node_tardiness_bound_seconds",
		"How late a runtime may be given after its period's end by the reservations that prepared claims hold (Devi and Anderson 2005): 0 with admission guaranteed, infinite without a bound, as where reservations with a deadline of their own are not proven to meet it. Threads outside of all claims are counted; up to a tick for each neighbour that wants more than its runtime, where the kernel cuts runtimes off at its tick, is not.", nil, nil)

	admitted   = prometheus.NewDesc("takt_node_kernel_admitted_ppm", "Parts per million of a core that the kernel has admitted of SCHED_DEADLINE on all of their cores together, its own servers included; of backends deadline and deadline-partition, where debugfs may be read.", nil, nil)
	checked    = prometheus.NewDesc("takt_node_bandwidth_checked", "1 if the kernel's bandwidth is compared with what claims hold; 0 if it cannot be read.", nil, nil)
	outside    = prometheus.NewDesc("takt_node_outside_claims_ppm", "Parts per million of a core that threads outside of all claims have with SCHED_DEADLINE.", nil, nil)
	lost       = prometheus.NewDesc("takt_node_bandwidth_lost_ppm", "Parts per million of a core that the kernel counts and no thread has.", nil, nil)
	misscounts = prometheus.NewDesc("takt_node_misses_counted", "1 if missed deadlines are counted; 0 if the kernel does not let them be, or no thread can miss any.", nil, nil)
	reclaims   = prometheus.NewDesc("takt_node_bandwidth_reclaimed_total", "How often the kernel was made to count anew, and what was lost came back.", nil, nil)

	vethsLooked = prometheus.NewDesc("takt_node_veths", "Veths of time-sensitive pods, by whether launch times are taken there at the moment.", []string{"taking"}, nil)

	gateClaims  = prometheus.NewDesc("takt_node_gate_time_claims", "Prepared claims for gate time, by whether taktd keeps their streams at the moment.", []string{"kept"}, nil)
	gateClaimed = prometheus.NewDesc("takt_node_gate_time_claimed_bits_per_second", "Bits per second of the link that prepared claims hold of a network's class.", []string{"network", "class"}, nil)

	keyKnown   = prometheus.NewDesc("takt_node_key_since_timestamp_seconds", "Since when the node's taktd is seen with its key, in seconds since 1970.", nil, nil)
	keyStarted = prometheus.NewDesc("takt_node_key_rotation_started_timestamp_seconds", "Since when the node's key is being changed, in seconds since 1970; absent: it is not.", nil, nil)
	keyGivenUp = prometheus.NewDesc("takt_node_key_rotation_given_up", "1 if the last change of the node's key was given up: it has the key of before.", nil, nil)

	claimThreads   = prometheus.NewDesc("takt_reservation_threads", "Threads that hold a reservation of the request.", ofClaim, nil)
	claimFree      = prometheus.NewDesc("takt_reservation_free", "Reservations of the request that no thread holds.", ofClaim, nil)
	claimLeftOut   = prometheus.NewDesc("takt_reservation_left_out_threads", "Threads whose names match the request and that found no reservation left.", ofClaim, nil)
	claimCPU       = prometheus.NewDesc("takt_reservation_cpu_seconds_total", "CPU time of threads while they held a reservation.", ofClaim, nil)
	claimDelay     = prometheus.NewDesc("takt_reservation_run_delay_seconds_total", "Time that threads with a reservation could have run and did not: throttled, or behind other reservations.", ofClaim, nil)
	threadDelay    = prometheus.NewDesc("takt_reservation_thread_run_delay_seconds_total", "The same of each thread that holds a reservation at the moment, by its number in the container and its name.", append(slices.Clone(ofClaim), "tid", "thread"), nil)
	claimSamples   = prometheus.NewDesc("takt_reservation_samples_total", "How often a thread with a reservation was looked at.", ofClaim, nil)
	claimExhausted = prometheus.NewDesc("takt_reservation_exhausted_samples_total", "How often it had used its runtime up: throttled, or about to be.", ofClaim, nil)
	claimMissed    = prometheus.NewDesc("takt_reservation_missed_deadlines_total", "Deadlines that passed while a thread wanted to run and had runtime left; of backends deadline and deadline-partition, where takt_node_misses_counted is 1.", ofClaim, nil)
	claimLatest    = prometheus.NewDesc("takt_reservation_latest_seconds", "How long after a deadline, at most, a thread was run for what it had left.", ofClaim, nil)
	claimRestored  = prometheus.NewDesc("takt_reservation_restored_total", "Reservations that were changed from inside the container and restored.", ofClaim, nil)
	claimNarrowed  = prometheus.NewDesc("takt_reservation_narrowed_threads", "Threads with a reservation that a cpuset keeps off CPUs which it counts on.", ofClaim, nil)
	claimUnpinned  = prometheus.NewDesc("takt_reservation_unpinned_total", "Threads that had pinned themselves and were unpinned to have a reservation.", ofClaim, nil)
	claimRewritten = prometheus.NewDesc("takt_reservation_budget_restored_total", "How often something else on the node had written the budget of the container's cgroup, and it was put back; of backends rt-group, hcbs and whole-core, whose budget are its cores.", ofClaim, nil)
	claimRevived   = prometheus.NewDesc("takt_reservation_revived_total", "Threads that the kernel had stopped running and that got their reservation anew.", ofClaim, nil)
)

// place is where something goes wrong.
type place string

const (
	atAsk       = place("ask")
	atCreate    = place("create")
	atEnforce   = place("enforce")
	atLost      = place("lost")
	atNri       = place("nri")
	atPrepare   = place("prepare")
	atPublish   = place("publish")
	atReclaim   = place("reclaim")
	atRefresh   = place("refresh")
	atRelease   = place("release")
	atStatus    = place("status")
	atUnprepare = place("unprepare")
	atVeth      = place("veth")
)

// places are all of them: what has not failed yet is told as 0, so that the first failure is an increase.
var places = []place{atAsk, atCreate, atEnforce, atLost, atNri, atPrepare, atPublish, atReclaim, atRefresh, atRelease, atStatus, atUnprepare, atVeth}

func (m *metrics) failed(at place) { m.failures.WithLabelValues(string(at)).Inc() }

// ofTheNode are codes of what an administrator has to mend: all others are of what somebody asks for that is not to be had.
var ofTheNode = []string{
	codeUnkept, codeNotOffered, codeWithout, codeNoNetwork, codeNoPreload, codeNoLibrary, codeNoVeth, codeNoAnswer, codeNoSeccomp,
	codeKernelBusy, codeNotPermitted, codeKernelLimits, codeKernel, codeAgent,
}

// refused counts a pod or a claim that is refused: as a failure where that is the node's.
func (m *metrics) refused(at place, err error) {
	code, _ := coded(err)
	var is refusal
	if slices.Contains(ofTheNode, code) || errors.As(err, &is) && is.ofTheNode {
		m.failed(at)
		return
	}
	m.refusals.WithLabelValues(string(at), code).Inc()
}

func newMetrics(n *Node) *metrics {
	buckets := prometheus.ExponentialBuckets(0.0001, 2, 16)
	histogram := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	}
	m := &metrics{
		n: n, registry: prometheus.NewRegistry(),
		prepare: histogram("takt_node_prepare_seconds", "Time to prepare one claim."),
		release: histogram("takt_node_unprepare_seconds", "Time to give one claim back."),
		enforce: histogram("takt_node_enforce_seconds", "Time to put one container under reservation."),
		hooks: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "takt_node_hook_seconds", Buckets: buckets,
			Help: "Time that the container runtime waits for the agent in one of its hooks, for containers with a claim; the enforcement is part of gate.",
		}, []string{"hook"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "takt_node_failures_total", Help: "What went wrong, by where.",
		}, []string{"where"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "takt_node_refusals_total", Help: "Containers and claims that were refused for what they ask for, each time that it is tried, by where and code.",
		}, []string{"where", "code"}),
		skipped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "takt_node_scans_skipped_total", Help: "How often a container was not looked at when it was time, because the scan before had not ended.",
		}),
	}
	for _, at := range places {
		m.failures.WithLabelValues(string(at))
	}
	m.registry.MustRegister(m.prepare, m.release, m.hooks, m.enforce, m.failures, m.refusals, m.skipped, m)
	return m
}

// hook times one of the container runtime's hooks: call what it returns at its end.
func (m *metrics) hook(name string) (end func()) {
	began := time.Now()
	return func() { m.hooks.WithLabelValues(name).Observe(time.Since(began).Seconds()) }
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		coreBound, coreTaken, coreHealth, tardiness, admitted, checked, outside, lost, misscounts, reclaims, vethsLooked, gateClaims, gateClaimed, keyKnown, keyStarted, keyGivenUp, claimThreads, claimFree, claimLeftOut, claimCPU, claimDelay, threadDelay, claimSamples, claimExhausted, claimMissed, claimLatest, claimRestored, claimNarrowed, claimUnpinned, claimRewritten, claimRevived,
	} {
		to <- desc
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	m.collecting.Lock()
	defer m.collecting.Unlock()
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	counter := func(desc *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, value, labels...)
	}
	n := m.n
	if known := n.cluster.known(); known != nil && known.Status.Runtime != nil && known.Status.Runtime.KeySince != nil {
		gauge(keyKnown, float64(known.Status.Runtime.KeySince.Unix()))
		rotation, givenUp := known.Spec.KeyRotation, 0.0
		if rotation.GoesOn() {
			gauge(keyStarted, float64(rotation.Began.Unix()))
		} else if rotation != nil && rotation.State == network.GivenUp {
			givenUp = 1
		}
		gauge(keyGivenUp, givenUp)
	}
	if n.veths != nil {
		taking, not := n.veths.counts()
		gauge(vethsLooked, float64(taking), "true")
		gauge(vethsLooked, float64(not), "false")
		kept, lost := n.gates.counts()
		gauge(gateClaims, float64(kept), "true")
		gauge(gateClaims, float64(lost), "false")
		for network, held := range n.gates.claimed() {
			for class, bits := range held {
				if bits > 0 {
					gauge(gateClaimed, float64(bits), network, strconv.Itoa(class))
				}
			}
		}
	}
	for _, core := range n.health("/") {
		healthy := 0.0
		if core.Health == health.HealthStatus_HEALTHY {
			healthy = 1
		}
		if cpu, err := nodeDevice(core.Device.DeviceName); err == nil {
			gauge(coreHealth, healthy, strconv.Itoa(cpu))
		}
	}
	counted := 0.0
	if n.misses != nil {
		counted = 1
	}
	gauge(misscounts, counted)
	n.mu.Lock()
	consumed := n.consumed()
	for _, cpu := range n.offer.CPUs {
		gauge(coreBound, float64(n.offer.Capacity(cpu.ID)), strconv.Itoa(cpu.ID))
		gauge(coreTaken, float64(consumed[cpu.ID]), strconv.Itoa(cpu.ID))
	}
	gauge(tardiness, n.tardiness())
	if drift := n.driftInAll(); drift.admitted > 0 || n.unreadable {
		checks := 1.0
		if n.unreadable {
			checks = 0
		} else {
			gauge(admitted, float64(drift.admitted))
			gauge(lost, float64(drift.lost()))
		}
		gauge(checked, checks)
		gauge(outside, float64(drift.strangers()))
		counter(reclaims, float64(n.reclaimed))
	}
	n.mu.Unlock()
	for _, c := range n.runningContainers() {
		c.mu.Lock()
		for i, t := range c.tallies {
			uid, request, err := parseKey(c.grants[i].Key)
			if err != nil {
				continue
			}
			n.mu.Lock()
			claim := n.claims[uid]
			n.mu.Unlock()
			if claim == nil {
				continue
			}
			labels := []string{claim.Namespace, claim.Name, request, c.pod.Name, c.name}
			gauge(claimThreads, float64(len(t.state.Threads)), labels...)
			gauge(claimFree, float64(t.state.Free), labels...)
			gauge(claimLeftOut, float64(t.state.LeftOut), labels...)
			counter(claimCPU, float64(t.cpu)/1e9, labels...)
			counter(claimDelay, float64(t.delay)/1e9, labels...)
			for is, waited := range t.waited() {
				counter(threadDelay, float64(waited)/1e9, append(slices.Clone(labels), strconv.Itoa(is.inner), is.name)...)
			}
			counter(claimSamples, float64(t.samples), labels...)
			counter(claimExhausted, float64(t.exhausted), labels...)
			if n.misses != nil {
				counter(claimMissed, float64(t.missed), labels...)
				gauge(claimLatest, float64(t.latest)/1e9, labels...)
			}
			counter(claimRestored, float64(t.state.Restored), labels...)
			gauge(claimNarrowed, float64(t.state.Narrowed), labels...)
			counter(claimUnpinned, float64(t.state.Unpinned), labels...)
			counter(claimRewritten, float64(t.state.Rewritten), labels...)
			counter(claimRevived, float64(t.state.Revived), labels...)
		}
		c.mu.Unlock()
	}
}

// threadLabel is what metrics tell a thread by.
type threadLabel struct {
	inner int
	name  string
}

// waited is for how long the threads that hold a reservation have waited, one figure for each label: names are the
// container's to choose, and a metric that came twice would cost all others.
func (t tally) waited() map[threadLabel]uint64 {
	sums := map[threadLabel]uint64{}
	for _, thread := range t.last {
		if thread.inner > 0 { // and has not ended
			sums[threadLabel{thread.inner, strings.ToValidUTF8(thread.name, "?")}] += thread.waited
		}
	}
	return sums
}

// tardiness is how late a runtime may be, in seconds. Call with n.mu held.
func (n *Node) tardiness() float64 {
	if !n.offer.Roams || n.config.Admission == admission.Guaranteed {
		return 0
	}
	var held []admission.Server
	for _, attr := range n.drifts[everywhere].outside {
		held = append(held, admission.Server{Runtime: attr.Runtime, Deadline: attr.Deadline, Period: attr.Period})
	}
	for _, claim := range n.claims {
		for _, request := range claim.Requests {
			p := request.Parameters
			_, most := p.RuntimeRange()
			server := admission.Server{Runtime: most.Nanoseconds(), Deadline: p.RelativeDeadline().Nanoseconds(), Period: p.Period.Nanoseconds()}
			held = append(held, slices.Repeat([]admission.Server{server}, len(request.Devices))...)
		}
	}
	late, bounded := admission.Tardiness(n.offer.RootDomain, held)
	if !bounded {
		return math.Inf(1)
	}
	return float64(late) / 1e9
}

// pagesAtOnce are how many pages of metrics are under way at most: one address, however slowly it reads, has half of them.
const pagesAtOnce = 2 * connectionsEach

// handler serves the metrics. What cannot be said of one container is left out, and all else is said.
func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: pagesAtOnce})
}
