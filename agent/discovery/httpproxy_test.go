package discovery_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

// TestHTTPProxy runs the cases in testdata/conformance/httpproxy, each with a sidecar of its own.
func TestHTTPProxy(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	s := newSuite(t)
	for _, c := range s.cases(t, "httpproxy") {
		t.Run(c.name, func(t *testing.T) { alone(t, c, s) })
	}
}

// TestHTTPProxy_AnswersAsWithIstiod runs the cases with the configuration of a real istiod.
// testdata/conformance/istiod lists the differences.
func TestHTTPProxy_AnswersAsWithIstiod(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	s := newSuite(t)
	differences := readDifferences(t, "httpproxy")
	for _, c := range s.cases(t, "httpproxy") {
		known := differences["httpproxy/"+c.name]
		if _, left := known["*"]; left {
			delete(known, "*")
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			directory := t.TempDir()
			file := filepath.Join(directory, c.name+".yaml")
			write(t, file, inNamespace(t, c.mesh, "shop"))
			admin := filepath.Join(parts.ShortDir(t), "admin.sock")
			e := startEnvoyOn(t, admin, strings.Replace(fmt.Sprintf(bootstrap, c.node, admin,
				startIstiod(t, directory, "enableAutoMtls: false\n"+c.meshConfig),
				fmt.Sprintf(secretsCluster, startSecrets(t, agentSecrets{}))), "~127.0.0.1~",
				"~10.255.0.1~", 1))
			e.listens(t)
			c.askIstiods(t, e, s, file, known)
		})
	}
	unasked(t, differences)
}

// TestHTTPProxy_FollowsMeshConfig changes proxyHttpPort while the server runs.
func TestHTTPProxy_FollowsMeshConfig(t *testing.T) {
	const entry = "ServiceEntry shop/x: {hosts: [x.test], resolution: STATIC, ports: [{number: " +
		"8080, name: p, protocol: HTTP}], endpoints: [{address: 10.0.0.9}]}"
	const routed = "VirtualService shop/v: {hosts: [v.test], http: [{route: [{destination: {host: " +
		"x.test}}]}]}"
	config := filepath.Join(t.TempDir(), "mesh")
	write(t, config, "")
	server, changes := start(t, discovery.Options{Files: []string{meshOf(t, entry, routed)},
		Settings: discovery.Settings{MeshConfigFile: config}})
	feed := feedOf(t, server, "sidecar")
	for _, test := range []struct {
		config string
		port   int // expected port of the HTTP proxy; 0: none
	}{{"", 0}, {"proxyHttpPort: 3128", 3128}, {"proxyHttpPort: 3129", 3129}, {"", 0}} {
		write(t, config, test.config)
		changes <- []string{config}
		changes <- nil // the server receives this once it has processed the previous change
		snapshot, _ := feed.Current()
		for _, port := range []int{3128, 3129} {
			if has := snapshot.Get(resource.Key{Type: resource.ListenerType,
				Name: fmt.Sprintf("127.0.0.1_%d", port)}) != nil; has != (port == test.port) {
				t.Errorf("%q: listener at port %d: %v", test.config, port, has)
			}
		}
		unreachable := slices.ContainsFunc(server.Problems(), func(p object.Problem) bool {
			return strings.Contains(p.Message, "host v.test has no service")
		})
		if unreachable != (test.port == 0) {
			t.Errorf("%q: a host that nothing routes is reported: %v", test.config, unreachable)
		}
		routes := snapshot.Get(resource.Key{Type: resource.RouteType, Name: "http_proxy"})
		if (routes != nil) != (test.port != 0) {
			t.Errorf("%q: routes: %v", test.config, routes != nil)
		} else if routes != nil {
			contains(t, "routes", readableResource(t, routes), `domains:"x.test:8080"`)
		}
	}
}

func TestHTTPProxy_ReportsPort(t *testing.T) {
	const sidecar = "Sidecar shop/s: {%segress: [{port: {number: %d, protocol: HTTP_PROXY}, %shosts: ['./*']}]}"
	taken := []discovery.ReservedAddress{{Address: "127.0.0.1", Port: 15000, Owner: "the admin view"},
		{Port: 15090, Owner: "the metrics", IsEnvoys: true}}
	for _, test := range []struct{ kind, config, object, want string }{
		{"sidecar", "", fmt.Sprintf(sidecar, "", 15000, ""),
			"Sidecar shop/s: spec.egress[0].port.number: no HTTP proxy listens: 127.0.0.1:15000 belongs to the admin view"},
		{"sidecar", "", fmt.Sprintf(sidecar, "", 3128, "bind: 0.0.0.0, "),
			"Sidecar shop/s: spec.egress[0].bind: whoever reaches 0.0.0.0:3128 sends requests with the identity of this host"},
		{"sidecar", "", fmt.Sprintf(sidecar, "", 3128, "captureMode: IPTABLES, "),
			"Sidecar shop/s: spec.egress[0].captureMode: IPTABLES needs interception"},
		{"sidecar", "", fmt.Sprintf(sidecar, "ingress: [{port: {number: 8080, protocol: HTTP}, bind: "+
			"127.0.0.1, defaultEndpoint: '127.0.0.1:9090'}], ", 8080, ""),
			"no HTTP proxy listens: 127.0.0.1:8080 belongs to ingress[0] of Sidecar shop/s"},
		{"sidecar", "proxyHttpPort: 3128", fmt.Sprintf(sidecar, "", 3128, ""),
			"no HTTP proxy listens: 127.0.0.1:3128 belongs to the HTTP proxy of MeshConfig (proxyHttpPort)"},
		{"sidecar", "proxyHttpPort: 15000", "", "proxyHttpPort: no HTTP proxy listens: 127.0.0.1:15000 belongs to the admin view"},
		{"REDIRECT", "", fmt.Sprintf(sidecar, "", 15001, "captureMode: NONE, "),
			"no HTTP proxy listens: 127.0.0.1:15001 belongs to the proxy itself"},
		{"REDIRECT", "", fmt.Sprintf(sidecar, "", 15090, ""),
			"no HTTP proxy listens: 0.0.0.0:15090 belongs to the metrics"},
		{"REDIRECT", "", fmt.Sprintf(sidecar, "", 3128, ""), ""},
	} {
		config := filepath.Join(t.TempDir(), "mesh")
		write(t, config, test.config)
		var objects []string
		if test.object != "" {
			objects = append(objects, test.object)
		}
		server, _ := start(t, discovery.Options{Files: []string{meshOf(t, objects...)},
			Settings: discovery.Settings{MeshConfigFile: config, ReservedAddresses: taken}})
		feed := feedOf(t, server, test.kind)
		var reported []string
		for _, p := range server.Problems() {
			if p.Severity == condition.Warning {
				reported = append(reported, p.String())
			}
		}
		if all := strings.Join(reported, "\n"); len(reported) > 1 || !strings.Contains(all, test.want) ||
			(test.want == "") != (all == "") {
			t.Errorf("%s, %s: reported:\n%s\nwant: %s", test.config, test.object, all, test.want)
		}
		snapshot, _ := feed.Current()
		listens := test.want == "" || strings.Contains(test.want, "whoever")
		for _, r := range snapshot.ByType(resource.RouteType) {
			if !listens && r.Name != "http_proxy" || test.want == "" && r.Name != "3128" {
				t.Errorf("%s, %s: routes %s", test.config, test.object, r.Name)
			}
		}
	}
}
