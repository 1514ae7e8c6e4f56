package identity

import (
	"errors"
	"io/fs"
	"maps"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/identity/pki"
)

// Stats are counters since the start or, for a secret that is not configured, since an Envoy
// subscribed to it.
type Stats struct {
	Renewals map[string]uint64 // number of replaced versions, by name of the secret
	Failures map[RenewalFailure]uint64
}

// RenewalFailure is a kind of failed attempt to obtain a secret.
type RenewalFailure struct{ Resource, Reason string }

// Stats returns a copy of the counters.
func (m *Manager) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Stats{
		Renewals: maps.Clone(m.stats.Renewals), Failures: maps.Clone(m.stats.Failures),
	}
}

// reason classifies an error for the metrics: "unreachable" (the authority), "rejected" (by the
// authority), "token", "expired", "invalid" (a certificate or key), "unreadable" (a file) or
// "other".
func reason(err error) string {
	switch problem, found := errors.AsType[*pki.Problem](err); {
	case found && errors.Is(problem.Kind, pki.ErrNotJWT):
		return "token"
	case found && errors.Is(problem.Kind, pki.ErrExpired):
		return "expired"
	case found:
		return "invalid"
	}
	if _, found := errors.AsType[*fs.PathError](err); found {
		return "unreadable"
	}
	if answer := status.Code(err); answer != codes.Unknown {
		switch answer {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
			return "unreachable"
		default:
			return "rejected"
		}
	}
	return "other"
}
