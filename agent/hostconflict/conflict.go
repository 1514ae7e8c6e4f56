package hostconflict

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/sockdiag"
)

// AgentToCheck describes the agent whose configuration is checked.
type AgentToCheck struct {
	OtherAgent // with the claims (ports, sockets, base ID) of the configuration in force
	Name       string

	Config   *config.Loaded // the configuration to check
	EnvoyUID int            // user of the Envoys; -1: unknown
}

// ErrPortInUse is the cause of a conflict with a program other than an agent. The program may end,
// so a retry may succeed.
var ErrPortInUse = errors.New("another program uses a port")

// Report is the result of Host.Check.
type Report struct {
	Conflicts config.Errors // claims that running agents or other programs hold
	Warnings  config.Errors // claims in configurations of agents that do not run
}

// Check compares the claims that the configuration of self needs with the claims of other agents
// and with the listening sockets.
func (h Host) Check(ctx context.Context, self AgentToCheck) Report {
	var report Report
	known := map[string]bool{} // keys with a reported conflict
	wants := self.Config.Config.Claims()
	for _, other := range h.otherAgents(ctx, self.Config.Config.Paths.RuntimeDir) {
		var shared []string
		for _, want := range wants {
			for _, claim := range other.Claims {
				if !want.ConflictsWith(claim) {
					continue
				}
				switch {
				case !other.running && !other.Serves:
					shared = append(shared, fmt.Sprintf("%s (%s)", want.Key, want.Description()))
				case self.precedes(other, want):
				default:
					known[want.Key] = true
					fault := self.Config.KeyError(want.Key, describeConflict(want, claim, other),
						want.Fix())
					report.Conflicts = append(report.Conflicts, fault)
				}
			}
		}
		if len(shared) > 0 {
			message := fmt.Sprintf("%s, which does not run, is configured with the same %s",
				other, strings.Join(shared, ", "))
			fault := self.Config.KeyError("", message, "the two cannot run at the same time")
			report.Warnings = append(report.Warnings, fault)
		}
	}
	report.Conflicts = append(report.Conflicts, h.strangers(self, wants, known)...)
	return report
}

// CheckOtherPrograms returns an error that names the programs that listen on ports that Envoy
// needs. It queries only the kernel, not other agents.
func (h Host) CheckOtherPrograms(self AgentToCheck) error {
	if found := h.strangers(self, self.Config.Config.Claims(), nil); len(found) > 0 {
		return found
	}
	return nil
}

// precedes reports whether self has precedence over other for a claim that both need: self serves
// and already holds the claim, or neither serves and self became reachable earlier (ReachableTime).
// If both agents call it, exactly one has precedence.
func (s AgentToCheck) precedes(other otherAgent, want config.HostClaim) bool {
	switch {
	case s.Serves && s.has(want):
		return true
	case s.Serves || other.Serves:
		return false
	case s.Started.Equal(other.Started):
		return s.Name < other.name
	default:
		return !s.Started.IsZero() && s.Started.Before(other.Started)
	}
}

// has reports whether a claim of the agent's current configuration conflicts with want.
func (s AgentToCheck) has(want config.HostClaim) bool {
	return slices.ContainsFunc(s.Claims, want.ConflictsWith)
}

// envoyHas reports whether a listener of the agent's Envoy conflicts with want.
func (s AgentToCheck) envoyHas(want config.HostClaim) bool {
	return slices.ContainsFunc(s.Claims, func(claim config.HostClaim) bool {
		return claim.Envoy && claim.ConflictsWith(want)
	})
}

func describeConflict(want, claim config.HostClaim, other otherAgent) string {
	runs := "which runs"
	if !other.running {
		runs = "whose agent does not run, but whose Envoy does"
	}
	key := claim.Key
	if key != want.Key || claim.Description() != want.Description() {
		key = fmt.Sprintf("%s (%s)", claim.Key, claim.Description())
	}
	return fmt.Sprintf("%s is taken by %s of %s, %s", want.Description(), key, other, runs)
}

// strangers returns a conflict for each claim of Envoy on which another program listens. Sockets of
// Envoy's user are skipped: they belong to self's Envoy, to one that is ending, or to the Envoy of
// another agent, which Check reports by name.
func (h Host) strangers(self AgentToCheck, wants []config.HostClaim,
	known map[string]bool) config.Errors {
	sockets, err := h.Sockets()
	if err != nil {
		return nil //nolint:nilerr // Envoy reports an address that it cannot bind
	}
	var conflicts config.Errors
	for _, want := range wants {
		if !want.Envoy || known[want.Key] || self.Serves && self.envoyHas(want) {
			continue
		}
		for _, socket := range sockets {
			if int(socket.UID) == self.EnvoyUID || !want.ConflictsWith(claimOf(socket)) {
				continue
			}
			message := fmt.Sprintf("%s is taken: %s listens on %s", want.Description(),
				h.DescribeSocketOwner(socket),
				address(socket))
			fix := "end it, or give Envoy another port"
			// The agent closes its own old listeners only after the new epoch is live.
			if key := self.listensBy(socket); key != "" {
				message += ", as " + key + " in force says"
				fix = "put the change of " + key +
					" in force first, then this one, or give Envoy another port"
			}
			conflicts = append(conflicts, self.Config.KeyError(want.Key, message,
				fix).WithCause(ErrPortInUse))
			break
		}
	}
	return conflicts
}

// listensBy returns the configuration key because of which the agent itself, not its Envoy, listens
// on a socket; "" if it does not.
func (s AgentToCheck) listensBy(socket sockdiag.Socket) string {
	for _, claim := range s.Claims {
		if !claim.Envoy && claim.ConflictsWith(claimOf(socket)) {
			return claim.Key
		}
	}
	return ""
}

// address returns the address and port on which a socket listens, with IPv4-mapped addresses as
// IPv4.
func address(s sockdiag.Socket) netip.AddrPort {
	return netip.AddrPortFrom(s.Address.Addr().Unmap(), s.Address.Port())
}

// claimOf returns the address of a listening socket as a claim. [::] counts for IPv4 as well, even
// if the socket is IPv6-only.
func claimOf(s sockdiag.Socket) config.HostClaim {
	return config.HostClaim{Host: address(s).Addr().String(), Port: int(s.Address.Port())}
}

// userName returns the name of a user, or the number if it has none.
func userName(uid uint32) string {
	number := strconv.FormatUint(uint64(uid), 10)
	if found, err := user.LookupId(number); err == nil {
		return found.Username
	}
	return number
}

// ConflictingClaims describes those claims that another running agent has as well. It calls the
// function claims only if another agent, or an Envoy of another agent, runs.
func (h Host) ConflictingClaims(
	ctx context.Context, runtimeDir string, claims func() []config.HostClaim,
) []string {
	var shared []string
	for _, other := range h.otherAgents(ctx, runtimeDir) {
		if !other.running && !other.Serves {
			continue
		}
		for _, claim := range claims() {
			for _, theirs := range other.Claims {
				if claim.ConflictsWith(theirs) {
					shared = append(shared, fmt.Sprintf("%s: %s", claim.Key,
						describeConflict(claim, theirs, other)))
				}
			}
		}
	}
	return shared
}
