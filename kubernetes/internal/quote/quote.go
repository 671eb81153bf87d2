// Package quote bounds what others have written before it is said again: in events, statuses, errors and logs, which are kept,
// and repeated for as long as somebody tries again.
package quote

import (
	"fmt"
	"strconv"
	"strings"
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

// Error is an error whose text is bounded as that of Text; nil of nil.
func Error(err error) error {
	if err == nil {
		return nil
	}
	return bounded{err}
}

type bounded struct{ error }

func (b bounded) Error() string { return Text(b.error.Error()) }
func (b bounded) Unwrap() error { return b.error }
