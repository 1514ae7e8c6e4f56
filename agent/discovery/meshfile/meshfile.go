// Package meshfile reads Istio's MeshConfig from a file. It reports, with name and line, every
// field that discovery does not support.
package meshfile

import (
	"go.yaml.in/yaml/v3"
	meshapi "istio.io/api/mesh/v1alpha1"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
)

// Read reads a MeshConfig from a file, and also returns the file's text. For the path "" it returns
// the defaults. Configuration and text are nil if any problem is an error.
func Read(path string) (*mesh.Config, []byte, []object.Problem) {
	if path == "" {
		return mesh.Default(), nil, nil
	}
	content, err := store.ReadFile(path)
	if err != nil {
		return nil, nil, []object.Problem{{File: path, Line: 1, Severity: condition.Error,
			Message: err.Error(), Fix: "create it or take it out of [discovery] mesh_config_file"}}
	}
	read, problems := Parse(path, content)
	if read == nil {
		content = nil
	}
	return read, content, problems
}

// Parse is like Read, for the text of a file.
func Parse(path string, content []byte) (*mesh.Config, []object.Problem) {
	in := &meshapi.MeshConfig{}
	problems := store.DecodeMessage(path, content, in, func() []object.Finding {
		c := &checker{}
		c.mesh(in)
		return c.findings
	})
	for _, p := range problems {
		if p.Severity == condition.Error {
			return nil, problems
		}
	}
	return convert(in), problems
}

// ProviderLines returns, by name, the line of each provider in extensionProviders of a valid
// MeshConfig.
func ProviderLines(text []byte) map[string]int {
	var config struct {
		Providers []yaml.Node `yaml:"extensionProviders"`
	}
	lines := map[string]int{}
	if err := yaml.Unmarshal(text, &config); err != nil {
		return lines
	}
	for _, node := range config.Providers {
		var p struct{ Name string }
		if node.Decode(&p) == nil {
			lines[p.Name] = node.Line
		}
	}
	return lines
}

// convert returns the defaults with the settings of the file applied.
func convert(in *meshapi.MeshConfig) *mesh.Config {
	m := mesh.Default()
	if in.RootNamespace != "" {
		m.RootNamespace = in.RootNamespace
	}
	m.ServiceExportTo, m.VirtualServiceExportTo, m.DestinationRuleExportTo = in.DefaultServiceExportTo,
		in.DefaultVirtualServiceExportTo, in.DefaultDestinationRuleExportTo
	m.AllowAnyOutbound = in.OutboundTrafficPolicy == nil ||
		in.OutboundTrafficPolicy.Mode != meshapi.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY
	if dynamicDNS(in) {
		m.DynamicDNS, m.UnknownHostTLS = true, in.OutboundTrafficPolicy.Tls
	}
	m.ProtocolDetectionTimeout = in.ProtocolDetectionTimeout.AsDuration()
	if in.ConnectTimeout != nil {
		m.ConnectTimeout = in.ConnectTimeout.AsDuration()
	}
	if in.DnsRefreshRate != nil {
		m.DNSRefreshRate = in.DnsRefreshRate.AsDuration()
	}
	m.Keepalive, m.Retry = in.TcpKeepalive, in.DefaultHttpRetryPolicy
	if in.LocalityLbSetting != nil {
		m.LocalityLB = in.LocalityLbSetting
	}
	m.UpgradeHTTP2 = in.H2UpgradePolicy == meshapi.MeshConfig_UPGRADE
	m.PathNormalization = in.PathNormalization.GetNormalization()
	if topology := in.DefaultConfig.GetGatewayTopology(); topology != nil {
		m.NumTrustedProxies = topology.NumTrustedProxies
	}
	m.ProxyEnvironment = in.DefaultConfig.GetProxyMetadata()
	if workers := in.DefaultConfig.GetConcurrency(); workers != nil {
		m.Concurrency = &workers.Value
	}
	m.AutoMutualTLS = in.EnableAutoMtls == nil || in.EnableAutoMtls.Value
	m.MeshMTLS = in.MeshMTLS
	m.TLSDefaults, m.TrustDomainAliases = in.TlsDefaults, in.TrustDomainAliases
	m.TrustedCAs, m.SPIFFEBundleURLs, m.OtherTrustDomains = authorities(in)
	m.ExternalAuthorizers, m.TelemetryProviders = authorizers(in), mesh.NewTelemetryProviders(in)
	m.AccessLog = m.LogFormat
	m.AccessLog.File = in.AccessLogFile
	if in.TrustDomain != "" {
		m.TrustDomain = in.TrustDomain
	}
	m.OutboundPort, m.InboundPort = port(in.ProxyListenPort, m.OutboundPort),
		port(in.ProxyInboundListenPort, m.InboundPort)
	m.HTTPProxyPort = port(in.ProxyHttpPort, 0)
	return m
}

func port(specified int32, otherwise uint32) uint32 {
	if specified == 0 {
		return otherwise
	}
	return uint32(specified)
}

// elsewhere maps fields of defaultConfig to their keys in outrider.toml.
var elsewhere = map[string]string{
	"binaryPath": "[envoy] binary", "drainDuration": "[envoy] drain_duration",
	"discoveryAddress":           "[discovery] address",
	"zipkinAddress":              "[tracing] address",
	"statsdUdpAddress":           "[telemetry] statsd_udp_address",
	"envoyMetricsServiceAddress": "[telemetry] metrics_service",
	"envoyMetricsService":        "[telemetry] metrics_service",
	"envoyAccessLogService":      "[telemetry] access_log_service",
	"proxyAdminPort":             "[envoy] admin_port",
	"controlPlaneAuthPolicy":     "[discovery] auth",
	"customConfigFile":           "[envoy] custom_config_file",
	"statNameLength":             "[envoy] stat_name_length",
	"proxyBootstrapTemplatePath": "[envoy] template_file", "interceptionMode": "[capture] mode",
	"statusPort":               "[status] address",
	"terminationDrainDuration": "[envoy] termination_drain_duration", "readinessProbe": "[health]",
	"configPath": "[envoy] config_dir",
}
