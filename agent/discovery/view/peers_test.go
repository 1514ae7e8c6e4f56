package view_test

import (
	"net/netip"
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/meshtest"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

const ingress = `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: own}
spec:
  ingress:
  - {port: {number: 8080, name: http, protocol: HTTP}, defaultEndpoint: "127.0.0.1:80"}
  - {port: {number: 8081, name: open, protocol: HTTP}, defaultEndpoint: "127.0.0.1:81"}
  - {port: {number: 8082, name: socket, protocol: HTTP}, defaultEndpoint: "unix:///run/a.sock"}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: own}
spec:
  selector: {matchLabels: {app: a}}
  mtls: {mode: UNSET}
  portLevelMtls: {8080: {mode: STRICT}, 8082: {mode: STRICT}, 9000: {mode: STRICT}}
`

func TestExposed_ApplicationListensBesideTheProxy(t *testing.T) {
	node := model.Node{Type: model.Sidecar, Namespace: meshtest.Namespace, Identity: true,
		Labels: map[string]string{"app": "a"}, Addresses: []string{"10.8.0.1"}}
	captured := node
	captured.Interception = model.Redirect
	for name, test := range map[string]struct {
		node      model.Node
		listening []string
		want      string
	}{
		"on every address": {node, []string{"0.0.0.0:80"},
			"ingress[0].defaultEndpoint: the application listens on 0.0.0.0:80"},
		"on an address":                    {node, []string{"127.0.0.1:80", "10.8.0.1:80"}, "10.8.0.1:80"},
		"on the loopback":                  {node, []string{"127.0.0.1:80", "[::1]:80"}, ""},
		"on another port":                  {node, []string{"0.0.0.0:8080", "0.0.0.0:82"}, ""},
		"of a port without mutual TLS":     {node, []string{"0.0.0.0:81"}, ""},
		"of a captured port":               {captured, []string{"0.0.0.0:80"}, ""},
		"and the proxy listens on another": {node, []string{"10.8.0.1:8080"}, ""},
	} {
		m, touched := meshtest.New(t, ingress)
		v := newView(t, m, test.node)
		v.Update(touched)
		var listening []netip.AddrPort
		for _, text := range test.listening {
			listening = append(listening, netip.MustParseAddrPort(text))
		}
		got := meshtest.FormatProblems(v.ExposedPortProblems(listening))
		if (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
	m, touched := meshtest.New(t, gateway)
	v := newView(t, m, router)
	v.Update(touched)
	if got := v.ExposedPortProblems([]netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:80")}); got != nil {
		t.Errorf("a router: %v", got)
	}
}

// TestExposed_ProxyOnTheSamePort: the proxy's listener on the host's address does not expose the
// application on the same port of the loopback. A listener on another address does.
func TestExposed_ProxyOnTheSamePort(t *testing.T) {
	node := model.Node{Type: model.Sidecar, Namespace: meshtest.Namespace, Identity: true,
		Labels: map[string]string{"app": "a"}, Addresses: []string{"10.8.0.1"}}
	m, touched := meshtest.New(t, strings.ReplaceAll(ingress, "127.0.0.1:80", "127.0.0.1:8080"))
	v := newView(t, m, node)
	v.Update(touched)
	for at, want := range map[string]int{"10.8.0.1:8080": 0, "10.8.0.2:8080": 1} {
		if got := v.ExposedPortProblems([]netip.AddrPort{netip.MustParseAddrPort(at)}); len(got) != want {
			t.Errorf("%s: %v", at, got)
		}
	}
}

func TestStrict(t *testing.T) {
	node := model.Node{Type: model.Sidecar, Namespace: meshtest.Namespace, Identity: true,
		Labels: map[string]string{"app": "a"}, Addresses: []string{"10.8.0.1"}}
	m, touched := meshtest.New(t, ingress)
	v := newView(t, m, node)
	if v.StrictMTLSPorts() != nil {
		t.Error("a view without an update requires mutual TLS")
	}
	v.Update(touched)
	strict := v.StrictMTLSPorts()
	if strict == nil {
		t.Fatal("mutual TLS is required of no port")
	}
	for port, want := range map[uint16]struct{ strict, own bool }{
		8080: {true, true}, 80: {true, true}, 8081: {false, true}, 81: {false, true},
		8082: {true, true}, 9000: {true, false}, 9001: {false, false},
	} {
		by, got, own := strict(port)
		if got != want.strict || own != want.own || (by != resource.Origin{}) != got {
			t.Errorf("port %d: by %v, strict %t, own %t", port, by, got, own)
		}
	}
	v.Update(m.Set(strings.ReplaceAll(ingress, "STRICT", "PERMISSIVE")))
	if v.StrictMTLSPorts() != nil {
		t.Error("mutual TLS is still required")
	}
	v.Update(m.Set(strings.ReplaceAll(strings.ReplaceAll(ingress, "STRICT", "PERMISSIVE"), "UNSET",
		"STRICT")))
	if _, got, own := v.StrictMTLSPorts()(9001); !got || own {
		t.Errorf("strict for all: port 9001 strict %t, own %t", got, own)
	}
	if other := newView(t, m, router); other.StrictMTLSPorts() != nil {
		t.Error("a router requires mutual TLS")
	}
}

// TestTakenAddresses: listeners whose address another program uses are not published, and are
// reported.
func TestTakenAddresses(t *testing.T) {
	node := model.Node{Type: model.Sidecar, Namespace: meshtest.Namespace, Identity: true,
		Addresses: []string{"10.8.0.1"}}
	captured := node
	captured.Interception = model.Redirect
	for name, test := range map[string]struct {
		text  string
		node  model.Node
		taken mesh.ReservedAddress
		gone  string // listener that must not exist
		want  string // part of the expected problem
	}{
		"of a service": {web, sidecar, mesh.ReservedAddress{Address: "127.0.0.1", Port: 80, Owner: "admin"},
			"127.0.0.1_80", "nothing listens for host web.test: 127.0.0.1:80 belongs to admin"},
		"of another address": {web, sidecar, mesh.ReservedAddress{Address: "127.0.0.2", Port: 80, Owner: "admin"},
			"", ""},
		"of a Gateway": {web + gateway, router, mesh.ReservedAddress{Port: 8080, Owner: "admin"}, "0.0.0.0_8080",
			"nothing listens for the server: port 8080 belongs to admin"},
		"of an ingress": {ingress, node, mesh.ReservedAddress{Address: "10.8.0.1", Port: 8081, Owner: "admin"},
			"10.8.0.1_8081", "no inbound listener on 10.8.0.1:8081, which belongs to admin"},
		"of an ingress, captured": {ingress, captured,
			mesh.ReservedAddress{Address: "10.8.0.1", Port: 8081, Owner: "admin"}, "", ""},
		"by the port that captures": {strings.Replace(ingress, "8081", "15006", 1), captured,
			mesh.ReservedAddress{}, "", "port 15006 is the proxy's own"},
		"by the port that captures outbound": {strings.Replace(ingress, "8081", "15001", 1), node,
			mesh.ReservedAddress{}, "", ""},
		"of a captured service": {strings.ReplaceAll(web, "number: 80", "number: 15001"),
			captured, mesh.ReservedAddress{}, "", "0.0.0.0:15001 belongs to the proxy itself"},
		"of a service, by an ingress": {strings.ReplaceAll(web, "number: 80", "number: 8080") +
			"---" + strings.Replace(ingress, "defaultEndpoint", "bind: 127.0.0.1, defaultEndpoint", 1),
			node, mesh.ReservedAddress{}, "", "127.0.0.1:8080 belongs to ingress[0] of Sidecar shop/own at"},
	} {
		m, _ := meshtest.New(t, test.text)
		c := mesh.Default()
		if test.taken.Owner != "" {
			c.ReservedAddresses = []mesh.ReservedAddress{test.taken}
		}
		m.SetMeshConfig(c)
		v := newView(t, m, test.node)
		v.Update(m.EverythingChanged())
		var problems []object.Problem
		for _, of := range v.Problems() {
			problems = append(problems, of...)
		}
		if got := meshtest.FormatProblems(problems); (test.want == "") != (got == "") ||
			!strings.Contains(got, test.want) {
			t.Errorf("%s: problems %q, want %q", name, got, test.want)
		}
		if strings.Contains(strings.Join(names(v), "\n"), "Listener "+test.gone+"\n") &&
			test.gone != "" {
			t.Errorf("%s: %s is there", name, test.gone)
		}
		c = mesh.Default()
		v.Reconfigure(m.SetMeshConfig(c))
		if got := strings.Join(names(v), "\n"); !strings.Contains(got, "Listener "+test.gone) {
			t.Errorf("%s: %s is not there after the program has left: %s", name, test.gone, got)
		}
	}
}
