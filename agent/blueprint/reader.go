package blueprint

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"outrider.org/outrider/agent/access"
)

// UserAccess is a user whose read access to files is checked.
type UserAccess struct {
	// HiddenDirectories are hidden by the user's unit, each with the setting that hides it:
	// "/home (ProtectHome=yes)".
	HiddenDirectories []string

	name, group string
	uid         uint32
	groups      []uint32
	check       AccessCheck
}

// AccessCheck checks an absolute path for a user; see access.Check.
type AccessCheck func(path string) (access.Result, error)

// LookupUserAccess looks up a user by name or number; it returns nil if there is none. groups, by
// name or number, are the groups that its unit adds (SupplementaryGroups=). Only root can check
// what another user can read.
func LookupUserAccess(name string, groups ...string) *UserAccess {
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
	r := &UserAccess{name: found.Username, group: found.Gid, uid: uint32(uid)}
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
	if os.Geteuid() == 0 && len(r.groups) > 0 {
		as := access.User{UID: r.uid, GID: r.groups[0], Groups: r.groups}
		r.check = func(path string) (access.Result, error) { return access.CheckAs(as, path) }
	}
	return r
}

// UserAccessOfProcess returns the UserAccess of a running process with this user and these groups.
// check checks paths for it; nil: paths cannot be checked.
func UserAccessOfProcess(check AccessCheck, uid int, groups ...int) *UserAccess {
	number := strconv.Itoa(uid)
	r := LookupUserAccess(number)
	if r == nil {
		r = &UserAccess{name: number, group: strconv.Itoa(groups[0])}
	}
	r.uid, r.groups, r.check = uint32(uid), nil, check
	for _, gid := range groups {
		r.groups = append(r.groups, uint32(gid))
	}
	return r
}

// OwnUserAccess returns the UserAccess for the user of this process.
func OwnUserAccess() *UserAccess {
	groups, _ := os.Getgroups() // on failure only the suggested fixes are less precise
	return UserAccessOfProcess(access.Check, os.Geteuid(), append(groups, os.Getegid())...)
}

// IsUncheckable reports whether the user's access cannot be checked because this process runs as a
// third, unprivileged user.
func (r *UserAccess) IsUncheckable() bool { return r != nil && r.uid != 0 && r.check == nil }

// ReadDenialReason returns why the user cannot read a file or directory and, after "; ", the fix.
// It returns "" if the user can read it, or if that is unknown.
func (r *UserAccess) ReadDenialReason(path string) string {
	if r == nil {
		return ""
	}
	for _, hidden := range r.HiddenDirectories {
		folder, setting, _ := strings.Cut(hidden, " ")
		if path == folder || strings.HasPrefix(path, folder+"/") {
			return fmt.Sprintf("user %s cannot read %s: its unit does not see %s %s; "+
				"move it to another folder, such as /etc/outrider", r.name, path, folder, setting)
		}
	}
	path, err := filepath.Abs(path)
	if err != nil || r.uid == 0 || r.check == nil {
		return ""
	}
	found, err := r.check(path)
	if err != nil {
		return ""
	}
	return r.explain(path, found, false)
}

// ReadDenialReasonOfOpenedFile is like ReadDenialReason for a file that the agent has opened. It
// also refuses if the access is unknown, or if the path now leads to another file.
func (r *UserAccess) ReadDenialReasonOfOpenedFile(file *os.File) string {
	if r.uid == 0 {
		return ""
	}
	path := file.Name()
	found, err := r.check(path)
	if err == nil {
		if why := r.explain(path, found, true); why != "" {
			return why
		}
		err = isFile(file, found)
	}
	if err != nil {
		return fmt.Sprintf("cannot find out whether user %s can read %s: %v", r.name, path, err)
	}
	return ""
}

// isFile returns an error unless an open file is the one that was checked.
func isFile(file *os.File, checked access.Result) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	status := info.Sys().(*syscall.Stat_t)
	if status.Dev != checked.Device || status.Ino != checked.Inode {
		return errors.New("the file is being replaced")
	}
	return nil
}

// explain returns why the user cannot read a path, with the fix; "" if the user can. open means
// that the agent has opened the file for the user.
func (r *UserAccess) explain(path string, found access.Result, open bool) string {
	switch {
	case found.DeniedDirectory != "":
		return r.closed(path, found)
	case found.Readable:
		return ""
	}
	return fmt.Sprintf("user %s cannot read %s: %s", r.name, path,
		r.fix(path, found.ResolvedPath, open))
}
