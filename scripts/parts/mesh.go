package parts

import (
	"fmt"
	"strings"
)

// GatewayYAML returns YAML with a Gateway in namespace default that selects all proxies, and a
// VirtualService of the same name for a host. servers and http are the YAML of the lists with these
// names; an element may span several lines.
func GatewayYAML(name, host, servers, http string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: %[1]s, namespace: default}
spec:
  servers:
%[3]s
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %[1]s, namespace: default}
spec:
  hosts: [%[2]s]
  gateways: [%[1]s]
  http:
%[4]s
`, name, host, indent(servers), indent(http))
}

// GatewayFilterYAML returns the YAML of an EnvoyFilter in namespace default that inserts an HTTP
// filter into all listeners of gateways. filter is the YAML of the filter.
func GatewayFilterYAML(name, filter string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: %s, namespace: default}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    match:
      context: GATEWAY
      listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}
    patch:
      operation: INSERT_BEFORE
      value: %s
`, name, filter)
}

// indent indents each line by two columns.
func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ")
}
