package access

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
)

// stranger has no rights but those of every user; 64322 is its supplementary group.
var stranger = User{UID: 64321, GID: 64321, Groups: []uint32{64322}}

// run runs a command, which must succeed.
func run(t *testing.T, name string, arguments ...string) {
	t.Helper()
	if out, err := exec.Command(name, arguments...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v: %s", name, arguments, err, out)
	}
}

// openFolder returns a folder that everybody may enter.
func openFolder(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("/tmp", "access")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	run(t, "chmod", "755", folder)
	return folder
}

func TestCheckAs(t *testing.T) {
	folder := openFolder(t)
	shell := exec.Command("sh", "-ec", `
		umask 022
		touch public private group acl-opens acl-closes acl-masked acl-group
		chmod 600 private acl-opens acl-group; chmod 640 group; chgrp 64322 group
		setfacl -m u:64321:r acl-opens
		setfacl -m u:64321:- acl-closes
		setfacl -m u:64321:r,m:- acl-masked; chmod o= acl-masked
		setfacl -m g:64322:r acl-group
		mkdir closed acl-open acl-shut listless
		touch closed/file acl-open/file acl-shut/file listless/file
		chmod 700 closed acl-open; setfacl -m u:64321:x acl-open; setfacl -m u:64321:r acl-shut
		chmod 711 listless
		ln -s private link; ln -s ../`+filepath.Base(folder)+`/closed/file into; ln -s loop loop
		mkfifo fifo; chmod 600 fifo`)
	for name, mode := range map[string]os.FileMode{"socket": 0o602, "socket-closed": 0o604} {
		listener, err := net.Listen("unix", filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = listener.Close() }()
		if err := os.Chmod(filepath.Join(folder, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	shell.Dir = folder
	if out, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, want := range map[string]Result{
		"public":        {Readable: true, ResolvedPath: "public"},
		"private":       {ResolvedPath: "private"},
		"group":         {Readable: true, ResolvedPath: "group"},
		"acl-opens":     {Readable: true, ResolvedPath: "acl-opens"},
		"acl-closes":    {ResolvedPath: "acl-closes"},
		"acl-masked":    {ResolvedPath: "acl-masked"},
		"acl-group":     {Readable: true, ResolvedPath: "acl-group"},
		"closed":        {ResolvedPath: "closed"},
		"closed/file":   {DeniedDirectory: "closed", ResolvedPath: "closed/file"},
		"acl-open/file": {Readable: true, ResolvedPath: "acl-open/file"},
		"socket-closed": {ResolvedPath: "socket-closed"},
		"acl-shut/file": {DeniedDirectory: "acl-shut", ResolvedPath: "acl-shut/file"},
		"listless":      {ResolvedPath: "listless"},
		"listless/file": {Readable: true, ResolvedPath: "listless/file"},
		"link":          {ResolvedPath: "private"},
		"socket":        {Readable: true, ResolvedPath: "socket"},
		"into":          {DeniedDirectory: "closed", ResolvedPath: "closed/file"},
		"fifo":          {ResolvedPath: "fifo"},
	} {
		path := filepath.Join(folder, name)
		got, err := CheckAs(stranger, path)
		want.ResolvedPath = filepath.Join(folder, want.ResolvedPath)
		if want.DeniedDirectory != "" {
			want.DeniedDirectory = filepath.Join(folder, want.DeniedDirectory)
		} else {
			var status unix.Stat_t
			if err := unix.Stat(path, &status); err != nil {
				t.Fatal(err)
			}
			want.Device, want.Inode = status.Dev, status.Ino
		}
		if got != want || err != nil {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, want)
		}
		if got, err := Check(path); !got.Readable || err != nil {
			t.Errorf("%s: root: %+v, %v", name, got, err)
		}
	}
	for name, want := range map[string]error{"missing": unix.ENOENT, "public/file": unix.ENOTDIR,
		"loop": unix.ELOOP} {
		got, err := CheckAs(stranger, filepath.Join(folder, name))
		if got != (Result{}) || err == nil || !strings.HasSuffix(err.Error(), want.Error()) {
			t.Errorf("%s: %+v, %v; want %v", name, got, err, want)
		}
	}
}

// CheckAs must not change the user of the program's other threads.
func TestCheckAs_ChangesNoOtherThread(t *testing.T) {
	if _, err := CheckAs(stranger, "/"); err != nil {
		t.Fatal(err)
	}
	parts.Eventually(t, time.Minute, "no thread of the stranger is left", func() bool {
		threads, err := filepath.Glob("/proc/self/task/*/status")
		if err != nil || len(threads) == 0 {
			t.Fatal(threads, err)
		}
		return !slices.ContainsFunc(threads, func(thread string) bool {
			status, _ := os.ReadFile(thread)
			return strings.Contains(string(status), "64321")
		})
	})
}
