package status

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

const (
	defaultProbeTime = time.Second
	redirectsAtMost  = 10 // like Kubernetes
	probeBodyRead    = 10 << 10
)

// probe runs the probe that the path names. Like Istio's agent, it answers with the status of the
// application, or with 500 if the application does not answer.
func (s *Server) probe(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	config := s.config.Load()
	probe, ok := config.Probes[name]
	if !ok {
		known := "none is configured"
		if len(config.Probes) > 0 {
			known = "there are: " + strings.Join(slices.Sorted(maps.Keys(config.Probes)), ", ")
		}
		say(w, http.StatusNotFound, fmt.Sprintf("no [status.probe] has the name %q; %s",
			name, known))
		return
	}
	timeout := probe.Timeout
	if timeout <= 0 {
		timeout = defaultProbeTime
	}
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
	code, err := run(ctx, probe, r)
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
func run(ctx context.Context, probe Probe, incoming *http.Request) (int, error) {
	switch {
	case probe.HTTP != "":
		return probeHTTP(ctx, probe, incoming)
	case probe.TCP != "":
		var dialer net.Dialer
		connection, err := dialer.DialContext(ctx, "tcp", probe.TCP)
		if err != nil {
			return 0, err
		}
		_ = connection.Close()
		return http.StatusOK, nil
	case probe.GRPC != "":
		return probeGRPC(ctx, probe.GRPC)
	}
	return 0, errors.New("it has none of http, tcp and grpc")
}

// hopByHop headers concern one connection only (RFC 9110 §7.6.1) and are not passed to the
// application.
var hopByHop = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade"}

func probeHTTP(ctx context.Context, probe Probe, incoming *http.Request) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, probe.HTTP, nil)
	if err != nil {
		return 0, err
	}
	request.Header = incoming.Header.Clone()
	for _, name := range hopByHop {
		request.Header.Del(name)
	}
	request.Host = hostFor(incoming, request.URL)
	for name, value := range probe.Headers {
		if strings.EqualFold(name, "Host") {
			request.Host = value
			continue
		}
		request.Header.Set(name, value)
	}
	client := http.Client{
		Transport: &http.Transport{
			DisableKeepAlives:  true,
			DisableCompression: true,
			TLSClientConfig:    &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // checks no identity
		},
		CheckRedirect: sameHost,
	}
	response, err := client.Do(request)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err
		}
		return 0, err
	}
	defer response.Body.Close()
	// Read the body, so that the application can complete its answer.
	_, _ = io.CopyN(io.Discard, response.Body, probeBodyRead)
	return response.StatusCode, nil
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

// sameHost follows redirects on the same host only. A redirect to another host is the final answer.
func sameHost(request *http.Request, via []*http.Request) error {
	if request.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= redirectsAtMost {
		return fmt.Errorf("%d redirects", redirectsAtMost)
	}
	return nil
}

// probeGRPC queries the standard health service (grpc.health.v1) at host:port/service.
func probeGRPC(ctx context.Context, target string) (int, error) {
	address, service, _ := strings.Cut(target, "/")
	connection, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent("outrider"))
	if err != nil {
		return 0, err
	}
	defer func() { _ = connection.Close() }()
	answer, err := healthv1.NewHealthClient(connection).Check(ctx,
		&healthv1.HealthCheckRequest{Service: service})
	if err != nil {
		return 0, err
	}
	if answer.Status != healthv1.HealthCheckResponse_SERVING {
		return 0, fmt.Errorf("the health service says %s", answer.Status)
	}
	return http.StatusOK, nil
}
