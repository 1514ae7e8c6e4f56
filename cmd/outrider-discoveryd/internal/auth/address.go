package auth

import (
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"outrider.org/outrider/agent/admission"
)

const (
	maxOfAddress = maxConcurrent / 2 // concurrent token reviews for one address
	refusedRate  = 2                 // refused token reviews per second for one address
	// burst of refused token reviews for one address
	refusedAtOnce = 20
	maxAddresses  = 4096
)

// addresses bounds the number of invalid tokens that the clients of one address can make this
// program send to the API server for review. An address is an IPv4 address, an IPv6 /64 network or
// a user of this host.
type addresses struct {
	mu    sync.Mutex
	known map[admission.ClientKey]*address
	other *address  // shared state of all addresses beyond maxAddresses
	swept time.Time // time of the last removal of idle addresses
}

// address is the state of the clients of one address.
type address struct {
	turns chan struct{} // holds an element for each running review
	rate  *rate.Limiter // limits the rate of refused reviews
}

func newAddresses() addresses {
	return addresses{known: map[admission.ClientKey]*address{}, other: newAddress()}
}

func newAddress() *address {
	return &address{turns: make(chan struct{}, maxOfAddress),
		rate: rate.NewLimiter(refusedRate, refusedAtOnce)}
}

// of returns the state of the clients of an address.
func (a *addresses) of(key admission.ClientKey) *address {
	a.mu.Lock()
	defer a.mu.Unlock()
	if found := a.known[key]; found != nil {
		return found
	}
	if now := time.Now(); len(a.known) >= maxAddresses && now.Sub(a.swept) >= time.Second {
		a.swept = now
		maps.DeleteFunc(a.known, func(_ admission.ClientKey, of *address) bool { return of.idle() })
	}
	if len(a.known) >= maxAddresses {
		return a.other
	}
	made := newAddress()
	a.known[key] = made
	return made
}

// idle reports whether the state equals that of a new address, and can be dropped.
func (a *address) idle() bool { return len(a.turns) == 0 && a.rate.Tokens() >= refusedAtOnce }

// mayTry reports whether the rate of refused reviews permits another review.
func (a *address) mayTry() bool { return a.rate.Tokens() >= 1 }

// refused counts a refused review of the address.
func (a *address) refused() { a.rate.Allow() }
