package man

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPage(t *testing.T) {
	p := New("two-words", 1, "does what it does")
	p.Section("A SECTION")
	p.Text("First, `--bold` text.\n.a line like a request\n\nSecond:\n  kept\n  as it is\nand on")
	p.Term(Bold("-x"), `a "quoted" \ word`)
	p.TermParagraph("'more'")
	p.Example("a\n  b\n")
	p.SeeAlso("one(1)", "two.x(5)")
	const want = `.TH TWO\-WORDS 1 "" Outrider "Manual of Outrider"
.SH NAME
two\-words \- does what it does
.SH "A SECTION"
First, \fB\-\-bold\fR text.
\&.a line like a request
.PP
Second:
.nf
  kept
  as it is
.fi
and on
.TP
\fB\-x\fR
a "quoted" \e word
.IP
\(aqmore\(aq
.PP
.RS 4
.nf
a
  b
.fi
.RE
.SH "SEE ALSO"
.BR one (1),
.BR two.x (5)
`
	if diff := cmp.Diff(want, p.String()); diff != "" {
		t.Error(diff)
	}
}

// The page outriderd(8) is not generated from the program. It must list exactly the exit codes and
// signals of the agent.
func TestManPage_HasExitCodesAndSignals(t *testing.T) {
	page, err := os.ReadFile("outriderd.8")
	if err != nil {
		t.Fatal(err)
	}
	codes := found(section(page, "EXIT STATUS"), `(?m)^\.B (\d+)$`)
	if diff := cmp.Diff(constants(t, filepath.Join("..", "..", "agent", "exit.go"), "Exit"),
		codes); diff != "" {
		t.Errorf("exit codes: -agent/exit.go +outriderd.8:\n%s", diff)
	}
	source, err := os.ReadFile(filepath.Join("..", "..", "agent", "signals.go"))
	if err != nil {
		t.Fatal(err)
	}
	_, caught, _ := strings.Cut(string(source), "signal.Notify(")
	caught, _, _ = strings.Cut(caught, ")")
	if diff := cmp.Diff(found(caught, `\b(SIG[A-Z0-9]+)`), found(section(page, "SIGNALS"),
		`(?m)\b(SIG[A-Z0-9]+)`)); diff != "" {
		t.Errorf("signals: -agent/signals.go +outriderd.8:\n%s", diff)
	}
}

// The page outrider-discoveryd(8) is not generated from the program. It must list exactly the exit
// codes and options of the program.
func TestManPage_HasExitCodesAndOptionsOfDiscoveryd(t *testing.T) {
	page, err := os.ReadFile("outrider-discoveryd.8")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join("..", "..", "cmd", "outrider-discoveryd", "main.go")
	codes := found(section(page, "EXIT STATUS"), `(?m)^\.B (\d+)$`)
	if diff := cmp.Diff(constants(t, program, "exit"), codes); diff != "" {
		t.Errorf("exit codes: -main.go +outrider-discoveryd.8:\n%s", diff)
	}
	source, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	options := found(section(page, "OPTIONS"), `\\-\\-([a-z]+)`)
	if diff := cmp.Diff(found(string(source), `flags\.\w+\("([a-z]+)"`), options); diff != "" {
		t.Errorf("options: -main.go +outrider-discoveryd.8:\n%s", diff)
	}
}

// section returns the text of a section of a page.
func section(page []byte, title string) string {
	_, text, _ := strings.Cut(string(page), ".SH "+title+"\n")
	text, _, _ = strings.Cut(text, "\n.SH ")
	return text
}

// found returns the first submatches of all matches of pattern, sorted and without duplicates.
func found(text, pattern string) []string {
	var all []string
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		all = append(all, match[1])
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// constants returns the values of those constants in a Go file whose names have a prefix, sorted.
func constants(t *testing.T, path, prefix string) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var values []string
	ast.Inspect(file, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if ok && strings.HasPrefix(spec.Names[0].Name, prefix) && len(spec.Values) == 1 {
			values = append(values, spec.Values[0].(*ast.BasicLit).Value)
		}
		return true
	})
	slices.Sort(values)
	return values
}
