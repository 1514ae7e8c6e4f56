package blueprint

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"outrider.org/outrider/agent/access"
)

// configuration has the extensions of files that the operators' group may read. Other files may be
// keys or tokens, which only one user may read.
var configuration = []string{".toml", ".yaml", ".yml", ".json"}

// fix returns the commands that let the user read a file or directory. final is path without
// symbolic links. open reports that the agent has opened the file on behalf of the user.
func (r *UserAccess) fix(path, final string, open bool) string {
	direct := path == final
	info, err := os.Stat(path)
	if err != nil {
		return r.copyOf(path, final)
	}
	owner := info.Sys().(*syscall.Stat_t)
	share := func(group, mode string) string {
		return fmt.Sprintf("chgrp %s %s; chmod %s %s", group, path, mode, path)
	}
	switch group := r.groupOf(owner.Uid); {
	case info.IsDir():
		return share(r.group, "750")
	case info.Mode().Type() == os.ModeSocket:
		return share(r.group, "660")
	case slices.Contains(configuration, filepath.Ext(path)):
		return share(r.group, "640")
	case open:
		return share(r.group, "440")
	case direct && group != "": // Envoy's user owns the file; the agent reads it for Envoy
		return share(group, "440")
	case direct && (owner.Uid == 0 || owner.Uid == r.uid) && info.Mode()&0o077 == 0:
		return fmt.Sprintf("chown %s %s; chmod 400 %s", r.name, path, path)
	}
	return r.copyOf(path, final) // other programs use the file, or replace the target of the link
}

// groupOf returns the name of a user's primary group if r is a member of it, else "". It returns ""
// for root and for r's own user.
func (r *UserAccess) groupOf(uid uint32) string {
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

// ownFolder is the folder of Outrider's own files.
const ownFolder = "/etc/outrider"

// ours reports whether a path is Outrider's own.
func ours(path string) bool { return path == ownFolder || strings.HasPrefix(path, ownFolder+"/") }

// closed returns the reason and the fix if the user may not enter a folder on the way to the file.
// The fix does not open folders of other programs: certbot, for example, closes its folders because
// they contain keys.
func (r *UserAccess) closed(path string, found access.Result) string {
	why := fmt.Sprintf("the user may not enter %s; ", found.DeniedDirectory)
	if found.ResolvedPath != path {
		why = "it leads to " + found.ResolvedPath + ", and " + why
	}
	if ours(found.DeniedDirectory) {
		why += "chmod o+x " + found.DeniedDirectory
	} else {
		why += r.copyOf(path, found.ResolvedPath)
	}
	return fmt.Sprintf("user %s cannot read %s: %s", r.name, path, why)
}

// copyOf returns the command that gives the user a copy of a file that other programs use or
// replace. final is path without symbolic links.
func (r *UserAccess) copyOf(path, final string) string {
	from, to, what := path, filepath.Join(ownFolder, filepath.Base(path)),
		"install a copy, also after each change, and name it"
	if path != final && ours(path) {
		from, to, what = final, path, "replace the link by a copy, also after each change"
	}
	return fmt.Sprintf("%s: install -o %s -m 400 %s %s (\"outrider example show certbot\" has a "+
		"deploy hook for certbot)", what, r.name, from, to)
}
