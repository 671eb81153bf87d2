package quote

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestWhatOthersHaveWrittenIsSaidAgainInBounds(t *testing.T) {
	for value, want := range map[string]string{
		"":                            `""`,
		"yes\n":                       `"yes\n"`,
		strings.Repeat("a", 64):       `"` + strings.Repeat("a", 64) + `"`,
		strings.Repeat("a", 65):       `"` + strings.Repeat("a", 64) + `"… (65 bytes)`,
		strings.Repeat("é", 33):       `"` + strings.Repeat("é", 32) + `"… (66 bytes)`,
		"a" + strings.Repeat("é", 33): `"a` + strings.Repeat("é", 31) + `"… (67 bytes)`,
	} {
		if is := Value(value); is != want {
			t.Errorf("%q is shown as %s", value, is)
		}
	}
	if is := Value(strings.Repeat("\x01", 250_000)); len(is) > 300 {
		t.Errorf("%d bytes are shown", len(is))
	}
	for _, text := range []string{strings.Repeat("é", 600), "x" + strings.Repeat("é", 600)} {
		if is := Text(text); len(is) > 1024 || len(is) < 1000 || !utf8.ValidString(is) || !strings.HasSuffix(is, "…") || Text(is) != is {
			t.Errorf("%d bytes are %d: %q", len(text), len(is), is)
		}
	}
	for text, want := range map[string]string{"": "", `é "q" \ …`: `é "q" \ …`, "\x1b[2J\n": `\x1b[2J\n`, "a\u009bb\u202e\xff": `a\u009bb\u202e\xff`} {
		if is := Printable(text); is != want {
			t.Errorf("%q is printed as %s", text, is)
		}
	}
	refused := status.Error(codes.FailedPrecondition, "the gate is closed")
	for want, err := range map[string]error{
		"the gate is closed":                         errors.Join(refused, nil),
		"first: the gate is closed\nEOF: then":       errors.Join(fmt.Errorf("first: %w", refused), fmt.Errorf("%w: then", io.EOF)),
		"the gate is closed and the gate is closed.": fmt.Errorf("%w and %w.", refused, refused),
	} {
		if is := Plain(err); is != want || Error(err).Error() != want {
			t.Errorf("%v is told as %q", err, is)
		}
	}
	if Error(nil) != nil || !errors.Is(Error(io.EOF), io.EOF) || Error(errors.New(strings.Repeat("a", 2000))).Error() != Text(strings.Repeat("a", 2000)) {
		t.Error("an error is another one")
	}
}
