// Package quote bounds what others have written before it is said again: in events, statuses, errors and logs, which are kept,
// and repeated for as long as somebody tries again.
package quote

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc/status"
)

const (
	// mostValue is how many bytes of a value are shown.
	mostValue = 64
	// mostText is what an event and a condition have room for.
	mostText = 1024
)

// Value is a value in quotes, as much of it as a reader needs to know it again.
func Value[T ~string](value T) string {
	if len(value) <= mostValue {
		return strconv.Quote(string(value))
	}
	return fmt.Sprintf("%s… (%d bytes)", strconv.Quote(strings.ToValidUTF8(string(value[:mostValue]), "")), len(value))
}

// Text is a message, whatever went into it.
func Text(message string) string { return Shorten(message, mostText) }

// Shorten is a text in no more bytes than most, which says by its end that there was more.
func Shorten(text string, most int) string {
	const more = "…"
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-len(more)], "") + more
}

// Printable is a text with escapes for what is not printed but does something to a terminal, or to a table.
func Printable(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsGraphic(r) }) {
		return text
	}
	quoted := strconv.QuoteToGraphic(text)
	return quoted[1 : len(quoted)-1]
}

// Plain is the text of an error without what gRPC puts before a status of its, wherever in the error that is.
func Plain(err error) string {
	var inner []error
	switch of := err.(type) {
	case interface{ GRPCStatus() *status.Status }:
		return of.GRPCStatus().Message()
	case interface{ Unwrap() error }:
		inner = []error{of.Unwrap()}
	case interface{ Unwrap() []error }:
		inner = of.Unwrap()
	}
	text := err.Error()
	for _, one := range inner {
		if one != nil {
			text = strings.Replace(text, one.Error(), Plain(one), 1)
		}
	}
	return text
}

// Error is an error whose text is Plain, and bounded as that of Text; nil of nil.
func Error(err error) error {
	if err == nil {
		return nil
	}
	return bounded{err}
}

type bounded struct{ error }

func (b bounded) Error() string { return Text(Plain(b.error)) }
func (b bounded) Unwrap() error { return b.error }
