package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"sync"
	"time"

	"outrider.org/outrider/agent/admission"
)

const (
	reviewTime    = 5 * time.Second // time-out of one review, and of the wait for a slot
	reviewedFor   = time.Minute     // how long a result is cached, at most until the token expires
	maxReviewed   = 4096            // maximum number of cached results
	maxConcurrent = 16              // maximum number of concurrent reviews
)

// reviews caches the results of successful calls of a TokenReviewer.
type reviews struct {
	turns     chan struct{}
	addresses addresses

	mu     sync.Mutex
	cached map[[sha256.Size]byte]reviewed
	swept  time.Time // time of the last removal of results that have expired
}

type reviewed struct {
	subject string
	until   time.Time
}

func newReviews() *reviews {
	return &reviews{turns: make(chan struct{}, maxConcurrent), addresses: newAddresses(),
		cached: map[[sha256.Size]byte]reviewed{}}
}

// review returns the subject of a token, from the cache or from the given TokenReviewer. from is
// the address of the client, and expiry the expiry of the token.
func (r *reviews) review(review TokenReviewer, from admission.ClientKey, token string,
	expiry time.Time) (
	string, error) {
	key := sha256.Sum256([]byte(token))
	r.mu.Lock()
	known, ok := r.cached[key]
	r.mu.Unlock()
	if ok && time.Now().Before(known.until) {
		return known.subject, nil
	}
	of := r.addresses.of(from)
	if !of.mayTry() {
		return "", &unavailable{errors.New("too many tokens from the client's address were refused")}
	}
	ctx, cancel := context.WithTimeout(context.Background(), reviewTime)
	defer cancel()
	if err := enter(ctx, of.turns); err != nil {
		return "", err
	}
	defer func() { <-of.turns }()
	if err := enter(ctx, r.turns); err != nil {
		return "", err
	}
	defer func() { <-r.turns }()
	begun := time.Now()
	subject, err := review(ctx, token)
	if err != nil {
		if _, down := errors.AsType[*unavailable](err); !down {
			of.refused()
		}
		return "", err
	}
	r.remember(key, subject, begun, expiry)
	return subject, nil
}

// enter waits until fewer than the maximum number of reviews run. turns holds an element for each
// running review.
func enter(ctx context.Context, turns chan struct{}) error {
	select {
	case turns <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &unavailable{errors.New("too many TokenReviews are in progress")}
	}
}

// remember caches the result of a review.
func (r *reviews) remember(key [sha256.Size]byte, subject string, begun, expiry time.Time) {
	until := begun.Add(reviewedFor)
	if expiry.Before(until) {
		until = expiry
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); len(r.cached) >= maxReviewed && now.Sub(r.swept) >= time.Second {
		r.swept = now
		maps.DeleteFunc(r.cached, func(_ [sha256.Size]byte, of reviewed) bool {
			return !now.Before(of.until)
		})
	}
	if len(r.cached) < maxReviewed {
		r.cached[key] = reviewed{subject, until}
	}
}
