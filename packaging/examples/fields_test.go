package examples

import (
	"os"
	"path/filepath"
	"testing"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/packaging/man"
)

// Texts for the section FIELDS of the manual page: fields that administrators of other proxies look
// for.
const (
	routeFields = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop}
spec:
  hosts: [shop.example.com]
  gateways: [edge]
  http:
  - match: [{uri: {prefix: /old/}}]
    redirect:                     # also scheme, port
      authority: www.example.com
      uri: /new/                  # the whole path
      redirectCode: 308           # default 301
  - match: [{uri: {prefix: /api/}}]
    rewrite: {uri: /}             # instead of the prefix; also authority,
                                  # uriRegexRewrite: {match, rewrite}
    corsPolicy:
      allowOrigins: [{exact: "https://app.example.com"}] # or prefix, regex
      allowMethods: [GET, POST]
      allowHeaders: [content-type]
      exposeHeaders: [x-total]
      allowCredentials: true
      maxAge: 24h                 # of the answer to a preflight request
    mirrors:                      # copies, whose answers are dropped
    - destination: {host: next.internal, port: {number: 80}}
      percentage: {value: 10}
    route: [{destination: {host: api.internal, port: {number: 80}}}]
`
	ruleFields = `apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: api}
spec:
  host: api.internal
  trafficPolicy:
    loadBalancer:
      consistentHash:             # one of:
        httpCookie:               #   set if the request has none
          name: session
          path: /
          ttl: 3600s              #   0s: until the browser is closed
        # httpHeaderName: x-user
        # httpQueryParameterName: user
        # useSourceIp: true
`
	meshFields = `defaultConfig:
  gatewayTopology:
    numTrustedProxies: 1
`
	// surroundings are the objects that routeFields and ruleFields refer to.
	surroundings = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge}
spec: {servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: servers}
spec:
  hosts: [api.internal, next.internal]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 127.0.0.1, ports: {http: 8080}}]
`
)

// fields adds the section FIELDS.
func fields(p *man.Page) {
	p.Section("FIELDS")
	p.Text("Rewrite, redirect, CORS and mirror in a VirtualService:")
	p.Example(routeFields)
	p.Text("Sessions that stay with a server, by cookie, header, parameter or address, in a\n" +
		"DestinationRule. If servers come or go, few sessions move:")
	p.Example(ruleFields)
	p.Text("Proxies in front of this one, in the MeshConfig (`mesh_config_file` in [discovery]):\n" +
		"with N of them the client's address is the N-th from the end of x-forwarded-for; by\n" +
		"default it is that of the connection, whatever the header says.")
	p.Example(meshFields)
	p.Text("Of `retries`, `timeout`, `headers`, `weight`, `outlierDetection` and TLS see EXAMPLES.")
}

// TestFields_AreValid checks the objects of the section FIELDS.
func TestFields_AreValid(t *testing.T) {
	directory := t.TempDir()
	for name, text := range map[string]string{"mesh.d/all.yaml": routeFields + "---\n" + ruleFields +
		"---\n" + surroundings, "mesh": meshFields} {
		path := filepath.Join(directory, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	problems, err := discovery.Check([]string{filepath.Join(directory, "mesh.d")},
		discovery.CheckOptions{NodeType: "router",
			MeshConfigFile: filepath.Join(directory, "mesh")})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if p.Severity != condition.Info {
			t.Error(p)
		}
	}
}
