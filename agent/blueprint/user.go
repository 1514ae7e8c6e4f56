package blueprint

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"

	"outrider.org/outrider/agent/config"
)

// EnvoyUser returns the user as which Envoy and its keeper run in the foreground: [envoy] user, if
// this process is root and the user exists. nil means the user of this process.
func EnvoyUser(c *config.Config) (*syscall.Credential, error) {
	if os.Geteuid() != 0 || c.Envoy.User == "" {
		return nil, nil
	}
	found, err := user.Lookup(c.Envoy.User)
	if _, unknown := errors.AsType[user.UnknownUserError](err); unknown {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up [envoy] user %q: %w", c.Envoy.User, err)
	}
	uid, err := strconv.ParseUint(found.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("parse the UID of user %s: %w", c.Envoy.User, err)
	}
	gid, err := strconv.ParseUint(found.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("parse the GID of user %s: %w", c.Envoy.User, err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}
