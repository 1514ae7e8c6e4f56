package api

import (
	"fmt"
	"os/user"
	"slices"
	"strconv"

	"outrider.org/outrider/agent/unixpeer"
)

// AccessRule decides which users may change the proxy and read the configuration. Every user may
// read the status.
type AccessRule struct {
	UID   uint32 // user of the agent, always privileged
	Group string // members may perform restricted operations; "" = nobody
	// LookupGroup returns the GID of a group; nil = os/user. It is called for every restricted
	// request, so a group created after the agent's start is found.
	LookupGroup func(name string) (uint32, error)
}

// privileged reports whether the peer is root or the agent's own user.
func (r AccessRule) privileged(peer unixpeer.Peer) bool {
	return peer.UID == 0 ||
		peer.UID == r.UID
}

// Restricted operations, as they appear in refusals.
const (
	changes = "changes the proxy"
	shows   = "shows the configuration"
)

// refuse returns an error with status 403 if the peer may not perform the operation, else nil.
func (r AccessRule) refuse(peer unixpeer.Peer, does string) *Error {
	if r.privileged(peer) {
		return nil
	}
	if r.Group != "" {
		lookup := r.LookupGroup
		if lookup == nil {
			lookup = lookupGroup
		}
		if group, err := lookup(r.Group); err == nil &&
			(peer.GID == group || slices.Contains(peer.Groups, group)) {
			return nil
		}
	}
	who := "root and the agent's own user"
	if r.Group != "" {
		who = "root, the agent's own user and members of group " + r.Group
	}
	message := fmt.Sprintf("not authorised: this %s; %s may", does, who)
	return &Error{Status: 403, Message: message}
}

func lookupGroup(name string) (uint32, error) {
	group, err := user.LookupGroup(name)
	if err != nil {
		return 0, err
	}
	number, err := strconv.ParseUint(group.Gid, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("group %s has an invalid GID %q: %w", name, group.Gid, err)
	}
	return uint32(number), nil
}
