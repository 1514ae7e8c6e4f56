package decisiontable

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	statusv3 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// backend has the ports of two test servers. The HTTP server responds with a description of the
// request, the TCP server sends the received line back.
type backend struct{ http, tcp int }

// random are the headers that a comparison ignores: Envoy generates their values, or sets them to
// the name of the operation in traces.
var random = []string{"X-Request-Id", "Traceparent", "X-Envoy-Expected-Rq-Timeout-Ms",
	"X-Envoy-Decorator-Operation"}

func startBackend(t testing.TB) backend {
	t.Helper()
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Date"] = nil
		w.Header().Set("X-Backend", "yes")
		_, _ = io.WriteString(w, described(r))
	})
	b := backend{http: serveHTTP(t, echo)}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.tcp = listener.Addr().(*net.TCPAddr).Port
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			line, err := bufio.NewReader(connection).ReadString('\n')
			if err == nil {
				_, _ = io.WriteString(connection, line)
			}
			_ = connection.Close()
		}
	}()
	return b
}

// described returns the request's method, URI, host and headers, except for those in random.
func described(r *http.Request) string {
	text := fmt.Sprintf("%s %s\nhost: %s\n", r.Method, r.RequestURI, r.Host)
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		if !slices.Contains(random, name) {
			text += fmt.Sprintf("%s: %s\n", name, strings.Join(r.Header[name], " | "))
		}
	}
	return text
}

// serveHTTP runs a server until the test ends, and returns its port.
func serveHTTP(t testing.TB, handler http.Handler) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0)}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return listener.Addr().(*net.TCPAddr).Port
}

// authorizers are the external authorizers that CUSTOM policies name.
type authorizers struct {
	http, grpc, dead int
	called           atomic.Pointer[string] // host of the authorizer that was called last
}

// take returns the host of the authorizer that was called since the last call of take, or "".
func (a *authorizers) take() string {
	if host := a.called.Swap(nil); host != nil {
		return *host
	}
	return ""
}

func startAuthorizers(t testing.TB) *authorizers {
	t.Helper()
	a := &authorizers{dead: 1} // no server listens on port 1
	a.http = serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.called.Store(new("http.authz.test"))
		w.Header()["Date"] = nil
		w.Header().Set("X-Prefix-Checked", r.URL.Path)
		w.Header().Set("X-Not-Passed-On", "x")
		w.Header().Set("Set-Cookie", "session=1")
		if r.Header.Get("x-custom-id") != "friend" {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, "no friend: "+r.Header.Get("x-header-1"))
		}
	}))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a.grpc = listener.Addr().(*net.TCPAddr).Port
	server, done := grpc.NewServer(), make(chan error, 1)
	authv3.RegisterAuthorizationServer(server, a)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return a
}

// Check implements the gRPC authorizer.
func (a *authorizers) Check(_ context.Context,
	r *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	a.called.Store(new("grpc.authz.test"))
	if h := r.GetAttributes().GetRequest().GetHttp(); h.GetHeaders()["x-custom-id"] != "friend" {
		return &authv3.CheckResponse{Status: &statusv3.Status{Code: int32(codes.PermissionDenied)},
			HttpResponse: &authv3.CheckResponse_DeniedResponse{
				DeniedResponse: &authv3.DeniedHttpResponse{
					Status: &typev3.HttpStatus{Code: typev3.StatusCode_PaymentRequired},
					Body:   "no friend at " + h.GetPath() + ": " + h.GetBody()}}}, nil
	}
	return &authv3.CheckResponse{Status: &statusv3.Status{},
		HttpResponse: &authv3.CheckResponse_OkResponse{OkResponse: &authv3.OkHttpResponse{
			Headers: []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "x-checked",
				Value: "by gRPC"}}}}}}, nil
}

// meshConfig returns a MeshConfig with the authorizers and trust domains.
func (a *authorizers) meshConfig() string {
	return `trustDomain: cluster.local
trustDomainAliases: [td1, some-td, some-trustdomain, old-td, foobar, alias.example]
rootNamespace: istio-system
outboundTrafficPolicy: {mode: REGISTRY_ONLY}
extensionProviders:
- name: default
  envoyExtAuthzHttp:
    service: istio-system/http.authz.test
    port: 9000
    timeout: 10s
    pathPrefix: /check
    includeRequestHeadersInCheck: [x-custom-id, x-prefix-*, "*-suffix"]
    includeAdditionalHeadersInCheck: {x-header-1: value-1}
    headersToUpstreamOnAllow: [authorization, x-prefix-*]
    headersToDownstreamOnDeny: [set-cookie]
    headersToDownstreamOnAllow: [set-cookie]
- name: grpc
  envoyExtAuthzGrpc:
    service: grpc.authz.test
    port: 9001
    timeout: 10s
    includeRequestBodyInCheck: {maxRequestBytes: 4096, allowPartialMessage: true}
- name: dead
  envoyExtAuthzHttp: {service: dead.authz.test, port: 9002, timeout: 5s, statusOnError: "409"}
- name: open
  envoyExtAuthzGrpc: {service: dead.authz.test, port: 9002, timeout: 5s, failOpen: true}
- name: missing
  envoyExtAuthzGrpc: {service: missing.authz.test, port: 9003}
`
}

// services returns the ServiceEntries of the authorizers.
func (a *authorizers) services(t testing.TB) []map[string]any {
	t.Helper()
	text := ""
	for _, s := range []struct {
		name     string
		port, to int
		protocol string
	}{{"http", 9000, a.http, "HTTP"}, {"grpc", 9001, a.grpc, "GRPC"},
		{"dead", 9002, a.dead, "HTTP"}} {
		text += fmt.Sprintf(`---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s, namespace: istio-system}
spec:
  hosts: [%[1]s.authz.test]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: %[2]d, name: p, protocol: %[4]s, targetPort: %[3]d}]
  endpoints: [{address: 127.0.0.1}]
`, s.name, s.port, s.to, s.protocol)
	}
	return objectsOf(t, text)
}
