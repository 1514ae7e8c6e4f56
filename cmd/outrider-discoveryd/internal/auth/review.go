package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"sync"
	"time"
)

const (
	reviewTime    = 5 * time.Second // for one review, and to wait for its turn
	reviewedFor   = time.Minute     // how long a result counts, within the token's expiry
	maxReviewed   = 4096            // results
	maxConcurrent = 16              // reviews
)

// reviews caches the results of a Review. Refusals and failures are not cached.
type reviews struct {
	turns chan struct{}

	mu     sync.Mutex
	cached map[[sha256.Size]byte]reviewed
	swept  time.Time // last removal of results that do not count any more
}

type reviewed struct {
	subject string
	until   time.Time
}

func newReviews() *reviews {
	return &reviews{turns: make(chan struct{}, maxConcurrent),
		cached: map[[sha256.Size]byte]reviewed{}}
}

// review returns the subject of a token that expires at expiry.
func (r *reviews) review(review Review, token string, expiry time.Time) (string, error) {
	key := sha256.Sum256([]byte(token))
	r.mu.Lock()
	known, ok := r.cached[key]
	r.mu.Unlock()
	if ok && time.Now().Before(known.until) {
		return known.subject, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), reviewTime)
	defer cancel()
	select {
	case r.turns <- struct{}{}:
		defer func() { <-r.turns }()
	case <-ctx.Done():
		return "", &unavailable{errors.New("too many reviews of tokens are in progress")}
	}
	begun := time.Now()
	subject, err := review(ctx, token)
	if err != nil {
		return "", err
	}
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
	return subject, nil
}
