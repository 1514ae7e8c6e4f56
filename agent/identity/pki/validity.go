package pki

import "time"

// A certificate ends soon if less than soonShare of its lifetime is left, and less than soonMost.
// Renewal begins at a third (certbot, Caddy, cert-manager), so that it has failed for long by then.
const (
	soonShare = 10
	soonMost  = 14 * 24 * time.Hour
)

// EndsSoon reports whether a certificate that is valid from one time until another has expired at
// now, or will soon: less than a tenth of its lifetime is left, and less than 14 days.
func EndsSoon(from, until, now time.Time) bool {
	return until.Sub(now) < min(until.Sub(from)/soonShare, soonMost)
}
