package v1alpha1

import (
	"errors"
	"fmt"

	"sigs.k8s.io/json"
)

// MaxParameters is how many bytes of opaque parameters the API server stores.
const MaxParameters = 10 * 1024

// Decode reads the opaque parameters of a claim strictly: names are case-sensitive, and an unknown or
// repeated field is an error rather than a reservation other than the one meant. It does not Validate.
func Decode(data []byte) (*Parameters, error) {
	if len(data) > MaxParameters {
		return nil, fmt.Errorf("parameters have %d bytes: at most %d are read", len(data), MaxParameters)
	}
	p := &Parameters{}
	mistakes, err := json.UnmarshalStrict(data, p)
	if err != nil {
		return nil, fmt.Errorf("cannot read parameters: %w", err)
	}
	if len(mistakes) > 0 {
		return nil, fmt.Errorf("cannot read parameters: %w: the fields are apiVersion, kind, runtime, period, deadline, policy, threads, overrun, changes, startup, minRuntime, maxRuntime",
			errors.Join(mistakes...))
	}
	return p, nil
}
