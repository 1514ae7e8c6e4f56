package render

import (
	"bytes"
	"encoding/json"
	"net"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/bootstrap"
)

// templateData returns the data of a template. The names are those of Istio's templates from 1.5
// on, for sidecars and control planes; unsupported ones are empty, so that {{ if }} works. Values
// that are parts of the bootstrap are JSON text, such as meta_json_str and addresses. Names of
// Outrider are admin_socket, xds_uds_path, delta and control_plane.
func templateData(in bootstrap.Input) (map[string]any, error) {
	b := &builder{in: in}
	metadata, err := b.metadata()
	if err != nil {
		return nil, err
	}
	metaText, err := compactJSON(metadata)
	if err != nil {
		return nil, err
	}
	selected := b.selectedStats()
	data := map[string]any{
		"nodeID": in.Node.ServiceNode(), "nodeType": in.Node.Type,
		"cluster":       in.Node.ServiceCluster,
		"meta_json_str": metaText, "metadata": metadata.AsMap(),
		"config":            proxyConfig(in),
		"PodName":           strings.TrimSuffix(in.Node.ID, "."+in.Node.Namespace),
		"PodNamespace":      in.Node.Namespace,
		"PodIP":             "",
		"connect_timeout":   durationText(b.connectTimeout()),
		"dns_refresh_rate":  durationText(b.dnsRefreshRate()),
		"runtime_flags":     "{}",
		"outlier_log_path":  in.OutlierLogPath,
		"admin_socket":      in.AdminSocket,
		"xds_uds_path":      in.Discovery.Socket,
		"sds_uds_path":      in.SDSSocket,
		"delta":             in.Discovery.Delta,
		"xds_type":          "GRPC",
		"control_plane":     in.Template.ControlPlane,
		"discovery_address": in.Template.DiscoveryAddress, "discovery_host": "",
		"pilot_grpc_address":            "",
		"xds_root_cert":                 in.Template.DiscoveryRootCA,
		"pilot_SAN":                     alternativeNames(in.Template.PilotIdentity),
		"MixerSubjectAltName":           in.Template.MixerIdentity,
		"ControlPlaneAuth":              onlyIf(in.Template.ControlPlaneAuth, "enable"),
		"DisableReportCalls":            onlyIf(in.Node.DisableInternalTelemetry, "true"),
		"sts":                           in.Template.STSPort > 0,
		"sts_port":                      in.Template.STSPort,
		"envoy_status_port":             readyPort(in.Ready),
		"envoy_prometheus_port":         "",
		"workload_identity_socket_file": in.SDSSocket,
		"inclusionPrefix":               selected.Prefixes,
		"inclusionSuffix":               selected.Suffixes,
		"inclusionRegexps":              selected.Regexps,
		"extraStatTags":                 []string(nil),
	}
	if in.Discovery.Delta {
		data["xds_type"] = "DELTA_GRPC"
	}
	if len(in.Node.IPs) > 0 {
		data["PodIP"] = in.Node.IPs[0].String()
	}
	if _, port, err := net.SplitHostPort(in.Prometheus); err == nil {
		data["envoy_prometheus_port"] = port
	}
	if address := in.Template.DiscoveryAddress; address != "" {
		data["pilot_grpc_address"] = addressText(address)
		if host, _, err := net.SplitHostPort(address); err == nil {
			data["discovery_host"] = host
		}
	}
	b.networkData(data)
	if err := b.serviceData(data); err != nil {
		return nil, err
	}
	// Not supported by Outrider or the present Envoy.
	for _, name := range unsupportedNames {
		data[name] = ""
	}
	return data, nil
}

// unsupportedNames are names of Istio's templates that are always empty.
var unsupportedNames = []string{
	"openCensusAgent", "openCensusAgentContexts", "stackdriver", "stackdriverProjectID",
	"stackdriverDebug",
	"stackdriverMaxAnnotations", "stackdriverMaxAttributes", "stackdriverMaxEvents",
	"gcp_project_id",
	"gcp_project_number", "pilot_cert_provider", "provisioned_cert", "sds_token_path",
	"metadata_discovery",
	"load_stats_config_json_str", "histogram_buckets", "stats_compression", "log_json",
	"metrics_localhost_access_only", "deferred_cluster_creation", "deferred_stats_creation",
	"bypass_overload_manager",
	"delimited_stats_tags_enabled",
}

func (b *builder) networkData(data map[string]any) {
	v4, v6 := families(b.in.Node)
	data["localhost"], data["wildcard"], data["dns_lookup_family"] = "127.0.0.1", "0.0.0.0",
		"V4_ONLY"
	data["additional_localhost"], data["additional_wildcard"], data["dual_stack"] = "", "", v4 && v6
	switch {
	case v4 && v6:
		data["additional_localhost"], data["additional_wildcard"],
			data["dns_lookup_family"] = "::1", "::", "ALL"
	case v6:
		data["localhost"], data["wildcard"], data["dns_lookup_family"] = "::1", "::", "V6_ONLY"
	}
	region, rest, _ := strings.Cut(b.in.Node.Locality, "/")
	zone, subZone, _ := strings.Cut(rest, "/")
	data["region"], data["zone"], data["sub_zone"] = region, zone, subZone
}

func (b *builder) serviceData(data map[string]any) error {
	data["statsd"] = addressText(b.in.StatsdAddress)
	for _, name := range []string{
		"zipkin", "lightstep", "datadog", "opentelemetry", "lightstepToken", "lightstepSecure",
		"lightstepCacertPath", "tracing_tls",
	} {
		data[name] = ""
	}
	if tracing := b.in.Tracing; tracing != nil {
		data[tracing.Provider] = addressText(tracing.Service.Address)
		socket, err := b.socketText(tracing.Provider, &tracing.Service,
			tracing.Provider == bootstrap.TracerOpenTelemetry ||
				tracing.Provider == bootstrap.TracerLightstep)
		if err != nil {
			return err
		}
		data["tracing_tls"] = socket
		if tracing.Provider == bootstrap.TracerLightstep {
			data["lightstepToken"] = tracing.AccessToken
			data["lightstepSecure"] = onlyIf(tracing.Service.TLS.Mode != "" &&
				tracing.Service.TLS.Mode != bootstrap.TLSDisable, "true")
			data["lightstepCacertPath"] = tracing.Service.TLS.CAFile
		}
	}
	for name, service := range map[string]*bootstrap.Server{metricsCluster: b.in.MetricsService,
		accessLogCluster: b.in.AccessLogService} {
		data[name+"_address"], data[name+"_tls"], data[name+"_tcp_keepalive"] = "", "", ""
		if service == nil {
			continue
		}
		data[name+"_address"] = addressText(service.Address)
		socket, err := b.socketText(name, service, true)
		if err != nil {
			return err
		}
		data[name+"_tls"] = socket
		if options := b.serviceCluster(name, service,
			true).UpstreamConnectionOptions; options != nil {
			if data[name+"_tcp_keepalive"], err = compactJSON(options); err != nil {
				return err
			}
		}
	}
	if len(b.errs) > 0 {
		return b.errs[0]
	}
	return nil
}

func (b *builder) socketText(cluster string, service *bootstrap.Server,
	http2 bool) (string, error) {
	host, _, err := splitAddress(service.Address)
	if err != nil {
		return "", err
	}
	socket := b.transportSocket(cluster, host, service.TLS, http2)
	if socket == nil {
		return "", nil
	}
	return compactJSON(socket)
}

// proxyConfig returns the fields of Istio's ProxyConfig that its templates use.
func proxyConfig(in bootstrap.Input) map[string]any {
	t := in.Template
	policy := "NONE"
	if t.ControlPlaneAuth {
		policy = "MUTUAL_TLS"
	}
	return map[string]any{
		"ConfigPath": t.ConfigDir, "BinaryPath": t.BinaryPath,
		"ServiceCluster":         in.Node.ServiceCluster,
		"DrainDuration":          durationText(t.DrainDuration),
		"ParentShutdownDuration": durationText(t.ParentShutdown),
		"DiscoveryAddress":       t.DiscoveryAddress, "StatsdUdpAddress": in.StatsdAddress,
		"ProxyAdminPort": t.AdminPort,
		"StatusPort":     t.StatusPort, "StatNameLength": t.StatNameLength,
		"Concurrency":            t.Concurrency,
		"ControlPlaneAuthPolicy": policy,
	}
}

// addressText returns the JSON of a socket address, "" for none.
func addressText(address string) string {
	host, port, err := splitAddress(address)
	if err != nil {
		return ""
	}
	encoded, err := compactJSON(socketAddress(corev3.SocketAddress_TCP, host,
		port).GetSocketAddress())
	if err != nil {
		return ""
	}
	return encoded
}

func alternativeNames(identity string) string {
	if identity == "" {
		return "[]"
	}
	encoded, err := json.Marshal([]map[string]string{{"exact": identity}})
	if err != nil {
		return "[]"
	}
	return string(encoded)
}

func compactJSON(message proto.Message) (string, error) {
	encoded, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
	if err != nil {
		return "", err
	}
	var compact bytes.Buffer
	// protojson varies its white space on purpose.
	if err := json.Compact(&compact, encoded); err != nil {
		return "", err
	}
	return compact.String(), nil
}

// durationText returns a duration in the JSON format of protobuf.
func durationText(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s"
}

func onlyIf(condition bool, text string) string {
	if condition {
		return text
	}
	return ""
}

// readyPort returns the port of the readiness listener, 0 without one.
func readyPort(ready bootstrap.ReadyListener) int {
	_, port, err := splitAddress(ready.Address)
	if err != nil {
		return 0
	}
	return int(port)
}
