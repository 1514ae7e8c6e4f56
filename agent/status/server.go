package status

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/lifecycle"
)

// Options configures a Server. A nil Proxy disables Envoy's metrics, a nil DrainController disables
// the control paths.
type Options struct {
	Address         string // host:port to listen on
	Config          Config
	Readiness       Readiness
	Proxy           Proxy
	DrainController DrainController
	Metrics         prometheus.Gatherer // metrics of the agent; their names begin with outrider_
	// TrustedUIDs are local users that share separate connection limits: root, the agent's and
	// Envoy's.
	TrustedUIDs []uint32
	Conditions  *condition.Registry
	Logger      *slog.Logger
}

// Server serves the status address. It is ready once it listens, or has raised the condition that
// it cannot listen yet.
type Server struct {
	lifecycle.Readiness
	options Options
	config  atomic.Pointer[Config]
	gate    *gate
	probes  chan struct{} // semaphore of concurrent probes
	metrics *merger
	address atomic.Pointer[string]
}

// probesAtATime bounds the sockets that a flood of requests to /app-health opens.
const probesAtATime = 64

// conditionStatus is active while the status address cannot be bound.
const conditionStatus = "status-address-unavailable"

// NewServer returns a server that listens once Run is called.
func NewServer(options Options) *Server {
	s := &Server{options: options, gate: newGate(options.TrustedUIDs),
		probes: make(chan struct{}, probesAtATime)}
	s.metrics = newMerger(options.Metrics, options.Proxy,
		func() string { return s.config.Load().ApplicationMetrics })
	s.Configure(options.Config)
	return s
}

// Name returns the name of the component.
func (s *Server) Name() string { return "status" }

// ListenAddress returns the address that the server listens on, or "" before it does.
func (s *Server) ListenAddress() string {
	if address := s.address.Load(); address != nil {
		return *address
	}
	return ""
}

// ConnectionStats returns the connection statistics of the status address.
func (s *Server) ConnectionStats() admission.Stats { return s.gate.stats() }

// Configure applies a changed configuration from the next request on.
func (s *Server) Configure(config Config) { s.config.Store(&config) }

// Run serves until ctx ends. While the address cannot be bound, it raises a condition and retries
// every second, because a missing status address must not stop the proxy. Run may be called once.
func (s *Server) Run(ctx context.Context) error {
	listener, err := admission.Bind(ctx, s.options.Address, func(err error) {
		s.options.Conditions.Raise(conditionStatus, condition.Error,
			fmt.Sprintf("nothing answers on "+
				"[status] address %s (readiness, probes, metrics): %v; it is tried again every "+
				"second",
				s.options.Address, err))
		s.MarkReady()
	})
	if err != nil {
		return nil //nolint:nilerr // ctx ended before the address could be bound
	}
	s.options.Conditions.Clear(conditionStatus)
	address := listener.Addr().String()
	s.address.Store(&address)
	s.MarkReady()
	server := newHTTPServer(admission.LimitBody(s.routes()), s.options.Logger)
	if err := admission.Serve(ctx, server, s.gate.listen(listener)); err != nil {
		return fmt.Errorf("serve HTTP on the status address: %w", err)
	}
	return nil
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz/ready", s.readiness)
	mux.HandleFunc("GET /app-health/{name...}", s.probe)
	mux.Handle("GET /stats/prometheus", s.metrics)
	mux.Handle("GET /metrics", s.metrics)
	mux.Handle("/drain",
		ownHost(s.control(func(ctx context.Context) error { return s.options.DrainController.BeginDrain(ctx) })))
	mux.Handle("/quitquitquit",
		ownHost(s.control(func(ctx context.Context) error { return s.options.DrainController.Quit(ctx) })))
	return mux
}

func (s *Server) readiness(w http.ResponseWriter, _ *http.Request) {
	ready, reason := s.options.Readiness.Ready()
	if ready {
		say(w, http.StatusOK, "ready")
		return
	}
	if reason == "" {
		reason = "the proxy is not ready"
	}
	say(w, http.StatusServiceUnavailable, reason)
}

// control accepts only POST requests from this host, if the configuration allows them. It refuses
// requests with an Origin header, which browsers send on behalf of web pages.
func (s *Server) control(do func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != http.MethodPost:
			w.Header().Set("Allow", http.MethodPost)
			say(w, http.StatusMethodNotAllowed, fmt.Sprintf("%s takes POST only", r.URL.Path))
		case s.options.DrainController == nil || !s.config.Load().ProxyControlAllowed:
			say(w, http.StatusForbidden,
				fmt.Sprintf(
					`%s is off: set control = "loopback" in [status] to allow it to local users`,
					r.URL.Path))
		case !fromLoopback(r) || r.Header.Get("Origin") != "":
			say(w, http.StatusForbidden, fmt.Sprintf("%s is for requests from this host only",
				r.URL.Path))
		default:
			s.options.Logger.Warn("control request over HTTP", "path", r.URL.Path, "peer",
				r.RemoteAddr)
			if err := do(context.WithoutCancel(r.Context())); err != nil {
				say(w, http.StatusInternalServerError, err.Error())
				return
			}
			say(w, http.StatusOK, "OK")
		}
	}
}

func fromLoopback(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// say answers with a plain-text sentence.
func say(w http.ResponseWriter, status int, sentence string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = fmt.Fprintln(w, sentence)
}

func newHTTPServer(handler http.Handler, logger *slog.Logger) *http.Server {
	server := admission.NewServer(handler, logger)
	server.WriteTimeout = scrapeTime + answerTime
	return server
}
