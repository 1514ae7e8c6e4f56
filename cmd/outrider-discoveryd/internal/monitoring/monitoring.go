// Package monitoring serves [listen] monitoring over HTTP and HTTPS on one address: /metrics and
// /ready to all clients, and the pages and /debug/ only to users of this host, and to operators on
// other hosts who present a client certificate.
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
	Ready   func() error // returns why the server does not serve proxies yet; nil if it does
	Metrics prometheus.Gatherer
	// RegisterPages registers the handlers of the pages, each wrapped in guard, which refuses
	// clients without permission; nil: there are no pages.
	RegisterPages func(routes *http.ServeMux, guard func(http.Handler) http.Handler)
	Debug         http.HandlerFunc // serves the pages below /debug/
	// TLS returns the configuration for new TLS connections, which verifies client certificates. If
	// TLS is nil or returns nil, TLS connections are closed.
	TLS func() *tls.Config
	// Authorize returns nil if the owner of a verified certificate may read the pages, else a gRPC
	// status.
	Authorize func(*x509.Certificate) error
	Logger    *slog.Logger
}

// Limits of connections from this host and from other hosts.
var (
	localLimits  = admission.Limits{Total: 128, PerKey: 32}
	remoteLimits = admission.Limits{Total: 256, PerKey: 32}
)

const (
	metricsAtOnce = 4
	writeTime     = time.Minute // timeout of a response: generating a debug page may take 30 s
)

// Serve serves until ctx ends, and then returns nil, or until the listener fails. It closes the
// listener.
func Serve(ctx context.Context, listener net.Listener, o Options) error {
	local, remote := admission.NewPool(localLimits), admission.NewPool(remoteLimits)
	bounded := admission.NewListener(listener, admission.Options{
		RefusalResponse: []byte("HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n" +
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
	if o.RegisterPages != nil {
		o.RegisterPages(routes, o.guard)
	}
	return admission.LimitBody(routes)
}

// guard returns a handler that calls next for permitted clients. It refuses requests that a page of
// another web site causes in a user's browser: cross-site requests, and requests to a name of that
// site that resolves to this host (DNS rebinding). With TLS the latter cannot occur, because the
// browser checks the name in the certificate.
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

// refusal returns why a client on another host may not read a page; "" if it may.
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

// acrossSites reports whether a page of another web site caused the browser to send the request. It
// returns false if the user followed a link on that page, which is harmless.
func acrossSites(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return r.Header.Get("Origin") != "" ||
		site != "" && site != "same-origin" && site != "none" &&
			r.Header.Get("Sec-Fetch-Mode") != "navigate"
}
