package decisiontable

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"outrider.org/outrider/scripts/parts"
)

// service is the name of the workload in Istio's test data.
const service = "httpbin"

// testCase is a workload with its policies and the requests to it.
type testCase struct {
	name           string // name of the case, and its namespace
	from           string // file from which the policies were read
	kind           string // type of the proxy: sidecar or router
	port, tcpPort  int
	trustedProxies int
	fetches        bool // the discovery servers fetch a JWKS from the test
	objects        []map[string]any
	requests       []*request
}

// text returns the objects as YAML.
func (c *testCase) text() string { return "# " + c.from + "\n" + textOf(c.objects) }

func textOf(objects []map[string]any) string {
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	for _, object := range objects {
		if err := encoder.Encode(object); err != nil {
			panic(err) // the values can always be encoded
		}
	}
	return out.String()
}

// objectsOf decodes YAML documents.
func objectsOf(t testing.TB, text string) (objects []map[string]any) {
	t.Helper()
	decoder := yaml.NewDecoder(strings.NewReader(text))
	for {
		var object map[string]any
		err := decoder.Decode(&object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
		if object != nil {
			objects = append(objects, object)
		}
	}
}

// workloadOf maps a type of proxy to the objects that give such a proxy its listeners.
var workloadOf = map[string]string{"sidecar": `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default}
spec:
  ingress:
  - {port: {number: PORT, protocol: HTTP, name: http}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:BACKEND"}
  - {port: {number: TPORT, protocol: TCP, name: tcp}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:ECHO"}
  egress: [{hosts: ["./*", "istio-system/*"]}]
`, "router": `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gateway}
spec:
  selector: {case: NAME}
  servers:
  - {port: {number: PORT, protocol: HTTP, name: http}, hosts: ["*"]}
  - {port: {number: TPORT, protocol: TCP, name: tcp}, hosts: ["*"]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: gateway}
spec:
  hosts: ["*"]
  gateways: [gateway]
  http: [{route: [{destination: {host: NAME.test, port: {number: 80}}}]}]
  tcp: [{match: [{port: TPORT}], route: [{destination: {host: NAME.test, port: {number: 81}}}]}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: backend}
spec:
  hosts: [NAME.test]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: BACKEND}, {number: 81, name: tcp, protocol: TCP, targetPort: ECHO}]
  endpoints: [{address: 127.0.0.1}]
`}

// maker creates test cases.
type maker struct {
	t       testing.TB
	backend backend
	keys    *tokens
	cases   []*testCase
}

// add adds a case. It replaces placeholders in the policies: PORT, TPORT and NAME by the ports and
// the name of the case, JWKS by the key set, ISSUER by the port of the server with the key set.
func (m *maker) add(from, kind, policies string) *testCase {
	m.t.Helper()
	c := &testCase{name: fmt.Sprintf("c%03d", len(m.cases)), from: from, kind: kind,
		port: parts.FreePort(m.t), tcpPort: parts.FreePort(m.t),
		fetches: strings.Contains(policies, "ISSUER")}
	names := strings.NewReplacer("TPORT", fmt.Sprint(c.tcpPort), "PORT", fmt.Sprint(c.port),
		"NAME", c.name, "JWKS", m.keys.set(), "BACKEND", fmt.Sprint(m.backend.http),
		"ECHO", fmt.Sprint(m.backend.tcp), "ISSUER", fmt.Sprint(m.keys.port))
	c.objects = objectsOf(m.t, names.Replace(workloadOf[kind]))
	for _, object := range objectsOf(m.t, policies) {
		// a VirtualService in policies replaces the VirtualService in workloadOf
		if object["kind"] == "VirtualService" {
			c.objects = slices.DeleteFunc(c.objects, func(o map[string]any) bool {
				return o["kind"] == "VirtualService"
			})
		}
		c.objects = append(c.objects, replaced(object, names).(map[string]any))
	}
	for _, object := range c.objects {
		metadata, _ := object["metadata"].(map[string]any)
		if metadata["namespace"] == nil || metadata["namespace"] == "foo" {
			metadata["namespace"] = c.name
		}
	}
	m.cases = append(m.cases, c)
	return c
}

// replaced returns a value with the replacements applied to all its strings.
func replaced(value any, by *strings.Replacer) any {
	switch value := value.(type) {
	case string:
		return by.Replace(value)
	case []any:
		for i := range value {
			value[i] = replaced(value[i], by)
		}
	case map[string]any:
		for key := range value {
			value[key] = replaced(value[key], by)
		}
	}
	return value
}

// ownCases adds the cases in testdata. The name of each file begins with the type of the proxy.
func (m *maker) ownCases() {
	m.t.Helper()
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		m.t.Fatalf("%d files in testdata, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			m.t.Fatal(err)
		}
		kind, _, _ := strings.Cut(filepath.Base(file), "-")
		c := m.add(file, kind, string(text))
		if strings.HasPrefix(string(text), "# behind a proxy") {
			c.trustedProxies = 1
		}
	}
}

// allCases adds the cases of Istio's test data, those in testdata and random ones.
func (m *maker) allCases() {
	m.t.Helper()
	m.istioCases()
	m.ownCases()
	m.randomCases()
	for _, c := range m.cases {
		m.requestsFor(c)
	}
}
