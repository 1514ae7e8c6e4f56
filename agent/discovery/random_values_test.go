package discovery_test

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// randomizer fills Istio's messages at random according to their descriptors, so that new fields
// are included. There are few different names, so that objects refer to each other and most are
// valid.
type randomizer struct {
	*rand.Rand
	ports            []int
	certificate, key string
	share            float64 // probability that an optional field is set
	hosts, gateways  []string
	host             string // host of the VirtualService under construction
	portNames        int    // number of port names in the object under construction
}

func (r *randomizer) pick(of ...string) string { return of[r.IntN(len(of))] }

// required has the full names of fields that are always set.
var required = map[string]bool{
	"istio.networking.v1alpha3.ServiceEntry.hosts":                                   true,
	"istio.networking.v1alpha3.ServiceEntry.ports":                                   true,
	"istio.networking.v1alpha3.ServiceEntry.endpoints":                               true,
	"istio.networking.v1alpha3.ServiceEntry.resolution":                              true,
	"istio.networking.v1alpha3.VirtualService.hosts":                                 true,
	"istio.networking.v1alpha3.VirtualService.http":                                  true,
	"istio.networking.v1alpha3.HTTPRoute.route":                                      true,
	"istio.networking.v1alpha3.Gateway.servers":                                      true,
	"istio.networking.v1alpha3.Server.port":                                          true,
	"istio.networking.v1alpha3.Server.hosts":                                         true,
	"istio.networking.v1alpha3.Sidecar.egress":                                       true,
	"istio.networking.v1alpha3.IstioEgressListener.hosts":                            true,
	"istio.networking.v1alpha3.HTTPRetry.attempts":                                   true,
	"istio.networking.v1alpha3.IstioIngressListener.port":                            true,
	"istio.networking.v1alpha3.IstioIngressListener.default_endpoint":                true,
	"istio.networking.v1alpha3.TLSMatchAttributes.sni_hosts":                         true,
	"istio.networking.v1alpha3.TLSRoute.match":                                       true,
	"istio.networking.v1alpha3.TLSRoute.route":                                       true,
	"istio.networking.v1alpha3.TCPRoute.route":                                       true,
	"istio.networking.v1alpha3.Subset.labels":                                        true,
	"istio.networking.v1alpha3.DestinationRule.traffic_policy":                       true,
	"istio.networking.v1alpha3.HTTPFaultInjection.Delay.percentage":                  true,
	"istio.networking.v1alpha3.HTTPFaultInjection.Abort.percentage":                  true,
	"istio.networking.v1alpha3.HTTPMirrorPolicy.destination":                         true,
	"istio.networking.v1alpha3.LoadBalancerSettings.ConsistentHashLB.HTTPCookie.ttl": true,
	"istio.networking.v1alpha3.WarmupConfiguration.duration":                         true,
	"istio.networking.v1alpha3.TrafficPolicy.PortTrafficPolicy.port":                 true,
	"istio.networking.v1alpha3.RegexRewrite.match":                                   true,
	"istio.networking.v1alpha3.Gateway.selector":                                     true,
}

// requiredNames has the names of fields that are always set, in every message.
var requiredNames = map[string]bool{"host": true, "name": true, "number": true, "protocol": true,
	"destination": true, "address": true, "weight": true}

// never has fields that are never set, because they need files or names that do not exist.
var never = map[string]bool{"credential_name": true, "credential_names": true, "target_refs": true,
	"mirror": true, "mirror_percent": true, "network": true, "service_account": true,
	"delegate": true, "tunnel": true,
	"ca_crl": true, "workload_selector": true, "verify_certificate_spki": true,
	"verify_certificate_hash": true, "ca_cert_credential_name": true, "gateways_match": true,
	"source_namespace": true}

// single has the names of lists that usually have one element.
var single = map[string]bool{"export_to": true, "hosts": true, "sni_hosts": true, "gateways": true}

// exclusive has groups of fields of which a message has exactly one.
var exclusive = map[protoreflect.Name][]protoreflect.Name{
	"HTTPRoute":   {"redirect", "direct_response", "route"},
	"HTTPRewrite": {"uri_regex_rewrite", "uri"},
}

// text returns a value for a string field.
func (r *randomizer) text(field protoreflect.FieldDescriptor) string {
	parent := string(field.Parent().Name())
	switch name := string(field.Name()); name {
	case "host":
		return r.pick(r.hosts...)
	case "hosts":
		switch parent {
		case "IstioEgressListener":
			return r.pick("*/*", "./*", "*/a.test", "shop/*", "~bank/*", "~/b.test")
		case "Server":
			return r.pick("*", "*.test", "a.test", "shop/b.test", "./c.test", "*/d.other")
		}
		if parent == "VirtualService" {
			r.host = r.pick(append(r.hosts, "*.test")...)
			return r.host
		}
		return r.pick(r.hosts...)
	case "sni_hosts":
		return r.host
	case "gateways":
		return r.pick(r.gateways...)
	case "subset":
		return r.pick("", "v1", "v2")
	case "name":
		if parent == "HTTPCookie" {
			return "session"
		}
		if strings.HasSuffix(parent, "Port") {
			r.portNames++
			return fmt.Sprintf("p%d", r.portNames)
		}
		return r.pick("v1", "v2", "one", "two", "three")
	case "regex", "match":
		return r.pick(".*", "/a/[0-9]+", "v1|v2", "(a)(b)?")
	case "exact", "prefix":
		if parent == "StringMatch" {
			return r.pick("/", "/a", "/a/b", "x", "GET")
		}
		return "/"
	case "uri", "path":
		return r.pick("/", "/x", "/a/b")
	case "rewrite":
		return r.pick(`/\1`, "/fixed")
	case "authority":
		return r.pick("a.test", "other.example")
	case "scheme":
		return r.pick("http", "https")
	case "bind":
		return r.pick("", "127.0.0.1")
	case "address":
		return r.pick("127.0.0.1", "10.0.0.1", "10.0.0.2", "fd00::1")
	case "addresses":
		return r.pick("10.1.0.1", "10.1.0.2", "10.2.0.0/24")
	case "destination_subnets", "destination_subnet", "source_subnet":
		return r.pick("10.0.0.0/8", "192.168.1.1", "fd00::/8")
	case "protocol":
		return r.pick("HTTP", "HTTP", "HTTP", "HTTP2", "GRPC", "TCP", "TLS", "HTTPS", "MONGO", "")
	case "export_to":
		return r.pick(".", "*", "bank")
	case "default_endpoint":
		return fmt.Sprintf("127.0.0.1:%d", r.ports[r.IntN(len(r.ports))])
	case "retry_on":
		return r.pick("5xx", "gateway-error,reset", "unavailable,503", "connect-failure")
	case "locality":
		return r.pick("", "r1/z1/s1", "r1/z2", "r2")
	case "from", "to":
		return r.pick("r1/*", "r1/z1/*", "r2/*", "r1", "r2")
	case "failover_priority":
		return r.pick("app", "version")
	case "server_certificate", "client_certificate":
		return r.certificate
	case "private_key":
		return r.key
	case "ca_certificates":
		return r.certificate
	case "cipher_suites":
		return r.pick("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384")
	case "sni", "subject_alt_names":
		return r.pick("a.test", "spiffe://cluster.local/ns/shop/sa/web")
	case "allow_methods":
		return r.pick("GET", "POST", "PUT")
	case "http_header_name", "http_query_parameter_name", "allow_headers", "expose_headers",
		"remove":
		return r.pick("x-a", "x-b", "user-agent")
	case "grpc_status":
		return r.pick("UNAVAILABLE", "NOT_FOUND")
	case "string", "value":
		return r.pick("text", "a b", "100 % of it")
	}
	return r.pick("", "x")
}

// number returns a value for a numeric field.
func (r *randomizer) number(field protoreflect.FieldDescriptor) int64 {
	switch string(field.Name()) {
	case "number", "port", "target_port":
		return int64(r.ports[r.IntN(len(r.ports))])
	case "weight":
		return int64(r.IntN(100))
	case "status", "http_status", "outlier_detection_http_error_codes":
		return int64(200 + r.IntN(400))
	case "redirect_code":
		return []int64{301, 302, 303, 307, 308}[r.IntN(5)]
	case "percent", "max_ejection_percent", "min_health_percent":
		return int64(r.IntN(101))
	case "minimum_ring_size", "table_size":
		return []int64{17, 1009, 1021, 5003}[r.IntN(4)]
	}
	return int64(1 + r.IntN(50))
}

// fill sets the fields of a message.
func (r *randomizer) fill(m protoreflect.Message, depth int) {
	if d, ok := m.Interface().(*durationpb.Duration); ok {
		d.Seconds, d.Nanos = int64(r.IntN(100)), int32(r.IntN(2))*5_000_000
		return
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		must := required[string(field.FullName())] || requiredNames[string(field.Name())]
		if never[string(field.Name())] || !must && r.Float64() > r.share/float64(1+depth) {
			continue
		}
		if oneof := field.ContainingOneof(); oneof != nil && m.WhichOneof(oneof) != nil {
			continue
		}
		if strings.HasPrefix(string(field.FullName()), "google.") &&
			field.Kind() == protoreflect.MessageKind {
			continue // messages of any content: Struct and Any
		}
		r.field(m, field, depth)
	}
	found := false
	for _, name := range exclusive[m.Descriptor().Name()] {
		field := fields.ByName(name)
		if field == nil || !m.Has(field) {
			continue
		}
		if found {
			m.Clear(field)
		}
		found = true
	}
}

func (r *randomizer) field(m protoreflect.Message, field protoreflect.FieldDescriptor, depth int) {
	switch {
	case field.IsMap():
		entries := m.Mutable(field).Map()
		if field.MapValue().Message() != nil {
			value := entries.NewValue()
			r.fill(value.Message(), depth+1)
			entries.Set(protoreflect.ValueOfString(r.pick("x-a", "x-b")).MapKey(), value)
			return
		}
		key := r.pick("version", "app")
		if field.MapValue().Kind() != protoreflect.StringKind {
			entries.Set(protoreflect.ValueOfString(r.pick("p1", "p2", "r1/*")).MapKey(),
				protoreflect.ValueOfUint32(uint32(r.ports[r.IntN(len(r.ports))])))
			return
		}
		if strings.Contains(string(field.Name()), "set") || strings.Contains(string(field.Name()),
			"add") {
			key = r.pick("x-a", "x-b")
		}
		value := r.pick("v1", "v2")
		if field.Name() == "selector" || key == "app" {
			value = "edge"
		}
		entries.Set(protoreflect.ValueOfString(key).MapKey(), protoreflect.ValueOfString(value))
	case field.IsList():
		list := m.Mutable(field).List()
		most := 1 + r.IntN(3)*r.IntN(2)
		if single[string(field.Name())] {
			most = 1
		}
		for range most {
			if field.Message() != nil {
				element := list.NewElement()
				r.fill(element.Message(), depth+1)
				list.Append(element)
			} else {
				list.Append(r.scalar(field))
			}
		}
	case field.Message() != nil:
		inner := m.NewField(field).Message()
		for range 5 { // an empty message is rarely useful, so fill gets several attempts
			if r.fill(inner, depth+1); proto.Size(inner.Interface()) > 0 {
				break
			}
		}
		m.Set(field, protoreflect.ValueOfMessage(inner))
	default:
		m.Set(field, r.scalar(field))
	}
}

func (r *randomizer) scalar(field protoreflect.FieldDescriptor) protoreflect.Value {
	switch field.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(r.text(field))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(r.IntN(2) == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(field.Enum().Values().
			Get(r.IntN(field.Enum().Values().Len())).Number())
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte("bytes"))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(r.IntN(101)))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(r.IntN(101)))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind:
		return protoreflect.ValueOfInt32(int32(r.number(field)))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(r.number(field)))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(r.number(field)))
	}
	return protoreflect.ValueOfInt64(r.number(field))
}
