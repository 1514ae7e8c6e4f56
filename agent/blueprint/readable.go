package blueprint

import (
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Reader is a user whose access to files is checked.
type Reader struct {
	Hidden []string // directories hidden by its unit, with the setting: "/home (ProtectHome=yes)"

	name, group string
	uid         uint32
	groups      []uint32
}

// LookupReader looks up a user by name or number; it returns nil if there is none. groups, by name
// or number, are additional groups of its unit (SupplementaryGroups=).
func LookupReader(name string, groups ...string) *Reader {
	found, err := user.Lookup(name)
	if err != nil {
		if found, err = user.LookupId(name); err != nil {
			return nil
		}
	}
	uid, err := strconv.ParseUint(found.Uid, 10, 32)
	if err != nil {
		return nil
	}
	r := &Reader{name: found.Username, group: found.Gid, uid: uint32(uid)}
	ids, err := found.GroupIds()
	if err != nil {
		ids = []string{found.Gid}
	}
	for _, group := range groups {
		if named, err := user.LookupGroup(group); err == nil {
			group = named.Gid
		}
		ids = append(ids, group)
	}
	for _, id := range ids {
		if gid, err := strconv.ParseUint(id, 10, 32); err == nil {
			r.groups = append(r.groups, uint32(gid))
		}
	}
	if group, err := user.LookupGroupId(found.Gid); err == nil {
		r.group = group.Name
	}
	return r
}

// Denied returns why the user cannot read a file or directory and, after "; ", how to fix it. It
// returns "" if the modes of the file and its parent directories allow reading, or if that cannot
// be determined, for example because of an access control list.
func (r *Reader) Denied(path string) string {
	if r == nil {
		return ""
	}
	for _, hidden := range r.Hidden {
		folder, setting, _ := strings.Cut(hidden, " ")
		if path == folder || strings.HasPrefix(path, folder+"/") {
			return fmt.Sprintf("user %s cannot read %s: its unit does not see %s %s; "+
				"move it to another folder, such as /etc/outrider", r.name, path, folder, setting)
		}
	}
	if r.uid == 0 {
		return ""
	}
	final, err := filepath.EvalSymlinks(path)
	if err != nil {
		return ""
	}
	for folder := filepath.Dir(final); ; folder = filepath.Dir(folder) {
		if allowed, known := r.may(folder, 1); known && !allowed {
			return fmt.Sprintf("user %s cannot read %s: it may not enter %s; "+
				"move the file to a folder that everyone may enter, such as /etc/outrider", r.name,
				path, folder)
		}
		if folder == filepath.Dir(folder) {
			break
		}
	}
	needs, mode := uint32(4), "640"
	if info, err := os.Stat(final); err == nil && info.IsDir() {
		needs, mode = 5, "750"
	}
	if allowed, known := r.may(final, needs); known && !allowed {
		return fmt.Sprintf("user %s cannot read %s: chgrp %s %s; chmod %s %s",
			r.name, path, r.group, path, mode, path)
	}
	return ""
}

// may reports whether the mode of a file grants the user all of rights (4 read, 2 write, 1
// execute). known is false if that cannot be determined.
func (r *Reader) may(path string, rights uint32) (allowed, known bool) {
	info, err := os.Stat(path)
	if err != nil {
		return false, false
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || hasACL(path) {
		return false, false
	}
	has := uint32(info.Mode() & fs.ModePerm)
	switch {
	case owner.Uid == r.uid:
		has >>= 6
	case slices.Contains(r.groups, owner.Gid):
		has >>= 3
	}
	return has&rights == rights, true
}

// hasACL reports whether a file has an access control list besides its mode.
func hasACL(path string) bool {
	size, err := unix.Getxattr(path, "system.posix_acl_access", nil)
	return err == nil && size > 0
}
