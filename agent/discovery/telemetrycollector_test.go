package discovery_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	logsv1 "go.opentelemetry.io/proto/otlp/logs/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/explain"
)

// collector is a server for logs and spans of all formats. It records what it receives, also as
// text.
type collector struct {
	mu   sync.Mutex
	seen strings.Builder
	got  []any // received messages of gRPC, and bodies of HTTP requests
}

func (c *collector) add(format string, message any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got = append(c.got, message)
	fmt.Fprintf(&c.seen, "%s %s\n", format, strings.ReplaceAll(fmt.Sprint(message), "\n", " "))
}

// has reports whether an entry of a format contains all texts.
func (c *collector) has(format string, texts ...string) (bool, string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for line := range strings.Lines(c.seen.String()) {
		all := strings.HasPrefix(line, format+" ")
		for _, text := range texts {
			all = all && strings.Contains(line, text)
		}
		if all {
			return true, ""
		}
	}
	return false, fmt.Sprintf("no %s with %q in %.3000s", format, texts, c.seen.String())
}

func (c *collector) StreamAccessLogs(
	stream accesslogv3.AccessLogService_StreamAccessLogsServer) error {
	for {
		message, err := stream.Recv()
		if err != nil {
			return err //nolint:wrapcheck // the client ended the stream
		}
		c.add("als", message)
	}
}

// ServeHTTP records spans that are sent over HTTP, in the formats of OpenTelemetry, Zipkin and
// Datadog.
func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	spans := &tracev1.TracesData{}
	if r.URL.Path == "/v1/traces" && proto.Unmarshal(body, spans) == nil {
		c.add(r.URL.Path, spans)
	} else {
		c.add(r.URL.Path, string(body))
	}
	w.WriteHeader(http.StatusAccepted)
}

// receive records the messages of all gRPC methods without a handler. It decodes export requests of
// OpenTelemetry as TracesData and LogsData, which have the same wire format.
func (c *collector) receive(_ any, s grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(s)
	for {
		// an Empty retains all fields of a message as unknown ones
		name, message := method, proto.Message(&emptypb.Empty{})
		switch method {
		case "/opentelemetry.proto.collector.trace.v1.TraceService/Export":
			name, message = "otlp-trace", &tracev1.TracesData{}
		case "/opentelemetry.proto.collector.logs.v1.LogsService/Export":
			name, message = "otlp-log", &logsv1.LogsData{}
		}
		if err := s.RecvMsg(message); err != nil {
			return nil //nolint:nilerr // the client ended the stream
		}
		if name == method {
			raw, _ := proto.Marshal(message)
			c.add(name, string(raw))
			continue
		}
		c.add(name, message)
		return s.SendMsg(&emptypb.Empty{}) //nolint:wrapcheck // the client sees it
	}
}

// serve serves the collector until the test ends. It returns the ports for gRPC and HTTP.
func (c *collector) serve(t *testing.T) (rpc, plain int) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := grpc.NewServer(grpc.UnknownServiceHandler(c.receive))
	accesslogv3.RegisterAccessLogServiceServer(server, c)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-ended })
	web, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	return listener.Addr().(*net.TCPAddr).Port, run(t, &http.Server{Handler: c,
		ReadHeaderTimeout: time.Minute}, web)
}

const collectorEntry = `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: collector, namespace: shop}
spec:
  hosts: [otel.test]
  resolution: STATIC
  ports:
  - {number: 4317, name: grpc, protocol: GRPC}
  - {number: 4318, name: http, protocol: HTTP}
  endpoints: [{address: 127.0.0.1, ports: {grpc: %d, http: %d}}]
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

const collectorProviders = `extensionProviders:
- {name: otel, opentelemetry: {service: otel.test, port: 4317}}
- {name: otelhttp, opentelemetry: {service: otel.test, port: 4318, http: {path: /v1/traces, timeout: 5s}}}
- {name: zipkin, zipkin: {service: otel.test, port: 4318}}
- {name: datadog, datadog: {service: otel.test, port: 4318}}
- {name: skywalking, skywalking: {service: otel.test, port: 4317}}
- {name: als, envoyHttpAls: {service: otel.test, port: 4317, logName: mine}}
- {name: otellog, envoyOtelAls: {service: otel.test, port: 4317, logFormat: {text: "%%REQ(:PATH)%%", labels: {proto: "%%PROTOCOL%%"}}}}
- {name: text, envoyFileAccessLog: {path: %[1]q, logFormat: {text: "text %%REQ(:PATH)%% %%RESPONSE_CODE%%"}}}
- {name: json, envoyFileAccessLog: {path: %[1]q, logFormat: {labels: {json: "%%REQ_WITHOUT_QUERY(:PATH)%%"}}}}
`

// TestTelemetry_LogsAndTraces changes the Telemetry of a real Envoy, and expects the log entry or
// span of a request in each format.
func TestTelemetry_LogsAndTraces(t *testing.T) {
	t.Parallel()
	c, port := &collector{}, freePorts(t, 1)[0]
	rpc, plain := c.serve(t)
	folder, config := t.TempDir(), filepath.Join(t.TempDir(), "mesh.yaml")
	file := filepath.Join(t.TempDir(), "access.log")
	write(t, config, fmt.Sprintf(collectorProviders, file))
	write(t, filepath.Join(folder, "mesh.yaml"), fmt.Sprintf(collectorEntry[4:], rpc, plain, port,
		(&backend{name: "web"}).serve(t, false)))
	server, changes := start(t, discovery.Options{Files: []string{folder}, Namespace: "shop",
		Settings: discovery.Settings{MeshConfigFile: config}})
	e := startEnvoy(t, "sidecar", server)
	e.listens(t)
	for i, test := range []struct {
		spec, format string
		texts        []string
		explained    string
	}{
		{"accessLogging: [{providers: [{name: text}]}]", "text", []string{"/path", "200"},
			"logs requests to " + file},
		{"accessLogging: [{providers: [{name: json}]}]", "file", []string{`{"json":"/path`},
			"logs requests to " + file},
		{"accessLogging: [{providers: [{name: als}]}]", "als", []string{"/path", "web.test"},
			"logs requests to outbound|4317||otel.test"},
		{"accessLogging: [{providers: [{name: otellog}]}]", "otlp-log",
			[]string{"/path", `key:"proto"`, "HTTP/1.1"}, "logs requests to outbound|4317||otel.test"},
		{"tracing: [{providers: [{name: otel}], randomSamplingPercentage: 100, customTags: " +
			"{lit: {literal: {value: a-literal}}, head: {header: {name: x-head}}, " +
			"none: {header: {name: x-none, defaultValue: otherwise}}, " +
			"form: {formatter: {value: 'f-%REQ(x-head)%'}}}}]", "otlp-trace", []string{"/path",
			"a-literal", "head-value", "otherwise", "f-head-value", "istio.canonical_service",
			`string_value:"test"`}, "sends spans to opentelemetry, for 100 % of requests"},
		{"tracing: [{providers: [{name: otelhttp}], randomSamplingPercentage: 100}]", "/v1/traces",
			[]string{"/path"}, "sends spans to opentelemetry, for 100 %"},
		{"tracing: [{providers: [{name: zipkin}], randomSamplingPercentage: 100}]", "/api/v2/spans",
			[]string{"/path", `"kind":"CLIENT"`}, "sends spans to zipkin, for 100 %"},
		{"tracing: [{providers: [{name: datadog}], randomSamplingPercentage: 100}]", "/v0.4/traces",
			[]string{"/path"}, "sends spans to datadog"},
		{"tracing: [{providers: [{name: skywalking}], randomSamplingPercentage: 100}]",
			"/skywalking.v3.TraceSegmentReportService/collect", []string{"/path"},
			"sends spans to skywalking"},
		{"metrics: [{providers: [{name: prometheus}]}]", "metric", nil,
			"counts requests in Istio's metrics"},
	} {
		path := filepath.Join(folder, "telemetry.yaml")
		write(t, path, telemetryObject("shop", 0, "{"+test.spec+"}"))
		changes <- []string{path}
		own := fmt.Sprint("/path", i)
		for j, text := range test.texts {
			test.texts[j] = strings.Replace(text, "/path", own, 1)
		}
		eventually(t, test.spec, func() (bool, string) {
			// Envoy sends spans and logs in batches, so the request is repeated until they arrive
			if err := requestPath(port, own+"?q"); err != nil {
				return false, err.Error()
			}
			if test.format == "metric" {
				text := e.Get("/stats/prometheus?filter=istio_requests_total")
				return text != "", "nothing is counted"
			}
			if test.format != "text" && test.format != "file" {
				return c.has(test.format, test.texts...)
			}
			content, _ := os.ReadFile(file)
			for line := range bytes.Lines(content) {
				if strings.Contains(string(line), strings.Join(test.texts, "?q ")) {
					return true, ""
				}
			}
			return false, string(content)
		})
		said, err := server.Explain(kindNode("sidecar"), explain.Request{Host: "web.test",
			Port: uint32(port)}, explain.EnvoyState{})
		must(t, err)
		if text := explained(said.Steps); !strings.Contains(text, test.explained) ||
			!strings.Contains(text, "telemetry.yaml:1") {
			t.Errorf("%s: explained as %s, want %s", test.spec, text, test.explained)
		}
	}
	if problems := server.Problems(); len(problems) > 0 {
		t.Error(problems)
	}
}

// requestPath sends a request for web.test, with additional headers, through the listener on a
// port.
func requestPath(port int, path string, headers ...http.Header) error {
	request, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, path),
		http.NoBody)
	if err != nil {
		return err //nolint:wrapcheck // a test
	}
	request.Host = fmt.Sprint("web.test:", port)
	request.Header.Set("x-head", "head-value")
	for _, header := range headers {
		maps.Copy(request.Header, header)
	}
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return err //nolint:wrapcheck // a test
	}
	defer func() { _ = response.Body.Close() }()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err //nolint:wrapcheck // a test
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", response.StatusCode)
	}
	return nil
}

// explained returns the facts and the origins in the step of an explanation that describes
// telemetry.
func explained(steps []explain.Step) string {
	for _, step := range steps {
		if step.Kind == "telemetry" {
			text := strings.Join(step.Facts, "; ")
			for _, o := range step.Origins {
				text += fmt.Sprintf(" %s:%d", filepath.Base(o.File), o.Line)
			}
			return text
		}
	}
	return "nothing"
}

// TestTelemetry_BrokenCollectors sends requests through an Envoy whose collectors and log services
// accept connections and never respond, do not exist, or send an endless response. Each request
// gets its response, and Envoy's memory does not grow with the spans and entries that it could not
// send.
func TestTelemetry_BrokenCollectors(t *testing.T) {
	t.Parallel()
	stuck := serveTCP(t, func(c net.Conn) { _, _ = c.Read(make([]byte, 1)); <-t.Context().Done() })
	endless := run(t, &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			// write more than Envoy buffers, then continue without end
			_, err := w.Write(make([]byte, 2<<20))
			for tick := time.Tick(100 * time.Millisecond); err == nil; <-tick {
				_, err = w.Write(make([]byte, 1<<16))
			}
		})}, listenLocal(t))
	port := freePorts(t, 1)[0]
	folder, config := t.TempDir(), filepath.Join(t.TempDir(), "mesh.yaml")
	write(t, config, fmt.Sprintf(collectorProviders, filepath.Join(t.TempDir(), "access.log")))
	path := filepath.Join(folder, "mesh.yaml")
	web := (&backend{name: "web"}).serve(t, false)
	server, changes := start(t, discovery.Options{Files: []string{folder}, Namespace: "shop",
		Settings: discovery.Settings{MeshConfigFile: config}})
	e := startEnvoy(t, "sidecar", server)
	e.listens(t)
	for _, test := range []struct {
		name, tracer string
		port         int
	}{{"stuck", "otel", stuck}, {"stuck", "zipkin", stuck}, {"gone", "otel", 9}, {"gone", "zipkin", 9},
		{"endless", "otel", endless}, {"endless", "otelhttp", endless}, {"endless", "zipkin", endless}} {
		write(t, path, fmt.Sprintf(collectorEntry[4:], test.port, test.port, port, web)+"---\n"+
			telemetryObject("shop", 0, "{accessLogging: [{providers: [{name: als}, {name: otellog}]}], "+
				"tracing: [{providers: [{name: "+test.tracer+"}], randomSamplingPercentage: 100}]}"))
		changes <- []string{path}
		eventually(t, test.name+": requests are answered", func() (bool, string) {
			err := requestPath(port, "/first")
			return err == nil, fmt.Sprint(err)
		})
		for i := range 100 {
			if err := requestPath(port, fmt.Sprint("/", i)); err != nil {
				t.Fatalf("%s, %s: request %d: %v", test.name, test.tracer, i, err)
			}
		}
		if test.port == stuck && test.tracer == "otel" {
			eventually(t, "calls without an answer end", func() (bool, string) {
				n := e.Stat(`cluster\.outbound\|4317\|\|otel\.test;\.upstream_rq_timeout`)
				return n >= 10, fmt.Sprint(n) // access logs alone cause fewer calls
			})
		}
	}
	// Envoy keeps an endless response to Zipkin spans until the call times out.
	eventually(t, "Envoy has less than 100 MiB", func() (bool, string) {
		bytes := e.Stat("server.memory_allocated")
		return bytes > 0 && bytes < 100<<20, fmt.Sprint(bytes)
	})
}

func listenLocal(t testing.TB) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	return listener
}
