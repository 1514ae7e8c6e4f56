package explain

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
	"sigs.k8s.io/yaml"

	"outrider.org/outrider/agent/resource"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// goldenCase is a proxy with requests to it.
type goldenCase struct {
	Proxy // the proxy; its functions are made from the fields below

	// additional origins of every resource: the object's kind, by its name
	Policies  map[string]string
	Filters   map[string]string        // object that changed a filter, by the filter's name
	Hosts     map[string]string        // object that defines a virtual host, by domain
	Refusals  map[string]string        // reason why a resource was refused, by the resource's name
	Endpoints map[string]PeerMutualTLS // mode of mutual TLS by address
	Requests  []Request
}

// TestExplain explains the requests in testdata/*.txtar. resources.yaml has Envoy's resources with
// their types, case.yaml the proxy and the requests, want the answers.
func TestExplain(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var c goldenCase
			if err := yaml.UnmarshalStrict(archive.Files[1].Data, &c); err != nil {
				t.Fatal(err)
			}
			proxy := c.proxy(t, archive.Files[0].Data)
			var got strings.Builder
			for _, request := range c.Requests {
				fmt.Fprintf(&got, "== %s\n%s", describe(request), answerText(Explain(proxy, request)))
			}
			got.WriteString(findings(proxy))
			want := txtar.File{Name: "want", Data: []byte(got.String())}
			if *update {
				archive.Files = append(archive.Files[:2], want)
				if err := os.WriteFile(path, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(string(archive.Files[2].Data), got.String()); diff != "" {
				t.Errorf("-want +got (go test -update rewrites it):\n%s", diff)
			}
		})
	}
}

func findings(proxy Proxy) string {
	var lines []string
	for r, found := range Findings(proxy.Resources, proxy.ClusterStats) {
		for _, f := range found {
			lines = append(lines, fmt.Sprintf("== finding of %s (rule: %t): %s; %s\n", r.Name, f.InDestinationRule,
				f.Message, f.Fix))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// proxy returns the proxy of a case. The origin of each resource is an object with the resource's
// name.
func (c goldenCase) proxy(t testing.TB, text []byte) Proxy {
	t.Helper()
	var list []any
	if err := yaml.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	var all []*resource.Resource
	for _, one := range list {
		encoded, err := yaml.Marshal(one)
		if err != nil {
			t.Fatal(err)
		}
		if encoded, err = yaml.YAMLToJSON(encoded); err != nil {
			t.Fatal(err)
		}
		var packed anypb.Any
		if err := protojson.Unmarshal(encoded, &packed); err != nil {
			t.Fatalf("%v:\n%s", err, encoded)
		}
		fields := one.(map[string]any)
		name, ok := fields["name"].(string)
		if !ok {
			name = fields["clusterName"].(string)
		}
		origins := []resource.Origin{from(name)}
		for _, policy := range slices.Sorted(maps.Keys(c.Policies)) {
			origin := from(policy)
			origin.Kind = c.Policies[policy]
			origins = append(origins, origin)
		}
		all = append(all, resource.FromEncoded(packed.TypeUrl, name, packed.Value, origins...))
	}
	p := c.Proxy
	p.Resources = resource.NewFeed().Publish(resource.Change{Set: all})
	p.FilterOrigins = func(_, filter string) []resource.Origin { return named(c.Filters[filter]) }
	p.VirtualHostOrigins = func(_,
		domain string) []resource.Origin {
		return named(c.Hosts[domain])
	}
	p.RefusalReason = func(key resource.Key) string { return c.Refusals[key.Name] }
	p.PeerMutualTLS = func(_, endpoint string) PeerMutualTLS { return c.Endpoints[endpoint] }
	return p
}

func from(name string) resource.Origin {
	return resource.Origin{File: "mesh.yaml", Line: 1, Kind: "Kind", Namespace: "shop", Name: name}
}

func named(name string) []resource.Origin {
	if name == "" {
		return nil
	}
	if name == "PeerAuthentication" {
		return []resource.Origin{{Kind: name, Name: "strict"}}
	}
	return []resource.Origin{from(name)}
}

func describe(r Request) string {
	text := fmt.Sprintf("%s %s:%d%s", r.Method, r.Host, r.Port, r.Path)
	for _, h := range r.Headers {
		text += " " + h.Name + "=" + h.Value
	}
	if r.TLS {
		text += " over TLS"
	}
	if r.Inbound() {
		text += strings.TrimSuffix(fmt.Sprintf(" from %v %s", r.Source, r.ClientSPIFFEID), " ")
	}
	if r.DestinationAddress.IsValid() {
		text += " to " + r.DestinationAddress.String()
	}
	return text
}

func answerText(a Answer) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s %d %s %q\n", a.Outcome, a.Status, a.Location, a.Body)
	for _, s := range a.Steps {
		var origins []string
		for _, o := range s.Origins {
			origins = append(origins, o.Name)
		}
		fmt.Fprintf(&text, "  %s %s %v\n", s.Kind, s.Name, origins)
		for _, fact := range s.Facts {
			text.WriteString("    " + fact + "\n")
		}
	}
	for what, targets := range [][]WeightedCluster{a.Clusters, a.Mirrors} {
		for _, to := range targets {
			fmt.Fprintf(&text, "  %s %s %.4g %%\n", [2]string{"to", "copy to"}[what], to.Cluster, to.Percent)
		}
	}
	if a.Reason+a.Fix != "" {
		fmt.Fprintf(&text, "  because %s; %s\n", a.Reason, a.Fix)
	}
	for _, fact := range slices.Sorted(slices.Values(a.UnknownFacts)) {
		text.WriteString("  unknown: " + fact + "\n")
	}
	return text.String()
}

// FuzzExplain explains arbitrary requests to a proxy with tokens and policies.
func FuzzExplain(f *testing.F) {
	archive, err := txtar.ParseFile("testdata/access.txtar")
	if err != nil {
		f.Fatal(err)
	}
	var c goldenCase
	if err := yaml.UnmarshalStrict(archive.Files[1].Data, &c); err != nil {
		f.Fatal(err)
	}
	proxy := c.proxy(f, archive.Files[0].Data)
	for _, r := range c.Requests {
		name, value := "", ""
		if len(r.Headers) > 0 {
			name, value = r.Headers[0].Name, r.Headers[0].Value
		}
		source, _ := r.Source.MarshalText()
		f.Add(r.Method, r.Host, r.Port, r.Path, name, value, r.TLS, source, r.ClientSPIFFEID)
	}
	f.Fuzz(func(t *testing.T, method, host string, port uint32, path, name, value string, tls bool,
		source []byte, identity string) {
		request := Request{Method: method, Host: host, Port: port, Path: path, TLS: tls,
			Headers: []Header{{Name: name, Value: value}}, ClientSPIFFEID: identity}
		_ = request.Source.UnmarshalText(source)
		said := Explain(proxy, request)
		if said.Outcome == "" {
			t.Errorf("no outcome of %+v", request)
		}
		if said.Status >= 400 && said.Reason == "" {
			t.Errorf("no reason for %d of %+v", said.Status, request)
		}
	})
}
