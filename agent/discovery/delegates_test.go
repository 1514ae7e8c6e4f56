package discovery_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
)

// TestDelegates_AreBounded: each match of a VirtualService is combined with each match of its
// delegate, and the number of resulting matches is limited.
func TestDelegates_AreBounded(t *testing.T) {
	for _, test := range []struct {
		name  string
		roots int // number of routes that delegate
		// number of matches of each route that delegates, and of each route of the delegate
		outer, its       int
		routes           int // number of routes of the delegate
		nothing          bool
		tooMany          bool
		leastBytes, most int // size of the routes as Envoy reports them
	}{
		{name: "many", roots: 1, outer: 100, its: 100, routes: 1, leastBytes: 300_000,
			most: 1_000_000},
		{name: "matches", roots: 1, outer: 1000, its: 1000, routes: 1, tooMany: true, most: 1000},
		{name: "routes", roots: 200, outer: 1, its: 1, routes: 200, tooMany: true, most: 1_000_000},
		{name: "no match", roots: 200, routes: 200, tooMany: true, most: 1_000_000},
		{name: "nothing in common", roots: 1, outer: 401, its: 1, routes: 500, nothing: true,
			tooMany: true, most: 1000},
	} {
		t.Run(test.name, func(t *testing.T) {
			written := 0
			// no two matches are equal, so no combination can be omitted as a duplicate
			routes := func(count, matches int, then string) string {
				var text strings.Builder
				for range count {
					var all []string
					for range matches {
						written++
						header := fmt.Sprintf("h%d: {exact: x}", written)
						if test.nothing {
							header = fmt.Sprintf("same: {exact: x%d}", written)
						}
						all = append(all, "{uri: {prefix: /a}, headers: {"+header+"}}")
					}
					fmt.Fprintf(&text, "  - {match: [%s], %s}\n", strings.Join(all, ", "), then)
				}
				return text.String()
			}
			head := "apiVersion: networking.istio.io/v1\nkind: %s\nmetadata: {name: %s, " +
				"namespace: shop}\nspec:\n"
			text := fmt.Sprintf(head, "ServiceEntry", "x") +
				"  hosts: [x.test]\n  resolution: STATIC\n  ports: [{number: 80, name: p, " +
				"protocol: HTTP}]\n  endpoints: [{address: 10.0.0.1}]\n---\n" +
				fmt.Sprintf(head, "VirtualService", "d") + "  http:\n" + routes(test.routes,
				test.its, "directResponse: {status: 200}") + "---\n" +
				fmt.Sprintf(head, "VirtualService", "root") + "  hosts: [x.test]\n  http:\n" +
				routes(test.roots, test.outer, "delegate: {name: d}")
			directory := t.TempDir()
			write(t, filepath.Join(directory, "all.yaml"), text)
			server, _ := start(t, discovery.Options{Files: []string{directory}, Namespace: "shop"})
			snapshot, _ := feedOf(t, server, "sidecar").Current()
			if size := len(snapshot.Get(resource.Key{Type: resource.RouteType,
				Name: "80"}).EncodedMessage()); size < test.leastBytes || size > test.most {
				t.Errorf("%d bytes of routes", size)
			}
			reported := false
			for _, p := range server.Problems() {
				reported = reported || p.Severity == condition.Error && strings.Contains(p.Message,
					"the delegates come to more than 10000 matches")
			}
			if reported != test.tooMany {
				t.Errorf("reported: %v", server.Problems())
			}
		})
	}
}
