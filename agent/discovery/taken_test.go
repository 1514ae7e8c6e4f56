package discovery_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
)

// TestAListenerHasOneOwner lets a Sidecar and a service come and go that want one listener: the Sidecar's counts, the
// service is told, and who is left has it.
func TestAListenerHasOneOwner(t *testing.T) {
	const head = "apiVersion: networking.istio.io/v1\nkind: %s\nmetadata: {name: %s, namespace: shop}\nspec:\n"
	texts := map[string]string{
		"Sidecar": fmt.Sprintf(head, "Sidecar", "own") + "  ingress: [{port: {number: 8080, name: h, protocol: HTTP}, bind: 127.0.0.1, defaultEndpoint: '127.0.0.1:9090'}]\n",
		"ServiceEntry": fmt.Sprintf(head, "ServiceEntry", "entry") +
			"  hosts: [x.test]\n  resolution: STATIC\n  ports: [{number: 8080, name: p, protocol: HTTP}]\n  endpoints: [{address: 10.0.0.1}]\n",
	}
	directory := t.TempDir()
	server, changes := start(t, discovery.Options{Files: []string{directory}, Namespace: "shop"})
	feed := feedOf(t, server, "sidecar")
	for _, step := range []struct {
		put, remove string
		want        string // the kind of whose the listener is; "" for nobody's
		told        bool
	}{
		{put: "ServiceEntry", want: "ServiceEntry"},
		{put: "Sidecar", want: "Sidecar", told: true},
		{remove: "ServiceEntry", want: "Sidecar"},
		{put: "ServiceEntry", want: "Sidecar", told: true},
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
		changes <- nil // taken once the one before is done
		got := ""
		snapshot, _ := feed.Current()
		if listener := snapshot.Get(resource.Key{Type: resource.ListenerType, Name: "127.0.0.1_8080"}); listener != nil {
			got = listener.Origins[0].Kind
		}
		if got != step.want {
			t.Errorf("%+v: the listener is of %q", step, got)
		}
		told := false
		for _, p := range server.Problems() {
			told = told || strings.Contains(p.Message, "nothing listens for host x.test: 127.0.0.1:8080 belongs to ingress[0] of Sidecar shop/own")
		}
		if told != step.told {
			t.Errorf("%+v: told: %v", step, server.Problems())
		}
	}
}

// TestAnAddressHasOneListener writes one address of a Gateway in several ways: it is one listener, with one route configuration.
func TestAnAddressHasOneListener(t *testing.T) {
	for _, addresses := range [][2]string{{"", "0.0.0.0"}, {"0.0.0.0", ""}, {"'::'", "'0:0:0:0:0:0:0:0'"}, {"'FD00::1'", "'fd00:0::1'"}} {
		directory := t.TempDir()
		for i, address := range addresses {
			write(t, filepath.Join(directory, fmt.Sprintf("%d.yaml", i)), fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: g%d, namespace: shop}\nspec:\n"+
				"  selector: {app: edge}\n  servers: [{port: {number: 80, name: http, protocol: HTTP}, bind: %s, hosts: [h%d.test]}]\n---\n"+
				"apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: v%[1]d, namespace: shop}\nspec:\n"+
				"  hosts: [h%[1]d.test]\n  gateways: [g%[1]d]\n  http: [{directResponse: {status: 201}}]\n", i, address, i))
		}
		server, _ := start(t, discovery.Options{Files: []string{directory}, Namespace: "shop"})
		snapshot, _ := feedOf(t, server, "router").Current()
		if listeners, routes := len(snapshot.Set(resource.ListenerType)), len(snapshot.Set(resource.RouteType)); listeners != 1 || routes != 1 {
			t.Errorf("%v: %d listeners, %d route configurations", addresses, listeners, routes)
		}
		for _, p := range server.Problems() {
			t.Errorf("%v: %s", addresses, p)
		}
	}
}
