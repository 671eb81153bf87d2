// Package report is what the agent of a node says of the pods on it, and who asks all agents of a cluster.
package report

// Path is where an agent answers, on its port named metrics.
const Path = "/pods"

// Who asks shows a token for Audience in TokenHeader: Authorization does not pass the API server.
const (
	TokenHeader = "Takt-Token"
	Audience    = "takt-node"
)

// Node is what an agent says of its node.
type Node struct {
	Node string `json:"node"`
	// Networks are served by the node's taktd: nil where the agent serves reservations only.
	Networks *Networks `json:"networks,omitempty"`
	// Reserved are the containers that run with reservations.
	Reserved []Reserved `json:"reserved"`
}

// Networks are the attachments that the node's taktd knows.
type Networks struct {
	// Problem says why it cannot be asked; empty: it answers.
	Problem  string     `json:"problem,omitempty"`
	Attached []Attached `json:"attached"`
	// Waiting are claims for gate time that no interface of their pod has: it is not attached yet, or they were refused.
	Waiting []Waiting `json:"waiting,omitempty"`
}

// Waiting is what a pod claims of a network and has not.
type Waiting struct {
	Namespace string     `json:"namespace"`
	Pod       string     `json:"pod"`
	Network   string     `json:"network"`
	GateTime  []GateTime `json:"gateTime"`
	// Placed: an interface of the pod has had it, and taktd does not keep it now.
	Placed bool `json:"placed,omitempty"`
}

// Attached is a pod's place in a network.
type Attached struct {
	Namespace string   `json:"namespace"`
	Pod       string   `json:"pod"`
	Interface string   `json:"interface"`
	Network   string   `json:"network"`
	Addresses []string `json:"addresses"`
	// Classes are the traffic classes of IEEE 802.1Q that it may use.
	Classes []uint32 `json:"classes"`
	// Untold: other nodes have not been told of it: they do not reach it, unless they follow a device of the kernel's.
	Untold bool `json:"untold,omitempty"`
	// Unserved is why the node does not serve the network as its TaktNetwork has it; empty: it does.
	Unserved string `json:"unserved,omitempty"`
	// Note is what of the pod's packets does not leave, if it sends such.
	Note string `json:"note,omitempty"`
	// Veth: launch times are to be taken at the node's end of its interface; nil: nobody wants that.
	Veth *Veth `json:"veth,omitempty"`
	// Programs are sessions of the pod's own programs with taktd at the moment.
	Programs uint32 `json:"programs"`
	// Counts are since the pod was attached, or taktd started.
	Counts
	// Recent are those of about the last minute; absent: the agent has not looked for long.
	Recent *Recent `json:"recent,omitempty"`
	// Schedules are those of the node's links: what the pod sends passes the gates of the one that it leaves by.
	Schedules []Schedule `json:"schedules,omitempty"`
	// GateTime are the streams that the pod has claimed on this network.
	GateTime []GateTime `json:"gateTime,omitempty"`
}

// Counts are of what a pod launches at an interface.
type Counts struct {
	// Launches are what became of messages with a launch time that programs gave to taktd.
	Launches Launches `json:"launches"`
	// Around counts datagrams with a launch time that programs did not give to taktd, by reason (docs/reference/preload.md):
	// they took the kernel's way or were refused.
	Around map[string]uint64 `json:"around,omitempty"`
	// Refused counts frames of no declared stream, and those outside of theirs; RefusedBy has it by Refused…
	Refused   uint64            `json:"refused"`
	RefusedBy map[string]uint64 `json:"refusedBy,omitempty"`
}

// Less is what has been counted beyond some earlier counts.
func (c Counts) Less(before Counts) Counts {
	less := func(all, some map[string]uint64) map[string]uint64 {
		more := map[string]uint64{}
		for why, count := range all {
			if count > some[why] {
				more[why] = count - some[why]
			}
		}
		return more
	}
	return Counts{
		Launches: Launches{
			Left: c.Launches.Left - min(before.Launches.Left, c.Launches.Left), Late: c.Launches.Late - min(before.Launches.Late, c.Launches.Late),
			Missed: c.Launches.Missed - min(before.Launches.Missed, c.Launches.Missed),
		},
		Around: less(c.Around, before.Around), Refused: c.Refused - min(before.Refused, c.Refused), RefusedBy: less(c.RefusedBy, before.RefusedBy),
	}
}

// Recent are counts of the last seconds.
type Recent struct {
	Seconds int `json:"seconds"`
	Counts
}

// Why frames are refused, as `takt listener list` counts them.
const (
	// RefusedUndeclared: in a class with streams, and of none of them.
	RefusedUndeclared = "undeclared"
	// RefusedWindow: without a launch time, or with one outside of its stream's window.
	RefusedWindow = "window"
	// RefusedSize: longer than its stream's largest.
	RefusedSize = "size"
	// RefusedExcess: more than its stream may have in a period.
	RefusedExcess = "excess"
)

// Schedule is a gate schedule of a link.
type Schedule struct {
	// Datapath is the one that sends on the link.
	Datapath string `json:"datapath"`
	// Name is its GateSchedule's; empty: it is not the cluster's.
	Name string `json:"name,omitempty"`
	// Running: it does; else it is pending, and will.
	Running bool `json:"running"`
	// Cycle is how long one takes.
	Cycle string `json:"cycle"`
	// OtherTraffic is what of the kernel keeps what others send inside the one that runs: taprio or taprio-offload; empty: nothing does.
	OtherTraffic string `json:"otherTraffic,omitempty"`
	// OtherTrafficProblem is why that is not as the schedule asks for.
	OtherTrafficProblem string `json:"otherTrafficProblem,omitempty"`
}

// Launches counts messages with a launch time.
type Launches struct {
	// Left, Late of them later than their launch time and the tolerance.
	Left uint64 `json:"left"`
	Late uint64 `json:"late"`
	// Missed ones did not leave for all that they were for: late, outside the schedule, refused or without a path.
	Missed uint64 `json:"missed"`
}

// GateTime is a stream for which the pod has claimed gate time.
type GateTime struct {
	// Claim and Request name it.
	Claim   string `json:"claim"`
	Request string `json:"request"`
	Class   int    `json:"class"`
	// Frames of at most Frame octets launch every Period.
	Frames int64  `json:"frames"`
	Frame  int64  `json:"frame"`
	Period string `json:"period"`
	// Problem is why the node does not keep it; empty: it does.
	Problem string `json:"problem,omitempty"`
}

// Veth is the node's end of a pod's interface, where launch times of programs are taken that are not preloaded.
type Veth struct {
	Device string `json:"device"`
	// Taking: they are, at the moment.
	Taking bool `json:"taking"`
	// Required: what has one and is not sent at that time is dropped.
	Required bool `json:"required"`
	// Restarts counts how often they were not for a while.
	Restarts int `json:"restarts"`
	// Problem is why they are not.
	Problem string `json:"problem,omitempty"`
}

// Reserved is a container with a reservation.
type Reserved struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	// Claim and Request name the reservation.
	Claim   string `json:"claim"`
	Request string `json:"request"`
	// Runtime in every Period, such as 4ms in 10ms.
	Runtime string `json:"runtime"`
	Period  string `json:"period"`
	// Threads that have it, and the CPUs that it was allocated on.
	Threads int   `json:"threads"`
	Cores   []int `json:"cores"`
}
