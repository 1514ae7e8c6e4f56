package sts

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

const (
	// mostTokens bounds the number of cached tokens.
	mostTokens = 64
	// refreshBefore is the remaining lifetime at which a new token is requested. For a token with
	// less than twice this lifetime, it is half of the lifetime.
	refreshBefore = 5 * time.Minute
	// usable is the remaining lifetime that clients need: gRPC discards a token that expires
	// earlier.
	usable = 65 * time.Second
)

// cache caches access tokens by the hash of their request. Concurrent equal requests share one
// exchange, which continues even if all its clients disconnect.
type cache struct {
	// context of Server.Run: an exchange must not end with the request that started it
	ctx      context.Context
	exchange func(context.Context, Request) (Token, error)
	group    singleflight.Group

	mu     sync.Mutex
	tokens map[hash]entry
}

type hash [sha256.Size]byte

type entry struct {
	Token
	issued time.Time
}

func newCache(
	ctx context.Context, exchange func(context.Context, Request) (Token, error),
) *cache {
	return &cache{ctx: ctx, exchange: exchange, tokens: map[hash]entry{}}
}

// get returns a token for the request, from the cache or by an exchange. If the exchange fails, it
// returns the cached token as long as that is usable.
func (c *cache) get(ctx context.Context, request Request) (Token, error) {
	key := hash(sha256.Sum256(fmt.Appendf(nil, "%q", []string{request.SubjectToken,
		request.SubjectTokenType, request.Audience, request.Scope})))
	known := c.lookup(key)
	if time.Until(known.Expiry) > min(refreshBefore, known.Expiry.Sub(known.issued)/2) {
		return known.Token, nil
	}
	result := c.group.DoChan(string(key[:]), func() (any, error) {
		token, err := c.exchange(c.ctx, request)
		// removes the monotonic time, which does not advance during suspend
		token.Expiry = token.Expiry.Round(0)
		if err == nil {
			c.store(key, entry{token, time.Now()})
		}
		return token, err
	})
	select {
	case r := <-result:
		if r.Err != nil && time.Until(known.Expiry) > usable {
			return known.Token, nil
		}
		return r.Val.(Token), r.Err
	case <-ctx.Done():
		return Token{}, ctx.Err()
	}
}

func (c *cache) lookup(key hash) entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tokens[key]
}

// store adds a token. If the cache is full, it removes the token that expires first.
func (c *cache) store(key hash, token entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tokens[key] = token
	if len(c.tokens) <= mostTokens {
		return
	}
	first := key
	for other, token := range c.tokens {
		if token.Expiry.Before(c.tokens[first].Expiry) {
			first = other
		}
	}
	delete(c.tokens, first)
}

// status describes a cached token without its content.
type status struct {
	Issued time.Time `json:"issue_time"`
	Expiry time.Time `json:"expire_time"`
}

// list describes the cached tokens that have not expired, in the order of expiry.
func (c *cache) list() []status {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := []status{}
	for _, token := range c.tokens {
		if time.Now().Before(token.Expiry) {
			all = append(all, status{token.issued.UTC(), token.Expiry.UTC()})
		}
	}
	slices.SortFunc(all, func(a, b status) int { return a.Expiry.Compare(b.Expiry) })
	return all
}
