package decisiontable

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	benchPolicies    = 100
	benchConnections = 8
	benchRound       = 3 * time.Second
)

// BenchmarkPolicies sends requests in turns to an Envoy with 100 policies that istiod configures,
// and to one that the embedded server configures. Each policy has a rule that does not match; the
// last one allows the requests. Metrics are requests per second, the ratio of both, and latencies.
func BenchmarkPolicies(b *testing.B) {
	pki, keys := newIdentities(b), newTokens(b)
	m := &maker{t: b, keys: keys, backend: startBackend(b)}
	var policies strings.Builder
	for i := range benchPolicies {
		action, path := "DENY", fmt.Sprintf("/denied-%d/*", i)
		if i%2 == 0 {
			action, path = "ALLOW", fmt.Sprintf("/allowed-%d/*", i)
		}
		if i == benchPolicies-2 {
			path = "/x"
		}
		fmt.Fprintf(&policies, `---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: p%02d}
spec:
  action: %s
  rules:
  - from: [{source: {ipBlocks: [127.0.0.0/8], notPrincipals: [cluster.local/ns/x/sa/y]}}]
    to: [{operation: {methods: [GET, POST], paths: [%q, "*/suffix", "/t/{*}/%d"]}}]
`, i, action, path, i)
	}
	c := m.add("benchmark", "sidecar", policies.String())
	providers := startAuthorizers(b)
	planes := map[string]map[string]*workload{
		"istiod":   startIstiod(b, m.cases, providers).workloads(b, m.cases, keys),
		"outrider": startOutrider(b, m.cases, providers).workloads(b, m.cases, keys)}
	rates, took := map[string][]float64{}, map[string][]time.Duration{}
	for b.Loop() {
		for _, name := range []string{"istiod", "outrider", "outrider", "istiod"} {
			envoy := startEnvoy(b, planes[name], pki)
			all := loaded(b, c)
			envoy.Kill()
			rates[name] = append(rates[name], float64(len(all))/benchRound.Seconds())
			took[name] = append(took[name], all...)
		}
	}
	means := map[string]float64{}
	for name, of := range rates {
		for _, rate := range of {
			means[name] += rate / float64(len(of))
		}
		slices.Sort(took[name])
		b.ReportMetric(means[name], name+"-requests/s")
		for at, what := range map[float64]string{0.5: "p50", 0.99: "p99"} {
			b.ReportMetric(float64(took[name][int(at*float64(len(took[name])))].Microseconds()),
				name+"-"+what+"-µs")
		}
	}
	b.ReportMetric(means["outrider"]/means["istiod"], "outrider/istiod")
	b.ReportMetric(0, "ns/op")
}

// loaded sends requests over several connections for one round, sequentially on each connection. It
// returns the latencies.
func loaded(b *testing.B, c *testCase) (all []time.Duration) {
	b.Helper()
	var mu sync.Mutex
	var connections sync.WaitGroup
	end := time.Now().Add(benchRound)
	for range benchConnections {
		connections.Go(func() {
			connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", c.port))
			if err != nil {
				b.Error(err)
				return
			}
			defer func() { _ = connection.Close() }()
			reader := bufio.NewReader(connection)
			var took []time.Duration
			for begun := time.Now(); begun.Before(end); begun = time.Now() {
				_, _ = io.WriteString(connection, "GET /x HTTP/1.1\r\nHost: any.test\r\n\r\n")
				response, err := http.ReadResponse(reader, nil)
				if err != nil || response.StatusCode != http.StatusOK {
					b.Errorf("%v %v", response, err)
					return
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
				took = append(took, time.Since(begun))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
		})
	}
	connections.Wait()
	return all
}
