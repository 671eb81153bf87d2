package node

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"

	"github.com/takt-dev/takt/kubernetes/internal/enforce"
	"github.com/takt-dev/takt/kubernetes/internal/quote"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

// Codes begin the message of a refusal, for those who read it by program.
const (
	codeParameters  = "InvalidParameters"
	codeAllocation  = "InvalidAllocation"
	codeNotOffered  = "CoreNotOffered"
	codeBandwidth   = "BandwidthExceeded"
	codeDensity     = "DensityExceeded"
	codeUnproven    = "NotSchedulable"
	codeUnkept      = "ReservationUnkept"
	codeUnsupported = "NotSupportedByBackend"
	codeShared      = "ReservedForAnother"
	codeNotPrepared = "NotPrepared"
	codeUnused      = "ClaimUnused"
	codeUnrequested = "CPUNotRequested"
	codeWithout     = "WithoutRuntime"
	codeUnattached  = "NotAttached"
	codeAnnotation  = "InvalidAnnotation"
	codeNoNetwork   = "NetworkNotServed"
	codeNotAllowed  = "NotAllowed"
	codeNoPreload   = "PreloadMissing"
	codeNoLibrary   = "LibraryMissing"
	codeNoVeth      = "VethNotTaken"
	codeNoAnswer    = "NotAnsweredInTime"
	codeNoSeccomp   = "SeccompNotSet"
	codeNoGateTime  = "GateTimeNotOffered"
	codeGateTime    = "GateTimeExceeded"
	// As the admission policy has it, which knows no schedule.
	codeGateTooSmall = "GateTimeTooSmall"
	codeGateTooLarge = "GateTimeTooLarge"
	codeTogether     = "RefusedTogether"
	// What the kernel says of a reservation that this agent would give.
	codeKernelBusy   = "KernelBandwidthExceeded"
	codeNotPermitted = "NotPermitted"
	codeKernelLimits = "KernelLimits"
	codeOverridden   = "PolicyOverridden"
	codeRestless     = "PolicyChangedTooOften"
	codeKernel       = "KernelRefused"
	codeGone         = "ContainerEnded"
	// codeAgent is what the agent could not find out, or do: it is tried again.
	codeAgent = "AgentFailed"
)

// refusal is an error that begins with a code.
type refusal struct {
	code string
	err  error
	// ofTheNode: an administrator has to mend it, though its code is mostly of what somebody asks for.
	ofTheNode bool
}

func (r refusal) Error() string { return r.code + ": " + r.err.Error() }
func (r refusal) Unwrap() error { return r.err }

func refuse(code, format string, args ...any) error {
	return refusal{code: code, err: fmt.Errorf(format, args...)}
}

// coded is what people and programs are told of an error: its code, and the sentence without it.
func coded(err error) (code, sentence string) {
	var r refusal
	switch {
	case errors.As(err, &r):
		return r.code, strings.Replace(quote.Plain(err), r.code+": ", "", 1)
	case errors.Is(err, enforce.ErrGone):
		code = codeGone
	case errors.Is(err, enforce.ErrRestless):
		code = codeRestless
	case errors.Is(err, sched.ErrChanged):
		code = codeOverridden
	case !errors.Is(err, enforce.ErrRefused):
		code = codeAgent
	case errors.Is(err, syscall.EBUSY):
		code = codeKernelBusy
	case errors.Is(err, syscall.EPERM):
		code = codeNotPermitted
	case errors.Is(err, syscall.EINVAL):
		code = codeKernelLimits
	default:
		code = codeKernel
	}
	return code, quote.Plain(err)
}

// tell tells the users of a pod what was refused or lost: code, what it is of, and the sentence.
func (n *Node) tell(pod Pod, reason, of string, err error) {
	code, sentence := coded(err)
	n.event(pod, corev1.EventTypeWarning, reason, "%s: %s: %s", code, of, sentence)
}

// denied is the condition of a claim whose reservation was refused or lost.
func denied(reason string, err error) condition {
	code, sentence := coded(err)
	return condition{reason: reason, message: quote.Text(code + ": " + sentence)}
}
