package discovery_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/scripts/parts"
)

const otelEntries = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: collector, namespace: shop}
spec:
  hosts: [otel.test]
  resolution: STATIC
  ports:
  - {number: 4317, name: grpc, protocol: GRPC}
  - {number: 4318, name: http, protocol: HTTP}
  - {number: 9411, name: http-zipkin, protocol: HTTP}
  endpoints: [{address: 127.0.0.1, ports: {grpc: %d, http: %d, http-zipkin: %d}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.test]
  resolution: STATIC
  ports: [{number: %d, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: %d}}]
`

const otelProviders = `extensionProviders:
- {name: otel, opentelemetry: {service: otel.test, port: 4317}}
- {name: otelhttp, opentelemetry: {service: otel.test, port: 4318, http: {path: /v1/traces, timeout: 5s}}}
- {name: zipkin, zipkin: {service: otel.test, port: 9411}}
- {name: otellog, envoyOtelAls: {service: otel.test, port: 4317, logFormat: {text: "%REQ(:PATH)%", labels: {proto: "%PROTOCOL%"}}}}
`

// TestTelemetry_OpenTelemetryCollector sends spans and log records of a real Envoy to an
// OpenTelemetry Collector, and expects them in the collector's output, in the trace of the request.
func TestTelemetry_OpenTelemetryCollector(t *testing.T) {
	t.Parallel()
	c, port := parts.StartCollector(t), freePorts(t, 1)[0]
	folder, config := t.TempDir(), filepath.Join(t.TempDir(), "mesh.yaml")
	write(t, config, otelProviders)
	write(t, filepath.Join(folder, "mesh.yaml"), fmt.Sprintf(otelEntries, c.GRPC, c.HTTP, c.Zipkin, port,
		(&backend{name: "web"}).serve(t, false)))
	server, changes := start(t, discovery.Options{Files: []string{folder}, Namespace: "shop",
		Settings: discovery.Settings{MeshConfigFile: config}})
	e := startEnvoy(t, "sidecar", server)
	e.listens(t)
	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	w3c := http.Header{"Traceparent": {"00-" + trace + "-" + parent + "-01"}}
	b3 := http.Header{"X-B3-Traceid": {trace}, "X-B3-Spanid": {parent}, "X-B3-Sampled": {"1"}}
	const tracing = "tracing: [{providers: [{name: %s}], randomSamplingPercentage: 100, " +
		"customTags: {lit: {literal: {value: a-literal}}}}]"
	span := []string{"service.name=test ", " kind=3 ", " traceId=" + trace, " parentSpanId=" + parent,
		" name=web.test:", " lit=a-literal ", "status_code=200 ", " http.method=GET "}
	for i, test := range []struct {
		spec   string
		header http.Header
		want   []string
	}{
		{fmt.Sprintf(tracing, "otel"), w3c, span},
		{fmt.Sprintf(tracing, "otelhttp"), w3c, span},
		{fmt.Sprintf(tracing, "zipkin"), b3, span},
		{"accessLogging: [{providers: [{name: otellog}]}]", nil, []string{" proto=HTTP/1.1 "}},
	} {
		path, own := filepath.Join(folder, "telemetry.yaml"), fmt.Sprint("/path", i)
		write(t, path, telemetryObject("shop", 0, "{"+test.spec+"}"))
		changes <- []string{path}
		eventually(t, test.spec, func() (bool, string) {
			// Envoy sends spans and log records in batches, so the request is repeated until they
			// arrive
			if err := requestPath(port, own, test.header); err != nil {
				return false, err.Error()
			}
			records := collected(t, c.OutputFile)
			return slices.ContainsFunc(records, func(record string) bool {
				return !slices.ContainsFunc(append(test.want, own), func(text string) bool {
					return !strings.Contains(record, text)
				})
			}), fmt.Sprintf("no record with %q in %q", append(test.want, own), records)
		})
	}
}

// collected returns the spans and log records that a collector wrote to a file, with the attributes
// of their resources.
func collected(t *testing.T, file string) (all []string) {
	t.Helper()
	content, err := os.ReadFile(file)
	must(t, err)
	type fields = map[string]any
	list := func(from fields, key string) (all []fields) {
		values, _ := from[key].([]any)
		for _, value := range values {
			all = append(all, value.(fields))
		}
		return all
	}
	text := func(from fields) string {
		var text strings.Builder
		for key, value := range from {
			if key == "attributes" {
				continue
			}
			fmt.Fprintf(&text, "%s=%v ", key, value)
		}
		for _, attribute := range list(from, "attributes") {
			for _, value := range attribute["value"].(fields) {
				fmt.Fprintf(&text, "%s=%v ", attribute["key"], value)
			}
		}
		return text.String()
	}
	for line := range bytes.Lines(content) {
		var message fields
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // the last line is still being written
		}
		must(t, json.Unmarshal(line, &message))
		for _, keys := range [][3]string{{"resourceSpans", "scopeSpans", "spans"},
			{"resourceLogs", "scopeLogs", "logRecords"}} {
			for _, group := range list(message, keys[0]) {
				resource, _ := group["resource"].(fields)
				for _, scope := range list(group, keys[1]) {
					for _, record := range list(scope, keys[2]) {
						all = append(all, " "+text(resource)+text(record))
					}
				}
			}
		}
	}
	return all
}
