package render

import (
	"bytes"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/bootstrap"
)

// defaults returns the input that the agent makes of an empty configuration.
func defaults() bootstrap.Input {
	return bootstrap.Input{
		Node: bootstrap.Node{
			Type: "sidecar", ID: "vm1.default", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
			Namespace:      "default",
			ServiceAccount: "default", ServiceCluster: "istio-proxy",
			Domain:      "default.svc.cluster.local",
			TrustDomain: "cluster.local", ClusterID: "Kubernetes", Identity: true,
		},
		AdminSocket:    "/run/outrider-envoy/admin-0.sock",
		Discovery:      bootstrap.Discovery{Socket: "/run/outrider/envoy/xds.sock", Delta: true},
		SDSSocket:      "/run/outrider/envoy/sds.sock",
		SystemRoots:    "tls/root.pem",
		ConnectTimeout: time.Second, DNSRefreshRate: 300 * time.Second,
		Prometheus: "0.0.0.0:15090",
		Ready:      bootstrap.ReadyListener{Address: ":15021", Backend: "127.0.0.1:15020"},
	}
}

func files(mode bootstrap.TLSMode) bootstrap.TLS {
	return bootstrap.TLS{Mode: mode, CAFile: "tls/root.pem", CertFile: "tls/cert.pem",
		KeyFile: "tls/key.pem"}
}

var inputs = map[string]func(*bootstrap.Input){
	"defaults": func(*bootstrap.Input) {},
	"minimal": func(in *bootstrap.Input) {
		*in = bootstrap.Input{Node: bootstrap.Node{Type: "router", ID: "a", ServiceCluster: "b"},
			AdminSocket: "/run/admin.sock"}
	},
	"node": func(in *bootstrap.Input) {
		in.Node.Type = "router"
		in.Node.MeshID, in.Node.Network, in.Node.Locality, in.Node.WorkloadGroup = "mesh", "net",
			"eu/eu-1/a", "web"
		in.Node.Labels = map[string]string{"app": "web", "version": "v1"}
		in.Node.IPs = append(in.Node.IPs, netip.MustParseAddr("10.0.0.2"))
		in.Node.InterceptionMode, in.Node.DNSCapture, in.Node.DisableInternalTelemetry = "REDIRECT", true,
			true
		in.Node.ProxyConfig = map[string]any{"discoveryAddress": "istiod:15012",
			"statusPort": 15020}
		in.Node.Metadata = map[string]any{
			"NAME": "another", "ISTIO_VERSION": "1.31.0",
			"POD_PORTS": []any{map[string]any{"containerPort": int64(80)}},
			"started":   time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC), "ratio": 0.5, "on": true,
		}
		in.Discovery.Delta = false
	},
	"ipv6": func(in *bootstrap.Input) {
		in.Node.IPs = []netip.Addr{netip.MustParseAddr("fd00::1")}
		zipkin(in)
	},
	"dualstack": func(in *bootstrap.Input) {
		in.Node.IPs = append(in.Node.IPs, netip.MustParseAddr("fd00::1"))
		zipkin(in)
	},
	"telemetry": func(in *bootstrap.Input) {
		in.StatsdAddress = "[fd00::2]:8125"
		in.MetricsService = &bootstrap.Server{Address: "metrics.example.com:15000",
			TLS: files(bootstrap.TLSMutual), Keepalive: 10 * time.Second}
		in.AccessLogService = &bootstrap.Server{Address: "10.0.0.9:9000",
			TLS: bootstrap.TLS{Mode: bootstrap.TLSSimple, ServerName: "als.example.com"}}
		in.OutlierLogPath = "outlier.log"
		in.Prometheus = "127.0.0.1:9090"
		in.ConnectTimeout, in.DNSRefreshRate = 1500*time.Millisecond, time.Minute
		in.MaxConnections, in.MaxCapturedConnections = 5000, 20000
	},
	"annotations": func(in *bootstrap.Input) {
		in.Node.Metadata = map[string]any{"ANNOTATIONS": map[string]any{
			"sidecar.istio.io/statsInclusionPrefixes": "http.,listener.",
			"sidecar.istio.io/statsInclusionSuffixes": "_total",
			"sidecar.istio.io/statsInclusionRegexps":  "^a+$",
		}}
		in.Stats = bootstrap.StatsSelection{Prefixes: []string{"dns."},
			Suffixes: []string{"_bytes"},
			Regexps:  []string{"b+"}}
	},
	"allstats": func(in *bootstrap.Input) {
		*in = bootstrap.Input{Node: bootstrap.Node{Type: "router", ID: "a", ServiceCluster: "b"},
			AdminSocket: "/run/admin.sock", Stats: bootstrap.StatsSelection{All: true}}
	},
	"zipkin": zipkin,
	"datadog": func(in *bootstrap.Input) {
		in.Tracing = &bootstrap.Tracing{Provider: bootstrap.TracerDatadog,
			Service: bootstrap.Server{Address: "127.0.0.1:8126"}, Sampling: 100}
	},
	"opentelemetry": func(in *bootstrap.Input) {
		in.Tracing = &bootstrap.Tracing{Provider: bootstrap.TracerOpenTelemetry, Sampling: 0.5,
			Service: bootstrap.Server{
				Address: "otel.example.com:4317", TLS: bootstrap.TLS{Mode: bootstrap.TLSSimple,
					CAFile: "tls/root.pem"}}}
	},
	"lightstep": func(in *bootstrap.Input) {
		in.Tracing = &bootstrap.Tracing{Provider: bootstrap.TracerLightstep, AccessToken: "token",
			Sampling: 1, Service: bootstrap.Server{
				Address: "ingest.lightstep.com:443", TLS: bootstrap.TLS{Mode: bootstrap.TLSSimple}}}
	},
	"upstream": func(in *bootstrap.Input) {
		in.Discovery = bootstrap.Discovery{Delta: true,
			Upstream: &bootstrap.Server{Address: "istiod.istio-system.svc:15012",
				Keepalive: 300 * time.Second,
				TLS: bootstrap.TLS{Mode: bootstrap.TLSMutual, CertificateFromSDS: true,
					ServerName: "spiffe://cluster.local/ns/istio-system/sa/istiod"}}}
		in.Prometheus, in.Ready = "", bootstrap.ReadyListener{}
	},
}

func zipkin(in *bootstrap.Input) {
	in.Tracing = &bootstrap.Tracing{Provider: bootstrap.TracerZipkin,
		Service: bootstrap.Server{Address: "zipkin.example.com:9411"}, Sampling: 1}
}

func input(change func(*bootstrap.Input)) bootstrap.Input {
	in := defaults()
	change(&in)
	return in
}

func TestBuild_Golden(t *testing.T) {
	dir := folder(t)
	for name, change := range inputs {
		t.Run(name, func(t *testing.T) {
			rendered := render(t, input(change))
			validate(t, dir, rendered)
			if name != "defaults" && name != "annotations" && name != "allstats" {
				rendered = statsConfig.ReplaceAll(rendered, nil)
			}
			golden(t, name+".json", rendered)
		})
	}
}

// statsConfig matches the part of a bootstrap that, for brevity, only three golden files contain.
var statsConfig = regexp.MustCompile(`(?s)  "stats_config": \{.*?\n  \},\n`)

func TestBuild_IsDeterministic(t *testing.T) {
	for name, change := range inputs {
		first := render(t, input(change))
		for range 20 {
			if !bytes.Equal(first, render(t, input(change))) {
				t.Fatalf("%s: two bootstraps of one input differ", name)
			}
		}
	}
}

func TestBuild_ReturnsAllErrors(t *testing.T) {
	in := defaults()
	in.Node.ID, in.Node.ServiceCluster = "", "a~b"
	in.AdminSocket = ""
	in.SDSSocket = "/" + strings.Repeat("x", 107)
	in.Prometheus = "localhost:15090"
	in.Ready.Address = ":70000"
	in.StatsdAddress = "statsd.example.com:8125"
	in.MetricsService = &bootstrap.Server{Address: "metrics"}
	in.AccessLogService = &bootstrap.Server{Address: "als:1", TLS: bootstrap.TLS{Mode: "strict"}}
	in.Discovery = bootstrap.Discovery{Upstream: &bootstrap.Server{Address: ":15012",
		TLS: bootstrap.TLS{Mode: bootstrap.TLSMutual, CertFile: "a"}}}
	in.Tracing = &bootstrap.Tracing{Provider: "jaeger", Sampling: 101}
	in.Node.Metadata = map[string]any{"f": func() {}}
	_, err := buildBootstrap(in)
	if err == nil {
		t.Fatal("it was built")
	}
	for _, want := range []string{
		"the node's ID is missing",
		`the node's service cluster "a~b" has a ~`,
		"node metadata: json: unsupported type",
		"the path of the admin socket is missing",
		`address of the Prometheus listener: "localhost:15090": "localhost" is not an IP address`,
		`address of the readiness listener: ":70000": the port is not a number from 1 to 65535`,
		`statsd address: "statsd.example.com:8125": "statsd.example.com" is not an IP address (Envoy's ` +
			`statsd sink resolves no names)`,
		`cluster envoy_metrics_service: address "metrics" is not host:port`,
		`cluster envoy_accesslog_service: TLS mode "strict" is none of disable, simple, mutual`,
		`cluster xds-grpc: address ":15012" has no host`,
		"cluster xds-grpc: TLS mode mutual needs a certificate file and a key file",
		`tracing provider "jaeger" is none of zipkin, lightstep, datadog, opentelemetry`,
		"is longer than 107 bytes; choose a shorter [paths] runtime_dir",
		"tracing: a sampling of 101 is not from 0 to 100 percent",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("not told: %s", want)
		}
	}
	if t.Failed() {
		t.Logf("told:\n%v", err)
	}
}

func TestBuild_TLSNeedsRoots(t *testing.T) {
	in := input(inputs["lightstep"])
	in.SystemRoots = ""
	if _, err := buildBootstrap(in); err == nil ||
		!strings.Contains(err.Error(), "cluster lightstep: TLS needs a CA file") {
		t.Errorf("got %v", err)
	}
}

func TestBuild_SDSNeedsItsSocket(t *testing.T) {
	in := input(inputs["upstream"])
	in.SDSSocket = ""
	if _, err := buildBootstrap(in); err == nil ||
		!strings.Contains(err.Error(), "there is no SDS socket") {
		t.Errorf("got %v", err)
	}
}
