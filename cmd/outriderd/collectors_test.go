package main_test

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

const collectorConfig = `extensionProviders:
- {name: als, envoyHttpAls: {service: als.test, port: %[1]d}}
- {name: otellog, envoyOtelAls: {service: otellog.test, port: %[1]d}}
- {name: otel, opentelemetry: {service: otel.test, port: %[1]d}}
- {name: zipkin, zipkin: {service: zipkin.test, port: %[1]d}}
`

const collectorTelemetry = `---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: all}
spec:
  accessLogging: [{providers: [{name: als}, {name: otellog}]}]
  tracing: [{providers: [{name: %s}], randomSamplingPercentage: 100}]
`

// collectorMesh returns a ServiceEntry for each telemetry provider, all with the same service port
// and the same backend port, and a Telemetry that selects a provider for traces.
func collectorMesh(service, port int, tracer string) string {
	var text strings.Builder
	for name, protocol := range map[string]string{"als": "GRPC", "otellog": "GRPC", "otel": "GRPC",
		"zipkin": "HTTP"} {
		fmt.Fprintf(&text, failingService, name, service, protocol)
		fmt.Fprintf(&text, "  endpoints: [{address: 127.0.0.1, ports: {p: %d}}]\n", port)
	}
	return text.String() +
		fmt.Sprintf(collectorTelemetry, tracer)
}

// TestCollectors_FailuresAreReported runs tracing and access log providers that refuse connections
// or send endless responses. Requests still succeed. The conditions name each failing provider, and
// what Envoy drops, and end when the mesh no longer uses the providers.
func TestCollectors_FailuresAreReported(t *testing.T) {
	t.Parallel()
	endless := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		})}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = endless.Close() })
	go func() { _ = endless.Serve(listener) }()
	for name, test := range map[string]struct {
		port int
		// expected texts in the status: logs while traces go to otel, zipkin while they go to
		// zipkin
		logs, zipkin []string
	}{
		"gone": {parts.FreePort(t), []string{"als.test%s cannot connect", "otellog.test%s cannot connect",
			"otel.test%s cannot connect", "drops log entries for OpenTelemetry"},
			[]string{"zipkin.test%s cannot connect", "spans for zipkin"}},
		"endless": {listener.Addr().(*net.TCPAddr).Port, []string{"als.test%s it answers with errors",
			"otellog.test%s it answers with errors", "otel.test%s it answers with errors",
			"drops log entries for OpenTelemetry"}, []string{"spans for zipkin"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			service := parts.FreePort(t)
			r := rig.New(t, rig.Options{Race: true,
				Mesh: map[string]string{"collectors.yaml": collectorMesh(service, test.port, "otel")}})
			r.WriteFile("mesh.yaml", fmt.Sprintf(collectorConfig, service))
			r.WriteFile("conf.d/60-mesh.toml", fmt.Sprintf("[discovery]\nmesh_config_file = %q\n",
				r.Dir+"/mesh.yaml"))
			r.StartReady()
			var failed atomic.Value
			end, ended := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(ended)
				for {
					select {
					case <-end:
						return
					default:
					}
					if code, _, err := r.GetThroughEnvoy("/"); code != http.StatusOK {
						failed.Store(fmt.Sprint(code, err))
					}
				}
			}()
			says := func(what string, texts []string) {
				t.Helper()
				rig.Eventually(t, 5*time.Minute, name+": "+what, func() bool {
					said := r.RunOutrider("status").Stdout
					for _, text := range texts {
						provider, cause, ok := strings.Cut(text, ".test%s ")
						if ok {
							line := 2 + slices.Index([]string{"als", "otellog", "otel", "zipkin"}, provider)
							text = fmt.Sprintf("backend %[1]s.test at 127.0.0.1:%[2]d, of provider %[1]s "+
								"(%[3]s/mesh.yaml:%[4]d), fails: %[5]s", provider, test.port, r.Dir, line, cause)
						}
						if !strings.Contains(strings.Join(strings.Fields(said), " "), text) {
							return false
						}
					}
					return true
				})
			}
			says("logs and OpenTelemetry", test.logs)
			r.WriteFile("mesh.d/collectors.yaml", collectorMesh(service, test.port, "zipkin"))
			says("Zipkin", test.zipkin)
			r.WriteFile("mesh.d/collectors.yaml", "")
			r.WriteFile("mesh.yaml", "")
			rig.Eventually(t, 5*time.Minute, name+": the conditions end", func() bool {
				said := r.RunOutrider("status").Stdout
				return !strings.Contains(said, "Envoy drops") && !strings.Contains(said, "fails: ")
			})
			close(end)
			<-ended
			if why := failed.Load(); why != nil {
				t.Errorf("a request failed: %s", why)
			}
		})
	}
}
