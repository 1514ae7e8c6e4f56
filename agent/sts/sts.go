// Package sts serves OAuth 2.0 token exchange (RFC 8693) on loopback, for gRPC call credentials of
// Envoy (StsService in google_grpc).
//
//	Envoy -- POST /token --> Server -- cache --> GoogleExchanger -- HTTPS --> token service
//
// Server validates requests, caches tokens until shortly before they expire, and makes one exchange
// for concurrent equal requests. Only the users in Options.TrustedUIDs may connect. No log or
// status contains a token.
package sts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/lifecycle"
)

// Request is a validated request. SubjectToken and SubjectTokenType are not empty.
type Request struct {
	SubjectToken, SubjectTokenType string
	Audience, Scope                string // may be empty
}

// Token is an access token.
type Token struct {
	AccessToken string
	Expiry      time.Time
}

// Error is an error response of RFC 6749, section 5.2. The description must not contain tokens.
type Error struct {
	Code, Description string
}

// Error implements error.
func (e *Error) Error() string { return e.Code + ": " + e.Description }

// The error codes of RFC 6749 and RFC 8693 that this package uses.
const (
	InvalidRequest = "invalid_request"
	InvalidTarget  = "invalid_target" // unusable audience or resource
	unavailable    = "temporarily_unavailable"
	unsupported    = "unsupported_grant_type"
)

// Options configures a Server.
type Options struct {
	Address     string // host:port on loopback
	Google      *GoogleExchanger
	TokenFile   string   // token file, see Configure
	TrustedUIDs []uint32 // users that may connect
	Conditions  *condition.Registry
	Logger      *slog.Logger
}

// Stats are counters since the start.
type Stats struct{ Exchanges, Failures uint64 }

// Server is the token exchange server. It is ready once it listens on its address, or has raised a
// condition because it cannot.
type Server struct {
	lifecycle.Readiness
	options             Options
	tokenFile           atomic.Pointer[string]
	exchanges, failures atomic.Uint64
	slots               chan struct{} // has one element per running exchange
}

// NewServer returns a server. Run makes it listen.
func NewServer(options Options) *Server {
	s := &Server{options: options, slots: make(chan struct{}, maximumExchanges)}
	s.Configure(options.TokenFile)
	return s
}

// Configure sets the file with the subject token of requests that have none; "" = no file.
func (s *Server) Configure(tokenFile string) { s.tokenFile.Store(&tokenFile) }

// Name returns the name of this component.
func (s *Server) Name() string { return "sts" }

// Stats returns the counters.
func (s *Server) Stats() Stats {
	return Stats{Exchanges: s.exchanges.Load(), Failures: s.failures.Load()}
}

const (
	// conditionAddress is active while Options.Address cannot be bound.
	conditionAddress = "sts-address-unavailable"
	// conditionFailed is active after a failed exchange until the next successful one.
	conditionFailed = "token-exchange-failed"
)

// Limits of requests.
const (
	readTime     = 5 * time.Second
	exchangeTime = 10 * time.Second
	// maximumExchanges bounds the number of concurrent exchanges.
	maximumExchanges = 16
)

// refusalBody is the response to users that are not trusted, and to connections beyond the limits.
const refusalBody = `{"error":"access_denied","error_description":` +
	`"this user may not exchange tokens, or has too many connections"}`

// Run serves until ctx ends. While the address cannot be bound, it raises a condition and retries
// every second. Run may be called once.
func (s *Server) Run(ctx context.Context) error {
	return admission.Service{Address: s.options.Address, Users: s.options.TrustedUIDs,
		Handler: s.routes(newCache(ctx, s.exchange)), RefusalBody: refusalBody,
		WriteTimeout: 2 * exchangeTime, Logger: s.options.Logger,
		OnBind: func(err error) {
			s.MarkReady()
			if err == nil {
				s.options.Conditions.Clear(conditionAddress)
				return
			}
			s.options.Conditions.Raise(conditionAddress, condition.Error, fmt.Sprintf(
				"no token exchange on [sts] port: %v; it is tried again every second", err))
		}}.Serve(ctx)
}

// exchange exchanges a token with Options.Google, and raises a condition if that fails.
func (s *Server) exchange(ctx context.Context, request Request) (Token, error) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	// Waiting exchanges would accumulate, because an exchange continues when its client
	// disconnects.
	default:
		return Token{}, fmt.Errorf("too many concurrent token exchanges: the limit is %d",
			maximumExchanges)
	}
	ctx, cancel := context.WithTimeout(ctx, exchangeTime)
	defer cancel()
	token, err := s.options.Google.exchange(ctx, request)
	s.exchanges.Add(1)
	if err == nil {
		s.options.Conditions.Clear(conditionFailed)
		s.options.Logger.Info("token exchanged", "expires", token.Expiry)
		return token, nil
	}
	// A failure because the server stops is not reported.
	if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		s.failures.Add(1)
		s.options.Conditions.Raise(conditionFailed, condition.Error,
			fmt.Sprintf("the token exchange for Envoy's gRPC services fails: %v", err))
	}
	return Token{}, err
}
