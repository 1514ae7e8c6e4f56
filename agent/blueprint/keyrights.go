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

// Shared returns who else may read a key or token of the user, and the fix; "" if nobody may, or if
// that is unknown. The user's group counts, since the members of the agent's are people who may see
// the configuration. It may block.
func (r *Reader) Shared(path string) string {
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
