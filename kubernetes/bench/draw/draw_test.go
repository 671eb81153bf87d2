package draw

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestAPictureIsWellFormedWhateverItIsOf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		axis := func(name string) Axis {
			return Axis{Label: "<&>", Log: rapid.Bool().Draw(t, name+" log"), FromZero: rapid.Bool().Draw(t, name+" zero")}
		}
		values := rapid.SliceOfN(rapid.Float64Range(-10, 1e9), 0, 5)
		x := values.Draw(t, "x")
		y := rapid.SliceOfN(rapid.Float64Range(-10, 1e9), len(x), len(x)).Draw(t, "y")
		panel := Panel{Title: `"a" & <b>`, X: axis("x"), Y: axis("y"), Lines: []Series{{Name: "<l>", X: x, Y: y}}}
		if len(x) > 1 {
			panel.Bars = []Series{{Name: "b", X: x, Y: y[1:]}}
		}
		var text strings.Builder
		if err := SVG(&text, 2, []Panel{panel, panel, panel}); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(text.String(), "NaN") || strings.Contains(text.String(), "Inf") {
			t.Fatal("not a number in the picture")
		}
		decoder := xml.NewDecoder(strings.NewReader(text.String()))
		for {
			if _, err := decoder.Token(); errors.Is(err, io.EOF) {
				return
			} else if err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestEveryValueIsInsideItsScaleAndLargerOnesAreFurther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(1e-6, 1e9), 2, 8).Draw(t, "values")
		s := newScale(Axis{Log: rapid.Bool().Draw(t, "log"), FromZero: rapid.Bool().Draw(t, "zero")}, values, 10, 110)
		for _, v := range values {
			if at := s.at(v); at < 10-1e-6 || at > 110+1e-6 {
				t.Fatalf("%g is at %g", v, at)
			}
			if s.at(v) > s.at(2*v) {
				t.Fatalf("%g is beyond its double", v)
			}
		}
		if ticks := s.ticks(); len(ticks) == 0 || len(ticks) > 20 || math.IsNaN(ticks[0]) {
			t.Fatalf("ticks %v of %v", ticks, s)
		}
	})
}
