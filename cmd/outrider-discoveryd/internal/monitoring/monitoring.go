// Package monitoring serves [listen] monitoring: /metrics and /ready for every client that can
// connect, and the pages below /debug/ for users of this host.
package monitoring

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"outrider.org/outrider/agent/admission"
)

// Options configures the monitoring server.
type Options struct {
	Ready   func() error // returns why clients are not served yet, nil if they are
	Metrics prometheus.Gatherer
	Debug   http.HandlerFunc // serves the pages below /debug/
	Logger  *slog.Logger
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
	bounded := admission.Listen(listener, admission.Options{
		Refusal: []byte("HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n" +
			"Content-Length: 0\r\n\r\n"),
		Admit: admission.AdmitTCP(local, remote)})
	server := admission.NewServer(handler(o), o.Logger)
	server.WriteTimeout = writeTime
	return admission.Serve(ctx, server, bounded)
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
	routes.HandleFunc("GET /debug/", func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !admission.KeyFrom(r.Context()).Local():
			http.Error(w, "debug pages are for users of this host; others use debug types over xDS",
				http.StatusForbidden)
		case admission.FromPage(r):
			http.Error(w, "use an IP address or localhost, and no Origin: web pages are refused",
				http.StatusForbidden)
		default:
			o.Debug(w, r)
		}
	})
	return admission.BoundBody(routes)
}
