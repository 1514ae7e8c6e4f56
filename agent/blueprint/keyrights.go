package blueprint

import (
	"fmt"
	"os"
	"syscall"

	"outrider.org/outrider/agent/config"
)

// SecretFiles returns the paths of the keys and tokens that the agent reads.
func SecretFiles(c *config.Config) []string {
	var all []string
	for _, path := range []string{c.Identity.KeyFile, c.Identity.TokenFile,
		c.Tracing.AccessTokenFile} {
		if path != "" {
			all = append(all, path)
		}
	}
	return all
}

// ReadableByOthersReason returns who, other than the user, may read a key or token, and the fix. It
// returns "" if nobody may, or if that is unknown. The user's group counts as others: its members
// are people who may see the configuration but no keys. It may block.
func (r *UserAccess) ReadableByOthersReason(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	who := "everybody"
	switch {
	case !ok:
		return ""
	case info.Mode()&0o004 != 0:
	case info.Mode()&0o040 != 0 && owner.Gid != 0 && len(r.groups) > 0 && owner.Gid == r.groups[0]:
		who = "group " + r.group
	default:
		return ""
	}
	return fmt.Sprintf("%s may read %s: chown %s %s; chmod 400 %s", who, path, r.name, path, path)
}
