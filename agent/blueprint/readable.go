package blueprint

import (
	"errors"
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

// RunningReader returns the user of a process that has these groups.
func RunningReader(uid int, groups ...int) *Reader {
	number := strconv.Itoa(uid)
	r := LookupReader(number)
	if r == nil {
		r = &Reader{name: number, group: strconv.Itoa(groups[0])}
	}
	r.uid, r.groups = uint32(uid), nil
	for _, gid := range groups {
		r.groups = append(r.groups, uint32(gid))
	}
	return r
}

// ThisUser returns the user of this process.
func ThisUser() *Reader {
	groups, _ := os.Getgroups() // without them the advice is the same
	return RunningReader(os.Geteuid(), append(groups, os.Getegid())...)
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
	path, err := filepath.Abs(path)
	if err != nil {
		return ""
	}
	to, ok := r.follow(path)
	switch {
	case !ok:
		return ""
	case to.closed != "":
		return r.barred(path, to)
	}
	return r.denied(path, to.final, to.final, false)
}

// DeniedOpen is Denied for the decision whether the user may have the content of an open file: it
// judges that file, whatever its name leads to by now, and denies what cannot be determined.
func (r *Reader) DeniedOpen(file *os.File) string {
	if r.uid == 0 {
		return ""
	}
	opened := fmt.Sprintf("/proc/self/fd/%d", file.Fd())
	final, err := os.Readlink(opened)
	if err == nil {
		err = sameFile(final, opened)
	}
	if err != nil {
		return fmt.Sprintf("cannot find out whether user %s can read %s: %v", r.name, file.Name(),
			err)
	}
	for folder := filepath.Dir(final); ; folder = filepath.Dir(folder) {
		switch allowed, known := r.may(folder, 1); {
		case !known:
			return r.unknown(file.Name(), folder)
		case !allowed:
			return r.barred(file.Name(), followed{final, folder})
		}
		if folder == filepath.Dir(folder) {
			break
		}
	}
	return r.denied(file.Name(), final, opened, true)
}

// sameFile returns an error if two paths are not those of one file.
func sameFile(one, other string) error {
	first, err := os.Stat(one)
	if err != nil {
		return err
	}
	second, err := os.Stat(other)
	if err == nil && !os.SameFile(first, second) {
		err = errors.New("it is being replaced")
	}
	return err
}

// unknown says that a file has an access control list.
func (r *Reader) unknown(path, at string) string {
	return fmt.Sprintf("cannot find out whether user %s can read %s: %s has an access control "+
		"list, which is not evaluated; use chgrp and chmod instead, after setfacl -b %s",
		r.name, path, at, at)
}

// denied judges the file at opened. path is what the user knows it as, final its path without
// links. If strict, what cannot be determined is denied.
func (r *Reader) denied(path, final, opened string, strict bool) string {
	needs := uint32(4)
	info, err := os.Stat(opened)
	if err == nil && info.IsDir() {
		needs = 5
	}
	allowed, known := r.may(opened, needs)
	if !known && strict {
		return r.unknown(path, path)
	}
	if known && !allowed && err == nil {
		return fmt.Sprintf("user %s cannot read %s: %s", r.name, path,
			r.fix(path, final, info, strict))
	}
	return ""
}

// configuration has the extensions of files that the operators' group may read. Others may be keys
// and tokens, which are for one user.
var configuration = []string{".toml", ".yaml", ".yml", ".json"}

// fix returns the commands that let the user read a file or directory; path leads to final. If
// open, the agent has opened the file for the user.
func (r *Reader) fix(path, final string, info fs.FileInfo, open bool) string {
	direct := path == final
	owner := info.Sys().(*syscall.Stat_t)
	share := func(group, mode string) string {
		return fmt.Sprintf("chgrp %s %s; chmod %s %s", group, path, mode, path)
	}
	switch group := r.groupOf(owner.Uid); {
	case info.IsDir():
		return share(r.group, "750")
	case slices.Contains(configuration, filepath.Ext(path)):
		return share(r.group, "640")
	case open:
		return share(r.group, "440")
	case direct && group != "": // Envoy's, which the agent reads for it
		return share(group, "440")
	case direct && (owner.Uid == 0 || owner.Uid == r.uid) && info.Mode()&0o077 == 0:
		return fmt.Sprintf("chown %s %s; chmod 400 %s", r.name, path, path)
	}
	return r.copyOf(path, final) // others use the file, or replace what the link leads to
}

// groupOf returns the primary group of another user than root if the reader is a member; else "".
func (r *Reader) groupOf(uid uint32) string {
	found, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil || uid == 0 || uid == r.uid {
		return ""
	}
	gid, err := strconv.ParseUint(found.Gid, 10, 32)
	if err != nil || !slices.Contains(r.groups, uint32(gid)) {
		return ""
	}
	group, err := user.LookupGroupId(found.Gid)
	if err != nil {
		return found.Gid
	}
	return group.Name
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

// hasACL reports whether a file has an access control list besides its mode, or may have one.
func hasACL(path string) bool {
	size, err := unix.Getxattr(path, "system.posix_acl_access", nil)
	none := errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP)
	return size > 0 || err != nil && !none
}
