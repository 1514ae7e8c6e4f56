package ca

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/agent/condition"
)

const (
	// conditionExpires is active if the signing chain expires soon. New certificates expire no
	// later than the chain, and therefore before the requested time.
	conditionExpires = "ca-expires"
	// conditionRoot is active while [ca] root_file lacks a root that issued certificates which may
	// still be valid.
	conditionRoot = "ca-root-removed"
)

// expiresSoon is the time before the expiry of the chain at which conditionExpires is raised. If
// twice MaxTTL is longer, that time is used instead.
const expiresSoon = 7 * 24 * time.Hour

// past is a root of a replaced authority.
type past struct {
	root  *x509.Certificate
	until time.Time // latest possible expiry of certificates that the authority issued
}

// retire records the roots of a replaced authority. The caller holds mu.
func (s *Server) retire(before *authority, now time.Time) {
	until := now.Add(s.longest)
	s.retired = slices.DeleteFunc(s.retired, func(p past) bool {
		return !now.Before(p.until) || slices.ContainsFunc(before.issuers, p.root.Equal)
	})
	for _, root := range before.issuers {
		s.retired = append(s.retired, past{root, until})
	}
}

// CheckExpiry raises or clears conditionExpires and conditionRoot for the time now.
func (s *Server) CheckExpiry(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	current := s.current.Load()
	set := func(code, sentence string) {
		if sentence == "" {
			s.options.Conditions.Clear(code)
		} else {
			s.options.Conditions.Raise(code, condition.Warning, sentence)
		}
	}
	expires := ""
	if current.notAfter.Sub(now) < max(expiresSoon, 2*time.Duration(s.maxTTL.Load())) {
		expires = fmt.Sprintf("the chain in [ca] cert_file ends on %s UTC: replace it; no "+
			"certificate is valid for longer", current.notAfter.UTC().Format(time.DateTime))
	}
	set(conditionExpires, expires)
	var removed []string
	for _, p := range s.retired {
		if now.Before(p.until) && !slices.ContainsFunc(current.roots, p.root.Equal) {
			removed = append(removed, fmt.Sprintf("[ca] root_file has no longer the root %s (%s), "+
				"whose certificates may be valid until %s UTC: their holders are refused; add the "+
				"root until then", p.root.Subject, p.root.SerialNumber.Text(16),
				p.until.UTC().Format(time.DateTime)))
		}
	}
	set(conditionRoot, strings.Join(removed, "; "))
}
