package identity

import (
	"context"
	"math/rand/v2"
	"time"

	"outrider.org/outrider/agent/backoff"
)

// Pauses after failed attempts double from firstPause to maxPause. A pause is at most a quarter of
// the certificate's remaining lifetime, but at least minPause.
const (
	minPause   = 500 * time.Millisecond
	firstPause = time.Second
	maxPause   = time.Minute
)

// plan determines when a certificate is renewed: when the wall clock reaches at, or when the time
// delay has passed since start on the monotonic clock, whichever is earlier.
type plan struct {
	at    time.Time // without a monotonic clock reading
	start time.Time // with a monotonic clock reading
	delay time.Duration
}

// planRenewal schedules the renewal for the time at which the share ratio of the lifetime is left.
// The lifetime begins when the certificate was obtained, because authorities antedate certificates.
// If the clock of this host is so wrong that the certificate was obtained outside its validity, the
// lifetime is the whole validity.
func planRenewal(issued *IssuedCertificate, ratio float64) plan {
	leaf := issued.Pair.Leaf()
	until := issued.Pair.NotAfter()
	from := leaf.NotBefore
	if issued.Obtained.After(from) && issued.Obtained.Before(until) {
		from = issued.Obtained
	}
	delay := time.Duration(float64(until.Sub(from)) * (1 - ratio))
	delay = max(delay, minPause)
	// Round removes the monotonic clock reading. Otherwise the monotonic clock, which stops while
	// the machine is suspended, would determine when the time is reached.
	at := issued.Obtained.Round(0).Add(delay)
	return plan{at: at, start: time.Now(), delay: delay}
}

// left returns how long to wait, at most recheckInterval; 0 if the renewal is due.
func (p plan) left(now time.Time) time.Duration {
	return max(0, min(p.at.Sub(now), p.delay-time.Since(p.start), recheckInterval))
}

// renew requests the workload's certificate from the issuer, and again before it expires, until ctx
// ends. last is the certificate that an earlier worker or run obtained from the issuer, or nil.
func (m *Manager) renew(ctx context.Context, settings Settings, last *IssuedCertificate,
	report report) {
	var due plan
	ratio := func() float64 {
		spread := (2*rand.Float64() - 1) * settings.GraceJitter
		return min(max(settings.GraceRatio+spread, 0), 1)
	}
	accept := func(issued *IssuedCertificate) {
		due = planRenewal(issued, ratio())
		last = issued
		report(&material{
			pair: issued.Pair, roots: issued.Roots, source: issued.Source,
			obtained: issued.Obtained, renewal: due.at, issuer: settings.Issuer,
		}, nil)
	}
	if last != nil {
		accept(last)
		due.delay -= max(0, m.options.Now().Sub(last.Obtained))
	}
	changes, stop := m.watch(settings.Issuer.Files())
	defer stop()
	retries := backoff.Backoff{Min: firstPause, Max: maxPause}
	pause := minPause
	for failed := false; ; {
		wait := pause
		if !failed {
			wait = 0
			if last != nil {
				wait = due.left(m.options.Now())
			}
		}
		if wait > 0 {
			switch sleep(ctx, wait, changes) {
			case ended:
				return
			case elapsed:
				if !failed {
					continue // compute again whether the renewal is due
				}
			case changed:
				if !failed {
					continue
				}
				retries.Reset()
			}
		}
		issued, err := settings.Issuer.Issue(ctx, m.AuthorityRoots(), m.KeyPair())
		if ctx.Err() != nil {
			return
		}
		if failed = err != nil; failed {
			report(nil, err)
			pause = limitPause(retries.Next(), last, m.options.Now())
			continue
		}
		retries.Reset()
		accept(issued)
	}
}

// limitPause limits the pause after a failed attempt to a quarter of the remaining lifetime of the
// last certificate.
func limitPause(pause time.Duration, last *IssuedCertificate, now time.Time) time.Duration {
	if last != nil {
		if left := last.Pair.NotAfter().Sub(now); left > 0 {
			pause = min(pause, left/4)
		}
	}
	return max(pause, minPause)
}

// wakeup is the reason why sleep returned.
type wakeup int

const (
	ended wakeup = iota
	elapsed
	changed
)

// sleep waits for a time, until ctx ends, or until files have changed.
func sleep(ctx context.Context, d time.Duration, changes <-chan struct{}) wakeup {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ended
	case <-timer.C:
		return elapsed
	case <-changes:
		return changed
	}
}
