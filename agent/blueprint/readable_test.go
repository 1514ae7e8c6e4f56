package blueprint

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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

func TestReader_DeniesAnOpenFileThatItMayNotHave(t *testing.T) {
	folder := t.TempDir()
	for parent := folder; parent != "/tmp" && parent != "/"; parent = filepath.Dir(parent) {
		if err := os.Chmod(parent, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name string, mode os.FileMode) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := func(target, path string) string {
		_ = os.Remove(path)
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	list := func(path string) string {
		// version 2; user::rw-, user:64321:---, group::r--, mask::r--, other::r--
		if err := unix.Setxattr(path, "system.posix_acl_access", []byte("\x02\x00\x00\x00"+
			"\x01\x00\x06\x00\xff\xff\xff\xff\x02\x00\x00\x00\x41\xfb\x00\x00"+
			"\x04\x00\x04\x00\xff\xff\xff\xff\x10\x00\x04\x00\xff\xff\xff\xff"+
			"\x20\x00\x04\x00\xff\xff\xff\xff"), 0); err != nil {
			t.Fatal(err)
		}
		return path
	}
	public, private := write("public", 0o644), write("private", 0o600)
	stranger := RunningReader(64321, 64321)
	for name, c := range map[string]struct {
		path   string
		opened func() // between the opening and the decision
		want   string // contained; "": it may have the file
	}{
		"public":      {path: public},
		"private":     {path: private, want: "chgrp 64321 " + private + "; chmod 640"},
		"access list": {path: list(write("listed", 0o644)), want: "after setfacl -b " + folder},
		"link, swapped": {link(private, folder+"/link"), func() {
			link(public, folder+"/link")
		}, "chmod 640"},
		"file, replaced": {write("replaced", 0o600), func() {
			_ = os.Rename(write("next", 0o644), folder+"/replaced")
		}, "cannot find out"},
	} {
		file, err := os.Open(c.path)
		if err != nil {
			t.Fatal(err)
		}
		if c.opened != nil {
			c.opened()
		}
		got := stranger.DeniedOpen(file)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if got := RunningReader(0, 0).DeniedOpen(file); got != "" {
			t.Errorf("%s: root: %s", name, got)
		}
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	}
}
