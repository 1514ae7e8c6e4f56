package discovery_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
)

func node(kind, namespace string, labels map[string]any) *corev3.Node {
	metadata, err := structpb.NewStruct(map[string]any{"NAMESPACE": namespace, "LABELS": labels})
	if err != nil {
		panic(err)
	}
	return &corev3.Node{Id: kind + "~127.0.0.1~vm." + namespace + "~" + namespace +
		".svc.cluster.local", Metadata: metadata}
}

// service returns a ServiceEntry with a unique address and five endpoints. last is the last byte of
// the first endpoint's address.
func service(i, last int) string {
	text := fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata:
  name: svc-%d
  namespace: ns
spec:
  hosts:
  - svc-%d.example.com
  addresses:
  - 10.%d.%d.%d
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - number: 80
    name: http
    protocol: HTTP
  endpoints:
`, i, i, 1+i>>16, i>>8&255, i&255)
	for e := range 5 {
		octet := e
		if e == 4 {
			octet = last
		}
		text += fmt.Sprintf("  - address: 10.200.%d.%d\n    ports:\n      http: 8080\n    "+
			"labels:\n      version: v%d\n", i&255, octet, e%2)
	}
	return text
}

func writeServices(tb testing.TB, n int) string {
	tb.Helper()
	directory := tb.TempDir()
	for i := range n {
		write(tb, filepath.Join(directory, fmt.Sprintf("svc-%d.yaml", i)), service(i, 4))
	}
	return directory
}

func write(tb testing.TB, path, content string) {
	tb.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(path+".tmp", []byte(content), 0o644); err != nil {
		tb.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		tb.Fatal(err)
	}
}

// newServer returns a server that does not run yet, and its channel ChangedPaths.
func newServer(tb testing.TB, options discovery.Options) (*discovery.Server, chan<- []string) {
	tb.Helper()
	changes := make(chan []string)
	if options.ChangedPaths == nil {
		options.ChangedPaths = changes
	}
	server, err := discovery.New(options)
	if err != nil {
		tb.Fatal(err)
	}
	return server, changes
}

// start runs a server until the test ends, and returns its channel ChangedPaths.
func start(tb testing.TB, options discovery.Options) (*discovery.Server, chan<- []string) {
	tb.Helper()
	server, changes := newServer(tb, options)
	runServer(tb, server)
	return server, changes
}

// runServer runs a server until the test ends, and returns once it is ready.
func runServer(tb testing.TB, server *discovery.Server) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Error(err)
		}
	})
	<-server.Ready()
}

// processorTime returns the CPU time of this process. Benchmarks report it beside the elapsed time,
// which depends on other processes on a shared machine.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// reportProcessor reports the CPU time per operation, where before is the result of processorTime
// before the first operation.
func reportProcessor(b *testing.B, before time.Duration) {
	b.Helper()
	b.ReportMetric(float64(processorTime(b)-before)/float64(time.Millisecond)/float64(b.N),
		"cpu-ms/op")
}

// BenchmarkLoad measures a start, from reading the files to a sidecar's first snapshot.
func BenchmarkLoad(b *testing.B) {
	for _, n := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			directory := writeServices(b, n)
			b.ReportAllocs()
			before := processorTime(b)
			for b.Loop() {
				server, err := discovery.New(discovery.Options{Files: []string{directory}})
				if err != nil {
					b.Fatal(err)
				}
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error, 1)
				go func() { done <- server.Run(ctx) }()
				<-server.Ready()
				feed, err := server.Feed(node("sidecar", "ns", nil))
				if err != nil {
					b.Fatal(err)
				}
				if snapshot, _ := feed.Current(); len(snapshot.ByType(resource.ClusterType)) != n ||
					len(snapshot.ByType(resource.EndpointType)) != n {
					b.Fatalf("%d clusters", len(snapshot.ByType(resource.ClusterType)))
				}
				cancel()
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
			reportProcessor(b, before)
		})
	}
}

// BenchmarkEndpointChange changes one endpoint in one file. ChangedPaths delivers either the file's
// path or its directory.
func BenchmarkEndpointChange(b *testing.B) {
	for _, n := range []int{100, 5000} {
		for _, reported := range []string{"file", "directory"} {
			b.Run(fmt.Sprintf("%d/%s", n, reported), func(b *testing.B) {
				directory := writeServices(b, n)
				server, changes := start(b, discovery.Options{Files: []string{directory}})
				feed, err := server.Feed(node("sidecar", "ns", nil))
				if err != nil {
					b.Fatal(err)
				}
				path := filepath.Join(directory, "svc-7.yaml")
				tell := path
				if reported == "directory" {
					tell = directory
				}
				last := 10
				before := processorTime(b)
				for b.Loop() {
					_, next := feed.Current()
					last = 10 + (last+1)%200
					write(b, path, service(7, last))
					changes <- []string{tell}
					<-next
				}
				reportProcessor(b, before)
			})
		}
	}
}

// BenchmarkRouteChange changes one VirtualService of a port with thousands of hosts.
func BenchmarkRouteChange(b *testing.B) {
	const n = 5000
	directory := writeServices(b, n)
	server, changes := start(b, discovery.Options{Files: []string{directory}})
	feed, err := server.Feed(node("sidecar", "ns", nil))
	if err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(directory, "route.yaml")
	before := processorTime(b)
	for i := 0; b.Loop(); i++ {
		_, next := feed.Current()
		write(b, path, fmt.Sprintf(`{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: r, namespace: ns},
  spec: {hosts: [svc-9.example.com], http: [{timeout: %dms, route: [{destination: {host: svc-9.example.com}}]}]}}`, 1+i))
		changes <- []string{path}
		<-next
	}
	reportProcessor(b, before)
}
