package main

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/api/apitest"
	"outrider.org/outrider/agent/resource"
)

func TestMeshExplain(t *testing.T) {
	backend := &apitest.Backend{Explanation: api.MeshExplanation{MeshExplainAnswer: api.MeshExplainAnswer{Outcome: "forwarded",
		Clusters: []api.MeshWeightedCluster{{Cluster: "a", Percent: 90}, {Cluster: "b",
			Percent: 10}},
		Steps: []api.MeshExplainStep{
			{Kind: "listener", Name: "127.0.0.1_80", Facts: []string{"listens on 127.0.0.1:80"},
				Origins: []resource.Origin{{File: "a.yaml", Line: 1, Kind: "ServiceEntry",
					Namespace: "shop", Name: "a"}}},
			{Kind: "filter chain", Facts: []string{"matches everything"},
				Origins: []resource.Origin{{File: "a.yaml", Line: 1, Kind: "ServiceEntry",
					Namespace: "shop", Name: "a"}}},
			{Kind: "route", Name: "all", Facts: []string{"matches prefix /"},
				Origins: []resource.Origin{{File: "b.yaml", Line: 7, Kind: "VirtualService",
					Namespace: "shop", Name: "a"}}},
		},
		UnknownFacts: []string{"50 % of the requests"}},
		Problems: []api.MeshProblem{{File: "b.yaml", Line: 7, Object: "VirtualService shop/a",
			Field: "spec.http[0]", Severity: "warning", Message: "odd"}}}}
	m := newMachine(t, backend)
	code, out, errors := m.outrider("mesh", "explain", "https://a.test:8443/x?y=1", "-X", "PUT",
		"-H", "x-user: jason", "-H", "host:b.test", "--to", "10.0.0.1")
	if code != 0 || errors != "" {
		t.Errorf("%d %s", code, errors)
	}
	golden(t, "mesh-explain.txt", out)
	want := []api.MeshExplainRequest{{Method: "PUT", Host: "a.test", Port: 8443, Path: "/x?y=1",
		TLS:                true,
		DestinationAddress: netip.MustParseAddr("10.0.0.1"),
		Headers: []api.MeshExplainRequestHeader{{Name: "x-user", Value: "jason"},
			{Name: "host", Value: "b.test"}}}}
	if diff := cmp.Diff(want, backend.ExplainRequests(),
		cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Error(diff)
	}
	backend.Explanation = api.MeshExplanation{MeshExplainAnswer: api.MeshExplainAnswer{
		Outcome: "refused", Reason: "nothing listens on port 81", Fix: "add it"}}
	if code, out, _ := m.outrider("mesh", "explain", "a.test:81"); code != api.ExitRefused ||
		!strings.Contains(out, "=> refused: nothing listens on port 81\n   add it\n") {
		t.Errorf("%d %s", code, out)
	}
	if code, out, _ := m.outrider("mesh", "explain", "a.test:81",
		"--json"); code != api.ExitRefused || !json.Valid([]byte(out)) {
		t.Errorf("%d %s", code, out)
	}
	for _, arguments := range []string{"a.test:0", "a.test:99999", "ftp://a.test", "/x",
		"a.test -H x", "a.test --to x", "a.test --type router", "a.test --proxy 127.0.0.1",
		"https://a.test --proxy 127.0.0.1:80", "a.test --proxy 127.0.0.1:80 --to 127.0.0.1", ""} {
		if code, out, errors := m.outrider(append([]string{"mesh", "explain"},
			strings.Fields(arguments)...)...); code != api.ExitUsage {
			t.Errorf("%q: %d %s %s", arguments, code, out, errors)
		}
	}
}

func TestMeshExplain_NamesTheClient(t *testing.T) {
	backend := &apitest.Backend{Explanation: api.MeshExplanation{MeshExplainAnswer: api.MeshExplainAnswer{
		Outcome: "answered", Status: 403, Reason: "denied by a.yaml:3 AuthorizationPolicy shop/a, rule 0",
		Fix: "change it"}}}
	m := newMachine(t, backend)
	token := m.write("token", "a.b.c\n")
	code, out, errors := m.outrider("mesh", "explain", "a.test/x", "--from", "10.0.0.5", "--from",
		"spiffe://cluster.local/ns/shop/sa/web", "--header", "x-user=jason", "--jwt", token)
	if code != api.ExitRefused || errors != "" || !strings.Contains(out,
		"=> answered with status 403: denied by a.yaml:3 AuthorizationPolicy shop/a, rule 0\n") {
		t.Errorf("%d %s %s", code, out, errors)
	}
	want := []api.MeshExplainRequest{{Method: "GET", Host: "a.test", Port: 80, Path: "/x",
		Source:         netip.MustParseAddr("10.0.0.5"),
		ClientSPIFFEID: "spiffe://cluster.local/ns/shop/sa/web",
		Headers: []api.MeshExplainRequestHeader{{Name: "x-user", Value: "jason"},
			{Name: "authorization", Value: "Bearer a.b.c"}}}}
	if diff := cmp.Diff(want, backend.ExplainRequests(),
		cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Error(diff)
	}
	for arguments, want := range map[string]int{"a.test --from web": api.ExitUsage,
		"a.test --header x": api.ExitUsage, "a.test --jwt /dev/null/x": api.ExitRefused} {
		if code, out, errors := m.outrider(append([]string{"mesh", "explain"},
			strings.Fields(arguments)...)...); code != want {
			t.Errorf("%q: %d %s %s", arguments, code, out, errors)
		}
	}
}

func TestMeshExplain_Files(t *testing.T) {
	m := newMachine(t, nil)
	file := m.write("a.yaml", "apiVersion: networking.istio.io/v1\nkind: Gateway\n"+
		"metadata: {name: g}\nspec:\n  selector: {app: edge}\n  servers:\n"+
		"  - port: {number: 80, name: http, protocol: HTTP}\n    hosts: [a.test]\n"+
		"---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: v}\n"+
		"spec:\n  hosts: [a.test]\n  gateways: [g]\n  http: [{directResponse: {status: 418}}]\n")
	m.write("etc/outrider.toml", "[node]\nlabels = {app = \"edge\"}\n")
	code, out, errors := m.outrider("mesh", "explain", "a.test", "--files", file, "--type",
		"router")
	if code != 0 || !strings.Contains(out, "=> answered with status 418") ||
		!strings.Contains(out, "$DIR/a.yaml:10 VirtualService") {
		t.Errorf("%d %s %s", code, out, errors)
	}
	if code, out, _ := m.outrider("mesh", "explain", "a.test", "--files",
		file); code != api.ExitRefused {
		t.Errorf("of a sidecar: %d %s", code, out)
	}
}

func TestMeshExplain_ThroughProxy(t *testing.T) {
	m := newMachine(t, nil)
	file := m.write("a.yaml", "apiVersion: networking.istio.io/v1\nkind: Sidecar\n"+
		"metadata: {name: s}\nspec: {egress: [{port: {number: 3128, protocol: HTTP_PROXY}, "+
		"hosts: ['./*']}]}\n---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\n"+
		"metadata: {name: a}\nspec: {hosts: [a.test], resolution: STATIC, ports: [{number: 8080, "+
		"name: http, protocol: HTTP}], endpoints: [{address: 10.0.0.1}]}\n")
	for target, want := range map[string]string{
		"a.test:8080": "GET http://a.test:3128/ (host: a.test:8080)\nlistener 127.0.0.1_3128\n",
		"a.test:8081": "=> answered with status 502: no host a.test is known on port 8081"} {
		_, out, errors := m.outrider("mesh", "explain", target, "--files", file, "--proxy",
			"127.0.0.1:3128")
		if !strings.Contains(out, want) {
			t.Errorf("%s: %s %s", target, out, errors)
		}
	}
}
