package render

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"outrider.org/outrider/bootstrap"
	"outrider.org/outrider/scripts/parts"
)

const overrideBase = `{
  "node": {"id": "a", "cluster": "b", "metadata": {"x": {"a": 1, "b": 2}, "y": 1}, "locality": {"region": "eu", "zone": "1"}},
  "staticResources": {"clusters": [{"name": "one", "connectTimeout": "1s"}]},
  "dynamic_resources": {"cds_config": {"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"},
    "ads_config": {"api_type": "DELTA_GRPC", "transport_api_version": "V3",
      "grpc_services": [{"envoy_grpc": {"cluster_name": "one"}}]}},
  "stats_flush_interval": "5s",
  "stats_config": {"use_all_default_tags": false, "stats_matcher": {"reject_all": true}},
  "layered_runtime": {"layers": [{"name": "static", "static_layer": {"a": 1}}]},
  "overload_manager": {"refresh_interval": "0.250s"},
  "admin": {"address": {"pipe": {"path": "/run/a.sock", "mode": 432}}}
}`

// mergeable are overrides that have an effect by protobuf's rules.
var mergeable = map[string]string{
	"empty":    `{}`,
	"scalar":   `{"node": {"cluster": "c", "locality": {"zone": "2"}}}`,
	"list":     `{"static_resources": {"clusters": [{"name": "two"}]}}`,
	"map":      `{"node": {"metadata": {"x": {"c": 3}, "z": [1]}}}`,
	"oneof":    `{"admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 15000}}}}`,
	"same":     `{"admin": {"address": {"pipe": {"path": "/run/b.sock"}}}}`,
	"wrapper":  `{"stats_config": {"use_all_default_tags": true}}`,
	"oneof of": `{"stats_config": {"stats_matcher": {"inclusion_list": {"patterns": [{"prefix": "a"}]}}}}`,
	"false in a oneof": `{"stats_config": {"stats_matcher": {"reject_all": false}}, "staticResources": {"listeners": []},
		"clusterManager": {"outlier_detection": {"event_log_path": "x"}}}`,
	"duration":    `{"stats_flush_interval": "7s"}`,
	"enum":        `{"dynamic_resources": {"ads_config": {"api_type": "GRPC", "set_node_on_first_message_only": true}, "cds_config": {"resource_api_version": "V3"}}}`,
	"null":        `{"node": null, "admin": {"address": null}}`,
	"new message": `{"watchdogs": {"main_thread_watchdog": {"miss_timeout": "1s"}}, "use_tcp_for_dns_lookups": true}`,
	"other names": `{"layeredRuntime": {"layers": [{"name": "x", "admin_layer": {}}]}}`,
}

// If all types are known, merging documents gives the same result as merging protobuf messages.
func TestOverride_MergesLikeProtobuf(t *testing.T) {
	decode := func(t *testing.T, text []byte) *bootstrapv3.Bootstrap {
		t.Helper()
		decoded := &bootstrapv3.Bootstrap{}
		if err := protojson.Unmarshal(text, decoded); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		return decoded
	}
	for name, text := range mergeable {
		t.Run(name, func(t *testing.T) {
			want := decode(t, []byte(overrideBase))
			proto.Merge(want, decode(t, []byte(text)))
			merged, err := Override([]byte(overrideBase), "base.json", "override.json",
				[]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, decode(t, merged), protocmp.Transform()); diff != "" {
				t.Errorf("%s\n%s", diff, merged)
			}
		})
	}
}

// A real Envoy merges the same two files to the same bootstrap.
func TestOverride_MergesLikeEnvoy(t *testing.T) {
	dir := parts.ShortDir(t)
	in := input(inputs["minimal"])
	in.AdminSocket = filepath.Join(dir, "admin.sock")
	in.Node.Metadata = map[string]any{"x": map[string]any{"a": 1, "b": 2}, "y": 1}
	in.Prometheus = fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t))
	base := render(t, in)
	override := `
node: {metadata: {x: {c: 3}}, locality: {zone: z}}
static_resources:
  clusters:
  - name: more
    connect_timeout: 2.5s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http_protocol_options: {}}
stats_config: {use_all_default_tags: true}
layered_runtime: {layers: [{name: extra, static_layer: {b: 2}}]}
stats_flush_interval: 3s
admin: {profile_path: /tmp/p}
bootstrap_extensions:
- name: envoy.bootstrap.internal_listener
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener
    buffer_size_kb: 64
`
	merged, err := Override(base, "base.json", "override.yaml", []byte(override))
	if err != nil {
		t.Fatal(err)
	}
	dump := func(name string, content []byte, args ...string) any {
		socket := in.AdminSocket
		var configs struct {
			Configs []struct {
				Bootstrap map[string]any `json:"bootstrap"`
			} `json:"configs"`
		}
		var found map[string]any
		t.Run(name, func(t *testing.T) {
			run(t, dir, socket, content, args...)
			_, body := get(t, socket, http.MethodGet, "/config_dump?resource=&mask=")
			if err := json.Unmarshal([]byte(body), &configs); err != nil {
				t.Fatalf("%v: %.200s", err, body)
			}
			found = configs.Configs[0].Bootstrap
		})
		return found
	}
	byEnvoy := dump("Envoy", base, "--config-yaml", override)
	byOutrider := dump("Outrider", merged)
	if diff := cmp.Diff(byEnvoy, byOutrider); diff != "" {
		t.Errorf("Envoy's merge (-) is not ours (+):\n%s", diff)
	}
}

// Unknown parts are retained: extensions that are not linked, and fields of a newer Envoy.
func TestOverride_KeepsUnknownFields(t *testing.T) {
	base := `{"newer": {"a": 1, "l": [1], "any": {"@type": "x/y", "v": 1}}, "admin": {"address": {"pipe": {"path": "/a"}}},
  "bootstrap_extensions": [{"name": "a", "typed_config": {"@type": "type.googleapis.com/some.Thing", "big": 18446744073709551615}}]}`
	override := `
newer: {b: 2, l: [2], any: {"@type": x/z, w: 1}}
bootstrap_extensions:
- name: b
  typed_config: {"@type": type.googleapis.com/another.Thing, expr: 'a < b && "c"'}
`
	merged, err := Override([]byte(base), "base.json", "override.yaml", []byte(override))
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "unknown.json", merged)
}

func TestOverride_RefusesValuesWithoutEffect(t *testing.T) {
	tests := map[string]struct {
		name, text, want string
	}{
		"not JSON": {"o.json", "{\n\"node\": {,\n}}",
			"o.json:2: not JSON: invalid character ','"},
		"not closed": {"o.json", "{\n\"node\": {\n",
			"o.json:2: the document ends in the middle"},
		"two documents": {"o.json", "{}\n\n{}", "o.json:3: something follows after the end"},
		"not YAML":      {"o.yaml", "node:\n  a: [", "o.yaml:2: not YAML: "},
		"two of YAML": {"o.yaml", "node: {}\n---\nnode: {}\n",
			"o.yaml:2: a second document follows"},
		"a list": {"o.yaml", "# c\n- a\n", "o.yaml:2: is a list, not a bootstrap"},
		"empty":  {"o.yaml", "", "o.yaml: is empty"},
		"binary": {"o.pb", "x",
			"o.pb: protobuf's own formats are not read; use JSON or YAML"},
		"twice": {"o.yaml", "node: {}\nadmin: {}\nnode: {}\n",
			`o.yaml:3: "node" is given twice in one object`},
		"twice in JSON": {"o.json", "{\"a\": 1,\n\"a\": 2}",
			`o.json:2: "a" is given twice in one object`},
		"typing error": {"o.yaml", "node:\n  clutser: x\n",
			"o.yaml:2: node.clutser: envoy.config.core.v3.Node has no such field; did you mean " +
				"cluster?"},
		"wrong kind": {"o.yaml", "admin:\n  address: x\n",
			"o.yaml:2: admin.address: is a string where address is an object"},
		"not a list": {"o.yaml", "layered_runtime:\n  layers: {}\n",
			"o.yaml:2: layered_runtime.layers: is an object where layers is a list"},
		"not a map": {"o.yaml", "node:\n  metadata: []\n",
			"o.yaml:2: node.metadata: is a list where metadata is an object"},
		"false over true": {"o.yaml", "stats_config:\n  stats_matcher: {}\n" +
			"  use_all_default_tags: true\ndynamic_resources:\n  ads_config:\n" +
			"    transport_api_version: AUTO\n",
			"o.yaml:6: dynamic_resources.ads_config.transport_api_version: AUTO cannot " +
				"replace V3: by protobuf's rules"},
		"zero mode": {"o.yaml", "admin: {address: {pipe: {mode: 0}}}\n",
			"admin.address.pipe.mode: 0 cannot replace 432"},
		"duration of 0": {"o.yaml", "stats_flush_interval: 0s\n",
			"o.yaml:1: stats_flush_interval: 0s cannot replace 5s"},
		"mixed duration": {"o.yaml", "overload_manager: {refresh_interval: 2s}\n",
			"overload_manager.refresh_interval: 2s cannot replace 0.250s"},
		"too deep": {"o.json", strings.Repeat(`{"a":`, 200) + "1" +
			strings.Repeat("}", 200), "nested deeper than 100 levels"},
		"too deep in YAML": {"o.yaml", strings.Repeat(`{"a":`, 200) + "1" +
			strings.Repeat("}", 200), "nested deeper than 100 levels"},
		"alias of itself": {"o.yaml", "node: &a\n  b: *a\n", "nested deeper than 100 levels"},
		"alias bomb": {"o.yaml", "a: &a [x,x,x,x,x,x,x,x,x,x]\n" +
			"b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n" +
			"d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\n" +
			"f: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f]\n",
			"aliases expand to more than 131072 values"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Override([]byte(overrideBase), "base.json", test.name, []byte(test.text))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
			if _, ok := errors.AsType[*bootstrap.Error](err); !ok {
				t.Errorf("%T", err)
			}
		})
	}
	if _, err := Override([]byte("{"), "base.json", "o.json", []byte("{}")); err == nil ||
		!strings.HasPrefix(err.Error(), "base.json:1: ") {
		t.Errorf("got %v", err)
	}
}

func TestParse_ConvertsYAML(t *testing.T) {
	text := `
defaults: &d {a: 1, b: x}
merged: {<<: *d, b: y}
list: [*d, 0x10, 1_000, .5, +7, .inf, 1e3, ~, yes, 'no', true, 2026-11-21, 12s, "12", 18446744073709551615]
text: |
  two
  lines
`
	document, err := parse("a.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := document.encode()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "yaml.json", encoded)
}

func FuzzOverride(f *testing.F) {
	for _, text := range mergeable {
		f.Add(overrideBase, text, false)
	}
	f.Add("a: &a [*a]", "x: {<<: [1]}", true)
	f.Add("{\"a\":\"\xff\"}", "? [a]\n: b", true)
	f.Fuzz(func(t *testing.T, base, override string, isYAML bool) {
		name := "o.json"
		if isYAML {
			name = "o.yaml"
		}
		merged, err := Override([]byte(base), name, name, []byte(override))
		if err != nil {
			if _, ok := errors.AsType[*bootstrap.Error](err); !ok {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		if !json.Valid(merged) {
			t.Fatalf("not JSON: %s", merged)
		}
		if _, err := Custom("c.json", merged); err != nil {
			t.Fatalf("%v in %s", err, merged)
		}
		_, _, _ = AdminAddress(merged)
		_, _ = CertificateFiles(merged)
	})
}
