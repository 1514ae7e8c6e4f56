package identity_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/scripts/parts"
)

// mutualTLS is the bootstrap of an Envoy that requests the secrets of a listener over SDS. The
// listener requires client certificates.
const mutualTLS = `{
  "node": {"id": "sidecar~127.0.0.1~web.default~default.svc.cluster.local", "cluster": "test"},
  "admin": {"address": {"pipe": {"path": %[1]q}}},
  "static_resources": {
    "listeners": [{
      "name": "in", "address": {"socket_address": {"address": "127.0.0.1", "port_value": %[2]d}},
      "filter_chains": [{
        "transport_socket": {"name": "tls", "typed_config": {
          "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
          "require_client_certificate": true,
          "common_tls_context": {
            "tls_certificate_sds_secret_configs": [{"name": %[5]q, "sds_config": %[3]s}],
            "validation_context_sds_secret_config": {"name": %[6]q, "sds_config": %[3]s}
          }}},
        "filters": [{"name": "hcm", "typed_config": {
          "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
          "stat_prefix": "in",
          "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
            {"match": {"prefix": "/"}, "direct_response": {"status": 200}}]}]},
          "http_filters": [{"name": "router", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]}],
    "clusters": [{
      "name": "sds-grpc", "type": "STATIC", "connect_timeout": "1s",
      "load_assignment": {"cluster_name": "sds-grpc", "endpoints": [{"lb_endpoints": [
        {"endpoint": {"address": {"pipe": {"path": %[4]q}}}}]}]},
      "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}}}}}]}
}`

const sdsConfig = `{"resource_api_version": "V3", "initial_fetch_timeout": "0s", "api_config_source": {
  "api_type": %q, "transport_api_version": "V3",
  "grpc_services": [{"envoy_grpc": {"cluster_name": "sds-grpc"}}]}}`

// sdsEnvoy is a real Envoy that runs mutualTLS.
type sdsEnvoy struct {
	*parts.EnvoyProcess
	t    *testing.T
	port int
}

// serveSDS serves the secrets of a rig, as the agent does.
func serveSDS(t *testing.T, r *rig) (socket string) {
	t.Helper()
	socket = filepath.Join(parts.ShortDir(t), "sds.sock")
	server, err := xds.NewServer(xds.Options{Source: r, SecretSubscriptionObserver: r})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := xds.Listen(xds.ListenOptions{Path: socket})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return socket
}

// startSDSEnvoy starts an Envoy that requests the secrets named pair and roots.
func startSDSEnvoy(t *testing.T, socket, api, pair, roots string) *sdsEnvoy {
	t.Helper()
	port, admin := parts.FreePort(t), filepath.Join(parts.ShortDir(t), "admin.sock")
	return &sdsEnvoy{parts.StartEnvoy(t, admin, fmt.Sprintf(mutualTLS, admin, port,
		fmt.Sprintf(sdsConfig, api), socket, pair, roots)), t, port}
}

// get sends a request with a client certificate and returns the server's certificate.
func (e *sdsEnvoy) get(roots *x509.CertPool, chain, key []byte) (*x509.Certificate, error) {
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{
			RootCAs: roots, Certificates: []tls.Certificate{pair}, ServerName: "web.test",
		},
	}}
	request, err := http.NewRequestWithContext(e.t.Context(), http.MethodGet,
		fmt.Sprintf("https://127.0.0.1:%d/", e.port), http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	_ = response.Body.Close()
	return response.TLS.PeerCertificates[0], nil
}

// until repeats a request until done accepts its result.
func (e *sdsEnvoy) until(what string, done func() bool) {
	e.t.Helper()
	parts.Eventually(e.t, deadline, what, done)
}

// A real Envoy waits until its certificate exists, and uses each new certificate and new roots
// after a rotation.
func TestSDS_EnvoyFetchesAndRotates(t *testing.T) {
	for _, api := range []string{"GRPC", "DELTA_GRPC"} {
		t.Run(api, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil) // nil: the certificate files do not exist yet
			e := startSDSEnvoy(t, serveSDS(t, r), api, identity.DefaultSecret,
				identity.RootCASecret)
			e.until("Envoy waits for its secrets", func() bool {
				return strings.Contains(e.Get("/config_dump"), "dynamic_warming_secrets")
			})
			r.awaitCondition(identity.CodeUnavailable, "default: ")

			old, next := r.root, pkitest.NewAuthority(t, "next", nil)
			both := x509.NewCertPool()
			both.AddCert(old.Certificate)
			both.AddCert(next.Certificate)
			oldChain, oldKey := old.Issue(t, pkitest.LeafTemplate("client", time.Hour))
			nextChain, nextKey := next.Issue(t, pkitest.LeafTemplate("client", time.Hour))
			serves := func(want []byte) func() bool {
				return func() bool {
					got, err := e.get(both, oldChain, oldKey)
					return err == nil && bytes.Equal(pkitest.PEM(got), want)
				}
			}
			e.until("the first certificate", serves(r.issue(time.Hour)))
			e.until("a rotated one", serves(r.issue(2*time.Hour)))
			if _, err := e.get(both, nextChain, nextKey); err == nil {
				t.Error("a client of an unknown root is accepted")
			}
			r.write("root.pem", pkitest.PEM(old.Certificate, next.Certificate))
			e.until("the new root is trusted", func() bool {
				_, err := e.get(both, nextChain, nextKey)
				return err == nil
			})
			r.write("root.pem", pkitest.PEM(next.Certificate))
			e.until("the old root is not", func() bool {
				_, err := e.get(both, oldChain, oldKey)
				return err != nil
			})
			if strings.Contains(e.String(), "stream closed") {
				t.Error("a stream of SDS ended")
			}
		})
	}
}
