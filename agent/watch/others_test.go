package watch

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestFingerprint_OfLargeFileFollowsItsStamp(t *testing.T) {
	for size, read := range map[int]bool{mostHashed: true, mostHashed + 1: false} {
		path := filepath.Join(tempDir(t), "ca.pem")
		must(t, os.WriteFile(path, bytes.Repeat([]byte("a"), size), 0o600))
		sum := func() uint64 {
			t.Helper()
			held, err := Fingerprint(path)
			must(t, err)
			return held
		}
		before := sum()
		if again := sum(); again != before {
			t.Errorf("%d bytes: %x, and then %x", size, before, again)
		}
		// Equal content in another inode.
		must(t, os.WriteFile(path+".new", bytes.Repeat([]byte("a"), size), 0o600))
		must(t, os.Rename(path+".new", path))
		if same := sum() == before; same != read {
			t.Errorf("%d bytes: the same after an equal one took its place: %t", size, same)
		}
	}
}

// With Options.Access a path is a file: a folder there is not listed.
func TestAccess_FoldersAreNotListed(t *testing.T) {
	path := filepath.Join(tempDir(t), "ca.pem")
	must(t, os.Mkdir(path, 0o700))
	options := testOptions()
	options.Access = true
	watcher := run(t, options, path)
	before, err := Fingerprint(path)
	must(t, err)
	write(t, filepath.Join(path, "inside"), "one")
	quiet(t, watcher)
	if after, err := Fingerprint(path); err != nil || after != before {
		t.Errorf("%x, and with a file in it %x, %v", before, after, err)
	}
	must(t, os.RemoveAll(path))
	write(t, path, "one")
	if told := next(t, watcher); len(told) != 1 || told[0] != path {
		t.Errorf("told %q", told)
	}
	if after, err := Fingerprint(path); err != nil || after == before {
		t.Errorf("%x, and as a file %x, %v", before, after, err)
	}
}
