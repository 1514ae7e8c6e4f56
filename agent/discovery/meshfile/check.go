package meshfile

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	meshapi "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/validate"
)

type checker struct {
	findings []object.Finding
}

func (c *checker) fail(field, message, fix string) {
	c.findings = append(c.findings, object.Finding{Field: field, Severity: condition.Error,
		Message: message, Fix: fix})
}

func (c *checker) warn(field, message, fix string) {
	c.findings = append(c.findings, object.Finding{Field: field, Severity: condition.Warning,
		Message: message, Fix: fix})
}

// supported lists the fields of MeshConfig that have an effect. All others are refused or cause a
// warning.
var supported = map[protoreflect.Name]bool{
	"root_namespace": true, "default_service_export_to": true,
	"default_virtual_service_export_to": true, "default_destination_rule_export_to": true,
	"outbound_traffic_policy": true, "protocol_detection_timeout": true, "connect_timeout": true,
	"dns_refresh_rate": true, "tcp_keepalive": true,
	"default_http_retry_policy": true, "locality_lb_setting": true, "h2_upgrade_policy": true,
	"path_normalization": true, "access_log_file": true,
	"access_log_format": true, "access_log_encoding": true, "default_config": true,
	"proxy_listen_port": true, "proxy_inbound_listen_port": true, "proxy_http_port": true,
	"tls_defaults": true, "mesh_mTLS": true, "enable_auto_mtls": true, "trust_domain": true,
	"trust_domain_aliases": true, "ca_certificates": true, "extension_providers": true,
	"default_providers": true, "enable_tracing": true,
}

// IsSupportedField reports whether a field of MeshConfig or of one of its messages has an effect.
func IsSupportedField(field protoreflect.FieldDescriptor) bool {
	switch field.ContainingMessage().FullName() {
	case "istio.mesh.v1alpha1.MeshConfig":
		return supported[field.Name()]
	case "istio.mesh.v1alpha1.ProxyConfig":
		return slices.Contains([]protoreflect.Name{"gateway_topology", "tracing", "concurrency",
			"proxy_metadata"}, field.Name())
	case "istio.mesh.v1alpha1.Tracing":
		return slices.Contains([]protoreflect.Name{"custom_tags", "max_path_tag_length", "sampling",
			"enable_istio_tags"}, field.Name())
	case "istio.mesh.v1alpha1.Topology":
		return field.Name() == "num_trusted_proxies"
	case "istio.mesh.v1alpha1.MeshConfig.ExtensionProvider":
		return !slices.Contains([]protoreflect.Name{"lightstep", "stackdriver", "opencensus",
			"sds"}, field.Name())
	}
	return true
}

// refused lists unsupported fields that would change where requests are sent or who may see them.
var refused = map[protoreflect.Name]string{
	"inbound_traffic_policy":   "what comes in for ports that nobody gave is always passed on",
	"service_settings":         "services that only some see",
	"service_scope_configs":    "services that only some see",
	"service_entry_visibility": "who sees ServiceEntries that do not say it",
	"zone_aware_lb_setting":    "balancing by zone",
	"discovery_selectors":      "which namespaces count",
	"default_traffic_policy":   "a traffic policy for everything",
}

func (c *checker) mesh(m *meshapi.MeshConfig) {
	m.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		name := field.JSONName()
		what, refuse := refused[field.Name()]
		switch {
		case IsSupportedField(field):
		case refuse:
			c.fail(name, fmt.Sprintf("is not supported by this version of Outrider (%s)", what),
				"remove it")
		default:
			c.warn(name, "is not supported by this version of Outrider and has no effect",
				"remove it to be rid of this warning")
		}
		return true
	})
	c.duration("connectTimeout", m.ConnectTimeout, time.Millisecond, 30*time.Second)
	c.duration("dnsRefreshRate", m.DnsRefreshRate, time.Millisecond, 0)
	c.protocolDetection(m.ProtocolDetectionTimeout)
	c.port("proxyListenPort", m.ProxyListenPort)
	c.port("proxyInboundListenPort", m.ProxyInboundListenPort)
	c.httpProxy(m)
	for field, exportTo := range map[string][]string{
		"defaultServiceExportTo":         m.DefaultServiceExportTo,
		"defaultVirtualServiceExportTo":  m.DefaultVirtualServiceExportTo,
		"defaultDestinationRuleExportTo": m.DefaultDestinationRuleExportTo} {
		c.exportTo(field, exportTo)
	}
	if m.RootNamespace != "" && !namespace.MatchString(m.RootNamespace) {
		c.fail("rootNamespace", fmt.Sprintf("%q is no namespace", m.RootNamespace), "")
	}
	c.unknownHosts(m)
	c.findings = append(c.findings, validate.Retries("defaultHttpRetryPolicy",
		m.DefaultHttpRetryPolicy)...)
	c.findings = append(c.findings, validate.Localities("localityLbSetting",
		m.LocalityLbSetting)...)
	c.keepalive(m.TcpKeepalive)
	c.accessLog(m)
	c.tls(m)
	c.trust(m)
	c.providers(m.ExtensionProviders)
	c.observers(m)
	c.defaultConfig(m.DefaultConfig)
}

var namespace = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// duration reports a duration that is below lowest, above highest (0: no limit) or not in whole
// milliseconds.
func (c *checker) duration(field string, d *durationpb.Duration, lowest, highest time.Duration) {
	if d == nil {
		return
	}
	v := d.AsDuration()
	switch {
	case v < lowest:
		c.fail(field, fmt.Sprintf("%v is too short", v), fmt.Sprintf("write at least %v", lowest))
	case highest > 0 && v > highest:
		c.fail(field, fmt.Sprintf("%v is too long", v), fmt.Sprintf("write at most %v", highest))
	case v%time.Millisecond != 0:
		c.fail(field, fmt.Sprintf("%v is finer than a millisecond", v), "write whole milliseconds")
	}
}

func (c *checker) protocolDetection(d *durationpb.Duration) {
	switch v := d.AsDuration(); {
	case d == nil || v == 0:
	case v < 0 || v%time.Millisecond != 0:
		c.fail("protocolDetectionTimeout", fmt.Sprintf("%v is no time to wait", v),
			"write 0s, or whole milliseconds")
	case v < 10*time.Millisecond:
		c.warn("protocolDetectionTimeout",
			fmt.Sprintf("%v is so short that requests may be taken for plain TCP", v),
			"write 0s (for ever) or at least 10ms")
	}
}

func (c *checker) port(field string, v int32) {
	if v < 0 || v > 65535 {
		c.fail(field, fmt.Sprintf("%d is not a valid port", v), "write a number from 1 to 65535")
	}
}

// httpProxy checks the port of the HTTP proxy for applications. It must differ from the ports that
// receive captured connections, because Envoy would treat these as requests to the proxy.
func (c *checker) httpProxy(m *meshapi.MeshConfig) {
	c.port("proxyHttpPort", m.ProxyHttpPort)
	usual := mesh.Default()
	if p := port(m.ProxyHttpPort, 0); p != 0 && (p == port(m.ProxyListenPort, usual.OutboundPort) ||
		p == port(m.ProxyInboundListenPort, usual.InboundPort)) {
		c.fail("proxyHttpPort", fmt.Sprintf("%d is the port of captured connections", p),
			"write another port")
	}
}

func (c *checker) exportTo(field string, exportTo []string) {
	for i, to := range exportTo {
		if to != "*" && to != "." && to != "~" && !namespace.MatchString(to) {
			c.fail(fmt.Sprintf("%s[%d]", field, i), fmt.Sprintf("%q is no namespace", to),
				"write . for an object's own namespace, * for all, ~ for none, or a namespace")
		}
	}
}

func (c *checker) keepalive(k *networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive) {
	c.duration("tcpKeepalive.time", k.GetTime(), time.Second, 0)
	c.duration("tcpKeepalive.interval", k.GetInterval(), time.Second, 0)
}

func (c *checker) accessLog(m *meshapi.MeshConfig) {
	log := mesh.AccessLog{File: m.AccessLogFile, Format: m.AccessLogFormat,
		JSON: m.AccessLogEncoding == meshapi.MeshConfig_JSON}
	if log.File != "" && !filepath.IsAbs(log.File) {
		c.fail("accessLogFile", fmt.Sprintf("%q is not an absolute path", log.File),
			"write /dev/stdout or a path in /var/log/outrider")
		return
	}
	if _, err := log.Substitution(); err != nil {
		c.fail("accessLogFormat", err.Error(), "")
	}
	c.operators("accessLogFormat", m.AccessLogFormat)
	if log.JSON && log.Format != "" && log.Format[0] != '{' {
		c.fail("accessLogFormat", "is a line of text, and accessLogEncoding says JSON",
			"write a JSON object of texts")
	}
}

// defaultConfig checks the default configuration of proxies. Most of its fields have no effect,
// because outrider.toml has keys for the same settings.
func (c *checker) defaultConfig(p *meshapi.ProxyConfig) {
	if p == nil {
		return
	}
	p.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		name := field.JSONName()
		switch key := elsewhere[name]; {
		case IsSupportedField(field):
		case key != "":
			c.warn("defaultConfig."+name, "is the agent's and has no effect here",
				"write it into outrider.toml: "+key)
		default:
			c.warn("defaultConfig."+name,
				"is not supported by this version of Outrider and has no effect",
				"remove it to be rid of this warning")
		}
		return true
	})
	c.findings = append(c.findings, validate.ProxySettings("defaultConfig.concurrency", p.Concurrency,
		"defaultConfig.proxyMetadata", p.ProxyMetadata)...)
	if topology := p.GatewayTopology; topology != nil {
		topology.ProtoReflect().Range(func(field protoreflect.FieldDescriptor,
			_ protoreflect.Value) bool {
			if !IsSupportedField(field) {
				c.warn("defaultConfig.gatewayTopology."+field.JSONName(),
					"is not supported by this version of Outrider and has no effect",
					"remove it to be rid of this warning")
			}
			return true
		})
	}
}
