package relay

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"outrider.org/outrider/agent/condition"
)

// AddressInUse holds the address of the upstream server that Envoys currently use. Its zero value
// is ready to use. It is safe for concurrent use.
type AddressInUse struct{ last atomic.Pointer[target] }

// ConfiguredAddress returns the configured address that is in use. Without a connection, it is the
// address of the last one; "" before any server has responded.
func (u *AddressInUse) ConfiguredAddress() string { return u.target().address }

func (u *AddressInUse) target() target {
	if t := u.last.Load(); t != nil {
		return *t
	}
	return target{}
}

// UnusedAddress is a configured address of the upstream server that is not in use.
type UnusedAddress struct {
	Address string
	// why an Envoy could not use the address, or stopped using it; "": no Envoy has tried it
	Error string
	Since time.Time // when the error occurred
}

// addressStatus returns the address in use, and the other addresses with the reasons why they are
// not in use. Without a connection, the first result is the address of the last connection; before
// the first connection, it lists all addresses, separated by commas. The caller must hold mu.
func (s *Server) addressStatus() (address string, unused []UnusedAddress) {
	all := s.upstream.Load().Addresses
	address = s.inUse.ConfiguredAddress()
	if !slices.Contains(all, address) {
		return strings.Join(all, ", "), nil
	}
	for _, other := range all {
		if other == address {
			continue
		}
		why := s.unused[other]
		why.Address = other
		unused = append(unused, why)
	}
	return address, unused
}

// leaves records the error because of which an Envoy's session stops using an address.
func (s *Server) leaves(session *session, address string, why error) {
	if session.share != s.envoys {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unused[address] = UnusedAddress{Error: why.Error(), Since: time.Now()}
}

// uses records that an upstream server has responded on an Envoy's session. If the address in use
// changes, it logs that.
func (s *Server) uses(session *session, now target) {
	if session.share != s.envoys {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.inUse.target()
	why := s.unused[before.address]
	delete(s.unused, now.address)
	if now == before {
		return
	}
	s.inUse.last.Store(&now)
	if before.address == now.address || before.address == "" && len(session.upstream.Addresses) == 1 {
		s.options.Logger.Debug("connected to the upstream server", "address", now.address,
			"ip", now.dial)
		return
	}
	if before.address == "" {
		s.options.Logger.Info("first connection to upstream server", "address", now.address,
			"ip", now.dial)
		return
	}
	s.options.Logger.Info("moved to another upstream server", "address", now.address,
		"ip", now.dial, "before", before.address, "reason", why.Error)
	sentence := fmt.Sprintf("the upstream server is %s, no longer %s", now.address, before.address)
	if why.Error != "" {
		sentence += ": " + why.Error
	}
	s.options.Conditions.Publish(condition.Event{Kind: condition.KindDiscoveryMoved,
		Sentence: sentence,
		Fields: map[string]string{"address": now.address, "before": before.address,
			"reason": why.Error}})
}
