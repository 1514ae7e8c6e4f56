package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/api"
)

func isTerminal(file *os.File) bool {
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

// columns returns the width of a terminal in characters; 0 if the file is no terminal.
func columns(file *os.File) int {
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// style is a text style of the terminal, as a parameter of ECMA-48 SGR.
type style string

const (
	plain  style = ""
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
)

// cell is the text of a table cell with its style.
type cell struct {
	text  string
	style style
}

func text(format string, arguments ...any) cell {
	return cell{text: fmt.Sprintf(format, arguments...)}
}

// paint returns the text with the escape sequences of its style, if the output is a terminal with
// colour.
func (a *app) paint(c cell) string {
	if !a.colour || c.style == plain || c.text == "" {
		return c.text
	}
	return "\x1b[" + string(c.style) + "m" + c.text + "\x1b[0m"
}

// printJSON prints a value as indented JSON.
func (a *app) printJSON(value any) error {
	encoder := json.NewEncoder(a.out)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// printLine prints a value as one line of JSON.
func (a *app) printLine(value any) error {
	encoder := json.NewEncoder(a.out)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// print prints a value as JSON with --json. Otherwise it calls show.
func (a *app) print(value any, show func()) error {
	if a.json {
		return a.printJSON(value)
	}
	show()
	return nil
}

// refusedIf returns an error with exit code 1, which prints nothing, if refused is set.
func refusedIf(refused bool) error {
	if refused {
		return silentError{api.ExitRefused}
	}
	return nil
}

// age formats a duration in one or two units: 45s, 3m12s, 5h20m, 12d.
func age(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// since formats the time since a moment; "-" for the zero time.
func (a *app) since(moment time.Time) string {
	if moment.IsZero() {
		return "-"
	}
	return age(a.now().Sub(moment))
}

// size formats a number of bytes; "-" for 0.
func size(n uint64) string {
	switch {
	case n == 0:
		return "-"
	case n < 1<<20:
		return fmt.Sprintf("%d KiB", n>>10)
	case n < 10<<30:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d GiB", n>>30)
}

// count returns n with its noun: one if n is 1, else many.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// reason returns the cause of a fs.PathError, without the operation and the path.
func reason(err error) error {
	if wrong, ok := errors.AsType[*fs.PathError](err); ok {
		return wrong.Err
	}
	return err
}
