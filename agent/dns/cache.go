package dns

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// Bounds of a cache.
const (
	maxEntries  = 4096
	maxCached   = 4096 // total bytes of a cached response in all its orders of addresses
	maxPositive = time.Hour
	maxNegative = 5 * time.Minute
	maxOrders   = 16 // maximum number of cached orders of a response's addresses
)

// cache stores encoded responses by the query without its ID. The query contains everything that
// the response depends on: name, type, flags, EDNS.
type cache struct {
	mu      sync.RWMutex
	entries map[string]*entry
}

type entry struct {
	made, expires time.Time // expires is zero for responses that do not expire
	orders        [][]byte  // the response with its addresses in several orders
	next          atomic.Uint32
}

func newCache() *cache { return &cache{entries: map[string]*entry{}} }

// get appends to b the cached response to a query; it returns nil if there is none.
func (c *cache) get(b, query []byte) []byte {
	c.mu.RLock()
	e := c.entries[string(query[2:])]
	c.mu.RUnlock()
	if e == nil {
		return nil
	}
	order := e.orders[0]
	if len(e.orders) > 1 {
		order = e.orders[e.next.Add(1)%uint32(len(e.orders))]
	}
	if !e.expires.IsZero() {
		now := time.Now()
		if !now.Before(e.expires) {
			return nil
		}
		if age := uint32(now.Sub(e.made) / time.Second); age > 0 {
			order = aged(order, age)
		}
	}
	b = append(b, order...)
	copy(b, query[:2])
	return b
}

// aged returns a copy of a response whose TTLs are reduced by seconds.
func aged(response []byte, seconds uint32) []byte {
	var m dns.Msg
	if m.Unpack(response) != nil {
		return response // unreachable: this package encoded the response
	}
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			if h := rr.Header(); h.Rrtype != dns.TypeOPT {
				h.Ttl -= min(h.Ttl, seconds)
			}
		}
	}
	m.Compress = true
	if packed, err := m.Pack(); err == nil {
		return packed
	}
	return response
}

// put stores a response. With lifetime 0 it never expires. If the cache is full, put evicts an
// arbitrary entry.
func (c *cache) put(query []byte, lifetime time.Duration, orders ...[]byte) {
	if len(orders[0]) > maxCached {
		return
	}
	e := &entry{orders: orders}
	if lifetime > 0 {
		e.made = time.Now()
		e.expires = e.made.Add(lifetime)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.entries) >= maxEntries {
		for any := range c.entries {
			delete(c.entries, any)
			break
		}
	}
	c.entries[string(query[2:])] = e
}

// lifetime returns how long an upstream's response may be cached (RFC 2308 for negative ones); 0:
// not at all.
func lifetime(m *dns.Msg) time.Duration {
	if m.Truncated || m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
		return 0
	}
	positive := m.Rcode == dns.RcodeSuccess && len(m.Answer) > 0
	shortest, found := uint32(maxPositive/time.Second), positive
	if !positive {
		shortest = uint32(maxNegative / time.Second)
	}
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			if rr.Header().Rrtype == dns.TypeOPT {
				continue
			}
			shortest = min(shortest, rr.Header().Ttl)
			if soa, ok := rr.(*dns.SOA); ok && !positive {
				shortest, found = min(shortest, soa.Minttl), true
			}
		}
	}
	if !found {
		return 0
	}
	return time.Duration(shortest) * time.Second
}

// rotated encodes a response several times, with each of its first maxOrders addresses in first
// place, so that clients that use the first address spread over all of them. If that is too much to
// cache, it returns one order, chosen at random, and false.
func rotated(m *dns.Msg, size int) (orders [][]byte, all bool, err error) {
	var first int // index of the first address record: a CNAME may precede it
	for first < len(m.Answer) && m.Answer[first].Header().Rrtype == dns.TypeCNAME {
		first++
	}
	addresses := slices.Clone(m.Answer[first:])
	start, count := 0, min(max(len(addresses), 1), maxOrders)
	if len(addresses) > 1 {
		start = rand.IntN(len(addresses))
	}
	for i := range count {
		if len(addresses) > 1 {
			at := (start + i) % len(addresses)
			m.Answer = slices.Concat(m.Answer[:first], addresses[at:], addresses[:at])
		}
		packed, err := fit(m.Copy(), size)
		if err != nil {
			return nil, false, err
		}
		orders = append(orders, packed)
		if len(packed)*count > maxCached {
			return orders, false, nil
		}
	}
	return orders, true, nil
}

// fit encodes a response and truncates it to size bytes.
func fit(m *dns.Msg, size int) ([]byte, error) {
	m.Truncate(size)
	return m.Pack()
}
