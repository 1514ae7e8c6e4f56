package discovery_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"github.com/google/go-cmp/cmp"
	logsv1 "go.opentelemetry.io/proto/otlp/logs/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// requestMarker is the port of a service whose answer shows that Envoy has received all objects.
const requestMarker = "7490"

// requestProviders log each entry in six formats. For each request, the provider called text writes
// its line to the log file last.
const requestProviders = `outboundTrafficPolicy: {mode: REGISTRY_ONLY}
extensionProviders:
- {name: otel, opentelemetry: {service: otel.test, port: 4317}}
- {name: zipkin, zipkin: {service: otel.test, port: 4318}}
- {name: als, envoyHttpAls: {service: otel.test, port: 4317, additionalRequestHeadersToLog: [user-agent]}}
- {name: otellog, envoyOtelAls: {service: otel.test, port: 4317, logFormat: {text: "%%REQ(:PATH)%%", labels: {code: "%%RESPONSE_CODE%%", port: "%%DOWNSTREAM_LOCAL_PORT%%"}}}}
- {name: standard, envoyFileAccessLog: {path: %[1]q}}
- {name: json, envoyFileAccessLog: {path: %[1]q, logFormat: {labels: {}}}}
- {name: cel, envoyFileAccessLog: {path: %[1]q, logFormat: {text: "cel %%REQ(:PATH)%% %%RESPONSE_CODE%%\n"}}}
- {name: text, envoyFileAccessLog: {path: %[1]q, logFormat: {text: "text %%REQ(:PATH)%% %%GRPC_STATUS%% %%UPSTREAM_CLUSTER%% %%UPSTREAM_PROTOCOL%% %%UPSTREAM_REQUEST_ATTEMPT_COUNT%% %%DOWNSTREAM_TLS_VERSION%% %%DOWNSTREAM_PEER_URI_SAN%% %%DOWNSTREAM_LOCAL_URI_SAN%% %%DOWNSTREAM_LOCAL_PORT%%\n"}}}
`

const requestTelemetry = `{accessLogging: [{providers: [{name: standard}, {name: json}, {name: als}, {name: otellog}]},
{providers: [{name: cel}], filter: {expression: "response.code >= 400"}}, {providers: [{name: text}]}],
tracing: [{providers: [{name: %s}], randomSamplingPercentage: 100, customTags: {lit: {literal: {value: x}},
head: {header: {name: user-agent}}, form: {formatter: {value: "f-%%REQ(:PATH)%%"}}}}]}`

// TestTelemetry_RequestsAsWithIstiod sends requests and connections through an Envoy that a real
// istiod configures, and through one that this server configures. Their log lines, access log
// entries and spans must be the same, except for times, IDs and ports of clients.
func TestTelemetry_RequestsAsWithIstiod(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	pki := newMeshPKI(t)
	app := run(t, &http.Server{Handler: shortly{&backend{name: "app"}}}, listenLocal(t))
	echo, rpc := echoTCP(t, "step"), serveGRPC(t)
	ports := strings.NewReplacer("$APP", fmt.Sprint(app), "$ECHO", fmt.Sprint(echo), "$GRPC",
		fmt.Sprint(rpc), "$CLOSED", fmt.Sprint(freePorts(t, 1)[0]))
	compared := 0
	for _, r := range []requestRun{
		{"sidecar", "otel", sidecarObjects, metricsCases(t)},
		{"router", "otel", routerObjects, routerCases(t)},
		{"REDIRECT", "zipkin", capturedObjects, capturedCases(t)},
	} {
		if r.kind == "REDIRECT" {
			captureRequests(t, app, echo, rpc)
		}
		seen := map[string][]string{}
		for _, by := range []string{"istiod", "outrider"} {
			t.Run(r.kind+"/"+by, func(t *testing.T) { seen[by] = r.observe(t, by, pki, ports) })
		}
		if d := cmp.Diff(seen["istiod"], seen["outrider"]); d != "" || len(seen["istiod"]) == 0 {
			t.Errorf("%s: -istiod +own\n%s", r.kind, d)
		}
		compared += len(seen["istiod"])
	}
	t.Logf("%d lines, entries and spans compared", compared)
}

// requestRun is a proxy of a kind (see bootstrapOf) with a tracer, and the requests through it.
type requestRun struct {
	kind, tracer, objects string
	cases                 []metricsCase
}

// entries returns the number of entries that a case adds to an access log.
func (c metricsCase) entries() (all int) {
	for _, line := range c.want {
		if words := strings.Fields(line); words[1] == "requests_total" ||
			words[1] == "tcp_connections_closed_total" {
			all += int(words[0][0] - '0')
		}
	}
	return all
}

// observe returns the sorted log lines, access log entries and spans of all cases.
func (r requestRun) observe(t *testing.T, by string, pki meshPKI,
	ports *strings.Replacer) []string {
	t.Helper()
	c, file := &collector{}, filepath.Join(t.TempDir(), "access.log")
	rpc, plain := c.serve(t)
	proxy := startPeer(t, r.kind, by, fmt.Sprintf(requestProviders, file), pki)
	proxy.apply(t, ports.Replace(r.objects)+fmt.Sprintf(collectorEntry, rpc, plain, 7491, plain)+"---\n"+
		telemetryObject("shop", 0, fmt.Sprintf(requestTelemetry, r.tracer)), "127.0.0.1:"+requestMarker)
	proxy.listens(t)
	eventually(t, "mutual TLS is ready", func() (bool, string) {
		got := getThrough(metricsHTTP, "/warm")
		return got == "200" && callGRPC(t, "warm", 1) == "OK", got
	})
	var all []string
	count, total := 0, 0
	for _, test := range r.cases {
		if got := test.do(); got != test.is {
			t.Errorf("%s: answer %q, want %q", test.name, got, test.is)
		}
		total += test.entries()
		var lines []string
		eventually(t, test.name+" is logged", func() (bool, string) {
			text, err := os.ReadFile(file)
			must(t, err)
			lines = nil
			written := 0
			for line := range strings.Lines(string(text)) {
				text, whole := strings.CutSuffix(line, "\n")
				if line = normalLine(text); !whole || isOther(line) {
					continue
				}
				lines = append(lines, line)
				if strings.HasPrefix(line, "text ") {
					written++
				}
			}
			return written == total, fmt.Sprintf("%d entries, want %d:\n%s", written, total,
				strings.Join(lines[count:], "\n"))
		})
		for _, line := range lines[count:] {
			all = append(all, test.name+": "+line)
		}
		count = len(lines)
	}
	for _, kind := range []string{"als", "otellog"} {
		var entries []string
		eventually(t, kind, func() (bool, string) {
			entries = slices.DeleteFunc(c.entries(kind), isOther)
			return len(entries) == total, fmt.Sprintf("%d entries, want %d", len(entries), total)
		})
		all = append(all, entries...)
	}
	if got := getThrough(metricsHTTP, "/warm/last"); got != "200" {
		t.Error(got)
	}
	var spans []string
	eventually(t, "all spans arrived", func() (bool, string) {
		spans = c.spans(t)
		last := 0
		for _, span := range spans {
			if strings.Contains(span, "/warm/last") {
				last++
			}
		}
		sent := proxy.Stat("tracing." + map[string]string{"otel": "opentelemetry",
			"zipkin": "zipkin"}[r.tracer] + ".spans_sent")
		return last > 1 && len(spans) == sent, fmt.Sprintf("%d of %d", len(spans), sent)
	})
	all = append(all, slices.DeleteFunc(spans, isOther)...)
	slices.Sort(all)
	return all
}

// isOther reports whether a log line, entry or span is of a request that prepares the test, not of
// a case.
func isOther(line string) bool {
	return strings.Contains(line, "/warm") || strings.Contains(line, requestMarker)
}

// entries returns the received entries of access logs: als or otellog.
func (c *collector) entries(kind string) (all []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, got := range c.got {
		switch m := got.(type) {
		case *accesslogv3.StreamAccessLogsMessage:
			for _, e := range m.GetHttpLogs().GetLogEntry() {
				all = appendIf(all, kind == "als", "als http "+normalMessage(e))
			}
			for _, e := range m.GetTcpLogs().GetLogEntry() {
				all = appendIf(all, kind == "als", "als tcp "+normalMessage(e))
			}
		case *logsv1.LogsData:
			for _, r := range m.ResourceLogs {
				for _, s := range r.ScopeLogs {
					for _, e := range s.LogRecords {
						all = appendIf(all, kind == "otellog", "otellog "+
							normalMessage(r.Resource)+normalMessage(e))
					}
				}
			}
		}
	}
	return all
}

func appendIf(all []string, wanted bool, text string) []string {
	if wanted {
		return append(all, text)
	}
	return all
}

// spans returns the received spans, each with the name of its parent.
func (c *collector) spans(t *testing.T) (all []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	type span struct {
		ID, ParentID, TraceID, Kind, Name, text string
	}
	var found []span
	for _, got := range c.got {
		switch m := got.(type) {
		case *tracev1.TracesData:
			for _, r := range m.ResourceSpans {
				for _, s := range r.ScopeSpans {
					for _, e := range s.Spans {
						found = append(found, span{hex.EncodeToString(e.SpanId),
							hex.EncodeToString(e.ParentSpanId), hex.EncodeToString(e.TraceId),
							e.Kind.String(), e.Name, normalMessage(r.Resource) + normalMessage(e)})
					}
				}
			}
		case string: // Zipkin
			var list []json.RawMessage
			must(t, json.Unmarshal([]byte(m), &list))
			for _, text := range list {
				s := span{text: normalJSON(text)}
				must(t, json.Unmarshal(text, &s))
				found = append(found, s)
			}
		}
	}
	for _, s := range found {
		parent := "no span"
		for _, p := range found {
			if p.TraceID == s.TraceID && p.ID == s.ParentID {
				parent = p.Kind + " " + p.Name
			}
		}
		all = append(all, "span "+s.text+" below "+parent)
	}
	return all
}

var (
	volatile = regexp.MustCompile(`(?i)^(timeTo|duration$|time$|start_?time|timestamp|upstream_service_time|` +
		`trace_?id|span_?id|parentId|parentSpanId|id$|streamId|.*UnixNano$|tls_?sessionId|.*(Header|Wire|Headers)Bytes)`)
	volatileText = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|` +
		`\d{5,}[mun]|20\d\d-\d\d-\d\dT[0-9:.]+Z|:([1-6]\d{3,4}|[89]\d{3}|7[0-26-9]\d\d)\b`)
	volatileDurations = regexp.MustCompile(`" (\d+) (\d+) \d+ (\d+|-) "`)
)

func normalText(text string) string {
	return strings.NewReplacer(
		"10.255.0.1", "127.0.0.1", // istiod's proxy has another address, see startPeer
		// istiod gives both clusters one name for statistics
		"InboundPassthroughCluster;", "PassthroughCluster;",
	).Replace(volatileText.ReplaceAllString(text, "X"))
}

// normalLine returns a line of a log file without the values that differ between two equal
// requests, such as times.
func normalLine(line string) string {
	if strings.HasPrefix(line, "{") {
		return normalJSON([]byte(line))
	}
	return normalText(volatileDurations.ReplaceAllString(line, `" $1 $2 X X "`))
}

func normalMessage(m proto.Message) string {
	text, err := protojson.Marshal(m)
	if err != nil {
		return err.Error()
	}
	return normalJSON(text)
}

func normalJSON(text []byte) string {
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		return err.Error() + ": " + string(text)
	}
	normalValue(value)
	out, _ := json.Marshal(value)
	return normalText(string(out))
}

// normalValue removes what differs between two equal requests, and sorts lists of attributes.
func normalValue(value any) {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			if port, ok := inner.(float64); volatile.MatchString(key) || key == "portValue" && ok &&
				(port < 7300 || port >= 7600) {
				delete(v, key)
			}
			normalValue(inner)
		}
	case []any:
		for _, inner := range v {
			normalValue(inner)
		}
		slices.SortFunc(v, func(a, b any) int {
			return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
		})
	}
}

// shortly replaces the body of a handler's responses by one that is equal for all requests, so that
// access logs contain equal sizes.
type shortly struct{ http.Handler }

func (s shortly) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.Handler.ServeHTTP(shortWriter{w}, r)
}

type shortWriter struct{ http.ResponseWriter }

func (w shortWriter) Write(p []byte) (int, error) {
	_, err := w.ResponseWriter.Write([]byte("body\n"))
	return len(p), err //nolint:wrapcheck // of the response
}
