package v1alpha1

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"strconv"
	"strings"

	"sigs.k8s.io/json"

	"github.com/takt-dev/takt/kubernetes/internal/quote"
)

const (
	// NetworkAPIVersion is the version of the parameters of claims for networks.
	NetworkAPIVersion = NetworkDriver + "/v1alpha1"
	// GateTimeKind is their kind.
	GateTimeKind = "GateTime"
	// MostFrames is how many frames a stream may have in a period.
	MostFrames = 1024
	// LongestFrame is the longest frame of a stream, in octets.
	LongestFrame = 16_384
	// Periods of streams.
	MinGatePeriod = Duration(1_000)
	MaxGatePeriod = Duration(60_000_000_000)

	// A frame has at least 60 octets before the FCS, and takes 28 more of the link: preamble, FCS, a VLAN tag that the
	// link may add, and the inter-frame gap (IEEE 802.3).
	leastFrame, aroundFrame = 60, 28

	// mostCycles is after how many cycles a stream has to be where it was, unless it launches once in one; countedCycles how
	// many are looked at of streams that do not come round together in so many.
	mostCycles, countedCycles = 64, 40
	// What the policy, which knows no schedule, lets pass: a stream is counted 64 times as often as it launches at most, and one
	// of a long period once in a cycle, which is no shorter than 1ms / 64.
	mostOften      = 64
	longestCounted = Duration(1_000_000)
)

// ClassCapacity is the capacity of a network's device that claims for gate time of a traffic class consume, in bits per
// second of the link.
func ClassCapacity(class int) string { return "class" + strconv.Itoa(class) }

// GateTime is what a claim for a network says of one stream of its pod, in config[].opaque.parameters: frames that
// launch at known times (IEEE 802.1Q-2022, clause 46.2.3.5), and for which the gates have to be open then.
type GateTime struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Class is the traffic class of its frames, 0 to 7.
	Class *int32 `json:"class"`
	// Period is the time from one launch to the next. Periods begin at every multiple of it since 1970 (TAI).
	Period Duration `json:"period"`
	// Bytes are the octets of all its frames in a period as they leave the node: with all headers, those of a VXLAN
	// included, and without FCS.
	Bytes int64 `json:"bytes"`
	// Frame is the octets of the largest of them; Bytes if absent: one frame in a period.
	Frame int64 `json:"frame,omitempty"`
	// Offset is from the begin of a period to its earliest launch.
	Offset Duration `json:"offset,omitempty"`
	// Window is from the earliest launch of a period to the latest.
	Window Duration `json:"window,omitempty"`
	// Whose frames they are, one of both: UDP datagrams to this address, such as "10.244.1.9:4000";
	Destination string `json:"destination,omitempty"`
	// or messages of this channel.
	Channel *uint64 `json:"channel,omitempty"`
}

// DecodeGateTime reads the opaque parameters of a claim for a network as strictly as Decode those of a reservation.
func DecodeGateTime(data []byte) (*GateTime, error) {
	if len(data) > MaxParameters {
		return nil, fmt.Errorf("parameters have %d bytes: at most %d are read", len(data), MaxParameters)
	}
	g := &GateTime{}
	mistakes, err := json.UnmarshalStrict(data, g)
	if err != nil {
		return nil, fmt.Errorf("cannot read parameters: %w", err)
	}
	if len(mistakes) > 0 {
		return nil, fmt.Errorf("cannot read parameters: %w: the fields are apiVersion, kind, class, period, bytes, frame, offset, window, destination, channel",
			errors.Join(mistakes...))
	}
	return g, nil
}

// LargestFrame is the frame, with the default filled in.
func (g *GateTime) LargestFrame() int64 {
	if g.Frame != 0 {
		return g.Frame
	}
	return g.Bytes
}

// Frames is how many frames of the largest size the bytes of a period are: so many may be sent in one.
func (g *GateTime) Frames() int64 { return (g.Bytes + g.LargestFrame() - 1) / g.LargestFrame() }

// BitsPerSecond is the rate at which the stream takes the time of its class, rounded up, where it is counted as often as it
// launches; of a valid one.
func (g *GateTime) BitsPerSecond() int64 {
	return StreamBits(g.Frames(), g.LargestFrame(), g.Period.Nanoseconds())
}

// MostBitsPerSecond is what it takes at most, whatever the schedule: what knows none asks for no less than BitsPerSecond and
// leaves the rest to the node.
func (g *GateTime) MostBitsPerSecond() int64 {
	return mostOften * StreamBits(g.Frames(), g.LargestFrame(), min(g.Period, longestCounted).Nanoseconds())
}

// CountedPeriod is from one launch of a stream to the next as admission counts it beside whatever other streams: no more
// rarely than once in 40 cycles, and as often as it comes round in them where they are no multiple of its period
// (crates/system/schedule/src/admission.rs, FOLDED).
func CountedPeriod(periodNs, cycleNs uint64) uint64 {
	if cycleNs == 0 || periodNs == 0 {
		return periodNs
	}
	if common := commonDivisor(cycleNs, periodNs); common != cycleNs && periodNs/common > mostCycles {
		return periodNs // it is not admitted
	}
	return commonDivisor(countedCycles*cycleNs, periodNs)
}

func commonDivisor(one, other uint64) uint64 {
	for other != 0 {
		one, other = other, one%other
	}
	return one
}

// StreamBits is the time of a link, in bits of it per second and rounded up, that so many frames of so many octets take
// in every period.
func StreamBits(frames, octets int64, periodNs uint64) int64 {
	if periodNs == 0 {
		return 0
	}
	octets = max(octets, leastFrame) + aroundFrame
	high, low := bits.Mul64(uint64(frames)*uint64(octets)*8, 1_000_000_000)
	if high >= periodNs {
		return 1<<63 - 1
	}
	quotient, rest := bits.Div64(high, low, periodNs)
	if rest > 0 {
		quotient++
	}
	return int64(min(quotient, 1<<63-1))
}

// ErrToNobody says that the frames of a destination are none that are sent. Earlier releases have taken such claims.
var ErrToNobody = errors.New("is nobody's address, and no datagram is sent to it")

// Validate says what is wrong with the parameters; nil if nothing is.
func (g *GateTime) Validate() error {
	switch {
	case g.APIVersion != NetworkAPIVersion:
		return fmt.Errorf("apiVersion %s is not known: this node reads %q", quote.Value(g.APIVersion), NetworkAPIVersion)
	case g.Kind != GateTimeKind:
		return fmt.Errorf("kind %s is not known: write %q", quote.Value(g.Kind), GateTimeKind)
	case g.Class == nil:
		return errors.New("class is missing: write the traffic class of the frames, 0 to 7")
	case *g.Class < 0 || *g.Class > 7:
		return fmt.Errorf("class %d is no traffic class: write 0 to 7", *g.Class)
	case g.Period == 0:
		return errors.New("period is missing or zero: say how often frames launch, as in \"1ms\"")
	case g.Period < MinGatePeriod || g.Period > MaxGatePeriod:
		return fmt.Errorf("period %s is not from %s to %s: write one that is", g.Period, MinGatePeriod, MaxGatePeriod)
	case g.Bytes <= 0:
		return fmt.Errorf("bytes is %d or missing: write the octets of all frames of a period as they leave the node, with all headers and without FCS", g.Bytes)
	case g.Frame < 0 || g.Frame > g.Bytes:
		return fmt.Errorf("frame %d is not from 1 to bytes, %d: write the octets of the largest frame, or leave it out for one frame in a period", g.Frame, g.Bytes)
	case g.LargestFrame() > LongestFrame:
		return fmt.Errorf("a frame of %d octets is above %d: write in frame how long the largest one is", g.LargestFrame(), LongestFrame)
	case g.Frames() > MostFrames:
		return fmt.Errorf("bytes %d are %d frames of %d octets, above %d in a period: write a shorter period, or larger frames", g.Bytes, g.Frames(), g.LargestFrame(), MostFrames)
	case g.Offset >= g.Period:
		return fmt.Errorf("offset %s is not within a period of %s: write less", g.Offset, g.Period)
	case g.Window >= g.Period:
		return fmt.Errorf("window %s is not shorter than a period of %s: write less", g.Window, g.Period)
	case (g.Destination == "") == (g.Channel == nil):
		return errors.New("destination and channel: write one of both, whose frames they are")
	}
	if g.Destination == "" {
		return nil
	}
	to, err := netip.ParseAddrPort(g.Destination)
	if err != nil || to.Port() == 0 || to.Addr().Zone() != "" {
		return fmt.Errorf("destination %s is not an IP address with a port: write it as \"10.244.1.9:4000\" or \"[fd00::9]:4000\"", quote.Value(g.Destination))
	}
	if to.Addr().Unmap().IsUnspecified() {
		return fmt.Errorf("destination %s %w: write the receiver's, as in \"10.244.1.9:4000\"", quote.Value(g.Destination), ErrToNobody)
	}
	return nil
}

// MostCapacity is the most that a claim may set aside for a stream that needs so many bits per second: rounded up, and not
// so that it keeps others out.
func MostCapacity(need int64) int64 {
	const spare = 1_000_000
	if need > (1<<63-1-spare)/2 {
		return 1<<63 - 1
	}
	return 2*need + spare
}

// Whether the scheduler has set aside enough of the class, and not far more.
var (
	ErrTooLarge = errors.New("nobody else could claim the rest")
	ErrTooSmall = errors.New("that is not set aside")
)

// FitsCapacity says whether the scheduler has set aside what the stream needs of the class, and not far more: the request for
// capacity and the parameters are two fields that users write. need is BitsPerSecond, or more where admission counts it more
// often than it launches.
func (g *GateTime) FitsCapacity(consumed, need int64) error {
	var err error
	switch {
	case consumed > MostCapacity(need):
		err = ErrTooLarge
	case need > consumed:
		err = ErrTooSmall
	default:
		return nil
	}
	counted := ""
	if need > g.BitsPerSecond() {
		counted = fmt.Sprintf(", counted as often as they may meet others in %d cycles of the node's schedule", countedCycles)
	}
	return fmt.Errorf("the claim sets aside %d bits per second of class %d, and %s%s take %d: %w, request capacity %s: %q",
		consumed, *g.Class, g, counted, need, err, ClassCapacity(int(*g.Class)), strconv.FormatInt(need, 10))
}

// String is what is sent, for people: "2 frames of 1514 octets every 1ms".
func (g *GateTime) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%d frame", g.Frames())
	if g.Frames() != 1 {
		text.WriteByte('s')
	}
	fmt.Fprintf(&text, " of %d octets every %s", g.LargestFrame(), g.Period)
	return text.String()
}
