package discovery_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	logRounds      = 10
	logConnections = 8
	logRequests    = 250 // requests on each connection in a round
)

// logObjects are a service whose only endpoint is an inbound port of the same sidecar. So each
// request passes through the sidecar twice, outbound and inbound, with mutual TLS in between.
const logObjects = `{apiVersion: networking.istio.io/v1, kind: Sidecar, metadata: {name: default, namespace: shop},
  spec: {ingress: [{port: {number: $IN, protocol: HTTP, name: http}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:$APP"}]}}
---
{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: pay, namespace: shop},
  spec: {address: 127.0.0.1, serviceAccount: vm, labels: {app: pay}}}
---
{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: pay, namespace: shop},
  spec: {hosts: [pay.test], location: MESH_INTERNAL, resolution: STATIC, workloadSelector: {labels: {app: pay}},
    ports: [{number: $OUT, name: http, protocol: HTTP, targetPort: $IN}]}}
`

// BenchmarkAccessLog sends requests in turns to an Envoy that istiod configures and to one that
// this server configures, with the same objects and an access log. Metrics are medians of the
// rounds: CPU time of Envoy per request, requests per second, and the ratios of both.
func BenchmarkAccessLog(b *testing.B) {
	app := run(b, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "body\n")
	})}, listenLocal(b))
	pki := newMeshPKI(b)
	for _, encoding := range []string{"TEXT", "JSON"} {
		b.Run(encoding, func(b *testing.B) {
			istiod := startLogging(b, "istiod", encoding, app, pki)
			ours := startLogging(b, "outrider", encoding, app, pki)
			turns := []*loggingEnvoy{istiod, ours}
			for b.Loop() {
				for range logRounds {
					for _, e := range turns {
						e.load(b)
					}
					slices.Reverse(turns)
				}
			}
			istiod.logged(b)
			ours.logged(b)
			for unit, of := range map[string][2][]float64{"µs/req": {istiod.cpu, ours.cpu},
				"req/s": {istiod.rates, ours.rates}} {
				b.ReportMetric(median(of[0]), "istiod-"+unit)
				b.ReportMetric(median(of[1]), "ours-"+unit)
				b.ReportMetric(median(of[1])/median(of[0]), "ratio-"+unit)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// loggingEnvoy is an Envoy with an access log, and the results of its rounds.
type loggingEnvoy struct {
	peer
	port, sent int
	log        string
	cpu, rates []float64 // µs per request, requests per second
}

// startLogging starts an Envoy with an access log, and warms it up.
func startLogging(b *testing.B, by, encoding string, app int, pki meshPKI) *loggingEnvoy {
	b.Helper()
	ports := freePorts(b, 2)
	e := &loggingEnvoy{port: ports[0], log: filepath.Join(b.TempDir(), "access.log")}
	e.peer = startPeer(b, "sidecar", by,
		fmt.Sprintf("accessLogFile: %s\naccessLogEncoding: %s\n", e.log, encoding), pki)
	e.put(b, strings.NewReplacer("$OUT", fmt.Sprint(e.port), "$IN", fmt.Sprint(ports[1]), "$APP",
		fmt.Sprint(app)).Replace(logObjects))
	eventually(b, by+"'s Envoy answers", func() (bool, string) {
		got := sendThrough(b.Context(), e.port, "pay.test", "/warm")
		return got == "200", got
	})
	e.listens(b)
	e.load(b)
	e.cpu, e.rates = nil, nil
	return e
}

// load sends the requests of a round, sequentially on each connection.
func (e *loggingEnvoy) load(b *testing.B) {
	b.Helper()
	const all = logConnections * logRequests
	var connections sync.WaitGroup
	used, begun := e.CPUTime(b), time.Now()
	for range logConnections {
		connections.Go(func() {
			connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", e.port))
			if err != nil {
				b.Error(err)
				return
			}
			defer func() { _ = connection.Close() }()
			reader := bufio.NewReader(connection)
			for range logRequests {
				_, _ = fmt.Fprintf(connection, "GET /load HTTP/1.1\r\nHost: pay.test:%d\r\n\r\n", e.port)
				response, err := http.ReadResponse(reader, nil)
				if err != nil || response.StatusCode != http.StatusOK {
					b.Errorf("%v %v", response, err)
					return
				}
				_, _ = io.Copy(io.Discard, response.Body)
			}
		})
	}
	connections.Wait()
	e.sent += all
	e.rates = append(e.rates, all/time.Since(begun).Seconds())
	e.cpu = append(e.cpu, float64((e.CPUTime(b)-used).Nanoseconds())/1000/all)
}

// logged waits until each request has two entries in the access log, outbound and inbound.
func (e *loggingEnvoy) logged(b *testing.B) {
	b.Helper()
	eventually(b, "all requests are logged", func() (bool, string) {
		text, err := os.ReadFile(e.log)
		must(b, err)
		got := strings.Count(string(text), "/load")
		return got == 2*e.sent, fmt.Sprintf("%d entries of %d requests", got, e.sent)
	})
}

func median(values []float64) float64 {
	slices.Sort(values)
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}
