// Package monitoring serves [listen] monitoring: /metrics and /ready for every client, and the
// pages and /debug/ for users of this host and for operators of other hosts who present a client
// certificate. It serves HTTP and HTTPS on one address.
package monitoring

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/admission"
)

// Options configures the monitoring server.
type Options struct {
	Ready   func() error // returns why clients are not served yet, nil if they are
	Metrics prometheus.Gatherer
	// Pages registers the pages. Each handler must be wrapped in guard, which refuses clients
	// without permission; nil: there are no pages.
	Pages func(routes *http.ServeMux, guard func(http.Handler) http.Handler)
	Debug http.HandlerFunc // serves the pages below /debug/
	// TLS returns the configuration for TLS connections, which verifies client certificates.
	// Without it, or if it returns nil, TLS connections are closed.
	TLS func() *tls.Config
	// Authorize returns a gRPC status if the owner of a verified certificate may not see the pages,
	// nil if it may.
	Authorize func(*x509.Certificate) error
	Logger    *slog.Logger
}

// Limits of connections, separate for users of this host and for others.
var (
	localLimits  = admission.Limits{Total: 128, PerKey: 32}
	remoteLimits = admission.Limits{Total: 256, PerKey: 32}
)

const (
	metricsAtOnce = 4
	writeTime     = time.Minute // time-out for an answer: a debug page may take 30 s
)

// Serve serves on the listener until ctx ends (nil) or the listener fails. It closes the listener.
func Serve(ctx context.Context, listener net.Listener, o Options) error {
	local, remote := admission.NewPool(localLimits), admission.NewPool(remoteLimits)
	bounded := admission.NewListener(listener, admission.Options{
		Refusal: []byte("HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n" +
			"Content-Length: 0\r\n\r\n"),
		Admit: admission.AdmitTCP(local, remote)})
	server := admission.NewServer(handler(o), o.Logger)
	server.WriteTimeout = writeTime
	server.ConnState = func(c net.Conn, state http.ConnState) {
		admission.ConnState(admitted(c), state)
	}
	server.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return admission.ConnContext(ctx, admitted(c))
	}
	return admission.Serve(ctx, server, newSplitter(bounded, o.TLS))
}

func handler(o Options) http.Handler {
	routes := http.NewServeMux()
	routes.Handle("GET /metrics", promhttp.HandlerFor(o.Metrics,
		promhttp.HandlerOpts{MaxRequestsInFlight: metricsAtOnce}))
	routes.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if err := o.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	routes.Handle("GET /debug/", o.guard(o.Debug))
	if o.Pages != nil {
		o.Pages(routes, o.guard)
	}
	return admission.LimitBody(routes)
}

// guard returns a handler that calls next for permitted clients. It refuses requests that a page of
// another site makes in a browser: under the site's name, resolved to this host (DNS rebinding), or
// as a cross-site request. With TLS, the name in the certificate is required.
func (o Options) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		why := ""
		switch {
		case !admission.KeyFromContext(r.Context()).Local():
			why = o.refusal(r)
		case r.TLS == nil && admission.FromWebPage(r):
			why = "use an IP address or localhost, and no Origin: web pages are refused"
		}
		if why == "" && acrossSites(r) {
			why = "requests of other web sites are refused"
		}
		if why != "" {
			http.Error(w, why, http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// refusal returns why a client on another host is not permitted; "" if it is.
func (o Options) refusal(r *http.Request) string {
	const who = "this page is for users of this host and, over HTTPS, for clients with a " +
		"certificate of [tls] client_ca_file whose identity is in [auth] debug_identities"
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 || o.Authorize == nil {
		return who
	}
	if err := o.Authorize(r.TLS.VerifiedChains[0][0]); err != nil {
		return status.Convert(err).Message()
	}
	return ""
}

// acrossSites reports whether a page of another site made the browser send the request. Following a
// link from there is permitted.
func acrossSites(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return r.Header.Get("Origin") != "" ||
		site != "" && site != "same-origin" && site != "none" &&
			r.Header.Get("Sec-Fetch-Mode") != "navigate"
}
