// Package man generates manual pages. Tests generate the pages in this folder from the definitions
// that the pages document, and compare the results. To update the pages: go test ./cmd/outrider
// ./agent/config -run Man -update.
package man

import (
	"fmt"
	"strings"
)

// Page is a manual page that is being generated, with man(7) macros. Texts passed to its methods
// are plain: `backquotes` mark bold text, and an empty line begins a paragraph.
type Page struct {
	roff  strings.Builder
	fresh bool // the last output was a heading
}

// New begins a page with its name, section and purpose. The package build adds date and version, so
// that the page in this folder changes only with its content.
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

// Text writes paragraphs. Lines that begin with a space keep their line breaks (.nf).
func (p *Page) Text(text string) {
	for paragraph := range strings.SplitSeq(strings.Trim(text, "\n"), "\n\n") {
		p.paragraph()
		p.lines(paragraph)
	}
}

// Term writes a term with its description. The term is in roff, as Bold and Italic return it.
func (p *Page) Term(term, text string) {
	p.fresh = false
	p.roff.WriteString(".TP\n" + term + "\n")
	p.lines(text)
}

// TermParagraph adds a paragraph to the description of the last term.
func (p *Page) TermParagraph(text string) {
	p.roff.WriteString(".IP\n")
	p.lines(text)
}

// Example writes lines, which keep their line breaks (.nf).
func (p *Page) Example(text string) {
	p.paragraph()
	p.roff.WriteString(".RS 4\n.nf\n")
	for line := range strings.SplitSeq(strings.Trim(text, "\n"), "\n") {
		p.roff.WriteString(Escape(line) + "\n")
	}
	p.roff.WriteString(".fi\n.RE\n")
}

// SynopsisLine writes a line of the synopsis, which is in roff.
func (p *Page) SynopsisLine(roff string) {
	p.paragraph()
	p.roff.WriteString(".nh\n" + roff + "\n.hy\n")
}

// SeeAlso writes the last section, a list of pages of the form name(section).
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

// Bold returns roff for plain text in bold.
func Bold(text string) string { return `\fB` + strings.TrimPrefix(Escape(text), `\&`) + `\fR` }

// Italic returns roff for plain text in italics.
func Italic(text string) string { return `\fI` + strings.TrimPrefix(Escape(text), `\&`) + `\fR` }

// marked returns roff for a line of plain text, with the text between backquotes in bold. A
// backquote without a second one is literal.
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

// Escape returns roff for plain text. Hyphens stay ASCII hyphens, so that users can copy command
// lines.
func Escape(text string) string { return guarded(escaped(text)) }

func escaped(text string) string {
	return strings.NewReplacer(`\`, `\e`, "-", `\-`, "`", `\(ga`, "'", `\(aq`, "^", `\(ha`, "~",
		`\(ti`).Replace(text)
}

// guarded protects a line that roff would interpret as a request, because of its first character.
func guarded(roff string) string {
	if strings.HasPrefix(roff, ".") || strings.HasPrefix(roff, "'") {
		return `\&` + roff
	}
	return roff
}

// quoted returns plain text as a macro's argument, in quotes if necessary.
func quoted(text string) string {
	text = strings.ReplaceAll(Escape(text), `"`, `""`)
	if strings.ContainsAny(text, " \"") || text == "" {
		return `"` + text + `"`
	}
	return text
}
