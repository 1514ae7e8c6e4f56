package main

import (
	"bytes"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTerminal_EscapesControlCharacters(t *testing.T) {
	for written, want := range map[string]string{
		"a\tb\n":                              "a\tb\n",
		"\x1b[31mred\x1b[0m":                  "\x1b[31mred\x1b[0m",
		"\r\x1b[Kloading":                     "\r\x1b[Kloading",
		"\x1b[H\x1b[2Jscreen":                 "\x1b[H\x1b[2Jscreen",
		"\x1b]0;title\a":                      `\x1b]0;title\x07`,
		"\x1b]52;c;cm0gLXJmIC8=\x1b\\":        `\x1b]52;c;cm0gLXJmIC8=\x1b\`,
		"good\rbad, \x1b[1Fabove, \u009b31mx": `good\x0dbad, \x1b[1Fabove, \x9b31mx`,
		"ä→\xff":                              "ä→\xff",
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
	a := newApp(pty, file)
	if _, ok := a.out.(terminal); !ok {
		t.Error("standard output on a terminal can be controlled by texts")
	}
	if a.err != file {
		t.Error("a file does not get what was written")
	}
}
