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

// columns returns the width of a terminal in characters, 0 for another file.
func columns(file *os.File) int {
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// style is a colour of the terminal (ECMA-48 SGR).
type style string

const (
	plain  style = ""
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
)

// cell is text with a colour.
type cell struct {
	text  string
	style style
}

func text(format string, arguments ...any) cell {
	return cell{text: fmt.Sprintf(format, arguments...)}
}

// paint adds the colour on a terminal.
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

// print prints a value as JSON with --json, otherwise it calls show.
func (a *app) print(value any, show func()) error {
	if a.json {
		return a.printJSON(value)
	}
	show()
	return nil
}

// refusedIf returns the error of a command that has already printed its result.
func refusedIf(refused bool) error {
	if refused {
		return silentError{api.ExitRefused}
	}
	return nil
}

// age formats a duration in its one or two largest units: 45s, 3m12s, 5h20m, 12d.
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

// since returns the age of a moment, "-" for the zero time.
func (a *app) since(moment time.Time) string {
	if moment.IsZero() {
		return "-"
	}
	return age(a.now().Sub(moment))
}

// size formats a number of bytes.
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

// count returns n followed by its noun: one, or many unless n is 1.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// reason removes the path and the system call from the error of a file.
func reason(err error) error {
	if wrong, ok := errors.AsType[*fs.PathError](err); ok {
		return wrong.Err
	}
	return err
}
