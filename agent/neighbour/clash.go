package neighbour

import (
	"cmp"
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

// Self is the agent that wants something.
type Self struct {
	Agent // Claims are what it has now
	Name  string

	Wants    *config.Loaded // to be put in force
	EnvoyUID int            // of the user whose Envoys these are; -1 = not known
}

// ErrTaken is the cause of a clash with a program that is no neighbour: it may end.
var ErrTaken = errors.New("a port is taken by another program")

// Report is what stands in the way.
type Report struct {
	Clashes  config.Errors // this cannot be had
	Warnings config.Errors // this could not be had if a neighbour ran that does not
}

// Check looks for what self cannot have.
func (h Host) Check(ctx context.Context, self Self) Report {
	var report Report
	taken := map[string]bool{} // keys whose owner is known
	wants := self.Wants.Config.Claims()
	for _, other := range h.neighbours(ctx, self.Wants.Config.Paths.RuntimeDir) {
		var shared []string
		for _, want := range wants {
			for _, claim := range other.Claims {
				if !want.Clashes(claim) {
					continue
				}
				switch {
				case !other.running && !other.Serves:
					shared = append(shared, fmt.Sprintf("%s (%s)", want.Key, want.Text()))
				case self.precedes(other, want):
				default:
					taken[want.Key] = true
					report.Clashes = append(report.Clashes, self.Wants.Fault(want.Key, clash(want, claim, other), "give one of the two another"))
				}
			}
		}
		if len(shared) > 0 {
			report.Warnings = append(report.Warnings, self.Wants.Fault("", fmt.Sprintf("%s, which does not run, is configured with the same %s", other,
				strings.Join(shared, ", ")), "the two cannot run at the same time"))
		}
	}
	report.Clashes = append(report.Clashes, h.strangers(self, wants, taken)...)
	return report
}

// Strangers looks for programs that listen where self's Envoy is to. It asks the kernel alone.
func (h Host) Strangers(self Self) error {
	if found := h.strangers(self, self.Wants.Config.Claims(), nil); len(found) > 0 {
		return found
	}
	return nil
}

// precedes tells whether self goes first where both want the same: it has it already and serves with it, or both only start and it
// could be asked earlier. Both sides decide alike.
func (s Self) precedes(other neighbour, want config.Claim) bool {
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

// has tells whether self's configuration in force claims the same already.
func (s Self) has(want config.Claim) bool {
	return slices.ContainsFunc(s.Claims, want.Clashes)
}

// envoyHas tells whether self's Envoy listens there already.
func (s Self) envoyHas(want config.Claim) bool {
	return slices.ContainsFunc(s.Claims, func(claim config.Claim) bool { return claim.Envoy && claim.Clashes(want) })
}

func clash(want, claim config.Claim, other neighbour) string {
	runs := "which runs"
	if !other.running {
		runs = "whose agent does not run, but whose Envoy does"
	}
	key := claim.Key
	if key != want.Key || claim.Text() != want.Text() {
		key = fmt.Sprintf("%s (%s)", claim.Key, claim.Text())
	}
	return fmt.Sprintf("%s is taken by %s of %s, %s", want.Text(), key, other, runs)
}

// strangers are those who listen where Envoy is to. What Envoy's own user listens on is an Envoy's: self's, one that is ending, or a
// neighbour's, which is known by name.
func (h Host) strangers(self Self, wants []config.Claim, taken map[string]bool) config.Errors {
	sockets, err := h.Sockets()
	if err != nil {
		return nil //nolint:nilerr // Envoy says it when it cannot listen
	}
	var clashes config.Errors
	for _, want := range wants {
		if !want.Envoy || taken[want.Key] || self.Serves && self.envoyHas(want) {
			continue
		}
		for _, socket := range sockets {
			if int(socket.UID) == self.EnvoyUID || !want.Clashes(claimOf(socket)) {
				continue
			}
			program := cmp.Or(h.Program(socket), "a program")
			message := fmt.Sprintf("%s is taken: %s of user %s listens on %s", want.Text(), program, userName(socket.UID), address(socket))
			cure := "end it, or give Envoy another port"
			if key := self.listensBy(socket); key != "" { // a new epoch comes first, and the agent's own listeners move when it is live
				message += ", as " + key + " in force says"
				cure = "put the change of " + key + " in force first, then this one, or give Envoy another port"
			}
			clashes = append(clashes, self.Wants.Fault(want.Key, message, cure).Because(ErrTaken))
			break
		}
	}
	return clashes
}

// listensBy is the key by which the agent itself, and not its Envoy, listens on a socket; "" = it does not.
func (s Self) listensBy(socket sockdiag.Socket) string {
	for _, claim := range s.Claims {
		if !claim.Envoy && claim.Clashes(claimOf(socket)) {
			return claim.Key
		}
	}
	return ""
}

// address returns where a socket listens; IPv4 within IPv6 as IPv4.
func address(s sockdiag.Socket) netip.AddrPort {
	return netip.AddrPortFrom(s.Address.Addr().Unmap(), s.Address.Port())
}

// claimOf returns a listening socket as a claim. [::] counts for IPv4 as well: the kernel does not
// say whether it is for IPv6 only.
func claimOf(s sockdiag.Socket) config.Claim {
	return config.Claim{Host: address(s).Addr().String(), Port: int(s.Address.Port())}
}

// userName returns the name of a user, or the number if it has none.
func userName(uid uint32) string {
	number := strconv.FormatUint(uint64(uid), 10)
	if found, err := user.LookupId(number); err == nil {
		return found.Username
	}
	return number
}

// Shared says which claims a neighbour that runs has as well. Without one nobody is asked for claims.
func (h Host) Shared(ctx context.Context, runtimeDir string, claims func() []config.Claim) []string {
	var shared []string
	for _, other := range h.neighbours(ctx, runtimeDir) {
		if !other.running && !other.Serves {
			continue
		}
		for _, claim := range claims() {
			for _, theirs := range other.Claims {
				if claim.Clashes(theirs) {
					shared = append(shared, fmt.Sprintf("%s: %s", claim.Key, clash(claim, theirs, other)))
				}
			}
		}
	}
	return shared
}
