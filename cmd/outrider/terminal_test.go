package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/api/apitest"
	"outrider.org/outrider/scripts/parts"
)

func TestTerminal_EscapesControlCharacters(t *testing.T) {
	for written, want := range map[string]string{
		"a\tb\n":                              "a\tb\n",
		"\x1b[31mred\x1b[0m":                  "\x1b[31mred\x1b[0m",
		"\x1b[1;31;40mx\x1b[8mhidden":         `\x1b[1;31;40mx\x1b[8mhidden`,
		"\r\x1b[Koverwritten":                 `\x0d\x1b[Koverwritten`,
		"\x1b[H\x1b[2Jscreen":                 `\x1b[H\x1b[2Jscreen`,
		"\x1b[2Aabove, \x1b[K":                `\x1b[2Aabove, \x1b[K`,
		"\x1b]0;title\a":                      `\x1b]0;title\x07`,
		"\x1b]52;c;cm0gLXJmIC8=\x1b\\":        `\x1b]52;c;cm0gLXJmIC8=\x1b\`,
		"good\rbad, \x1b[1Fabove, \u009b31mx": `good\x0dbad, \x1b[1Fabove, \x9b31mx`,
		"ä→\ufffd\xff":                        `ä→` + "\ufffd" + `\xff`,
		"\x9b2J":                              `\x9b2J`,
		"user\u202etxt.exe\u2066x":            `user\x202etxt.exe\x2066x`,
	} {
		var got bytes.Buffer
		if n, err := (terminal{&got}).Write([]byte(written)); n != len(written) || err != nil {
			t.Error(n, err)
		}
		if got.String() != want {
			t.Errorf("%q became %q, want %q", written, got.String(), want)
		}
	}
}

// Escape sequences in texts from an agent are escaped. Those with which the command itself
// overwrites a line and clears the screen are not.
func TestTerminal_TextsOfTheAgentMoveNoCursor(t *testing.T) {
	const hostile = clearLine + "spoofed" + clearScreen + "\x1b[1A"
	status := someStatus()
	status.Conditions[0].Sentence, status.ReloadPhase = hostile, hostile
	m := newMachine(t, &apitest.Backend{StatusValue: status})
	for _, arguments := range [][]string{{"status"}, {"status", "--watch"}} {
		ctx, cancel := context.WithCancel(t.Context())
		a, shown, done := m.app(&bytes.Buffer{},
			&bytes.Buffer{}), &parts.SyncBuffer{}, make(chan int)
		a.out, a.width = terminal{shown}, 200
		go func() { done <- a.run(ctx, arguments) }()
		parts.Eventually(t, time.Minute, "the sentence is shown", func() bool {
			return strings.Contains(shown.String(), `spoofed\x1b[H`)
		})
		cancel()
		<-done
		// The command clears the screen before each status, which begins with the instance's name.
		got := strings.ReplaceAll(shown.String(), clearScreen+"outrider", "")
		if strings.ContainsAny(got, "\r\x1b") {
			t.Errorf("%q: the text moves the cursor: %q", arguments, got)
		}
	}
	var line bytes.Buffer
	p := &progress{out: terminal{&line}, now: time.Now, last: api.Progress{Phase: hostile}}
	p.show()
	if got := line.String(); strings.Count(got, "\x1b") != 1 || !strings.HasPrefix(got, clearLine) {
		t.Errorf("progress: %q", got)
	}
}

func TestTerminal_WrapsOnlyTerminals(t *testing.T) {
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pty.Close() }()
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	a := newApp(os.Stdin, pty, file)
	if _, ok := a.out.(terminal); !ok {
		t.Error("standard output on a terminal can be controlled by texts")
	}
	if a.err != file {
		t.Error("a file does not get what was written")
	}
}
