package discovery_test

import (
	"fmt"
	"path/filepath"
	"runtime"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
)

// capturedHost returns the node of the intercepted proxy on host number i. The address of the host
// is that of an endpoint of service i of writeServices.
func capturedHost(i int) *corev3.Node {
	n := node("sidecar", "ns", nil)
	n.Id = fmt.Sprintf("sidecar~10.200.%d.%d~vm%d.ns~ns.svc.cluster.local", i&255, i>>8, i)
	n.Metadata.Fields["INTERCEPTION_MODE"] = structpb.NewStringValue("REDIRECT")
	return n
}

// BenchmarkCapturedHosts changes an endpoint while 1,000 intercepted hosts with different addresses
// are subscribed, and reports the memory that the server needs for each host.
func BenchmarkCapturedHosts(b *testing.B) {
	const services, hosts = 1000, 1000
	directory := writeServices(b, services)
	server, changes := startShared(b, discovery.Options{Files: []string{directory}})
	var feeds []*resource.Feed
	var before, after runtime.MemStats
	for i := range hosts {
		find, _ := server.Subscribe(capturedHost(i), "", func() {})
		feed, err := find()
		if err != nil {
			b.Fatal(err)
		}
		if i == 0 {
			runtime.GC()
			runtime.ReadMemStats(&before)
		}
		feeds = append(feeds, feed)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	path := filepath.Join(directory, "svc-7.yaml")
	last := 10
	used := processorTime(b)
	for b.Loop() {
		var next []<-chan struct{}
		for _, feed := range feeds {
			_, newer := feed.Current()
			next = append(next, newer)
		}
		last = 10 + (last+1)%200
		write(b, path, service(7, last))
		changes <- []string{path}
		for _, newer := range next {
			<-newer
		}
	}
	reportProcessor(b, used)
	b.ReportMetric(float64(after.HeapInuse-before.HeapInuse)/(hosts-1)/1024, "KB/host")
}
