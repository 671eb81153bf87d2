package node

import "fmt"

// Codes begin the message of a refusal, for those who read it by program.
const (
	codeParameters  = "InvalidParameters"
	codeAllocation  = "InvalidAllocation"
	codeNotOffered  = "CoreNotOffered"
	codeBandwidth   = "BandwidthExceeded"
	codeDensity     = "DensityExceeded"
	codeUnproven    = "NotSchedulable"
	codeUnsupported = "NotSupportedByBackend"
	codeShared      = "ReservedForAnother"
	codeNotPrepared = "NotPrepared"
	codeUnused      = "ClaimUnused"
	codeUnrequested = "CPUNotRequested"
)

// refusal is an error that begins with a code.
type refusal struct {
	code string
	err  error
}

func (r refusal) Error() string { return r.code + ": " + r.err.Error() }
func (r refusal) Unwrap() error { return r.err }

func refuse(code, format string, args ...any) error {
	return refusal{code, fmt.Errorf(format, args...)}
}
