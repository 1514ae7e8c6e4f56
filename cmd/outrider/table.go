package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// table is aligned text. On a terminal the cells of a listing are shortened to fit; "-o wide"
// prints everything.
type table struct {
	head []string
	wide []string // columns that only "-o wide" shows
	rows [][]cell
}

// add adds a row. A value that is not a cell has no style; an empty value becomes "-".
func (t *table) add(values ...any) {
	row := make([]cell, len(values))
	for i, value := range values {
		if styled, ok := value.(cell); ok {
			row[i] = styled
		} else {
			row[i] = text("%v", value)
		}
		row[i].text = cmp.Or(row[i].text, "-")
	}
	t.rows = append(t.rows, row)
}

// sortBy sorts the rows by the texts in columns.
func (t *table) sortBy(columns ...int) {
	slices.SortStableFunc(t.rows, func(x, y []cell) int {
		for _, column := range columns {
			if order := strings.Compare(x[column].text, y[column].text); order != 0 {
				return order
			}
		}
		return 0
	})
}

// fromColumn is the heading of the column with positions in files. Their ends are more important,
// so positions that are too long are cut off at the beginning.
const fromColumn = "FROM"

// write prints the table; without rows it prints the text none.
func (a *app) write(t *table, none string) {
	if len(t.rows) == 0 {
		fmt.Fprintln(a.out, none)
		return
	}
	head := make([]cell, len(t.head))
	for i, name := range t.head {
		head[i] = cell{name, bold}
	}
	rows := append([][]cell{head}, t.rows...)
	if a.cuts && !a.wide {
		rows = without(rows, t.wide)
		fit(rows, a.width)
	}
	writeAligned(a.out, rows, "", a.paint)
}

// without removes the columns with the given names, which are in the first row.
func without(rows [][]cell, names []string) [][]cell {
	shown := make([][]cell, len(rows))
	for i, row := range rows {
		for j, c := range row {
			if !slices.Contains(names, rows[0][j].text) {
				shown[i] = append(shown[i], c)
			}
		}
	}
	return shown
}

// gap is the space between columns. fit shortens no column below narrowest. Both are in characters.
const (
	gap       = 2
	narrowest = 8
)

// fit shortens the widest columns until no line has more than width characters (0: no limit). The
// first row contains the names of the columns.
func fit(rows [][]cell, width int) {
	if width == 0 {
		return
	}
	widths := widthsOf(rows)
	excess := gap*(len(widths)-1) - width
	for _, w := range widths {
		excess += w
	}
	for ; excess > 0; excess-- {
		widest := 0
		for i, w := range widths {
			if w > widths[widest] {
				widest = i
			}
		}
		if widths[widest] <= narrowest {
			break
		}
		widths[widest]--
	}
	for _, row := range rows {
		for i := range row {
			row[i].text = cut(row[i].text, widths[i], rows[0][i].text == fromColumn)
		}
	}
}

// cut shortens a text to width characters, by removing characters at the beginning or, if beginning
// is false, at the end.
func cut(text string, width int, beginning bool) string {
	letters := []rune(text)
	switch {
	case len(letters) <= width:
		return text
	case beginning:
		return "…" + string(letters[len(letters)-width+1:])
	}
	return string(letters[:width-1]) + "…"
}

func widthsOf(rows [][]cell) []int {
	var widths []int
	for _, row := range rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	return widths
}

// writeAligned prints rows with aligned columns.
func writeAligned(out io.Writer, rows [][]cell, indent string, paint func(cell) string) {
	widths := widthsOf(rows)
	for _, row := range rows {
		var line strings.Builder
		line.WriteString(indent)
		pending := 0 // spaces before the next cell, so that no line ends with spaces
		for i, c := range row {
			if c.text != "" {
				line.WriteString(strings.Repeat(" ", pending))
				line.WriteString(paint(c))
				pending = 0
			}
			pending += widths[i] - utf8.RuneCountInString(c.text) + gap
		}
		fmt.Fprintln(out, line.String())
	}
}

// wrapped breaks the text of the last cell of each row between words, so that no line has more than
// width characters (0: no limit).
func wrapped(rows [][]cell, indent string, width int) [][]cell {
	if width == 0 {
		return rows
	}
	var all [][]cell
	for _, row := range rows {
		last := len(row) - 1
		before := utf8.RuneCountInString(indent)
		for i, w := range widthsOf(rows) {
			if i < last {
				before += w + gap
			}
		}
		for i, line := range breakLines(row[last].text, max(width-before, 2*narrowest)) {
			next := make([]cell, len(row))
			if i == 0 {
				copy(next, row)
			}
			next[last] = cell{line, row[last].style}
			all = append(all, next)
		}
	}
	return all
}

// breakLines breaks a text between words. A word that is longer than width gets its own line.
func breakLines(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// listing adds the flag --output to a command that prints a table. Only tables of such commands are
// shortened to the width of the terminal.
func (a *app) listing(command *cobra.Command) *cobra.Command {
	command.PreRun = func(*cobra.Command, []string) { a.cuts = true }
	command.Flags().VarP(outputFlag{a}, "output", "o",
		"wide: all columns, nothing cut; json: the same as --json")
	values := cobra.FixedCompletions([]string{"wide", "json"}, cobra.ShellCompDirectiveNoFileComp)
	_ = command.RegisterFlagCompletionFunc("output", values)
	return command
}

// outputFlag is the value of --output.
type outputFlag struct{ *app }

// String returns the default.
func (o outputFlag) String() string { return "" }

// Type returns the placeholder for the value in the help.
func (o outputFlag) Type() string { return "wide|json" }

// Set parses a value.
func (o outputFlag) Set(value string) error {
	switch value {
	case "wide":
		o.wide = true
	case "json":
		o.json = true
	default:
		return fmt.Errorf("output format %q is neither wide nor json", value)
	}
	return nil
}
