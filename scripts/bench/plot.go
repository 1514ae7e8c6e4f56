package main

import (
	"fmt"
	"math"
	"strings"
	"time"

	"outrider.org/outrider/scripts/load"
)

// series is one run in a plot: latency and failures over time.
type series struct {
	title  string
	report load.Report
}

// Sizes in pixels.
const (
	plotWidth   = 860
	plotLeft    = 74
	plotRight   = 20
	plotTop     = 66
	panelHeight = 190
	panelGap    = 74
)

// style sets a background explicitly, since viewers differ in dark mode and CSS support.
const style = `<style>
svg{font:13px system-ui,-apple-system,"Segoe UI",sans-serif}.ground{fill:#fff;stroke:#d8dee4}
text{fill:#24292f}.dim{fill:#57606a}.head{font-weight:600;font-size:16px}.title{font-weight:600}
.grid{stroke:#d8dee4;stroke-width:1}.switch{stroke:#8c959f;stroke-width:1;stroke-dasharray:3 4}
.max{fill:none;stroke:#0969da;stroke-width:1.8;stroke-linejoin:round}
.mid{fill:none;stroke:#0969da;stroke-width:1.2;opacity:.45}
.dot{fill:#0969da}.error{fill:#cf222e}
.errors{fill:#cf222e;font-weight:600;text-anchor:middle;font-size:12px}
@media (prefers-color-scheme:dark){.ground{fill:#0d1117;stroke:#30363d}text{fill:#e6edf3}
.dim{fill:#9da7b3}.grid{stroke:#30363d}.switch{stroke:#6e7681}.max,.mid{stroke:#58a6ff}
.dot{fill:#58a6ff}.error{fill:#ff7b72}.errors{fill:#ff7b72}}
</style>`

// plot draws the runs below one another on the same scales: maximum and median latency of each
// second (logarithmic), a bar for failed requests, and a dashed line at each change.
func plot(title string, runs []series) []byte {
	seconds, largest := 1, time.Millisecond
	for _, run := range runs {
		seconds = max(seconds, len(whole(run.report)))
		for _, second := range whole(run.report) {
			largest = max(largest, second.Max)
		}
	}
	height := plotTop + len(runs)*(panelHeight+panelGap)
	var svg strings.Builder
	fmt.Fprintf(&svg,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" `+
			`role="img" aria-label="%s">`+"\n%s\n",
		plotWidth, height, plotWidth, height, escape(title), style)
	fmt.Fprintf(&svg, `<rect x=".5" y=".5" width="%d" height="%d" rx="6" class="ground"/>`+"\n",
		plotWidth-1, height-1)
	fmt.Fprintf(&svg, `<text x="%d" y="26" class="head">%s</text>`+"\n", plotLeft, escape(title))
	fmt.Fprintf(&svg,
		`<path d="M%d 41h22" class="max"/>`+
			`<text x="%d" y="45" class="dim">slowest answer of each second</text>`,
		plotLeft, plotLeft+28)
	fmt.Fprintf(&svg,
		`<path d="M%d 41h22" class="mid"/><text x="%d" y="45" class="dim">median</text>`,
		plotLeft+250, plotLeft+278)
	fmt.Fprintf(&svg,
		`<rect x="%d" y="36" width="10" height="10" class="error"/>`+
			`<text x="%d" y="45" class="dim">failed requests</text>`,
		plotLeft+356, plotLeft+372)
	fmt.Fprintf(&svg,
		`<path d="M%d 34v13" class="switch"/><text x="%d" y="45" class="dim">change</text>`+"\n",
		plotLeft+504, plotLeft+512)
	decades := scale{top: math.Ceil(math.Log10(float64(largest) / float64(time.Millisecond)))}
	for i, run := range runs {
		panel(&svg, run, plotTop+24+i*(panelHeight+panelGap), seconds, decades)
	}
	svg.WriteString("</svg>\n")
	return []byte(svg.String())
}

// whole returns the complete seconds of a report: all but the last one.
func whole(report load.Report) []load.SecondResult {
	return report.Seconds[:max(0,
		len(report.Seconds)-1)]
}

// scale is logarithmic, starting at 0.1 ms.
type scale struct{ top float64 } // decades above 1 ms

func (s scale) y(latency time.Duration) float64 {
	decade := math.Log10(max(float64(latency)/float64(time.Millisecond), 0.1)) + 1
	return float64(panelHeight) * (1 - decade/(s.top+1))
}

func panel(svg *strings.Builder, run series, top, seconds int, latency scale) {
	width := float64(plotWidth - plotLeft - plotRight)
	x := func(second float64) float64 { return plotLeft + width*second/float64(seconds) }
	fmt.Fprintf(svg, `<g transform="translate(0 %d)"><text x="%d" y="-9" class="title">%s</text>`+
		"\n", top, plotLeft, escape(run.title))
	for decade := -1.0; decade <= latency.top; decade++ {
		at := time.Duration(math.Pow(10, decade) * float64(time.Millisecond))
		fmt.Fprintf(svg,
			`<path d="M%d %.1fH%d" class="grid"/>`+
				`<text x="%d" y="%.1f" text-anchor="end" class="dim">%v</text>`+"\n",
			plotLeft, latency.y(at), plotWidth-plotRight, plotLeft-8, latency.y(at)+4, at)
	}
	step := max(1, int(math.Ceil(float64(seconds)/12/5))*5)
	for second := 0; second <= seconds; second += step {
		fmt.Fprintf(svg, `<text x="%.1f" y="%d" text-anchor="middle" class="dim">%d s</text>`,
			x(float64(second)), panelHeight+20, second)
	}
	for _, mark := range run.report.Marks {
		if mark.Label == markSwitch {
			fmt.Fprintf(svg, `<path d="M%.1f 0V%d" class="switch"/>`, x(mark.At.Seconds()),
				panelHeight)
		}
	}
	var slowest, middle strings.Builder
	most := 1
	for _, second := range whole(run.report) {
		most = max(most, failed(second))
	}
	for i, second := range whole(run.report) {
		if n := failed(second); n > 0 {
			height := 6 + 0.45*panelHeight*math.Sqrt(float64(n)/float64(most))
			fmt.Fprintf(svg,
				`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" class="error"/>`+
					`<text x="%.1f" y="%.1f" class="errors">%d</text>`+"\n",
				x(float64(i)+0.1), panelHeight-height, x(0.8)-x(0), height, x(float64(i)+0.5),
				panelHeight-height-5, n)
		}
		if second.Max == 0 {
			continue // no response in this second
		}
		fmt.Fprintf(&slowest, "%s%.1f %.1f", link(slowest.Len()), x(float64(i)+0.5),
			latency.y(second.Max))
		fmt.Fprintf(&middle, "%s%.1f %.1f", link(middle.Len()), x(float64(i)+0.5),
			latency.y(second.P50))
	}
	fmt.Fprintf(svg, `<path d="%s" class="mid"/><path d="%s" class="max"/></g>`+"\n",
		middle.String(), slowest.String())
}

func link(written int) string {
	if written == 0 {
		return "M"
	}
	return "L"
}

// failed returns the number of a second's requests without a good answer, including those that a
// client would retry.
func failed(second load.SecondResult) int {
	n := 0
	for _, errors := range second.Errors {
		n += errors
	}
	return n
}

func escape(text string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;").Replace(text)
}
