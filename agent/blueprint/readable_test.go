package blueprint

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

func TestReader_SaysWhatItCannotReadAndTheCure(t *testing.T) {
	open, closed := t.TempDir(), t.TempDir()
	for folder := open; folder != "/"; folder = filepath.Dir(folder) {
		if folder != "/tmp" {
			if err := os.Chmod(folder, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	write := func(folder, name string, mode os.FileMode) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	public, private, shared := write(open, "public", 0o644), write(open, "private", 0o600),
		write(open, "shared", 0o640)
	hidden, folder, link := write(closed, "hidden", 0o644), filepath.Join(open, "folder"),
		filepath.Join(open, "link")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(private, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	stranger := &Reader{name: "envoy", group: "envoys", uid: 64321, groups: []uint32{64321}}
	member := &Reader{name: "envoy", group: "envoys", uid: 64321,
		groups: []uint32{64321, uint32(os.Getgid())}}
	owner := &Reader{name: "owner", group: "owners", uid: uint32(os.Getuid())}
	for _, c := range []struct {
		reader     *Reader
		path, want string
	}{
		{nil, private, ""},
		{owner, private, ""},
		{stranger, public, ""},
		{stranger, filepath.Join(open, "missing"), ""},
		{stranger, private, "user envoy cannot read " + private + ": chgrp envoys " + private +
			"; chmod 640 " + private},
		{stranger, link, "user envoy cannot read " + link + ": chgrp envoys " + link +
			"; chmod 640 " + link},
		{stranger, folder, "user envoy cannot read " + folder + ": chgrp envoys " + folder +
			"; chmod 750 " + folder},
		{stranger, shared, "user envoy cannot read " + shared + ": chgrp envoys " + shared +
			"; chmod 640 " + shared},
		{member, shared, ""},
		{member, private, "user envoy cannot read " + private + ": chgrp envoys " + private +
			"; chmod 640 " + private},
		{stranger, hidden, "user envoy cannot read " + hidden + ": it may not enter " + closed +
			"; move the file to a folder that everyone may enter, such as /etc/outrider"},
	} {
		if got := c.reader.Denied(c.path); got != c.want {
			t.Errorf("%s: %q, want %q", c.path, got, c.want)
		}
	}
	stranger.Hidden = []string{filepath.Dir(public) + " (ProtectHome=yes)"}
	if got, want := stranger.Denied(public),
		"user envoy cannot read "+public+": its unit does not see "+filepath.Dir(
			public)+" (ProtectHome=yes); move it to another folder, such as /etc/outrider"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := LookupReader("nobody").Denied(shared); got == "" {
		t.Error("nobody may read a file of another group")
	}
	if got := LookupReader("nobody", strconv.Itoa(os.Getgid())).Denied(shared); got != "" {
		t.Errorf("with the group of the file: %s", got)
	}
	if LookupReader("no-such-user") != nil || LookupReader("root") == nil {
		t.Error("users are not found as they are")
	}
}
