package parts

import (
	"fmt"
	"strings"
)

// GatewayYAML returns a Gateway in namespace default for all proxies, and a VirtualService of the
// same name for a host. servers and http are the YAML of these lists; each element may have several
// lines.
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

// GatewayFilterYAML returns an EnvoyFilter in namespace default that inserts an HTTP filter into
// all listeners of Gateways. filter is YAML.
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

// indent moves each line by two columns.
func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ")
}
