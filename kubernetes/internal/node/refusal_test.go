package node

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/takt-dev/takt/kubernetes/internal/enforce"
	"github.com/takt-dev/takt/kubernetes/internal/sched"
)

func TestEveryErrorIsToldWithACodeOnceAndFirst(t *testing.T) {
	kernel := func(err error) error { return fmt.Errorf("%w of 2ms: %w: what helps", enforce.ErrRefused, err) }
	word := regexp.MustCompile(`^[A-Z][A-Za-z]+$`)
	for want, err := range map[string]error{
		codeGateTime:     errors.Join(refuse(codeGateTime, "no place: %w", errors.Join(status.Error(codes.FailedPrecondition, "the gate is closed"), nil))),
		codeBandwidth:    refuse(codeBandwidth, "CPU 0 is full"),
		codeUnused:       fmt.Errorf("claim x: %w", refuse(codeUnused, "nobody names it")),
		codeKernelBusy:   kernel(syscall.EBUSY),
		codeNotPermitted: kernel(fmt.Errorf("thread 1: %w", syscall.EPERM)),
		codeKernelLimits: kernel(syscall.EINVAL),
		codeOverridden:   kernel(sched.ErrChanged),
		codeRestless:     kernel(enforce.ErrRestless),
		codeKernel:       kernel(errors.New("?")),
		codeGone:         fmt.Errorf("process 7: %w", enforce.ErrGone),
		codeAgent:        errors.New("cannot reach the API server"),
	} {
		code, sentence := coded(err)
		if code != want || !word.MatchString(code) || strings.Contains(sentence, code) || strings.Contains(sentence, "rpc error") || sentence == "" {
			t.Errorf("%v is told as %q %q", err, code, sentence)
		}
		if message := denied(reasonRefused, err).message; !strings.HasPrefix(message, code+": ") {
			t.Errorf("a claim's condition says %q", message)
		}
	}
}
