// Package auth authenticates the clients of the discovery server.
//
// On TLS connections the namespace and the service account in a client's node must be those of its
// certificate or token (Authenticator.Admit). Clients without TLS, and clients without an identity
// if [auth] require permits them, get the configuration for the node that they send. They get
// neither secrets nor debug information.
//
// A client is authenticated when its stream begins. As in istiod, a certificate or token that
// expires later does not end the stream. The maximum age of connections bounds how long such a
// stream lasts.
package auth

import (
	"context"
	"crypto/x509"
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

// Values of [auth] require: what clients with TLS must present.
const (
	RequireAny   = "any"   // a certificate or a token is required
	RequireMTLS  = "mtls"  // a certificate is required
	RequireToken = "token" // a token is required
	RequireNone  = "none"  // a client may present neither
)

// Settings are the settings of an Authenticator that can change while the server runs.
type Settings struct {
	Require string // what clients with TLS must present: one of the Require constants
	Issuers []Issuer
	// JoinKeyFile is the path of a PEM file with the public keys that verify join tokens; "": join
	// tokens are refused. The file may be replaced at any time.
	JoinKeyFile   string
	JoinNotBefore time.Time // join tokens issued before this time are refused; zero: no limit
	// verifies tokens of issuers that are not in Issuers; nil: such tokens are refused
	TokenReviewer   TokenReviewer
	DebugIdentities []string // SPIFFE IDs of clients that may request debug information

	reviews *reviews  // cached results of TokenReviewer
	keys    *keyFiles // cached keys of Issuers and JoinKeyFile
}

// Authenticator determines the identities of clients. It is safe for concurrent use.
type Authenticator struct {
	domains  func() []string
	log      *slog.Logger
	settings atomic.Pointer[Settings]
	limiter  repeat.Limiter
	joined   repeat.Limiter // limits log lines about join tokens
	refused  atomic.Uint64
}

// New returns an Authenticator. trustDomains returns the accepted trust domains. The first one is
// the trust domain of identities from tokens, because tokens contain none.
func New(settings Settings, trustDomains func() []string, log *slog.Logger) *Authenticator {
	a := &Authenticator{domains: trustDomains, log: log}
	a.Configure(settings)
	return a
}

// Configure replaces the settings. They apply to streams that begin later.
func (a *Authenticator) Configure(settings Settings) {
	settings.reviews, settings.keys = newReviews(), newKeyFiles()
	if settings.JoinKeyFile != "" {
		if _, err := settings.joinKeys(); err != nil {
			a.log.Error("cannot verify join tokens", "error", err)
		}
	}
	a.settings.Store(&settings)
}

// RefusedClients returns the number of xDS streams refused so far.
func (a *Authenticator) RefusedClients() uint64 { return a.refused.Load() }

// Admit authenticates a client. It implements xds.Options.Admit.
func (a *Authenticator) Admit(client *xds.Peer, node *corev3.Node) (*corev3.Node, error) {
	id, _, err := a.identify(client)
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

// MayReceiveSecrets reports whether a client may receive secrets. It implements
// xds.Options.MayReceiveSecrets.
func (a *Authenticator) MayReceiveSecrets(client xds.Peer) bool { return client.Identity != "" }

// AuthorizeDebug returns a gRPC status if a client may not request debug information.
func (a *Authenticator) AuthorizeDebug(client xds.Peer) error {
	if client.Identity == "" {
		return status.Error(codes.Unauthenticated,
			"debug information is for clients with a certificate or token")
	}
	return a.mayDebug(client.Identity)
}

// AuthorizeDebugPage returns a gRPC status if the owner of a verified certificate may not see the
// debug pages. Settings.Require does not apply, because a browser can present only a certificate.
func (a *Authenticator) AuthorizeDebugPage(certificate *x509.Certificate) error {
	id, err := ofCertificate(certificate, a.domains(), time.Now())
	if err != nil {
		return status.Errorf(codes.Unauthenticated, "certificate: %v", err)
	}
	return a.mayDebug(id.String())
}

func (a *Authenticator) mayDebug(identity string) error {
	if !slices.Contains(a.settings.Load().DebugIdentities, identity) {
		return status.Errorf(codes.PermissionDenied,
			"debug information is not for %s: add it to [auth] debug_identities", identity)
	}
	return nil
}

// Caller is an authenticated client of a service other than xDS.
type Caller struct {
	Identity
	// credential that proved the identity, for logs: "certificate SERIAL" or "token"
	CredentialDescription string
}

// Refusal is the reason why a client is not authenticated. It is a gRPC status.
type Refusal struct {
	code  codes.Code
	err   error
	Cause error // internal cause, which is not sent to the client; nil: none
}

// Error returns the reason that is sent to the client. It implements error.
func (r *Refusal) Error() string { return strings.ReplaceAll(r.err.Error(), "\n", "; ") }

// GRPCStatus returns the status for the client.
func (r *Refusal) GRPCStatus() *status.Status { return status.New(r.code, r.Error()) }

func refusal(code codes.Code, err error) *Refusal {
	var cause *unavailable
	if errors.As(err, &cause) {
		return &Refusal{codes.Unavailable, err, cause.error}
	}
	return &Refusal{code, err, nil}
}

// Authenticate returns the identity of a client. Unlike Admit, it always refuses a client without
// an identity, even if Settings.Require is RequireNone. The error is a *Refusal, which the caller
// may log.
func (a *Authenticator) Authenticate(client xds.Peer) (Caller, error) {
	id, credential, err := a.identify(&client)
	if err == nil && id == (Identity{}) {
		err = errors.New("authentication required: connect with TLS and present a certificate or " +
			"token")
	}
	if err != nil {
		return Caller{}, refusal(codes.Unauthenticated, err)
	}
	return Caller{id, credential}, nil
}

// identify returns the identity of a client and the credential that proved it. It returns the zero
// Identity for a client without credentials, if TLS is not in use or Settings.Require permits it.
func (a *Authenticator) identify(client *xds.Peer) (id Identity, credential string, err error) {
	if !client.TLS {
		return Identity{}, "", nil
	}
	settings := a.settings.Load()
	var failures []error
	if client.Certificate != nil && settings.Require != RequireToken {
		id, err := ofCertificate(client.Certificate, a.domains(), time.Now())
		if err == nil {
			return id, "certificate " + client.Certificate.SerialNumber.Text(16), nil
		}
		failures = append(failures, fmt.Errorf("certificate refused: %w", err))
	}
	if client.Token != "" && settings.Require != RequireMTLS {
		id, credential, err := a.ofToken(settings, client)
		if err == nil {
			return id, credential, nil
		}
		failures = append(failures, fmt.Errorf("token refused: %w", err))
	}
	if len(failures) > 0 {
		return Identity{}, "", errors.Join(failures...)
	}
	needed := map[string]string{RequireMTLS: "a certificate of [tls] client_ca_file", RequireToken: "a token",
		RequireAny: "a certificate of [tls] client_ca_file, or a token"}[settings.Require]
	if settings.Require != RequireNone {
		return Identity{}, "", fmt.Errorf("authentication required: present %s", needed)
	}
	return Identity{}, "", nil
}

// reportLimits bounds the number of log lines about refused clients, per reason and in total.
var reportLimits = repeat.Limits{PerClass: 3, PerSubject: 10}

// refuse counts and logs a refused client, and returns the gRPC status.
func (a *Authenticator) refuse(code codes.Code, client *xds.Peer, node *corev3.Node,
	err error) error {
	a.refused.Add(1)
	refused := refusal(code, err)
	reason := refused.Error()
	omitted, ok := a.limiter.Allow(time.Now(), "", repeat.ErrorClass(reason), reportLimits)
	if ok {
		fields := []any{"address", client.Address, "node", ShortenForLog(node.GetId()), "error",
			reason,
			"omitted", omitted}
		if refused.Cause != nil {
			fields = append(fields, "cause", refused.Cause)
		}
		a.log.Warn("refused xDS client", fields...)
	}
	return refused
}

// ShortenForLog returns a text that a client has sent, cut off at a length that suits a log line.
func ShortenForLog(text string) string {
	const most = 256
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}

// TokenReviewer returns the subject of a token that another service, such as the Kubernetes API
// server, verifies.
type TokenReviewer func(ctx context.Context, token string) (subject string, err error)

// unavailable wraps the reason why a token cannot be verified now. The reason is not sent to
// clients.
type unavailable struct{ error }

// Error implements error. It hides the reason.
func (*unavailable) Error() string { return "it cannot be verified now" }
