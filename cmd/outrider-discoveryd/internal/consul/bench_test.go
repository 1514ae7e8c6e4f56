package consul

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/catalog"
)

// benchServices is the number of services in the catalogue of the benchmark.
const benchServices = 1000

// BenchmarkHealth changes the health of an instance between critical and passing, in a catalogue
// with 1,000 services of five instances each. It measures the time from the request to Consul until
// the proxy's resource has changed, and the CPU time of the registry and the discovery server.
// Changes are not debounced.
func BenchmarkHealth(b *testing.B) {
	consul := catalog.Start(b, catalog.Options{})
	for i := range benchServices {
		for j := range 5 {
			consul.Register(b, instance(i, j))
		}
	}
	server, err := discovery.New(discovery.Options{Sources: []string{"files", "consul"}})
	if err != nil {
		b.Fatal(err)
	}
	registry, err := New(Options{Name: "consul", Address: consul.Address, Sink: server.AcceptUpdate,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	for _, part := range []func(context.Context) error{server.Run, registry.Run} {
		ctx, cancel := context.WithCancel(b.Context())
		ended := make(chan error, 1)
		go func() { ended <- part(ctx) }()
		b.Cleanup(func() { cancel(); <-ended })
	}
	feed, err := server.Feed(&corev3.Node{Id: "sidecar~10.9.9.9~a.default~default.svc.cluster.local"})
	if err != nil {
		b.Fatal(err)
	}
	last := fmt.Sprintf("outbound|80||s%d.service.consul", benchServices-1)
	key := resource.Key{Type: resource.EndpointType, Name: last}
	parts.Eventually(b, time.Minute, "the last service is served", func() bool {
		snapshot, _ := feed.Current()
		return snapshot.Get(key) != nil
	})
	time.Sleep(2 * time.Second) //house:sleep excludes work that the start has left
	before := processor(b)
	n := 0
	for b.Loop() {
		now, _ := feed.Current()
		version := now.Get(key).Version
		consul.SetStatus(b, instance(benchServices-1, 0), []string{"critical", "passing"}[n%2])
		for n++; ; {
			next, newer := feed.Current()
			if next.Get(key).Version != version {
				break
			}
			<-newer
		}
	}
	b.ReportMetric(float64((processor(b)-before).Microseconds())/1000/float64(n), "cpu-ms/op")
}

func instance(i, j int) catalog.Instance {
	return catalog.Instance{Service: fmt.Sprintf("s%d", i), ID: fmt.Sprintf("s%d-%d", i, j),
		Node: fmt.Sprintf("n%d", j), Address: fmt.Sprintf("10.%d.%d.%d", j, i/256, i%256), Port: 80,
		Status: "passing", Meta: map[string]string{"protocol": "http"}}
}

// processor returns the CPU time of this process.
func processor(b *testing.B) time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
