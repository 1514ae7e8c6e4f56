package discovery_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
)

// benchPolicy returns a policy with ten rules for workload i.
func benchPolicy(i, version int) string {
	var rules strings.Builder
	for r := range 10 {
		fmt.Fprintf(&rules, "  - from: [{source: {principals: [cluster.local/ns/ns-%d/sa/client]}}]\n"+
			"    to: [{operation: {methods: [GET, POST], paths: [/v%d/rule-%d/*]}}]\n", r, version, r)
	}
	return fmt.Sprintf("apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n"+
		"metadata: {name: p-%d, namespace: ns}\nspec:\n"+
		"  selector: {matchLabels: {workload: w-%d}}\n  rules:\n%s", i, i, rules.String())
}

// BenchmarkPolicyChange changes one of 1,000 policies with ten rules, each for another workload,
// while 100 workloads are connected. For comparison it changes a route that all of them have.
func BenchmarkPolicyChange(b *testing.B) {
	const policies, clients = 1000, 100
	directory := b.TempDir()
	ports := ""
	for p := range 10 {
		ports += fmt.Sprintf("  - {port: {number: %d, name: http, protocol: HTTP}, "+
			"defaultEndpoint: \"127.0.0.1:%d\"}\n", 8000+p, 9000+p)
	}
	write(b, filepath.Join(directory, "sidecar.yaml"), "apiVersion: networking.istio.io/v1\n"+
		"kind: Sidecar\nmetadata: {name: default, namespace: ns}\nspec:\n  ingress:\n"+ports)
	for i := range policies {
		write(b, filepath.Join(directory, fmt.Sprintf("p-%d.yaml", i)), benchPolicy(i, 0))
	}
	write(b, filepath.Join(directory, "svc.yaml"), service(9, 4))
	server, changes := start(b, discovery.Options{Files: []string{directory}})
	var feeds []*resource.Feed
	for i := range clients {
		feed, err := server.Feed(node("sidecar", "ns", map[string]any{
			"workload": fmt.Sprintf("w-%d", i)}))
		if err != nil {
			b.Fatal(err)
		}
		feeds = append(feeds, feed)
	}
	route := func(i int) string {
		return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: VirtualService\n"+
			"metadata: {name: r, namespace: ns}\nspec: {hosts: [svc-9.example.com], http: [{timeout: "+
			"%dms, route: [{destination: {host: svc-9.example.com}}]}]}\n", 1+i)
	}
	for _, bench := range []struct {
		name, file string
		text       func(i int) string
		feed       *resource.Feed // feed of the workloads whose resources change
	}{
		{"policy", "p-7.yaml", func(i int) string { return benchPolicy(7, 1+i) }, feeds[7]},
		{"route", "route.yaml", route, feeds[clients-1]},
	} {
		b.Run(bench.name, func(b *testing.B) {
			path := filepath.Join(directory, bench.file)
			b.ReportAllocs()
			before := processorTime(b)
			for i := 0; b.Loop(); i++ {
				_, next := bench.feed.Current()
				write(b, path, bench.text(i))
				changes <- []string{path}
				<-next
			}
			reportProcessor(b, before)
		})
	}
}
