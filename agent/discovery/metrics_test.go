package discovery_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// sourceLabels and destinationLabels are the labels of a successful request over mutual TLS from
// the workload to itself, as the source and as the destination record it.
var (
	sourceLabels = map[string]string{"reporter": "source", "source_workload": "edge-v1",
		"source_canonical_service": "edge", "source_canonical_revision": "latest",
		"source_workload_namespace": "shop", "source_principal": vmID, "source_app": "edge",
		"source_version": "unknown", "source_cluster": "Kubernetes",
		"destination_workload": "pay-v2", "destination_workload_namespace": "shop",
		"destination_principal": vmID, "destination_app": "pay", "destination_version": "v2",
		"destination_service": "pay.test", "destination_canonical_service": "pay",
		"destination_canonical_revision": "v2", "destination_service_name": "pay.test",
		"destination_service_namespace": "shop", "destination_cluster": "Kubernetes",
		"request_protocol": "http", "response_code": "200", "response_flags": "-",
		"connection_security_policy": "unknown"}
	destinationLabels = map[string]string{"reporter": "destination", "source_workload": "unknown",
		"source_canonical_service": "unknown", "source_canonical_revision": "latest",
		"source_workload_namespace": "shop", "source_principal": vmID, "source_app": "unknown",
		"source_version": "unknown", "source_cluster": "unknown", "destination_workload": "edge-v1",
		"destination_workload_namespace": "shop", "destination_principal": vmID,
		"destination_app": "edge", "destination_version": "unknown", "destination_service": "edge",
		"destination_canonical_service": "edge", "destination_canonical_revision": "latest",
		"destination_service_name": "edge", "destination_service_namespace": "shop",
		"destination_cluster": "Kubernetes", "request_protocol": "http", "response_code": "200",
		"response_flags": "-", "connection_security_policy": "mutual_tls"}
)

// Labels that differ from sourceLabels and destinationLabels.
const (
	unidentified = "source_principal=unknown destination_principal=unknown"
	fromPlain    = unidentified + " source_workload_namespace=unknown connection_security_policy=none"
	toPlain      = unidentified + " destination_workload=unknown destination_app=unknown " +
		"destination_version=unknown destination_canonical_service=unknown " +
		"destination_canonical_revision=latest destination_service=plain.test " +
		"destination_service_name=plain.test"
	noEndpoint = unidentified + " destination_workload=unknown destination_app=unknown " +
		"destination_version=unknown destination_canonical_service=unknown " +
		"destination_canonical_revision=latest destination_workload_namespace=unknown " +
		"destination_service_namespace=unknown destination_cluster=unknown"
	noService = noEndpoint + " destination_service=unknown destination_service_name=unknown"
	overTCP   = "request_protocol=tcp response_code= "
)

// metricsCase is a request with the metric samples that it adds. A sample is "VALUE METRIC REPORTER
// LABEL=VALUE…", with only the labels that differ from those of a successful request.
type metricsCase struct {
	name string
	do   func() string
	is   string // expected result of do
	want []string
}

func metricsCases(t *testing.T) []metricsCase {
	both := func(port int, path, is, source, destination string, header ...string) metricsCase {
		return metricsCase{path, func() string { return getThrough(port, path, header...) }, is,
			[]string{"1 requests_total source " + source,
				"1 requests_total destination " + destination}}
	}
	one := func(port int, path, is, source string) metricsCase {
		c := both(port, path, is, source, "")
		c.want = c.want[:1]
		return c
	}
	code := func(n string) string { return "response_code=" + n }
	grpcStatus := func(status string) string {
		return "request_protocol=grpc grpc_response_status=" + status
	}
	calls := func(status string) []string {
		return []string{"1 requests_total source " + grpcStatus(status),
			"1 requests_total destination " + grpcStatus(status)}
	}
	tcp := func(source, destination, sent, received string) []string {
		all := []string{}
		for _, l := range []string{"source " + overTCP + source, "destination " + overTCP +
			destination} {
			all = append(all, "1 tcp_connections_opened_total "+l,
				"1 tcp_connections_closed_total "+l, sent+" tcp_sent_bytes_total "+l,
				received+" tcp_received_bytes_total "+l)
		}
		if destination == "" {
			return all[:4]
		}
		return all
	}
	plain := both(metricsPlain, "/", "200", toPlain, fromPlain)
	plain.name = "plain text"
	dead := one(metricsDead, "/dead", "503", noEndpoint+" "+code("503")+
		" response_flags=URX,UF destination_app=dead destination_canonical_service=dead "+
		"destination_workload_namespace=shop destination_service_namespace=shop "+
		"destination_cluster=Kubernetes "+
		"destination_service=dead.test destination_service_name=dead.test")
	empty := one(metricsEmpty, "/empty", "503", noEndpoint+" "+code("503")+
		" response_flags=UH destination_service=empty.test destination_service_name=empty.test")
	cases := []metricsCase{
		both(metricsHTTP, "/", "200", "", ""), plain, dead, empty,
		both(metricsHTTP, "/status/201", "201", code("201"), code("201")),
		both(metricsHTTP, "/status/204", "204", code("204"), code("204")),
		both(metricsHTTP, "/status/301", "301", code("301"), code("301")),
		both(metricsHTTP, "/status/400", "400", code("400"), code("400")),
		both(metricsHTTP, "/status/404", "404", code("404"), code("404")),
		both(metricsHTTP, "/status/429", "429", code("429"), code("429")),
		both(metricsHTTP, "/status/500", "500", code("500"), code("500")),
		both(metricsHTTP, "/status/503", "503", code("503"), code("503")),
		both(metricsPlain, "/status/404", "404", toPlain+" "+code("404"), fromPlain+" "+code("404")),
		both(metricsHTTP, "/late", "504", code("504")+" response_flags=UT",
			code("0")+" response_flags=DC"),
		one(metricsHTTP, "/abort", "418", noEndpoint+" "+code("418")+" response_flags=FI"),
		one(metricsHTTP, "/direct", "402", noService+" "+code("402")),
		one(metricsHTTP, "/redirect", "301", noService+" "+code("301")),
		{"retries", func() string { return getThrough(metricsHTTP, "/again") }, "503",
			[]string{"1 requests_total source " + code("503") + " response_flags=URX",
				"3 requests_total destination " + code("503")}},
		{"HTTP/2", func() string { return http2Through(metricsHTTP, "/") }, "200",
			[]string{"1 requests_total source ", "1 requests_total destination "}},
		both(metricsHTTP, "/form", "200", "", "", "content-type", "application/grpcx"),
		{"unknown host", func() string {
			return getHost(metricsHTTP, "nobody.test", "/")
		}, "502", []string{"1 requests_total source " + noEndpoint + " " + code("502") +
			" destination_service=unknown destination_service_name=BlackHoleCluster"}},
		{"no authority of the mesh", func() string {
			connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", metricsHTTP))
			must(t, err)
			defer func() { _ = connection.Close() }()
			_, _ = io.WriteString(connection, "GET / HTTP/1.1\r\n\r\n")
			answer, _ := io.ReadAll(io.LimitReader(connection, 12))
			return string(answer)
		}, "HTTP/1.1 400", []string{"1 requests_total source " + noService + " " +
			code("400")}},
		{"the client goes away", func() string {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			return sendThrough(ctx, metricsHTTP, "pay.test", "/delay/30s")
		}, "failed", []string{"1 requests_total source " + code("0") + " response_flags=DC",
			"1 requests_total destination " + code("0") + " response_flags=DC"}},
		{"gRPC", func() string { return callGRPC(t, "unary", 1) }, "OK", calls("0")},
		{"gRPC, client streams", func() string { return callGRPC(t, "unary", 5) }, "OK",
			calls("0")},
		{"gRPC, server streams", func() string { return callGRPC(t, "echo", 1) }, "OK",
			calls("0")},
		{"gRPC, both stream", func() string { return callGRPC(t, "echo", 4) }, "OK",
			calls("0")},
		{"gRPC fails", func() string { return callGRPC(t, "denied", 1) }, "PermissionDenied",
			calls("7")},
		{"gRPC without a method", func() string { return callGRPC(t, "gone", 1) }, "Unimplemented",
			calls("12")},
		{"TCP over mutual TLS", func() string { return talkTCP(metricsTCP) }, "step:hello\n",
			tcp("", "connection_security_policy=mutual_tls", "11", "6")},
		{"TCP in plain text", func() string { return talkTCP(metricsRaw) }, "step:hello\n",
			tcp(toPlain, "", "11", "6")},
		{"TCP to a dead endpoint", func() string { return talkTCP(metricsGone) }, "",
			tcp(noEndpoint+" response_flags=UF,URX destination_app=dead "+
				"destination_canonical_service=dead destination_workload_namespace=shop "+
				"destination_service_namespace=shop destination_cluster=Kubernetes "+
				"destination_service=dead.test destination_service_name=dead.test", "", "0", "0")},
	}
	for i := range cases {
		cases[i].name = strings.Trim(cases[i].name, "/")
	}
	return cases
}

// TestMetrics sends the requests of metricsCases through an Envoy, which must count each request as
// Istio defines its metrics.
func TestMetrics(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	const marker = 7490
	pki := newMeshPKI(t)
	app := (&backend{name: "app"}).serve(t, false)
	echo := echoTCP(t, "step")
	objects := strings.NewReplacer("$APP", fmt.Sprint(app), "$ECHO", fmt.Sprint(echo), "$GRPC",
		fmt.Sprint(serveGRPC(t)), "$CLOSED", fmt.Sprint(freePorts(t, 1)[0])).Replace(metricsObjects)
	proxy := startPeer(t, "sidecar", "outrider", "defaultProviders: {metrics: [prometheus]}", pki)
	proxy.apply(t, objects+fmt.Sprintf(stepService, marker, echo), fmt.Sprintf("127.0.0.1:%d", marker))
	proxy.listens(t)
	for _, p := range proxy.server.Problems() {
		t.Errorf("%s", p)
	}
	eventually(t, "mutual TLS is ready", func() (bool, string) {
		got := getThrough(metricsHTTP, "/")
		return got == "200" && callGRPC(t, "unary", 1) == "OK", got
	})
	for _, c := range metricsCases(t) {
		t.Run(c.name, func(t *testing.T) {
			before := proxy.istioMetrics(t)
			if got := c.do(); got != c.is {
				t.Errorf("answer %q, want %q", got, c.is)
			}
			want := c.samples()
			var got map[string]float64
			eventuallySame(t, want, func() map[string]float64 {
				got = proxy.istioMetrics(t)
				maps.DeleteFunc(got, func(key string, _ float64) bool {
					got[key] -= before[key]
					return got[key] == 0 || isHistogram(key)
				})
				return got
			})
		})
	}
	// Envoy merges its histograms every 5 s
	eventually(t, "each request is in the histograms", func() (bool, string) {
		want, got := map[string]float64{}, proxy.istioMetrics(t)
		for key, value := range got {
			if labels, ok := strings.CutPrefix(key, "istio_requests_total"); ok {
				for _, name := range histograms {
					want[name+labels] = value
				}
			}
		}
		maps.DeleteFunc(got, func(key string, _ float64) bool { return !isHistogram(key) })
		diff := cmp.Diff(want, got)
		return diff == "", diff
	})
	if len(proxy.nacks.all) > 0 {
		t.Error(proxy.nacks.all)
	}
}

var histograms = []string{"istio_request_duration_milliseconds", "istio_request_bytes",
	"istio_response_bytes"}

func isHistogram(key string) bool {
	name, _, _ := strings.Cut(key, " ")
	return slices.Contains(histograms, name)
}

// samples returns the samples that the case adds.
func (c metricsCase) samples() map[string]float64 {
	all := map[string]float64{}
	for _, line := range c.want {
		words := strings.Fields(line)
		labels := maps.Clone(sourceLabels)
		if words[2] == "destination" {
			labels = maps.Clone(destinationLabels)
		}
		for _, change := range words[3:] {
			name, value, _ := strings.Cut(change, "=")
			labels[name] = value
		}
		var value float64
		_, _ = fmt.Sscan(words[0], &value)
		all[sampleKey("istio_"+words[1], labels)] = value
	}
	maps.DeleteFunc(all, func(_ string, v float64) bool { return v == 0 })
	return all
}

// sampleKey returns the metric and reporter of a sample, and the labels that differ from those of a
// request that succeeded.
func sampleKey(name string, labels map[string]string) string {
	base := sourceLabels
	if labels["reporter"] == "destination" {
		base = destinationLabels
	}
	var pairs []string
	for key := range base {
		if _, ok := labels[key]; !ok {
			pairs = append(pairs, key+"=")
		}
	}
	for key, value := range labels {
		if value != base[key] {
			pairs = append(pairs, key+"="+value)
		}
	}
	slices.Sort(pairs)
	return strings.Join(append([]string{name, labels["reporter"]}, pairs...), " ")
}

// istioMetrics returns the values of Istio's metrics of the proxy; for a histogram, the number of
// its samples.
func (e *envoy) istioMetrics(t *testing.T) map[string]float64 {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(e.Get("/stats/prometheus")))
	must(t, err)
	all := map[string]float64{}
	for name, family := range families {
		name, ok := strings.CutPrefix(name, "envoy_istiocustom_")
		if !ok {
			continue
		}
		for _, metric := range family.Metric {
			labels := map[string]string{}
			for _, l := range metric.Label {
				labels[l.GetName()] = l.GetValue()
			}
			all[sampleKey(name, labels)] = metric.GetCounter().GetValue() +
				float64(metric.GetHistogram().GetSampleCount())
		}
	}
	return all
}

// eventuallySame waits until get returns want.
func eventuallySame(t *testing.T, want map[string]float64, get func() map[string]float64) {
	t.Helper()
	diff := ""
	eventually(t, "the request is counted", func() (bool, string) {
		diff = cmp.Diff(want, get())
		return diff == "", diff
	})
}
