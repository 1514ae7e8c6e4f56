package identity

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// If the owner of the folder replaces a new set by a link, nothing is written through the link.
func TestOutput_FollowsNoLinkOfTheFoldersOwner(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	output := &OutputFiles{Dir: dir}
	if err := os.Chmod(dir, 0o750|os.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	set := filepath.Join(dir, "..set-link")
	if err := os.Symlink(elsewhere, set); err != nil {
		t.Fatal(err)
	}
	if err := output.fill(set, map[string][]byte{keyFile: nil}); err == nil {
		t.Error("a set was written through a link")
	}
	if left, err := os.ReadDir(elsewhere); err != nil || len(left) > 0 {
		t.Errorf("written elsewhere: %v, %v", left, err)
	}
	if info, err := os.Stat(elsewhere); err != nil || info.Mode().Perm() == 0o750 {
		t.Errorf("the mode elsewhere was changed: %v, %v", info.Mode(), err)
	}
}

// If the owner of the folder replaces files by a FIFO, or by a link to a device without an end, the
// comparison with the new content does not block.
func TestOutput_ReadsNoFileOfTheFoldersOwner(t *testing.T) {
	content := map[string][]byte{chainFile: []byte("chain"), keyFile: []byte("key")}
	for name, plant := range map[string]func(path string) error{
		"FIFO":   func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"device": func(path string) error { return os.Symlink("/dev/zero", path) },
	} {
		output := &OutputFiles{Dir: t.TempDir()}
		if err := os.Mkdir(filepath.Join(output.Dir, "set"), 0o700); err != nil {
			t.Fatal(err)
		}
		links := map[string]string{currentLink: "set"}
		for file := range content {
			links[file] = filepath.Join(currentLink, file)
			if err := plant(filepath.Join(output.Dir, "set", file)); err != nil {
				t.Fatal(err)
			}
		}
		for path, target := range links {
			if err := os.Symlink(target, filepath.Join(output.Dir, path)); err != nil {
				t.Fatal(err)
			}
		}
		done := make(chan bool, 1)
		go func() { done <- output.holds(content) }()
		select {
		case holds := <-done:
			if holds {
				t.Errorf("%s: taken for the set", name)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: reading does not end", name)
		}
	}
}
