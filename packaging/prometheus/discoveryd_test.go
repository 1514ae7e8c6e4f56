package prometheus_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
)

// certifiedProxy is the bootstrap of an Envoy that presents a client certificate to a discovery
// server.
const certifiedProxy = `{
  "node": {"id": "sidecar~127.0.0.1~vm.default~default.svc.cluster.local", "cluster": "test", "metadata": {"INTERCEPTION_MODE": "NONE"}},
  "admin": {"address": {"pipe": {"path": %[1]q}}},
  "dynamic_resources": {
    "ads_config": {"api_type": "DELTA_GRPC", "transport_api_version": "V3", "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}]},
    "cds_config": {"ads": {}, "resource_api_version": "V3"}, "lds_config": {"ads": {}, "resource_api_version": "V3"}},
  "static_resources": {"clusters": [{"name": "xds", "type": "STATIC",
    "load_assignment": {"cluster_name": "xds", "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": %[2]d}}}}]}]},
    "transport_socket": {"name": "tls", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
      "common_tls_context": {"tls_certificates": [{"certificate_chain": {"filename": "%[3]s/proxy.pem"}, "private_key": {"filename": "%[3]s/proxy.key"}}],
        "validation_context": {"trusted_ca": {"filename": "%[3]s/root.pem"}}}}},
    "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
      "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "explicit_http_config": {"http2_protocol_options": {}}}}}]}
}`

// fleet is an outrider-discoveryd with a certificate authority, and a proxy connected to it.
type fleet struct {
	folder     string
	monitoring int
	changes    int
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{folder: parts.ShortDir(t), monitoring: parts.FreePort(t)}
	write := func(name string, text []byte) {
		if err := os.WriteFile(filepath.Join(f.folder, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	authority := pkitest.NewAuthority(t, "root", nil)
	write("root.pem", pkitest.PEM(authority.Certificate))
	write("root.key", pkitest.KeyPEM(t, authority.Key))
	for _, name := range []string{"server", "proxy"} {
		template := pkitest.LeafTemplate(name, time.Hour)
		template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
		chain, key := authority.Issue(t, template)
		write(name+".pem", chain)
		write(name+".key", key)
	}
	if err := os.Mkdir(filepath.Join(f.folder, "mesh"), 0o700); err != nil {
		t.Fatal(err)
	}
	f.write(t)
	// this invalid object causes a condition
	write("mesh/broken.yaml", []byte("{kind: VirtualService}\n"))
	write("token", []byte("token"))
	port := parts.FreePort(t)
	parts.StartProcess(t, parts.Discoveryd{MeshFolder: filepath.Join(f.folder, "mesh"),
		TLS: fmt.Sprintf("127.0.0.1:%d", port), MonitoringAddress: fmt.Sprintf("127.0.0.1:%d", f.monitoring),
		ExtraConfig: fmt.Sprintf(`[tls]
cert_file = "%[1]s/server.pem"
key_file = "%[1]s/server.key"
[ca]
enabled = true
cert_file = "%[1]s/root.pem"
key_file = "%[1]s/root.key"
[[source]]
type = "memory"
listen = "127.0.0.1:%[2]d"
token_file = "%[1]s/token"
`, f.folder, parts.FreePort(t))}.Command(t))
	parts.Eventually(t, time.Minute, "outrider-discoveryd is ready", func() bool {
		_, err := f.get("/ready")
		return err == nil
	})
	admin := filepath.Join(f.folder, "admin.sock")
	parts.StartEnvoy(t, admin, fmt.Sprintf(certifiedProxy, admin, port, f.folder))
	return f
}

// write writes the mesh file with another endpoint.
func (f *fleet) write(t *testing.T) {
	t.Helper()
	f.changes++
	path := filepath.Join(f.folder, "mesh", "a.yaml")
	if err := os.WriteFile(path+".next", fmt.Appendf(nil,
		`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web}
spec:
  hosts: [web.test]
  resolution: STATIC
  ports: [{number: 80, name: tcp, protocol: TCP}]
  endpoints: [{address: %s}]
`, f.address()), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".next", path); err != nil {
		t.Fatal(err)
	}
}

func (f *fleet) address() string { return fmt.Sprintf("127.0.%d.%d", f.changes/250, f.changes%250) }

// change writes the mesh file with another endpoint, and returns when the proxy has accepted the
// change.
func (f *fleet) change(t *testing.T) {
	t.Helper()
	f.write(t)
	parts.EventuallyWithObservation(t, time.Minute, "the change is accepted", func() (bool, string) {
		text, err := f.get("/status.json")
		return err == nil && strings.Contains(text, fmt.Sprintf("%q", f.address())) &&
			strings.Contains(text, `"synced":1`), text
	})
}

// get returns the body of the response for a path at the monitoring address.
func (f *fleet) get(path string) (string, error) {
	response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", f.monitoring, path))
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return string(text), err
}

func TestDashboard_OfDiscoverydHasData(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := ofDiscoveryd.prometheus(t, "outrider-discoveryd", 15014, f.monitoring)
	text, err := os.ReadFile("../discoveryd/grafana/outrider-discoveryd.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct{ UID string }
	if err := json.Unmarshal(text, &dashboard); err != nil || dashboard.UID != "outrider-discoveryd" {
		t.Errorf("uid %q, %v", dashboard.UID, err)
	}
	awaitData(t, p, queries(t, "outrider-discoveryd.json", text), func() { f.change(t) })
	checkMetrics(t, p, ofDiscoveryd)
}
