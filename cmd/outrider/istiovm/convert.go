package istiovm

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"
)

// Paths are the paths that the token and the root certificate of the VM have on the host of
// Outrider.
type Paths struct{ Token, Root string }

// variables maps variables of pilot-agent and istio-start.sh to keys of outrider.toml. If several
// variables of one key are set, the last one in the list is used.
var variables = []struct {
	name, key string
	convert   func(value string) (any, error)
}{
	{"ISTIO_SVC_IP", "node.ip", text},
	{"POD_NAMESPACE", "node.namespace", text},
	{"ISTIO_NAMESPACE", "node.namespace", text},
	{"SERVICE_ACCOUNT", "node.service_account", text},
	{"ISTIO_SERVICE", "node.service_cluster", text},
	{"TRUST_DOMAIN", "node.trust_domain", text},
	{"ISTIO_META_CLUSTER_ID", "node.cluster_id", text},
	{"ISTIO_META_MESH_ID", "node.mesh_id", text},
	{"ISTIO_META_NETWORK", "node.network", text},
	{"ISTIO_META_AUTO_REGISTER_GROUP", "node.workload_group", text},
	{"ISTIO_METAJSON_LABELS", "node.labels", object},
	{"EXIT_ON_ZERO_ACTIVE_CONNECTIONS", "envoy.exit_on_zero_active_connections", boolean},
	{"MINIMUM_DRAIN_DURATION", "envoy.minimum_drain_duration", text},
	{"ISTIOD_SAN", "discovery.server_name", text},
	{"ISTIO_DELTA_XDS", "discovery.delta", boolean},
	{"CA_ADDR", "identity.ca_address", text},
	{"PKCS8_KEY", "identity.pkcs8", boolean},
	{"SECRET_TTL", "identity.ttl", text},
	{"ISTIO_INBOUND_PORTS", "capture.inbound_ports", ports},
	{"ISTIO_LOCAL_EXCLUDE_PORTS", "capture.exclude_inbound_ports", ports},
	{"ISTIO_SERVICE_CIDR", "capture.outbound_cidrs", list},
	{"ISTIO_SERVICE_EXCLUDE_CIDR", "capture.exclude_outbound_cidrs", list},
	{"ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE", "capture.exclude_outbound_ports", ports},
}

// elsewhere lists variables that the table variables need not contain: other functions convert
// them, or they repeat another variable (CANONICAL_SERVICE and CANONICAL_REVISION are labels in
// ISTIO_METAJSON_LABELS).
var elsewhere = []string{"CANONICAL_SERVICE", "CANONICAL_REVISION",
	"PILOT_ADDRESS", "ISTIO_PILOT_PORT", "ISTIO_SYSTEM_NAMESPACE", "ISTIO_META_DNS_CAPTURE",
	"ISTIO_CUSTOM_IP_TABLES", "ISTIO_INBOUND_INTERCEPTION_MODE",
	"REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION"}

// fields maps fields of ProxyConfig to keys of outrider.toml.
var fields = map[string]string{
	"customConfigFile": "envoy.custom_config_file", "concurrency": "envoy.concurrency",
	"discoveryAddress": "discovery.address", "drainDuration": "envoy.drain_duration",
	"meshId": "node.mesh_id", "parentShutdownDuration": "envoy.parent_shutdown_duration",
	"proxyAdminPort": "envoy.admin_port", "serviceCluster": "node.service_cluster",
	"statNameLength": "envoy.stat_name_length", "statsdUdpAddress": "telemetry.statsd_udp_address",
	"terminationDrainDuration": "envoy.termination_drain_duration",
}

// reasons contains explanations of why a variable or field has no key in outrider.toml.
var reasons = map[string]string{
	"binaryPath":                      "Outrider has an Envoy of its own; see [envoy] binary",
	"configPath":                      "see [envoy] config_dir",
	"controlPlaneAuthPolicy":          "TLS is used except for port 15010; see [discovery] auth",
	"holdApplicationUntilProxyStarts": "order the application's unit after outrider-online.target",
	"image":                           "it names a container image",
	"tracing":                         "see [tracing]",
	"proxyBootstrapTemplatePath":      "see [envoy] template_file",
	"ISTIO_AGENT_FLAGS":               "outrider.toml(5) names the key of each flag",
	"ISTIO_LOG_DIR":                   "logs are in the journal",
	"PROXY_CONFIG":                    "write its fields into defaultConfig of mesh.yaml",
}

// conversion collects the settings of the new configuration, and notes for its user.
type conversion struct {
	*VMFiles
	document
}

// Convert returns the configuration of Outrider that replaces the files.
func (s *VMFiles) Convert(paths Paths) (*Result, error) { return s.convert(paths).result() }

func (s *VMFiles) convert(paths Paths) *conversion {
	c := &conversion{VMFiles: s, document: document{notes: slices.Clone(s.unknown)}}
	istiod := "istiod." + cmp.Or(s.Environment["ISTIO_SYSTEM_NAMESPACE"], "istio-system") + ".svc:"
	c.set("discovery.address", istiod+"15012", "the default of pilot-agent")
	c.upstream(paths)
	c.set("status.address", ":15020", "on all addresses, as pilot-agent does")
	c.set("telemetry.prometheus_address", "0.0.0.0:15090", "on all addresses, as pilot-agent does")
	c.proxy()
	if address := s.Environment["PILOT_ADDRESS"]; address != "" {
		c.set("discovery.address", address, "PILOT_ADDRESS")
	} else if port := s.Environment["ISTIO_PILOT_PORT"]; port != "" {
		c.set("discovery.address", istiod+port, "ISTIO_PILOT_PORT")
	}
	c.interception()
	c.environment()
	c.health()
	return c
}

// upstream sets the keys for authentication between agent and istiod. The agent authenticates with
// its certificate, and needs the token only for the first one, because the token expires after an
// hour by default.
func (c *conversion) upstream(paths Paths) {
	c.set("discovery.auth", "mtls", "with the workload's certificate, which outlives the token")
	c.set("identity.provider", "istiod", "")
	if len(c.Root) > 0 {
		c.set("discovery.root_ca_file", paths.Root, "root-cert.pem")
		c.set("identity.root_ca_file", paths.Root, "root-cert.pem")
	} else {
		c.note("root-cert.pem is missing: istiod is verified with the system's roots")
	}
	if len(c.Token) > 0 {
		c.set("identity.token_file", paths.Token, "istio-token")
	} else {
		c.note("istio-token is missing: set identity.token_file for the first certificate")
	}
	c.note("certificate and key are not written to a folder (OUTPUT_CERTS, PROV_CERT): " +
		"[identity] persist keeps them over a reboot, encrypted (systemd 250 or later)")
	if len(strings.TrimSpace(string(c.Hosts))) == 0 {
		c.note("hosts is empty: discovery.address must resolve on this host")
	}
}

// proxy converts the fields of ProxyConfig.
func (c *conversion) proxy() {
	c.Proxy.ProtoReflect().Range(
		func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
			name := field.JSONName()
			switch key := fields[name]; {
			case key != "":
				c.set(key, plain(value), "mesh.yaml: "+name)
			// converted by environment and health
			case name == "proxyMetadata" || name == "readinessProbe":
			case name == "proxyStatsMatcher":
				matcher := c.Proxy.GetProxyStatsMatcher()
				c.setList("telemetry.stats_prefixes", matcher.InclusionPrefixes, name)
				c.setList("telemetry.stats_suffixes", matcher.InclusionSuffixes, name)
				c.setList("telemetry.stats_regexps", matcher.InclusionRegexps, name)
			case name == "statusPort":
				c.set("status.address", ":"+value.String(), "mesh.yaml: "+name)
			default:
				c.unmatched("mesh.yaml: ", name)
			}
			return true
		})
}

// setList sets a key to values, the content of a list in ProxyConfig, unless the list is empty.
func (c *conversion) setList(key string, values []string, field string) {
	if len(values) > 0 {
		c.set(key, values, "mesh.yaml: "+field)
	}
}

// plain returns a value of ProxyConfig as a Go value, without the protobuf wrapper.
func plain(value protoreflect.Value) any {
	message, ok := value.Interface().(protoreflect.Message)
	if !ok {
		return value.Interface()
	}
	switch message := message.Interface().(type) {
	case *durationpb.Duration:
		return message.AsDuration()
	case *wrapperspb.Int32Value:
		return message.Value
	default:
		// A value of the wrong type for the key: document.result writes it as a comment.
		return fmt.Sprint(message)
	}
}

// interception sets the keys for interception and DNS capture, like istio-start.sh, which
// configures iptables.
func (c *conversion) interception() {
	mode := "redirect"
	if c.Environment["ISTIO_INBOUND_INTERCEPTION_MODE"] == "TPROXY" {
		mode = "tproxy"
	}
	captures := c.Environment["ISTIO_CUSTOM_IP_TABLES"] != "true"
	if captures {
		c.set("capture.mode", mode, "istio-start.sh")
		c.set("capture.inbound_ports", []string{"*"}, "istio-start.sh")
		c.set("capture.fail", "open", "while Envoy is gone; \"closed\" is what iptables does")
		c.set("capture.fail_inbound", "closed", "as rules of iptables, which outlive Envoy")
	}
	if c.Environment["ISTIO_META_DNS_CAPTURE"] == "true" {
		c.set("dns.listen", "127.0.0.1:15053", "ISTIO_META_DNS_CAPTURE")
		c.set("capture.dns", captures, "ISTIO_META_DNS_CAPTURE")
	}
}

// environment converts the variables, and combines ISTIO_META_* into node.metadata.
func (c *conversion) environment() {
	rest, metadata := maps.Clone(c.Environment), map[string]any{}
	for _, v := range variables {
		if value := rest[v.name]; value != "" {
			converted, err := v.convert(value)
			if err != nil {
				c.note(fmt.Sprintf("%s: cannot be read: %v", v.name, err))
			} else {
				c.set(v.key, converted, v.name)
			}
		}
		delete(rest, v.name)
	}
	for _, name := range slices.Sorted(maps.Keys(rest)) {
		value := rest[name]
		switch {
		case value == "" || slices.Contains(elsewhere, name):
		case strings.HasPrefix(name, "ISTIO_METAJSON_"):
			more, err := object(value)
			if err != nil {
				c.note(fmt.Sprintf("%s: cannot be read: %v", name, err))
				break
			}
			maps.Copy(metadata, more.(map[string]any))
		case strings.HasPrefix(name, "ISTIO_META_"):
			metadata[strings.TrimPrefix(name, "ISTIO_META_")] = value
		default:
			c.unmatched("", name)
		}
	}
	if len(metadata) > 0 {
		c.set("node.metadata", metadata, "ISTIO_META_*")
	}
	if c.Environment["ISTIO_METAJSON_LABELS"] != "" {
		c.note("node.labels has the labels of the WorkloadGroup at the time of istioctl's run; " +
			"workloadSelector of a Sidecar matches these, so change them with the group")
	}
}

// health converts the readiness probe of the WorkloadGroup.
func (c *conversion) health() {
	p := c.Proxy.GetReadinessProbe()
	if p == nil {
		return
	}
	from, host := "mesh.yaml: readinessProbe", "127.0.0.1"
	if ip := c.Environment["ISTIO_SVC_IP"]; ip != "" &&
		c.Environment["REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION"] != "true" {
		host = ip
	}
	own := func(values string, port uint32) string {
		if values != "" {
			return net.JoinHostPort(values, fmt.Sprint(port))
		}
		if host == "127.0.0.1" {
			c.note("health: pilot-agent probes the node's first address, Outrider 127.0.0.1; " +
				"if the application does not listen there, write the address that it listens on")
		}
		return net.JoinHostPort(host, fmt.Sprint(port))
	}
	switch m := p.HealthCheckMethod.(type) {
	case *networking.ReadinessProbe_HttpGet:
		h := m.HttpGet
		scheme := cmp.Or(strings.ToLower(h.Scheme), "http")
		c.set("health.http", scheme+"://"+own(h.Host, h.Port)+"/"+strings.TrimPrefix(h.Path, "/"),
			from)
		if len(h.HttpHeaders) > 0 {
			c.note(from + ": httpHeaders have no equivalent in [health]")
		}
	case *networking.ReadinessProbe_TcpSocket:
		c.set("health.tcp", own(m.TcpSocket.Host, m.TcpSocket.Port), from)
	case *networking.ReadinessProbe_Grpc:
		c.set("health.grpc",
			strings.TrimSuffix(own("", m.Grpc.Port)+"/"+m.Grpc.Service, "/"), from)
	case *networking.ReadinessProbe_Exec:
		c.set("health.exec", m.Exec.Command, from)
	default:
		c.note(from + " has no method: it is ignored")
		return
	}
	seconds := func(n int32) time.Duration { return time.Duration(n) * time.Second }
	c.set("health.initial_delay", seconds(p.InitialDelaySeconds), from)
	c.set("health.period", seconds(cmp.Or(p.PeriodSeconds, 10)), from)
	c.set("health.timeout", seconds(cmp.Or(p.TimeoutSeconds, 1)), from)
	c.set("health.success_threshold", cmp.Or(p.SuccessThreshold, 1), from)
	c.set("health.failure_threshold", cmp.Or(p.FailureThreshold, 1), from)
}

// unmatched adds a note about a variable or field that has no corresponding key.
func (c *conversion) unmatched(prefix, name string) {
	c.note(prefix + name + ": " + cmp.Or(reasons[name], "has no equivalent"))
}

func text(value string) (any, error)    { return value, nil }
func boolean(value string) (any, error) { return strconv.ParseBool(value) }

func list(value string) (any, error) {
	return strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' }), nil
}

// ports converts a list of ports; "*" means all ports.
func ports(value string) (any, error) {
	if value == "*" {
		return []string{"*"}, nil
	}
	numbers := []int{}
	for word := range strings.SplitSeq(value, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}

// object converts a JSON object.
func object(value string) (any, error) {
	parsed := map[string]any{}
	err := json.Unmarshal([]byte(value), &parsed)
	return parsed, err
}
