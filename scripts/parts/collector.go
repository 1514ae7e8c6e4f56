package parts

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Collector is a running OpenTelemetry Collector.
type Collector struct {
	*Process
	GRPC, HTTP int // ports of the OTLP receivers
	Zipkin     int // port of the Zipkin receiver
	// file with the received spans and log records: OTLP messages in JSON, one per line
	OutputFile string
}

const collectorConfig = `receivers:
  otlp: {protocols: {grpc: {endpoint: "127.0.0.1:%d"}, http: {endpoint: "127.0.0.1:%d"}}}
  zipkin: {endpoint: "127.0.0.1:%d"}
exporters:
  file: {path: %q, flush_interval: 100ms}
service:
  telemetry: {metrics: {level: none}}
  pipelines:
    traces: {receivers: [otlp, zipkin], exporters: [file]}
    logs: {receivers: [otlp], exporters: [file]}
`

// StartCollector starts an OpenTelemetry Collector, which is killed when the test ends. The first
// call builds it, which takes minutes.
func StartCollector(t testing.TB) *Collector {
	t.Helper()
	out, err := exec.Command(filepath.Join(RepositoryRoot(), "scripts", "get-collector")).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		t.Fatalf("get the OpenTelemetry Collector: %v: %s", err, exit.Stderr)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := &Collector{GRPC: FreePort(t), HTTP: FreePort(t), Zipkin: FreePort(t),
		OutputFile: filepath.Join(t.TempDir(), "received.json")}
	config := filepath.Join(t.TempDir(), "collector.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, collectorConfig, c.GRPC, c.HTTP, c.Zipkin, c.OutputFile),
		0o600); err != nil {
		t.Fatal(err)
	}
	c.Process = StartProcess(t, exec.Command(strings.TrimSpace(string(out)), "--config", "file:"+config))
	EventuallyWithObservation(t, time.Minute, "the collector is ready", func() (bool, string) {
		return strings.Contains(c.String(), "Everything is ready"), c.String()
	})
	return c
}
