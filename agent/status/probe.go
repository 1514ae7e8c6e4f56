package status

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/agent/probe"
)

// probe runs the probe that the path names. Like Istio's agent, it answers with the status of the
// application, or with 500 if the application does not answer.
func (s *Server) probe(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	config := s.config.Load()
	p, ok := config.Probes[name]
	if !ok {
		known := "none is configured"
		if len(config.Probes) > 0 {
			known = "there are: " + strings.Join(slices.Sorted(maps.Keys(config.Probes)), ", ")
		}
		say(w, http.StatusNotFound, fmt.Sprintf("no [status.probe] has the name %q; %s",
			name, known))
		return
	}
	timeout := p.Timeout
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(timeout + answerTime))
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	select {
	case s.probes <- struct{}{}:
		defer func() { <-s.probes }()
	case <-ctx.Done():
		say(w, http.StatusServiceUnavailable, fmt.Sprintf("probe %s: %d probes run already", name,
			probesAtATime))
		return
	}
	code, err := run(ctx, p, r)
	switch {
	case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		say(w, http.StatusInternalServerError, fmt.Sprintf("probe %s: no answer within %s",
			name, timeout))
	case err != nil:
		say(w, http.StatusInternalServerError, fmt.Sprintf("probe %s: %v", name, err))
	case code >= 300 && code < 400:
		// Kubernetes counts redirects as success.
		say(w, http.StatusOK, fmt.Sprintf("probe %s: the application answered %d", name, code))
	default:
		say(w, code, fmt.Sprintf("probe %s: the application answered %d", name, code))
	}
}

// run returns the status code of the application's answer.
func run(ctx context.Context, p Probe, incoming *http.Request) (int, error) {
	switch {
	case p.HTTP != "":
		return probeHTTP(ctx, p, incoming)
	case p.TCP != "":
		return http.StatusOK, probe.TCP(ctx, p.TCP)
	case p.GRPC != "":
		return http.StatusOK, probe.GRPC(ctx, p.GRPC)
	}
	return 0, errors.New("the probe has none of http, tcp and grpc")
}

// hopByHop headers concern one connection only (RFC 9110 §7.6.1) and are not passed to the
// application.
var hopByHop = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade"}

func probeHTTP(ctx context.Context, p Probe, incoming *http.Request) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.HTTP, nil)
	if err != nil {
		return 0, err
	}
	request.Header = incoming.Header.Clone()
	for _, name := range hopByHop {
		request.Header.Del(name)
	}
	request.Host = hostFor(incoming, request.URL)
	for name, value := range p.Headers {
		if strings.EqualFold(name, "Host") {
			request.Host = value
			continue
		}
		request.Header.Set(name, value)
	}
	return probe.HTTP(request)
}

// hostFor returns the Host header for the application: the prober's, with the status port replaced
// by the application's port.
func hostFor(incoming *http.Request, target *url.URL) string {
	host, port, err := net.SplitHostPort(incoming.Host)
	if err != nil {
		return incoming.Host
	}
	local, ok := incoming.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return incoming.Host
	}
	if _, own, err := net.SplitHostPort(local.String()); err != nil || own != port {
		return incoming.Host
	}
	if target.Port() == "" {
		return host
	}
	return net.JoinHostPort(host, target.Port())
}
