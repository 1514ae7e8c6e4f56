package discovery_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/explain"
)

const filtered = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge}
spec:
  servers:
  - port: {number: 80, name: http, protocol: HTTP}
    hosts: ["*"]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge}
spec:
  hosts: ["*"]
  gateways: [edge]
  http: [{directResponse: {status: 204}}]
`

const filterHead = `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: %s}
spec:
  configPatches:
`

const network = `  - applyTo: NETWORK_FILTER
    match: {listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}}
    patch:
      operation: MERGE
      value:
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          xff_num_trusted_hops: 1
          local_reply_config: {mappers: [{filter: {response_flag_filter: {}}, status_code: 502}]}
`

const inListener = `  - applyTo: LISTENER_FILTER
    match: {listener: {}}
    patch:
      operation: INSERT_FIRST
      value:
        name: envoy.filters.listener.proxy_protocol
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol
`

// besides adds a UDP listener (QUIC) with the port of the TCP listener that is explained.
const besides = `  - applyTo: LISTENER
    match: {context: GATEWAY}
    patch:
      operation: ADD
      value:
        name: a
        address: {socket_address: {protocol: UDP, address: 0.0.0.0, port_value: 80}}
        udp_listener_config: {quic_options: {}}
`

const inRequests = `  - applyTo: HTTP_FILTER
    match: {listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.router}}}}}
    patch:
      operation: INSERT_BEFORE
      value:
        name: own.%s
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer
          max_request_bytes: 10
  - applyTo: VIRTUAL_HOST
    patch:
      operation: MERGE
      value:
        typed_per_filter_config:
          own.%[1]s:
            "@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.BufferPerRoute
            disabled: true
`

// TestExplain_FiltersOfEnvoyFilters: each filter that an EnvoyFilter adds is a step, and the
// EnvoyFilter is its origin.
func TestExplain_FiltersOfEnvoyFilters(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"edge": filtered,
		"a": fmt.Sprintf(filterHead, "a") + inListener + besides + fmt.Sprintf(inRequests, "one"),
		"b": fmt.Sprintf(filterHead, "b") + network + fmt.Sprintf(inRequests, "two"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	said, err := discovery.Explain([]string{dir}, discovery.CheckOptions{NodeType: "router"},
		explain.Request{Host: "a.test", Port: 80})
	if err != nil || len(said.Problems) > 0 {
		t.Fatalf("%v, %v", err, said.Problems)
	}
	var got []string
	for _, step := range said.Steps {
		switch step.Kind {
		case "listener filter", "network filter", "filter":
			got = append(got, fmt.Sprintf("%s %s %q from", step.Kind, step.Name, step.Facts))
			for _, o := range step.Origins {
				got = append(got, fmt.Sprintf("%s:%d %s", filepath.Base(o.File), o.Line, o.Kind))
			}
		case "route":
			got = append(got, step.Facts...)
		}
	}
	want := []string{
		`listener filter envoy.filters.listener.proxy_protocol [] from`, "a.yaml:1 EnvoyFilter",
		`network filter envoy.filters.network.http_connection_manager ` +
			`["takes the client's address from x-forwarded-for (trusted proxies: 1)" ` +
			`"changes answers of its own, by 1 rule"] from`, "b.yaml:1 EnvoyFilter",
		`filter own.one [] from`, "a.yaml:1 EnvoyFilter",
		`filter own.two [] from`, "b.yaml:1 EnvoyFilter",
		"matches prefix /", "has settings for filter own.one", "has settings for filter own.two",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if len(said.UnknownFacts) != 2 {
		t.Errorf("what the filters do is known: %q", said.UnknownFacts)
	}
}
