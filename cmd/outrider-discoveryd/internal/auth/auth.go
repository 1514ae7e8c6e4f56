// Package auth decides who the clients of the discovery server are.
//
// On TLS connections the namespace and the service account in a client's node must be those of its
// certificate or token (Authenticator.Admit). A client without identity, which [auth] require may
// allow, and each client without TLS gets the configuration of the node that it sends, but no
// secrets and no debug information.
//
// A client is identified when its stream begins. A certificate or token that expires later does not
// end the stream, as with istiod: the maximum age of connections bounds it.
package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/repeat"
	"outrider.org/outrider/agent/xds"
)

// The values of [auth] require.
const (
	Any   = "any"   // a certificate or a token
	MTLS  = "mtls"  // a certificate
	Token = "token" // a token
	None  = "none"  // neither is needed
)

// Settings can change while the server runs.
type Settings struct {
	Require         string // of clients with TLS: Any, MTLS, Token or None
	Issuers         []Issuer
	Review          Review   // decides about tokens of other issuers; nil: they are refused
	DebugIdentities []string // SPIFFE IDs that may request debug information

	reviews *reviews // results of Review
}

// Authenticator identifies clients. It is safe for concurrent use.
type Authenticator struct {
	domains  func() []string
	log      *slog.Logger
	settings atomic.Pointer[Settings]
	limiter  repeat.Limiter
	refused  atomic.Uint64
}

// New returns an Authenticator. trustDomains returns those of identities that are accepted, the one
// of tokens first.
func New(settings Settings, trustDomains func() []string, log *slog.Logger) *Authenticator {
	a := &Authenticator{domains: trustDomains, log: log}
	a.Configure(settings)
	return a
}

// Configure changes the settings for streams that begin from now on.
func (a *Authenticator) Configure(settings Settings) {
	settings.reviews = newReviews()
	a.settings.Store(&settings)
}

// Refused returns how many streams were refused.
func (a *Authenticator) Refused() uint64 { return a.refused.Load() }

// Admit implements xds.Options.Admit.
func (a *Authenticator) Admit(client *xds.Peer, node *corev3.Node) (*corev3.Node, error) {
	id, err := a.identify(client)
	if err != nil {
		return nil, a.refuse(codes.Unauthenticated, client, node, err)
	}
	if id == (Identity{}) {
		return node, nil
	}
	client.Identity = id.String()
	confined, err := id.confine(node)
	if err != nil {
		return nil, a.refuse(codes.PermissionDenied, client, node, err)
	}
	return confined, nil
}

// Secrets implements xds.Options.Secrets.
func (a *Authenticator) Secrets(client xds.Peer) bool { return client.Identity != "" }

// MayDebug returns an error, a gRPC status, if a client may not request debug information.
func (a *Authenticator) MayDebug(client xds.Peer) error {
	if client.Identity == "" {
		return status.Error(codes.Unauthenticated,
			"debug information is for clients with a certificate or token")
	}
	if !slices.Contains(a.settings.Load().DebugIdentities, client.Identity) {
		return status.Errorf(codes.PermissionDenied,
			"debug information is not for %s: add it to [auth] debug_identities", client.Identity)
	}
	return nil
}

// identify returns the identity of a client, the zero one if it needs none.
func (a *Authenticator) identify(client *xds.Peer) (Identity, error) {
	if !client.TLS {
		return Identity{}, nil
	}
	settings := a.settings.Load()
	var failures []error
	if client.Certificate != nil && settings.Require != Token {
		id, err := ofCertificate(client.Certificate, a.domains(), time.Now())
		if err == nil {
			return id, nil
		}
		failures = append(failures, fmt.Errorf("certificate: %w", err))
	}
	if client.Token != "" && settings.Require != MTLS {
		id, err := a.ofToken(settings, client.Token)
		if err == nil {
			return id, nil
		}
		failures = append(failures, fmt.Errorf("token: %w", err))
	}
	if len(failures) > 0 {
		return Identity{}, errors.Join(failures...)
	}
	needed := map[string]string{MTLS: "a certificate of [tls] client_ca_file", Token: "a token",
		Any: "a certificate of [tls] client_ca_file, or a token"}[settings.Require]
	if settings.Require != None {
		return Identity{}, fmt.Errorf("authentication required: show %s", needed)
	}
	return Identity{}, nil
}

// reportLimits bound the lines about refused clients.
var reportLimits = repeat.Limits{Class: 3, All: 10}

// refuse logs and counts that a client is refused, and returns the gRPC status.
func (a *Authenticator) refuse(code codes.Code, client *xds.Peer, node *corev3.Node,
	err error) error {
	a.refused.Add(1)
	var cause *unavailable
	if errors.As(err, &cause) {
		code = codes.Unavailable
	}
	reason := strings.ReplaceAll(err.Error(), "\n", "; ")
	omitted, ok := a.limiter.Allow(time.Now(), "", repeat.Class(reason), reportLimits)
	if ok {
		fields := []any{"address", client.Address, "node", shorten(node.GetId()), "error", reason,
			"omitted", omitted}
		if cause != nil {
			fields = append(fields, "cause", cause.error)
		}
		a.log.Warn("refused a client", fields...)
	}
	return status.Error(code, reason)
}

// shorten bounds what a client sends that is logged.
func shorten(text string) string {
	const most = 256
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}

// Review returns the subject of a token that this program cannot verify.
type Review func(ctx context.Context, token string) (subject string, err error)

// unavailable is why a token cannot be verified now, which clients do not learn.
type unavailable struct{ error }

// Error implements error.
func (*unavailable) Error() string { return "it cannot be verified now" }
