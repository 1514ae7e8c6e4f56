package identity

import (
	"os"
	"path/filepath"
	"testing"
)

// The owner of the folder replaces the new set by a link.
func TestOutput_FollowsNoLinkOfTheFoldersOwner(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	output := &Output{Dir: dir}
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
