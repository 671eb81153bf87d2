// Package draw makes the pictures of the benches: lines over a quantity, and bars of histograms, as panels
// of one SVG. It looks as the pictures of `takt bench` do.
package draw

import (
	"fmt"
	"html"
	"io"
	"math"
	"strconv"
	"strings"
)

const (
	ink, faded, grid = "#333B45", "#6B7580", "#E3E7EB"
	// Sizes are in the picture's own units.
	panelWidth, panelHeight  = 520.0, 340.0
	left, right, top, bottom = 70.0, 20.0, 60.0, 50.0
)

// mostMarks is how many points of a line are marked: more would hide it.
const mostMarks = 30

// palette is that of Okabe and Ito, which the colour-blind can tell apart.
var palette = []string{"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D"}

// Axis is one side of a panel.
type Axis struct {
	Label string
	// Log divides it by powers of ten; values must then be above 0.
	Log bool
	// FromZero lets an axis that is not Log begin at 0.
	FromZero bool
}

// Series is one line, or one set of bars, of a panel.
type Series struct {
	Name string
	// X and Y are of the same length. Of bars, X has one value more: the edges.
	X, Y []float64
	// Dashed tells a line from its companion of the same Colour.
	Dashed bool
	// Colour is a place in the palette.
	Colour int
}

// Panel is one plot.
type Panel struct {
	Title string
	X, Y  Axis
	Lines []Series
	Bars  []Series
	// Mark is a value of X that a vertical line shows, with its name; none if the name is empty.
	Mark     float64
	MarkName string
}

// SVG writes panels in rows of so many columns.
func SVG(to io.Writer, columns int, panels []Panel) error {
	rows := (len(panels) + columns - 1) / columns
	var text strings.Builder
	width, height := panelWidth*float64(columns), panelHeight*float64(rows)
	fmt.Fprintf(&text, `<svg width="%g" height="%g" viewBox="0 0 %g %g" xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="13">`+"\n",
		width, height, width, height)
	fmt.Fprintf(&text, `<rect width="%g" height="%g" fill="#FFFFFF"/>`+"\n", width, height)
	for i, panel := range panels {
		fmt.Fprintf(&text, `<g transform="translate(%g,%g)">`+"\n", panelWidth*float64(i%columns), panelHeight*float64(i/columns))
		panel.write(&text)
		text.WriteString("</g>\n")
	}
	text.WriteString("</svg>\n")
	_, err := io.WriteString(to, text.String())
	return err
}

// scale places values between two ends of the picture.
type scale struct {
	low, high, from, to float64
	log                 bool
}

func newScale(axis Axis, values []float64, from, to float64) scale {
	s := scale{low: math.Inf(1), high: math.Inf(-1), from: from, to: to, log: axis.Log}
	for _, v := range values {
		if axis.Log && v <= 0 {
			continue
		}
		s.low, s.high = min(s.low, v), max(s.high, v)
	}
	switch {
	case math.IsInf(s.low, 0):
		s.low, s.high = 1, 10
	case axis.Log:
		s.low = math.Pow(10, math.Floor(math.Log10(s.low)+1e-9))
		s.high = math.Pow(10, math.Ceil(math.Log10(s.high)-1e-9))
		if s.high <= s.low {
			s.high = s.low * 10
		}
	default:
		if axis.FromZero {
			s.low = min(s.low, 0)
		}
		if s.high <= s.low {
			s.high = s.low + 1
		}
		if axis.FromZero {
			step := s.step()
			s.high = math.Ceil(s.high/step-1e-9) * step
		}
	}
	return s
}

func (s scale) at(v float64) float64 {
	part := (v - s.low) / (s.high - s.low)
	if s.log {
		part = (math.Log10(v) - math.Log10(s.low)) / (math.Log10(s.high) - math.Log10(s.low))
	}
	return s.from + (s.to-s.from)*part
}

// step is a round distance that gives about five marks.
func (s scale) step() float64 {
	rough := (s.high - s.low) / 5
	unit := math.Pow(10, math.Floor(math.Log10(rough)))
	for _, times := range []float64{1, 2, 5} {
		if rough <= unit*times {
			return unit * times
		}
	}
	return unit * 10
}

func (s scale) ticks() []float64 {
	var ticks []float64
	if s.log {
		for v := s.low; v <= s.high*1.0001; v *= 10 {
			ticks = append(ticks, v)
		}
		return ticks
	}
	step := s.step()
	for i := math.Ceil(s.low/step - 1e-9); i*step <= s.high*(1+1e-9); i++ {
		ticks = append(ticks, i*step+0) // -0 + 0 is 0
	}
	return ticks
}

// number is short, without an exponent where people do not use one.
func number(v float64) string {
	if size := math.Abs(v); size >= 1 && size < 1e7 {
		return strconv.FormatFloat(math.Round(v*1000)/1000, 'f', -1, 64)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

func (p Panel) write(to *strings.Builder) {
	var xs, ys []float64
	for _, series := range append(append([]Series{}, p.Lines...), p.Bars...) {
		xs, ys = append(xs, series.X...), append(ys, series.Y...)
	}
	if p.MarkName != "" {
		xs = append(xs, p.Mark)
	}
	x := newScale(p.X, xs, left, panelWidth-right)
	y := newScale(p.Y, ys, panelHeight-bottom, top)

	say := func(px, py float64, anchor, colour, more, what string) {
		fmt.Fprintf(to, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s"%s>%s</text>`+"\n", px, py, anchor, colour, more, html.EscapeString(what))
	}
	line := func(x1, y1, x2, y2 float64, colour, more string) {
		fmt.Fprintf(to, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"%s/>`+"\n", x1, y1, x2, y2, colour, more)
	}
	for _, v := range x.ticks() {
		line(x.at(v), y.from, x.at(v), y.to, grid, "")
		say(x.at(v), y.from+17, "middle", ink, "", number(v))
	}
	for _, v := range y.ticks() {
		line(x.from, y.at(v), x.to, y.at(v), grid, "")
		say(x.from-7, y.at(v)+4, "end", ink, "", number(v))
	}
	line(x.from, y.from, x.to, y.from, ink, "")
	say(left, 20, "start", ink, ` font-weight="bold"`, p.Title)
	say((x.from+x.to)/2, panelHeight-12, "middle", ink, "", p.X.Label)
	say(0, 0, "middle", ink, fmt.Sprintf(` transform="translate(16,%.1f) rotate(-90)"`, (y.from+y.to)/2), p.Y.Label)

	name, row := left, 41.0
	legend := func(series Series) {
		colour := palette[series.Colour%len(palette)]
		width := 23 + 7.2*float64(len([]rune(series.Name)))
		if name > left && name+width > panelWidth {
			name, row = left, row+15
		}
		line(name, row-4, name+18, row-4, colour, ` stroke-width="3"`+dashes(series))
		say(name+23, row, "start", ink, "", series.Name)
		name += width + 14
	}
	for _, series := range p.Bars {
		colour := palette[series.Colour%len(palette)]
		for i, v := range series.Y {
			if v <= 0 || (x.log && min(series.X[i], series.X[i+1]) <= 0) {
				continue
			}
			x1, x2, height := x.at(series.X[i]), x.at(series.X[i+1]), y.from-y.at(v)
			fmt.Fprintf(to, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s" fill-opacity="0.75"/>`+"\n",
				x1+0.5, y.from-height, max(x2-x1-1, 0.5), height, colour)
		}
		legend(series)
	}
	for _, series := range p.Lines {
		colour := palette[series.Colour%len(palette)]
		var points []string
		for i := range series.X {
			if (x.log && series.X[i] <= 0) || (y.log && series.Y[i] <= 0) {
				continue
			}
			points = append(points, fmt.Sprintf("%.1f,%.1f", x.at(series.X[i]), y.at(series.Y[i])))
		}
		fmt.Fprintf(to, `<polyline fill="none" stroke="%s" stroke-width="2.5"%s points="%s"/>`+"\n", colour, dashes(series), strings.Join(points, " "))
		if len(points) > mostMarks {
			points = nil
		}
		for _, point := range points {
			px, py, _ := strings.Cut(point, ",")
			fmt.Fprintf(to, `<circle cx="%s" cy="%s" r="3" fill="%s"/>`+"\n", px, py, colour)
		}
		legend(series)
	}
	if p.MarkName != "" {
		line(x.at(p.Mark), y.from, x.at(p.Mark), y.to, faded, ` stroke-dasharray="4 3"`)
		say(x.at(p.Mark)-5, y.to+12, "end", faded, "", p.MarkName)
	}
}

func dashes(series Series) string {
	if series.Dashed {
		return ` stroke-dasharray="6 4"`
	}
	return ""
}
