package auth

import (
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"outrider.org/outrider/agent/admission"
)

const (
	maxOfAddress = maxConcurrent / 2 // concurrent reviews for one address
	refusedRate  = 2                 // refused reviews per second for one address
	// burst of refused reviews for one address after an idle time
	refusedAtOnce = 20
	maxAddresses  = 4096
)

// addresses bounds the number of refused tokens that clients of one address can make the API server
// review. An address is a user of this host, an IPv4 address or a /64.
type addresses struct {
	mu    sync.Mutex
	known map[admission.Key]*address
	other *address  // shared state of all addresses beyond maxAddresses
	swept time.Time // time of the last removal of idle addresses
}

// address is the state of the clients of one address.
type address struct {
	turns chan struct{} // holds an element for each running review
	rate  *rate.Limiter // limits the rate of refused reviews
}

func newAddresses() addresses {
	return addresses{known: map[admission.Key]*address{}, other: newAddress()}
}

func newAddress() *address {
	return &address{turns: make(chan struct{}, maxOfAddress),
		rate: rate.NewLimiter(refusedRate, refusedAtOnce)}
}

// of returns the state of the clients of an address.
func (a *addresses) of(key admission.Key) *address {
	a.mu.Lock()
	defer a.mu.Unlock()
	if found := a.known[key]; found != nil {
		return found
	}
	if now := time.Now(); len(a.known) >= maxAddresses && now.Sub(a.swept) >= time.Second {
		a.swept = now
		maps.DeleteFunc(a.known, func(_ admission.Key, of *address) bool { return of.idle() })
	}
	if len(a.known) >= maxAddresses {
		return a.other
	}
	made := newAddress()
	a.known[key] = made
	return made
}

// idle reports whether the state of the address can be dropped, because it equals that of a new
// address.
func (a *address) idle() bool { return len(a.turns) == 0 && a.rate.Tokens() >= refusedAtOnce }

// mayTry reports whether a token of the address may be reviewed.
func (a *address) mayTry() bool { return a.rate.Tokens() >= 1 }

// refused counts a refused review of the address.
func (a *address) refused() { a.rate.Allow() }
