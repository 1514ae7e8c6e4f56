package status

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"outrider.org/outrider/agent/condition"
)

// BenchmarkScrape merges the metrics of an Envoy with a thousand clusters: 60 families, 60 000
// samples, 5 MB.
func BenchmarkScrape(b *testing.B) {
	var text strings.Builder
	for family := range 60 {
		fmt.Fprintf(&text, "# TYPE envoy_cluster_family_%d counter\n", family)
		for cluster := range 1000 {
			fmt.Fprintf(&text,
				"envoy_cluster_family_%d{envoy_cluster_name=\"outbound|80||service-%d.default.svc.cluster.local\"} %d\n", family, cluster, cluster)
		}
	}
	envoy := &proxy{}
	envoy.set(answering(map[string]string{"/stats/prometheus": text.String()}), 0, "")
	server := NewServer(Options{Proxy: envoy, Metrics: agentMetrics(), Readiness: readiness(""),
		Conditions: condition.NewRegistry(), Logger: discard()})
	handler := server.routes()
	b.SetBytes(int64(text.Len()))
	b.ReportAllocs()
	for b.Loop() {
		answer := &discardResponse{header: http.Header{}}
		handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if answer.written < text.Len() {
			b.Fatalf("%d bytes", answer.written)
		}
	}
}

type discardResponse struct {
	header  http.Header
	written int
}

func (d *discardResponse) Header() http.Header { return d.header }
func (d *discardResponse) WriteHeader(int)     {}
func (d *discardResponse) Write(p []byte) (int, error) {
	n, err := io.Discard.Write(p)
	d.written += n
	return n, err
}
