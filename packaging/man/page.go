// Package man writes manual pages. Tests generate the pages in this folder from the definitions
// that they document and compare them: `go test ./cmd/outrider ./agent/config -run Man -update`.
package man

import (
	"fmt"
	"strings"
)

// Page is a manual page under construction, in man(7) macros. Text is plain; `backquotes` make
// bold. An empty line begins a paragraph.
type Page struct {
	roff  strings.Builder
	fresh bool // directly after a heading
}

// New begins a page with its name, section and purpose. It contains no date and version, which the
// package build adds, so that a page changes only with its content.
func New(name string, section int, purpose string) *Page {
	p := &Page{}
	fmt.Fprintf(&p.roff, ".TH %s %d \"\" Outrider \"Manual of Outrider\"\n",
		quoted(strings.ToUpper(name)), section)
	p.Section("NAME")
	fmt.Fprintf(&p.roff, "%s \\- %s\n", Escape(name), Escape(purpose))
	return p
}

// String returns the page.
func (p *Page) String() string { return p.roff.String() }

// Section begins a section.
func (p *Page) Section(title string) { p.heading(".SH", title) }

// Subsection begins a subsection.
func (p *Page) Subsection(title string) { p.heading(".SS", title) }

func (p *Page) heading(macro, title string) {
	p.roff.WriteString(macro + " " + quoted(title) + "\n")
	p.fresh = true
}

// paragraph begins a paragraph.
func (p *Page) paragraph() {
	if !p.fresh {
		p.roff.WriteString(".PP\n")
	}
	p.fresh = false
}

// Text writes paragraphs. Lines that begin with a space are not filled.
func (p *Page) Text(text string) {
	for paragraph := range strings.SplitSeq(strings.Trim(text, "\n"), "\n\n") {
		p.paragraph()
		p.lines(paragraph)
	}
}

// Term writes a term with its description. The term is roff text, as returned by Bold and Italic.
func (p *Page) Term(term, text string) {
	p.fresh = false
	p.roff.WriteString(".TP\n" + term + "\n")
	p.lines(text)
}

// More adds a paragraph to the description of the last term.
func (p *Page) More(text string) {
	p.roff.WriteString(".IP\n")
	p.lines(text)
}

// Example writes unfilled lines.
func (p *Page) Example(text string) {
	p.paragraph()
	p.roff.WriteString(".RS 4\n.nf\n")
	for line := range strings.SplitSeq(strings.Trim(text, "\n"), "\n") {
		p.roff.WriteString(Escape(line) + "\n")
	}
	p.roff.WriteString(".fi\n.RE\n")
}

// Usage writes a line of a synopsis. The text is in roff.
func (p *Page) Usage(roff string) {
	p.paragraph()
	p.roff.WriteString(".nh\n" + roff + "\n.hy\n")
}

// SeeAlso writes the last section: pages as name(section).
func (p *Page) SeeAlso(pages ...string) {
	p.Section("SEE ALSO")
	for i, page := range pages {
		name, section, _ := strings.Cut(page, "(")
		comma := ","
		if i == len(pages)-1 {
			comma = ""
		}
		fmt.Fprintf(&p.roff, ".BR %s (%s%s\n", Escape(name), section, comma)
	}
}

func (p *Page) lines(text string) {
	retained := false
	for line := range strings.SplitSeq(text, "\n") {
		if keep := strings.HasPrefix(line, " "); keep != retained {
			retained = keep
			p.roff.WriteString(map[bool]string{true: ".nf\n", false: ".fi\n"}[keep])
		}
		p.roff.WriteString(marked(line) + "\n")
	}
	if retained {
		p.roff.WriteString(".fi\n")
	}
}

// Bold returns text in bold as roff.
func Bold(text string) string { return `\fB` + strings.TrimPrefix(Escape(text), `\&`) + `\fR` }

// Italic returns text in italics as roff.
func Italic(text string) string { return `\fI` + strings.TrimPrefix(Escape(text), `\&`) + `\fR` }

// marked escapes a line and makes text between backquotes bold. A single backquote is literal.
func marked(line string) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(line, "`")
		inside, after, closed := strings.Cut(rest, "`")
		if !found || !closed {
			b.WriteString(Escape(line))
			return guarded(b.String())
		}
		b.WriteString(escaped(before) + Bold(inside))
		line = after
	}
}

// Escape returns plain text as roff. Hyphens remain ASCII hyphens, so that command lines can be
// copied.
func Escape(text string) string { return guarded(escaped(text)) }

func escaped(text string) string {
	return strings.NewReplacer(`\`, `\e`, "-", `\-`, "`", `\(ga`, "'", `\(aq`, "^", `\(ha`, "~",
		`\(ti`).Replace(text)
}

// guarded escapes a line that roff would interpret as a request.
func guarded(roff string) string {
	if strings.HasPrefix(roff, ".") || strings.HasPrefix(roff, "'") {
		return `\&` + roff
	}
	return roff
}

// quoted quotes an argument of a macro.
func quoted(text string) string {
	text = strings.ReplaceAll(Escape(text), `"`, `""`)
	if strings.ContainsAny(text, " \"") || text == "" {
		return `"` + text + `"`
	}
	return text
}
