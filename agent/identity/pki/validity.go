package pki

import "time"

// A certificate ends soon if its remaining lifetime is less than 1/soonShare of the whole and less
// than soonMost. Tools such as certbot, Caddy and cert-manager begin renewal when a third is left,
// so the renewal of a certificate that ends soon has failed for a long time.
const (
	soonShare = 10
	soonMost  = 14 * 24 * time.Hour
)

// EndsSoon reports whether a certificate valid from one time until another has expired at now, or
// ends soon: less than a tenth of its lifetime and less than 14 days are left.
func EndsSoon(notBefore, notAfter, now time.Time) bool {
	return notAfter.Sub(now) < min(notAfter.Sub(notBefore)/soonShare, soonMost)
}
