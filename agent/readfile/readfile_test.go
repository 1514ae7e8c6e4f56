package readfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/readfile"
)

// TestRead_OnlyRegularFilesOfABoundedSize reads paths at which another user could have replaced a
// token by a FIFO, a device or a large file. Reading must neither block nor exceed the limit.
func TestRead_OnlyRegularFilesOfABoundedSize(t *testing.T) {
	folder, outside := t.TempDir(), t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target, name string) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(folder, "fits"), "12345678")
	write(filepath.Join(folder, "large"), "123456789")
	write(filepath.Join(outside, "secret"), "secret")
	link("fits", "inside")
	link(filepath.Join(outside, "secret"), "outside")
	link("/dev/zero", "zero")
	if err := unix.Mkfifo(filepath.Join(folder, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	directory, err := os.OpenRoot(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = directory.Close() }()
	for name, c := range map[string]struct{ text, err, errIn string }{
		"fits":    {text: "12345678"},
		"inside":  {text: "12345678"},
		"large":   {err: "more than 8 bytes", errIn: "more than 8 bytes"},
		"outside": {text: "secret", errIn: "escapes"},
		"zero":    {err: "no regular file", errIn: "escapes"},
		"fifo":    {err: "no regular file", errIn: "no regular file"},
		".":       {err: "no regular file", errIn: "no regular file"},
	} {
		for wrong, read := range map[*string]func() ([]byte, error){
			&c.err:   func() ([]byte, error) { return readfile.Read(filepath.Join(folder, name), 8) },
			&c.errIn: func() ([]byte, error) { return readfile.ReadIn(directory, name, 8) },
		} {
			done := make(chan struct{})
			go func() {
				defer close(done)
				text, err := read()
				if *wrong == "" && (err != nil || string(text) != c.text) ||
					*wrong != "" && (err == nil || !strings.Contains(err.Error(), *wrong)) {
					t.Errorf("%s: %q, %v, want %q or an error with %q", name, text, err, c.text, *wrong)
				}
			}()
			select {
			case <-done:
			case <-time.After(20 * time.Second):
				t.Fatalf("%s: reading does not end", name)
			}
		}
	}
}
