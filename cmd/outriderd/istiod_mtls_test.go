package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/signer"
	"outrider.org/outrider/scripts/rig"
)

// secrets is a CommonTlsContext that requests certificate and roots from the agent over SDS.
const secrets = `{
              tls_certificate_sds_secret_configs: [{name: default, sds_config: &sds {
                resource_api_version: V3, api_config_source: {
                  api_type: GRPC, transport_api_version: V3,
                  grpc_services: [{envoy_grpc: {cluster_name: sds-grpc}}]}}}],
              validation_context_sds_secret_config: {name: ROOTCA, sds_config: *sds}}`

// mutualServer is a listener of a bootstrap override that requires mutual TLS. NAME, PORT and
// BACKEND are placeholders.
const mutualServer = `
  - name: NAME
    address: {socket_address: {address: 127.0.0.1, port_value: PORT}}
    filter_chains:
    - transport_socket:
        name: tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          require_client_certificate: true
          common_tls_context: ` + secrets + `
      filters:
      - name: tcp
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: NAME
          cluster: NAME
`

const mutualCluster = `
  - name: NAME
    type: STATIC
    load_assignment: {cluster_name: NAME, endpoints: [{lb_endpoints: [{endpoint: {address: {
      socket_address: {address: 127.0.0.1, port_value: BACKEND}}}}]}]}
`

// mutualClient makes the client's Envoy use mutual TLS for web.test.
const mutualClient = `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: mutual, namespace: default}
spec:
  configPatches:
  - applyTo: CLUSTER
    match: {cluster: {service: web.test}}
    patch:
      operation: MERGE
      value:
        transport_socket:
          name: envoy.transport_sockets.tls
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
            common_tls_context: ` + secrets + `
`

// Two Envoys under load authenticate each other with certificates of a real istiod that are valid
// for ten seconds. No request is lost, and no certificate expires before its renewal.
func TestIstiod_MutualTLSWithShortCertificates(t *testing.T) {
	t.Parallel()
	duration, rate := 30*time.Second, 0.25
	if os.Getenv("OUTRIDER_TEST_FULL") != "" {
		duration, rate = 5*time.Minute, 1
	}
	authority := signer.Start(t, pkitest.NewAuthority(t, "root", nil))
	server := rig.New(t, rig.Options{})
	client := rig.New(t, rig.Options{})
	httpPort, tcpPort := parts.FreePort(t), parts.FreePort(t)
	listeners, clusters := "static_resources:\n  listeners:", "  clusters:"
	for _, l := range []struct {
		name          string
		port, backend int
	}{{"http", httpPort, server.Ports.Backend}, {"echo", tcpPort, server.Ports.Echo}} {
		fill := strings.NewReplacer("NAME", l.name, "PORT", strconv.Itoa(l.port),
			"BACKEND", strconv.Itoa(l.backend))
		listeners += fill.Replace(mutualServer)
		clusters += fill.Replace(mutualCluster)
	}
	server.WriteFile("override.yaml", listeners+clusters)
	client.WriteFile("mesh.d/web.yaml", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: default}
spec:
  hosts: [web.test]
  ports:
  - {number: %d, name: http, protocol: HTTP}
  - {number: %d, name: tcp, protocol: TCP}
  resolution: STATIC
  endpoints: [{address: 127.0.0.1, ports: {http: %d, tcp: %d}}]
`, client.Ports.HTTP, client.Ports.TCP, httpPort, tcpPort))
	client.WriteFile("mesh.d/mutual.yaml", mutualClient)
	for _, r := range []*rig.Rig{server, client} {
		override := ""
		if r == server {
			override = fmt.Sprintf("[envoy]\nbootstrap_override = %q\n",
				filepath.Join(r.Dir, "override.yaml"))
		}
		r.WriteFile("root.pem", string(pkitest.PEM(authority.Root.Certificate)))
		r.WriteFile("token", authority.Token(t, time.Hour))
		r.SetTOML(override + fmt.Sprintf(`[node]
service_account = "web"
[identity]
provider = "istiod"
ca_address = %q
root_ca_file = %q
token_file = %q
ttl = "10s"
`, authority.Address, filepath.Join(r.Dir, "root.pem"), filepath.Join(r.Dir, "token")))
		r.StartReady()
	}
	rig.Eventually(t, time.Minute, "the client reaches the server", func() bool {
		code, _, err := client.GetThroughEnvoy("/web")
		return err == nil && code == 200
	})

	flow := client.StartLoad(rate)
	least := time.Hour // shortest observed remaining validity
	parts.RepeatFor(duration, 500*time.Millisecond, func() {
		for _, r := range []*rig.Rig{server, client} {
			var identities []api.Identity
			r.RunOutriderJSON(&identities, "certs", "--json")
			for _, identity := range identities {
				least = min(least, time.Until(identity.NotAfter))
			}
		}
	})
	report := flow.Stop()
	if report.Lost > 0 || report.Total == 0 {
		t.Errorf("lost requests: %v", report)
	}
	if least <= 0 {
		t.Errorf("a certificate expired %v before its renewal", -least)
	}
	renewed := map[string]int{}
	for name, r := range map[string]*rig.Rig{"server": server, "client": client} {
		renewed[name] = metric(t, r, `outrider_secret_renewals_total{resource="default"}`)
		// The agent renews a certificate after half of its validity, 5 s.
		if want := int(duration/(5*time.Second)) - 2; renewed[name] < want {
			t.Errorf("%s: %d renewals in %v, want %d", name, renewed[name], duration, want)
		}
	}
	t.Logf("%v: %d requests, renewals %v, at least %v of validity left", duration,
		report.Total, renewed, least.Round(time.Millisecond))
}

// metric returns the value of a metric of the agent, given with its labels.
func metric(t *testing.T, r *rig.Rig, name string) int {
	t.Helper()
	_, text, err := r.GetHostThroughEnvoy("localhost", r.Ports.Status, "/stats/prometheus")
	for line := range strings.Lines(text) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), name+" "); found {
			number, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			return int(number)
		}
	}
	t.Fatalf("no metric %s: %v", name, err)
	return 0
}
