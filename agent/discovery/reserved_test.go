package discovery_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
)

// TestListener_HasOneOwner adds and removes a Sidecar and a service with the same listener. The
// Sidecar has precedence, and the service gets a problem. If one of them is removed, the other has
// the listener.
func TestListener_HasOneOwner(t *testing.T) {
	const head = "apiVersion: networking.istio.io/v1\nkind: %s\nmetadata: {name: %s, namespace: " +
		"shop}\nspec:\n"
	texts := map[string]string{
		"Sidecar": fmt.Sprintf(head, "Sidecar", "own") +
			"  ingress: [{port: {number: 8080, name: h, protocol: HTTP}, bind: 127.0.0.1, " +
			"defaultEndpoint: '127.0.0.1:9090'}]\n",
		"ServiceEntry": fmt.Sprintf(head, "ServiceEntry", "entry") +
			"  hosts: [x.test]\n  resolution: STATIC\n  ports: [{number: 8080, name: p, " +
			"protocol: HTTP}]\n  endpoints: [{address: 10.0.0.1}]\n",
	}
	directory := t.TempDir()
	server, changes := start(t, discovery.Options{Files: []string{directory}, Namespace: "shop"})
	feed := feedOf(t, server, "sidecar")
	for _, step := range []struct {
		put, remove string
		want        string // kind of the object that has the listener; "": there is no listener
		reported    bool
	}{
		{put: "ServiceEntry", want: "ServiceEntry"},
		{put: "Sidecar", want: "Sidecar", reported: true},
		{remove: "ServiceEntry", want: "Sidecar"},
		{put: "ServiceEntry", want: "Sidecar", reported: true},
		{remove: "Sidecar", want: "ServiceEntry"},
		{remove: "ServiceEntry"},
	} {
		path := filepath.Join(directory, step.put+step.remove+".yaml")
		if step.put != "" {
			write(t, path, texts[step.put])
		} else if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		changes <- []string{path}
		changes <- nil // the server receives this once it has processed the previous change
		got := ""
		snapshot, _ := feed.Current()
		if listener := snapshot.Get(resource.Key{Type: resource.ListenerType,
			Name: "127.0.0.1_8080"}); listener != nil {
			got = listener.Origins[0].Kind
		}
		if got != step.want {
			t.Errorf("%+v: the listener is of %q", step, got)
		}
		reported := false
		for _, p := range server.Problems() {
			reported = reported || strings.Contains(p.Message,
				"nothing listens for host x.test: 127.0.0.1:8080 belongs to ingress[0] of "+
					"Sidecar shop/own")
		}
		if reported != step.reported {
			t.Errorf("%+v: reported: %v", step, server.Problems())
		}
	}
}

// TestTaken_OtherListenersKeepTheirAddress adds services, a Sidecar and a Gateway on ports that the
// agent or the bootstrap uses. They get no listener on these ports, and a problem reports which
// listener has the port.
func TestTaken_OtherListenersKeepTheirAddress(t *testing.T) {
	taken := []discovery.ReservedAddress{{Port: 15090, Owner: "the metrics", IsEnvoys: true}, {Address: "127.0.0.1",
		Port: 15000, Owner: "the admin view"}}
	const entry = "ServiceEntry shop/x: {hosts: [x.test], addresses: [10.9.0.1], resolution: " +
		"STATIC, ports: [{number: 15090, name: http, protocol: HTTP}, {number: 15000, name: tcp, " +
		"protocol: TCP}, " +
		"{number: 80, name: free, protocol: HTTP}], endpoints: [{address: 10.0.0.7}]}"
	const ingress = "Sidecar shop/s: {ingress: [{port: {number: 15090, name: http, protocol: " +
		"HTTP}, bind: 10.0.0.1, defaultEndpoint: '127.0.0.1:81'}, " +
		"{port: {number: 15000, name: tcp, protocol: TCP}, bind: 10.0.0.1, defaultEndpoint: " +
		"'127.0.0.1:82'}]}"
	const gateway = "Gateway shop/g: {selector: {app: edge}, servers: [{port: {number: 15090, " +
		"name: a, protocol: HTTP}, hosts: [a.test]}, {port: {number: 8080, name: b, protocol: " +
		"HTTP}, hosts: [b.test]}]}"
	const route = "VirtualService shop/v: {hosts: ['*'], gateways: [g], http: [{directResponse: " +
		"{status: 200}}]}"
	for _, test := range []struct {
		kind     string
		objects  []string
		want     []string // names of the expected listeners
		reported []string
	}{
		{"sidecar", []string{entry}, []string{"127.0.0.1_80"},
			[]string{"127.0.0.1:15090 belongs to the metrics",
				"127.0.0.1:15000 belongs to the admin view"}},
		{"REDIRECT", []string{entry}, []string{"0.0.0.0_80", "10.9.0.1_15000", "virtualInbound",
			"virtualOutbound"}, []string{"0.0.0.0:15090 belongs to the metrics"}},
		{"sidecar", []string{ingress}, []string{"10.0.0.1_15000"},
			[]string{"10.0.0.1:15090, which belongs to the metrics"}},
		{"router", []string{gateway, route}, []string{"0.0.0.0_8080"},
			[]string{"port 15090 belongs to the metrics"}},
	} {
		server, _ := start(t, discovery.Options{Files: []string{meshOf(t, test.objects...)},
			Namespace: "shop", Settings: discovery.Settings{ReservedAddresses: taken}})
		feed := feedOf(t, server, test.kind)
		snapshot, _ := feed.Current()
		if got := slices.Sorted(maps.Keys(snapshot.ByType(resource.ListenerType))); !slices.Equal(got,
			test.want) {
			t.Errorf("%s %.20s: listeners %v, want %v", test.kind, test.objects[0], got, test.want)
		}
		problems := server.Problems()
		for _, want := range test.reported {
			if !slices.ContainsFunc(problems,
				func(p discovery.Problem) bool { return strings.Contains(p.Message, want) }) {
				t.Errorf("%s %.20s: not reported: %s", test.kind, test.objects[0], want)
			}
		}
		if len(problems) != len(test.reported) {
			t.Errorf("%s %.20s: reported %v", test.kind, test.objects[0], problems)
		}
		if err := server.Reload(discovery.Settings{}); err != nil ||
			len(server.Problems()) != 0 {
			t.Errorf("once the ports are free: %v, %v", err, server.Problems())
		}
	}
}

// TestListener_OnePerAddress writes the same address of a Gateway in two ways. There is one
// listener with one route configuration.
func TestListener_OnePerAddress(t *testing.T) {
	for _, addresses := range [][2]string{{"", "0.0.0.0"}, {"0.0.0.0", ""},
		{"'::'", "'0:0:0:0:0:0:0:0'"}, {"'FD00::1'", "'fd00:0::1'"}} {
		directory := t.TempDir()
		for i, address := range addresses {
			write(t, filepath.Join(directory, fmt.Sprintf("%d.yaml", i)),
				fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: "+
					"g%d, namespace: shop}\nspec:\n"+
					"  selector: {app: edge}\n  servers: [{port: {number: 80, name: http, "+
					"protocol: HTTP}, bind: %s, hosts: [h%d.test]}]\n---\n"+
					"apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: "+
					"v%[1]d, namespace: shop}\nspec:\n"+
					"  hosts: [h%[1]d.test]\n  gateways: [g%[1]d]\n  http: [{directResponse: "+
					"{status: 201}}]\n", i, address, i))
		}
		server, _ := start(t, discovery.Options{Files: []string{directory}, Namespace: "shop"})
		snapshot, _ := feedOf(t, server, "router").Current()
		if listeners, routes := len(snapshot.ByType(resource.ListenerType)),
			len(snapshot.ByType(resource.RouteType)); listeners != 1 || routes != 1 {
			t.Errorf("%v: %d listeners, %d route configurations", addresses, listeners, routes)
		}
		for _, p := range server.Problems() {
			t.Errorf("%v: %s", addresses, p)
		}
	}
}
