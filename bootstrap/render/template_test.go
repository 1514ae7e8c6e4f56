package render

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"outrider.org/outrider/bootstrap"
	"outrider.org/outrider/scripts/parts"
)

// templateInput returns an input with everything that a template can use.
func templateInput() bootstrap.Input {
	in := input(inputs["telemetry"])
	in.Node.Locality = "eu/eu-1/a"
	in.Template = bootstrap.TemplateInput{
		DiscoveryAddress: "istiod.istio-system.svc:15012", DiscoveryRootCA: "/etc/root.pem",
		PilotIdentity: "istiod.istio-system.svc",
		MixerIdentity: "spiffe://cluster.local/ns/istio-system/sa/mixer", ControlPlaneAuth: true,
		AdminPort: 15000, StatusPort: 15020,
		STSPort: 15463, ConfigDir: "/etc/istio/proxy", DrainDuration: 45e9, ParentShutdown: 60e9,
		Concurrency: 2, StatNameLength: 189,
	}
	return in
}

func TestTemplate_IsAcceptedByEnvoy(t *testing.T) {
	dir := folder(t)
	lightstep := templateInput()
	lightstep.Tracing = input(inputs["lightstep"]).Tracing
	lightstep.Node.IPs = []netip.Addr{netip.MustParseAddr("fd00::1")}
	for name, test := range map[string]struct {
		template string
		in       bootstrap.Input
	}{
		"template-sidecar":      {"sidecar.json.tmpl", templateInput()},
		"template-lightstep":    {"sidecar.json.tmpl", lightstep},
		"template-plain":        {"sidecar.json.tmpl", input(inputs["defaults"])},
		"template-controlplane": {"controlplane.yaml.tmpl", templateInput()},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", test.template)
			content, err := os.ReadFile(path) //nolint:gosec // of testdata
			if err != nil {
				t.Fatal(err)
			}
			rendered, err := Template(path, content, test.in)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name+".json", rendered)
			validate(t, dir, rendered)
		})
	}
}

func TestTemplate_ErrorsHavePositions(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"syntax": {"{\n{{ if }}\n}", "a:b.tmpl:2: missing value for if"},
		"unknown name": {"{\n\n\"a\": {{ .nodeId }}\n}",
			"a:b.tmpl:3: <.nodeId>: map has no entry for key \"nodeId\""},
		"unknown func": {"{{ nonesuch }}", `a:b.tmpl:1: function "nonesuch" not defined`},
		"of a value": {"{{ .config.Nonesuch }}",
			`a:b.tmpl:1: <.config.Nonesuch>: map has no entry for key "Nonesuch"`},
		"bad outcome": {"{\n\"node\": {{ .nodeID }}\n}",
			`a:b.tmpl:2: not JSON: invalid character 's'`},
		"far below": {"{{/* a\n comment */ -}}\n\n{\n{{- if .nodeID }}\n\"a\": [\n  1,\n" +
			" {{ range (split \",\" \"1,2\") }}\n {{ . }},\n{{ end }}\n2],\n{{ end }}\n" +
			"\"b\": oops\n}", `a:b.tmpl:13: not JSON`},
		"in a loop": {"{\n\"a\": [\n{{ range (split \",\" \"1,2,x\") }}\n  {{ . }},\n" +
			"{{ end }}\n2]}", `a:b.tmpl:4: not JSON`},
		"in a part": {"{{ define \"x\" }}\n\noops{{ end }}{\n\"a\":\n{{ template \"x\" }}}",
			`a:b.tmpl:3: not JSON`},
		"no bootstrap": {"- a", "a:b.tmpl:1: is a list"},
		"endless": {`{{ define "x" }}{{ template "x" }}{{ end }}{{ template "x" }}`,
			"exceeded maximum template depth"},
		"nothing at all": {"{{/* */}}", "a:b.tmpl: is empty, as rendered"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Template("a:b.tmpl", []byte(test.text), defaults())
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
			if _, ok := errors.AsType[*bootstrap.Error](err); !ok {
				t.Errorf("%T", err)
			}
		})
	}
}

// A rendered bootstrap may contain credentials, so no error quotes it.
func TestTemplate_ErrorsHaveNoCredentials(t *testing.T) {
	in := defaults()
	in.Node.Metadata = map[string]any{"TOKEN": "s3cret-value"}
	for _, text := range []string{`{"a": {{ .metadata.TOKEN }}}`, "a: {{ .metadata.TOKEN }}: b",
		"{{ .metadata.TOKEN }}", "a: '{{ .metadata.TOKEN }}", `{"a": "{{ .metadata.TOKEN }}" b}`} {
		if _, err := Template("x.tmpl", []byte(text), in); err == nil ||
			strings.Contains(err.Error(), "s3cret-value") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestTemplate_Functions(t *testing.T) {
	text := `{"a": {{ toJSON .metadata.NAME }}, "b": {{ toJson (split "/" .config.ConfigPath) }}, "c": "{{ join "+" (split "." .PodName) }}"}`
	rendered, err := Template("x", []byte(text), templateInput())
	if err != nil {
		t.Fatal(err)
	}
	want := "{\n  \"a\": \"vm1\",\n  \"b\": [\n    \"\",\n    \"etc\",\n    \"istio\",\n" +
		"    \"proxy\"\n  ],\n  \"c\": \"vm1\"\n}\n"
	if diff := cmp.Diff(want, string(rendered)); diff != "" {
		t.Error(diff)
	}
}

func TestCustom(t *testing.T) {
	text := "{ \"admin\" :\n {}}"
	if got, err := Custom("c.json", []byte(text)); err != nil || string(got) != text {
		t.Errorf("JSON is not as it was: %s, %v", got, err)
	}
	if got, err := Custom("c.yaml", []byte("admin: {}")); err != nil ||
		string(got) != "{\n  \"admin\": {}\n}\n" {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := Custom("c.json", []byte("{\"a\": [\n1,\n\noops]}")); err == nil ||
		!strings.HasPrefix(err.Error(), "c.json:4: not JSON") {
		t.Errorf("got %v", err)
	}
	if _, err := Custom("c.yaml", []byte("admin: }")); err == nil ||
		!strings.HasPrefix(err.Error(), "c.yaml:1: not YAML") {
		t.Errorf("got %v", err)
	}
}

func TestAdminAddress(t *testing.T) {
	for name, test := range map[string]struct{ text, network, address, want string }{
		"pipe": {`{"admin": {"address": {"pipe": {"path": "/run/a.sock", "mode": 432}}}}`,
			"unix", "/run/a.sock", ""},
		"tcp":        {`{"admin": {"address": {"socketAddress": {"address": "127.0.0.1", "portValue": 15000}}}}`, "tcp", "127.0.0.1:15000", ""},
		"all":        {`{"admin": {"address": {"socket_address": {"address": "0.0.0.0", "port_value": 15000}}}}`, "tcp", "127.0.0.1:15000", ""},
		"all of six": {`{"admin": {"address": {"socket_address": {"address": "::", "port_value": 15000}}}}`, "tcp", "[::1]:15000", ""},
		"none":       {`{}`, "", "", "no admin.address"},
		"null":       {`{"admin": null}`, "", "", "no admin.address"},
		"port 0": {"{\n\"admin\": {\"address\":\n" +
			" {\"socket_address\": {\"address\": \"::\", \"port_value\": 0}}}}", "", "",
			"bootstrap:3: admin.address.socket_address: needs an address and a port_value " +
				"other than 0"},
		"no JSON": {`x`, "", "", "not JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			network, address, err := AdminAddress([]byte(test.text))
			if network != test.network || address != test.address ||
				(err == nil) != (test.want == "") ||
				(err != nil && !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%q %q %v", network, address, err)
			}
		})
	}
	network, address, err := AdminAddress(render(t, defaults()))
	if network != "unix" || address != defaults().AdminSocket || err != nil {
		t.Errorf("of our own: %q %q %v", network, address, err)
	}
}

func TestCertificateFiles(t *testing.T) {
	got, err := CertificateFiles(render(t, input(inputs["telemetry"])))
	if diff := cmp.Diff([]string{"tls/cert.pem", "tls/key.pem", "tls/root.pem"}, got); diff != "" ||
		err != nil {
		t.Errorf("%v %s", err, diff)
	}
	custom := `{"a": [{"tlsCertificateSdsSecretConfigs": [{"sdsConfig": {"pathConfigSource": {"path": "/s.yaml"}}}],
  "trustedCa": {"inline_string": "x"}, "crl": null}], "filename": "/not", "private_key": {"filename": "/k"}, "b": {"private_key": {"filename": "/k"}}}`
	got, err = CertificateFiles([]byte(custom))
	if diff := cmp.Diff([]string{"/s.yaml", "/k"}, got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
}

// Envoy becomes live with a user's complete bootstrap, in YAML with a bootstrap extension.
func TestCustom_IsAcceptedByEnvoy(t *testing.T) {
	dir := parts.ShortDir(t)
	text := `
admin: {address: {pipe: {path: ` + filepath.Join(dir, "own.sock") + `}}}
bootstrap_extensions:
- name: envoy.bootstrap.internal_listener
  typed_config: {"@type": type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener}
`
	custom, err := Custom("own.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	merged, err := Override(custom, "own.yaml", "override.json",
		[]byte(`{"node": {"id": "a", "cluster": "b"}}`))
	if err != nil {
		t.Fatal(err)
	}
	_, address, err := AdminAddress(merged)
	if err != nil {
		t.Fatal(err)
	}
	run(t, dir, address, merged)
}
