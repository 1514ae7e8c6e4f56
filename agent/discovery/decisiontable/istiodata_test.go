package decisiontable

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"outrider.org/outrider/scripts/parts"
)

// known are the kinds in Istio's test data that do not need Kubernetes.
var known = []string{"AuthorizationPolicy", "RequestAuthentication", "PeerAuthentication"}

// istioCases adds a case for each file with policies in Istio's test data. Addresses, ports,
// namespaces and key sets are adapted to a workload on the loopback.
func (m *maker) istioCases() {
	m.t.Helper()
	source, err := parts.IstioSourceDir()
	if err != nil {
		m.t.Fatal(err)
	}
	m.keys.istio(m.t, source)
	builder := filepath.Join(source, "pilot", "pkg", "security", "authz", "builder", "testdata")
	integration := filepath.Join(source, "tests", "integration", "security", "testdata")
	for _, pattern := range []string{builder + "/*/*-in.yaml", integration + "/authz/*.tmpl",
		integration + "/requestauthn/*.tmpl"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			m.t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				m.t.Fatal(err)
			}
			name, _ := filepath.Rel(source, file)
			if strings.HasSuffix(file, ".tmpl") {
				m.addTemplate(name, string(text))
			} else {
				m.addAdapted(name, "sidecar", string(text))
			}
		}
	}
}

var (
	// an index such as [0], which Istio's tests put into methods and hosts, and which is removed
	// here
	index     = regexp.MustCompile(`\[(\d+)\]`)
	addresses = strings.NewReplacer("1.2.3.4", "127.0.0.2", "5.6.0.0/16", "127.0.5.0/24",
		"10.10.10.10", "127.0.0.1", "10.0.0.1\"", "127.0.0.3\"", "9.0.0.1", "127.0.0.9")
	sentinel = regexp.MustCompile(`"(80|91|8080|18080|9001)"`)
)

func (m *maker) addAdapted(from, kind, text string) {
	m.t.Helper()
	text = sentinel.ReplaceAllString(addresses.Replace(index.ReplaceAllString(text, "$1")),
		`"PORT"`)
	var retained []map[string]any
	for _, object := range objectsOf(m.t, text) {
		if slices.Contains(known, fmt.Sprint(object["kind"])) {
			m.adapt(object)
			retained = append(retained, object)
		}
	}
	if len(retained) > 0 {
		m.add(from, kind, textOf(retained))
	}
}

// adapt changes an object of Istio's test data: it restricts a policy in the root namespace to the
// workload of the case, and adds the keys to a RequestAuthentication.
func (m *maker) adapt(object map[string]any) {
	metadata, _ := object["metadata"].(map[string]any)
	spec, _ := object["spec"].(map[string]any)
	if metadata["namespace"] == rootNamespace {
		spec["selector"] = map[string]any{"matchLabels": map[string]any{"case": "NAME"}}
	}
	rules, _ := spec["jwtRules"].([]any)
	for _, r := range rules {
		if rule, _ := r.(map[string]any); rule["jwksUri"] != nil {
			delete(rule, "jwksUri")
			// a rule that contains its keys has no time-out for fetching them
			delete(rule, "timeout")
			rule["jwks"] = m.keys.istioSet
		}
	}
}

// Types of the values in Istio's templates.
type (
	workloadData struct{ ServiceName, NamespaceName, account string }
	portData     struct{ WorkloadPort, ServicePort string }
	prefixData   struct{ Prefix string }
)

// PortForName returns the port with a protocol's name.
func (workloadData) PortForName(name string) portData {
	ports := map[string]string{"http": "PORT", "tcp": "TPORT"}
	if ports[name] == "" {
		return portData{"9", "9"}
	}
	return portData{ports[name], ports[name]}
}

// SpiffeIdentity returns the SPIFFE ID of the workload without the scheme.
func (w workloadData) SpiffeIdentity() string {
	return "cluster.local/ns/" + w.NamespaceName + "/sa/" + w.account
}

// NamespacedName returns the service account of the workload.
func (w workloadData) NamespacedName() string { return w.NamespaceName + "/" + w.account }

// ClusterLocalFQDN returns the host of the workload's service.
func (w workloadData) ClusterLocalFQDN() string {
	return w.ServiceName + "." + w.NamespaceName + ".svc.cluster.local"
}

// MustWorkloads returns the workload itself, as templates expect.
func (w workloadData) MustWorkloads() workloadData { return w }

// Addresses returns the addresses of the workload.
func (w workloadData) Addresses() []string {
	return map[string][]string{"allowed": {"127.0.0.2"}, "denied": {"127.0.0.4"},
		"foo": {"127.0.0.1"}}[w.NamespaceName]
}

// Config returns the configuration of a service that templates use.
func (w workloadData) Config() map[string]any {
	return map[string]any{"Namespace": prefixData{"prefix"}}
}

// addTemplate adds a case for a sidecar. If the template is for gateways, it also adds one for a
// gateway.
func (m *maker) addTemplate(from, text string) {
	m.t.Helper()
	parsed, err := template.New(from).Funcs(template.FuncMap{
		"toJson": func(value any) (string, error) {
			text, err := json.Marshal(value)
			return string(text), err
		},
		"default": func(other string, value any) any {
			if value == nil || value == "" {
				return other
			}
			return value
		}}).Parse(text)
	if err != nil {
		m.t.Fatal(err)
	}
	to, allowed, denied := workloadData{service, "foo", "a"},
		workloadData{"a", "allowed", "a"}, workloadData{"d", "denied", "d"}
	var out strings.Builder
	if err := parsed.Execute(&out, map[string]any{"To": to, "Allowed": allowed, "Denied": denied,
		"From": allowed, "Services": []workloadData{to}, "Namespace": prefixData{"prefix"},
		"SystemNamespace":               map[string]string{"Name": rootNamespace},
		"Provider":                      map[string]string{"Name": "default"},
		"JWTServer":                     map[string]string{"JwksURI": "https://keys.test/"},
		"Provider1":                     map[string]string{"Name": "default"},
		"Provider2":                     map[string]string{"Name": "grpc"},
		"GatewayIstioLabel":             "ingressgateway-NAME",
		"EgressGatewayIstioLabel":       "ingressgateway-NAME",
		"EgressGatewayServiceName":      service,
		"EgressGatewayServiceNamespace": "foo",
	}); err != nil {
		m.t.Errorf("%s: %v", from, err)
		return
	}
	kind := "sidecar"
	if strings.Contains(from, "gateway") || strings.Contains(from, "ingress") ||
		strings.Contains(from, "global-jwt") {
		kind = "router"
	}
	m.addAdapted(from, kind, out.String())
}
