package discovery_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	statusv3 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"outrider.org/outrider/agent/discovery"
)

// authorizer is an external authorizer. It allows requests with the header "x-who: me", and no
// connections. Over HTTP, the header x-note of its answer describes the request that it received.
type authorizer struct{}

func (authorizer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("x-note", strings.Join([]string{r.Method, r.URL.Path, r.Header.Get("x-added"),
		r.Header.Get("x-in-a"), r.Header.Get("x-out"), string(body)}, "|"))
	w.Header().Set("x-why", "who?")
	w.Header().Set("x-user", r.Header.Get("x-who"))
	if r.Header.Get("x-who") != "me" {
		w.WriteHeader(http.StatusForbidden)
	}
}

func (authorizer) Check(_ context.Context, r *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	who := r.GetAttributes().GetRequest().GetHttp().GetHeaders()["x-who"]
	header := func(name, value string) []*corev3.HeaderValueOption {
		return []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: name, Value: value}}}
	}
	if who == "me" {
		return &authv3.CheckResponse{Status: &statusv3.Status{Code: int32(codes.OK)},
			HttpResponse: &authv3.CheckResponse_OkResponse{OkResponse: &authv3.OkHttpResponse{
				Headers: header("x-user", who)}}}, nil
	}
	return &authv3.CheckResponse{Status: &statusv3.Status{Code: int32(codes.PermissionDenied)},
		HttpResponse: &authv3.CheckResponse_DeniedResponse{
			DeniedResponse: &authv3.DeniedHttpResponse{Status: &typev3.HttpStatus{
				Code: typev3.StatusCode_Unauthorized}, Headers: header("x-why", "who?")}}}, nil
}

// serve serves the authorizer over gRPC until the test ends, and returns the port.
func (a authorizer) serve(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := grpc.NewServer()
	authv3.RegisterAuthorizationServer(server, a)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-ended })
	return listener.Addr().(*net.TCPAddr).Port
}

const authorizerProviders = `outboundTrafficPolicy: {mode: REGISTRY_ONLY}
extensionProviders:
- name: http
  envoyExtAuthzHttp:
    service: shop/authorizer.test
    port: 80
    timeout: 5s
    pathPrefix: /check
    includeRequestHeadersInCheck: [x-who, "x-in-*"]
    includeAdditionalHeadersInCheck: {x-added: "yes"}
    includeRequestBodyInCheck: {maxRequestBytes: 4, allowPartialMessage: true}
    headersToUpstreamOnAllow: [x-user]
    headersToDownstreamOnDeny: [x-why]
    headersToDownstreamOnAllow: [x-note]
- name: grpc
  envoyExtAuthzGrpc: {service: authorizer.test, port: 9000, timeout: 5s}
- name: gone
  envoyExtAuthzGrpc: {service: shop/authorizer.test, port: 9001, statusOnError: "401"}
- name: open
  envoyExtAuthzHttp: {service: shop/authorizer.test, port: 81, failOpen: true}
- name: nowhere
  envoyExtAuthzGrpc: {service: shop/nowhere.test, port: 9000}
`

const authorizerEntry = `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: authorizer, namespace: shop}
spec:
  hosts: [authorizer.test]
  resolution: STATIC
  ports:
  - {number: 80, name: http, protocol: HTTP}
  - {number: 81, name: http-gone, protocol: HTTP}
  - {number: 9000, name: grpc, protocol: GRPC}
  - {number: 9001, name: grpc-gone, protocol: GRPC}
  endpoints: [{address: 127.0.0.1, ports: {http: %d, http-gone: 9, grpc: %d, grpc-gone: 9}}]
`

// authorizerSteps are requests with the expected responses. In each step, the CUSTOM policies for
// paths below /admin name the external authorizers in providers.
var authorizerSteps = []struct {
	providers []string
	requests  string
}{
	{[]string{"http"}, `
> GET any.test/
< status 200
> GET any.test/admin
< status 403
< header x-why: who?
< header x-note: (none)
> GET any.test/admin/x
> x-who: me
> x-in-a: in
> x-out: out
< status 200
< header x-note: GET|/check/admin/x|yes|in||
< saw x-user: me
> TCP hello
> to: 127.0.0.1:7302
< body tcp:hello
`},
	{[]string{"grpc"}, `
> GET any.test/
< status 200
> GET any.test/admin
< status 401
< header x-why: who?
> GET any.test/admin
> x-who: me
< status 200
< saw x-user: me
> TCP hello
> to: 127.0.0.1:7302
< error ~.*
`},
	{[]string{"gone"}, `
> GET any.test/
< status 200
> GET any.test/admin
< status 401
`},
	{[]string{"open"}, `
> GET any.test/admin
< status 200
`},
	{[]string{"nowhere"}, `
> GET any.test/
< status 200
> GET any.test/admin
< status 403
> TCP hello
> to: 127.0.0.1:7302
< error ~.*
`},
	{[]string{"unknown"}, `
> GET any.test/
< status 200
> GET any.test/admin
< status 403
`},
	{[]string{"http", "grpc"}, `
> GET any.test/
< status 200
> GET any.test/admin
> x-who: me
< status 403
`},
}

// TestAuthorizationPolicy_AsksAuthorizersAsWithIstiod sends requests to a proxy whose policies name
// external authorizers, and to a proxy that a real istiod configures. Both must answer as expected.
func TestAuthorizationPolicy_AsksAuthorizersAsWithIstiod(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	pki := newMeshPKI(t)
	a, tcp, echo := (&backend{name: "a"}).serve(t, false), echoTCP(t, "tcp"), echoTCP(t, "step")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	overHTTP := run(t, &http.Server{Handler: authorizer{}}, listener)
	entry := fmt.Sprintf(authorizerEntry, overHTTP, authorizer{}.serve(t))
	sidecar := strings.Replace(fmt.Sprintf(peerSidecar, a), fmt.Sprintf("name: tcp}, bind: "+
		"127.0.0.1, defaultEndpoint: \"127.0.0.1:%d\"", a), fmt.Sprintf("name: tcp}, bind: "+
		"127.0.0.1, defaultEndpoint: \"127.0.0.1:%d\"", tcp), 1)
	for _, by := range []string{"outrider", "istiod"} {
		t.Run(by, func(t *testing.T) {
			proxy := startPeer(t, "sidecar", by, authorizerProviders, pki)
			for i, step := range authorizerSteps {
				objects := sidecar + fmt.Sprintf(stepService, 7400+i, echo) + entry
				for _, name := range step.providers {
					objects += "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n" +
						"metadata: {name: " + name + ", namespace: shop}\nspec:\n  action: CUSTOM\n" +
						"  provider: {name: " + name + "}\n" +
						"  rules: [{to: [{operation: {paths: [\"/admin*\"]}}]}]\n"
				}
				proxy.apply(t, objects, fmt.Sprintf("127.0.0.1:%d", 7400+i))
				for _, x := range readExchanges(t, strings.Join(step.providers, ", "), step.requests) {
					eventually(t, x.where, func() (bool, string) {
						differences := x.run(peerHTTP)
						return len(differences) == 0, strings.Join(differences, "; ")
					})
				}
			}
		})
	}
}

// TestAuthorizer_NotImported: a policy is reported if the Sidecar does not import the host of its
// external authorizer.
func TestAuthorizer_NotImported(t *testing.T) {
	directory := t.TempDir()
	config, file := directory+"/config", directory+"/mesh.yaml"
	write(t, config, "extensionProviders:\n- name: a\n"+
		"  envoyExtAuthzHttp: {service: authz.test, port: 80}\n")
	const sidecar = `---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: shop}
spec: {egress: [{hosts: ["%s"]}]}
`
	const objects = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: authz, namespace: shop}
spec: {hosts: [authz.test], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.0.0.1}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: asks, namespace: shop}
spec: {action: CUSTOM, provider: {name: a}, rules: [{}]}
`
	for imports, want := range map[string]bool{"./authz.test": false, "./other.test": true, "": false} {
		text := objects
		if imports != "" {
			text += fmt.Sprintf(sidecar, imports)
		}
		write(t, file, text)
		problems, err := discovery.Check([]string{file}, discovery.CheckOptions{Namespace: "shop",
			MeshConfigFile: config})
		must(t, err)
		found := false
		for _, p := range problems {
			found = found || strings.HasPrefix(p.String(), file+":6: ") &&
				strings.Contains(p.Message, file+":11 does not import authz.test")
		}
		if found != want {
			t.Errorf("%q: %v", imports, problems)
		}
	}
}
