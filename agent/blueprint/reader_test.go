package blueprint

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"outrider.org/outrider/agent/access"
)

// newReader returns a UserAccess that checks access in a thread of this process that has the rights
// of the user. The user's primary group has the name group and the GID uid.
func newReader(name, group string, uid uint32, groups ...uint32) *UserAccess {
	as := access.User{UID: uid, GID: uid, Groups: groups}
	return &UserAccess{name: name, group: group, uid: uid, groups: append([]uint32{uid}, groups...),
		check: func(path string) (access.Result, error) { return access.CheckAs(as, path) }}
}

func TestReader_Denied(t *testing.T) {
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
	yaml, nobodys := write(open, "mesh.yaml", 0o600), write(open, "nobodys", 0o400)
	if err := os.Chown(nobodys, 65534, 65534); err != nil {
		t.Fatal(err)
	}
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
	intoClosed := filepath.Join(open, "into")
	if err := os.Symlink("../"+filepath.Base(filepath.Dir(hidden))+"/hidden", intoClosed); err != nil {
		t.Fatal(err)
	}
	const copied = "install a copy, also after each change, and name it: install -o envoy -m 400 "
	const hook = " (\"outrider example show certbot\" has a deploy hook for certbot)"
	stranger := newReader("envoy", "envoys", 64321)
	member := newReader("envoy", "envoys", 64321, uint32(os.Getgid()))
	owner := newReader("owner", "owners", uint32(os.Getuid()))
	for _, c := range []struct {
		reader     *UserAccess
		path, want string
	}{
		{nil, private, ""},
		{owner, private, ""},
		{stranger, public, ""},
		{stranger, filepath.Join(open, "missing"), ""},
		{stranger, private, "user envoy cannot read " + private + ": chown envoy " + private +
			"; chmod 400 " + private},
		{stranger, yaml, "user envoy cannot read " + yaml + ": chgrp envoys " + yaml +
			"; chmod 640 " + yaml},
		{stranger, link, "user envoy cannot read " + link + ": " + copied + link +
			" /etc/outrider/link" + hook},
		{stranger, folder, "user envoy cannot read " + folder + ": chgrp envoys " + folder +
			"; chmod 750 " + folder},
		{stranger, shared, "user envoy cannot read " + shared + ": " + copied + shared +
			" /etc/outrider/shared" + hook},
		{member, shared, ""},
		{member, private, "user envoy cannot read " + private + ": chown envoy " + private +
			"; chmod 400 " + private},
		// the agent reads the file on behalf of Envoy, whose user owns it
		{newReader("outrider", "outrider", 64322, 65534), nobodys, "user outrider cannot read " +
			nobodys + ": chgrp nogroup " + nobodys + "; chmod 440 " + nobodys},
		{stranger, hidden, "user envoy cannot read " + hidden + ": the user may not enter " + closed +
			"; " + copied + hidden + " /etc/outrider/hidden" + hook},
		{stranger, intoClosed, "user envoy cannot read " + intoClosed + ": it leads to " + hidden +
			", and the user may not enter " + closed + "; " + copied + intoClosed +
			" /etc/outrider/into" + hook},
	} {
		if got := c.reader.ReadDenialReason(c.path); got != c.want {
			t.Errorf("%s: %q, want %q", c.path, got, c.want)
		}
	}
	stranger.HiddenDirectories = []string{filepath.Dir(public) + " (ProtectHome=yes)"}
	if got, want := stranger.ReadDenialReason(public),
		"user envoy cannot read "+public+": its unit does not see "+filepath.Dir(
			public)+" (ProtectHome=yes); move it to another folder, such as /etc/outrider"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := LookupUserAccess("nobody").ReadDenialReason(shared); got == "" {
		t.Error("nobody may read a file of another group")
	}
	if got := LookupUserAccess("nobody",
		strconv.Itoa(os.Getgid())).ReadDenialReason(shared); got != "" {
		t.Errorf("with the group of the file: %s", got)
	}
	if LookupUserAccess("no-such-user") != nil || LookupUserAccess("root") == nil {
		t.Error("users are not found as they are")
	}
}

func TestReader_DeniedOpen(t *testing.T) {
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
	list := func(path, entry string) string {
		if out, err := exec.Command("setfacl", "-m", entry, path).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return path
	}
	public, private := write("public", 0o644), write("private", 0o600)
	stranger := newReader("64321", "64321", 64321)
	for name, c := range map[string]struct {
		path   string
		opened func() // called between the opening of the file and ReadDenialReasonOfOpenedFile
		want   string // part of the reason; "": access is not denied
	}{
		"public":           {path: public},
		"private":          {path: private, want: "chgrp 64321 " + private + "; chmod 440"},
		"closed by a list": {path: list(write("shut", 0o644), "u:64321:-"), want: "chmod 440"},
		"opened by a list": {path: list(write("lent", 0o600), "u:64321:r")},
		"link, swapped": {link(private, folder+"/link"), func() {
			link(public, folder+"/link")
		}, "cannot find out"},
		"link, opened": {link(public, folder+"/opened"), func() {
			link(private, folder+"/opened")
		}, "chmod 440"},
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
		got := stranger.ReadDenialReasonOfOpenedFile(file)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if got := UserAccessOfProcess(nil, 0, 0).ReadDenialReasonOfOpenedFile(file); got != "" {
			t.Errorf("%s: root: %s", name, got)
		}
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A key must be readable by one user only: not by the agent's group, whose members are people, and
// not by everybody.
func TestReader_SaysWhoElseMayReadAKey(t *testing.T) {
	folder := t.TempDir()
	agent := &UserAccess{name: "outrider", group: "outrider", uid: 64321, groups: []uint32{64321}}
	for _, c := range []struct {
		mode os.FileMode
		gid  int
		want string
	}{
		{0o400, 64321, ""}, {0o600, 0, ""}, {0o640, 64322, ""}, {0o640, 0, ""},
		{0o640, 64321, "group outrider may read "}, {0o644, 0, "everybody may read "},
	} {
		path := filepath.Join(folder, "key")
		_ = os.Remove(path)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Chown(path, 0, c.gid), os.Chmod(path, c.mode)); err != nil {
			t.Fatal(err)
		}
		want := c.want
		if want != "" {
			want += path + ": chown outrider " + path + "; chmod 400 " + path
		}
		if got := agent.ReadableByOthersReason(path); got != want {
			t.Errorf("%o %d: %q, want %q", c.mode, c.gid, got, want)
		}
	}
	if got := agent.ReadableByOthersReason(filepath.Join(folder, "missing")); got != "" {
		t.Errorf("missing: %q", got)
	}
}

// The suggested fix copies a file only into Outrider's own folder. It does not change the
// permissions of any other folder.
func TestReader_LeavesFoldersOfOthersClosed(t *testing.T) {
	r := &UserAccess{name: "outrider"}
	const hook = " (\"outrider example show certbot\" has a deploy hook for certbot)"
	link, key := ownFolder+"/credentials/c/tls.key", "/etc/letsencrypt/live/c/privkey.pem"
	for _, c := range []struct{ path, final, closed, want string }{
		{link, key, "/etc/letsencrypt/live", "it leads to " + key + ", and the user may not enter " +
			"/etc/letsencrypt/live; replace the link by a copy, also after each change: " +
			"install -o outrider -m 400 " + key + " " + link + hook},
		{key, key, "/etc/letsencrypt/live", "the user may not enter /etc/letsencrypt/live; install " +
			"a copy, also after each change, and name it: install -o outrider -m 400 " + key + " " +
			ownFolder + "/privkey.pem" + hook},
		{link, link, ownFolder + "/credentials", "the user may not enter " + ownFolder +
			"/credentials; chmod o+x " + ownFolder + "/credentials"},
	} {
		want := "user outrider cannot read " + c.path + ": " + c.want
		if got := r.closed(c.path,
			access.Result{ResolvedPath: c.final, DeniedDirectory: c.closed}); got != want {
			t.Errorf("%s: %q, want %q", c.path, got, want)
		}
	}
}
