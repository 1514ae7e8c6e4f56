package auth

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/agent/jwt"
)

// old describes a file as if its last change were an hour earlier.
type old struct{ os.FileInfo }

func (o old) Sys() any {
	of := *o.FileInfo.Sys().(*syscall.Stat_t)
	of.Mtim.Sec -= 3600
	of.Ctim.Sec -= 3600
	return &of
}

// A key file is parsed again for each request while its last change is recent, and whenever it has
// been replaced or modified.
func TestKeyFiles(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "keys")
	write := func(name, text string, age time.Duration) {
		t.Helper()
		at := filepath.Join(folder, name)
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(at, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	files := newKeyFiles()
	var parsed []string
	get := func() error {
		_, err := files.get(path, func(text []byte) (jwt.Keys, error) {
			parsed = append(parsed, string(text))
			if len(text) == 0 {
				return jwt.Keys{}, errors.New("empty")
			}
			return jwt.Keys{}, nil
		})
		return err
	}
	expect := func(what string, number int, last string) {
		t.Helper()
		if len(parsed) != number || parsed[number-1] != last {
			t.Errorf("%s: parsed %q", what, parsed)
		}
	}
	if err := get(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	write("keys", "one", time.Hour)
	_, _ = get(), get()
	expect("just written", 2, "one") // the file changed too recently for its keys to be cached
	// Cache the version of the file as if it had not changed for restTime.
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	now, rested := versionOf(info)
	if rested {
		t.Error("a new file counts as rested")
	}
	if _, rested := versionOf(old{info}); !rested {
		t.Error("an old file does not count as rested")
	}
	files.read[path] = readKeys{of: now}
	write("next", "two", time.Hour)
	if err := os.Rename(filepath.Join(folder, "next"), path); err != nil {
		t.Fatal(err)
	}
	_ = get()
	expect("replaced", 3, "two")
	write("keys", "", 0)
	if err := get(); err == nil {
		t.Error("no error for a file without keys")
	}
	expect("emptied", 4, "")
}
