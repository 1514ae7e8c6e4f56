package translate

import (
	"cmp"
	"encoding/json"
	"maps"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/discovery/model"
)

// label is a label of a metric with the format of its value.
type label struct{ name, format string }

// stream has the properties of forwarded connections on which labels depend.
type stream struct {
	service    string // inbound: host of the service; "": unknown
	identities identities
}

// identities says of which peers an inbound listener can verify the identity.
type identities int

const (
	noIdentities   identities = iota
	meshIdentities            // identities of client and server, from mutual TLS of the mesh
	// identities in the certificates of the peers, if they have certificates
	otherIdentities
)

const (
	unknown    = "unknown" // Istio's value of labels without one
	noRevision = "latest"  // Istio's value of a missing revision
)

// operator is a command of access log formats, as a parameter of Envoy's operator COALESCE.
type operator struct {
	Command string `json:"command"`
	Param   string `json:"param,omitempty"`
}

var unknownOperator = cel("'" + unknown + "'")

func cel(expression string) operator { return operator{Command: "CEL", Param: expression} }

// firstOf returns a format with the value of the first operator that has one.
func firstOf(operators ...operator) string {
	text, _ := json.Marshal(map[string][]operator{"operators": operators}) // cannot fail
	// A % would end the operator, and a ) would end its parameter.
	escaped := strings.NewReplacer("%", `\u0025`, ")", `\u0029`).Replace(string(text))
	return "%COALESCE(" + escaped + ")%"
}

func orUnknown(command, param string) string {
	return firstOf(operator{Command: command, Param: param}, unknownOperator)
}

// literal returns the format of a constant text.
func literal(text string) string { return strings.ReplaceAll(text, "%", "%%") }

// labels returns Istio's labels of both peers.
func (m *Metrics) labels(at stream) []label {
	own := ownWorkload(m.node)
	if m.mode == model.ServerMode {
		return m.serverLabels(own, at)
	}
	return append([]label{{"reporter", "source"},
		{"source_workload", literal(own.name)},
		{"source_canonical_service", literal(own.service)},
		{"source_canonical_revision", literal(own.revision)},
		{"source_workload_namespace", literal(own.namespace)},
		{"source_principal", orUnknown("UPSTREAM_LOCAL_URI_SAN", "")},
		{"source_app", literal(own.app)}, {"source_version", literal(own.version)},
		{"source_cluster", literal(own.cluster)}}, destinationLabels...)
}

// destinationLabels are the labels of a destination, as a client sees it.
var destinationLabels = []label{
	{"destination_workload", ofEndpoint("workload")},
	{"destination_workload_namespace", ofEndpoint("namespace")},
	{"destination_principal", orUnknown("UPSTREAM_PEER_URI_SAN", "")},
	{"destination_app", ofEndpoint("app")}, {"destination_version", ofEndpoint("version")},
	{"destination_service", orUnknown("CLUSTER_METADATA", metricsKey+":service")},
	{"destination_canonical_service", ofEndpoint("canonical_service")},
	{"destination_canonical_revision", firstOf(operator{Command: "UPSTREAM_METADATA",
		Param: metricsKey + ":canonical_revision"}, cel("'"+noRevision+"'"))},
	{"destination_service_name", firstOf(operator{Command: "CLUSTER_METADATA",
		Param: metricsKey + ":service_name"},
		cel("xds.route_name == 'block_all' ? '"+BlackHoleCluster+"' : '"+unknown+"'"),
		unknownOperator)},
	{"destination_service_namespace", ofEndpoint("namespace")},
	{"destination_cluster", ofEndpoint("cluster")},
	{"connection_security_policy", unknown},
}

func ofEndpoint(key string) string { return orUnknown("UPSTREAM_METADATA", metricsKey+":"+key) }

func (m *Metrics) serverLabels(own workload, at stream) []label {
	namespace, principal, local, policy := unknown, unknown, unknown, "none"
	if at.identities != noIdentities {
		namespace = firstOf(cel("re.extract(connection.uri_san_peer_certificate, "+
			`'/ns/([^/]+)(/|$)', '\\1')`), unknownOperator)
		principal = orUnknown("DOWNSTREAM_PEER_URI_SAN", "")
		local = orUnknown("DOWNSTREAM_LOCAL_URI_SAN", "")
		policy = "mutual_tls"
	}
	if at.identities == otherIdentities {
		policy = firstOf(cel("connection.uri_san_peer_certificate != '' && "+
			"connection.uri_san_local_certificate != '' ? 'mutual_tls' : 'none'"), cel("'none'"))
	}
	service := literal(cmp.Or(at.service, own.service))
	return []label{{"reporter", "destination"}, {"source_workload", unknown},
		{"source_canonical_service", unknown}, {"source_canonical_revision", noRevision},
		{"source_workload_namespace", namespace}, {"source_principal", principal},
		{"source_app", unknown}, {"source_version", unknown}, {"source_cluster", unknown},
		{"destination_workload", literal(own.name)},
		{"destination_workload_namespace", literal(own.namespace)},
		{"destination_principal", local},
		{"destination_app", literal(own.app)}, {"destination_version", literal(own.version)},
		{"destination_service", service},
		{"destination_canonical_service", literal(own.service)},
		{"destination_canonical_revision", literal(own.revision)},
		{"destination_service_name", service},
		{"destination_service_namespace", literal(own.namespace)},
		{"destination_cluster", literal(own.cluster)}, {"connection_security_policy", policy}}
}

// workload has the labels of a proxy or an endpoint.
type workload struct{ name, namespace, service, revision, app, version, cluster string }

// Labels of workloads from which Istio derives the canonical service and revision, in order.
var (
	canonicalServiceLabels = []string{"service.istio.io/canonical-name", "app.kubernetes.io/name",
		"app"}
	canonicalRevisionLabels = []string{"service.istio.io/canonical-revision",
		"app.kubernetes.io/version", "version"}
)

func ownWorkload(node model.Node) workload {
	name := cmp.Or(node.Metadata["WORKLOAD_NAME"], node.Labels[model.WorkloadNameLabel],
		node.Metadata["AUTO_REGISTER_GROUP"])
	w := newWorkload(name, node.Labels)
	w.namespace, w.cluster = node.Namespace, cmp.Or(node.Metadata[clusterKey], unknown)
	return w
}

func newWorkload(name string, labels map[string]string) workload {
	first := func(names []string, fallback string) string {
		for _, name := range names {
			if value, ok := labels[name]; ok {
				return cmp.Or(value, unknown)
			}
		}
		return fallback
	}
	return workload{name: cmp.Or(name, unknown),
		service:  first(canonicalServiceLabels, cmp.Or(name, unknown)),
		revision: first(canonicalRevisionLabels, noRevision),
		app:      cmp.Or(labels["app"], unknown), version: cmp.Or(labels["version"], unknown)}
}

// clusterKey is the key of a node's metadata with the name of its cluster.
const clusterKey = "CLUSTER_ID"

// metricsKey is the metadata key of clusters and endpoints under which clients find labels of
// destinations.
const metricsKey = "outrider"

// endpointLabels returns the metadata of an endpoint for labels of metrics; unknown values are
// absent. As in Istio, the endpoint's cluster is that of the discovery server.
func endpointLabels(e *model.Endpoint, namespace string, client model.Node) *structpb.Struct {
	w := newWorkload(e.Workload, e.Labels)
	return metricsMetadata(map[string]string{"workload": w.name, "namespace": namespace,
		"canonical_service": w.service, "canonical_revision": w.revision, "app": w.app,
		"version": w.version, "cluster": client.Metadata[clusterKey]})
}

func metricsMetadata(values map[string]string) *structpb.Struct {
	fields := map[string]*structpb.Value{}
	for key, value := range values {
		if value != "" && value != unknown && (key != "canonical_revision" || value != noRevision) {
			fields[key] = structpb.NewStringValue(value)
		}
	}
	return &structpb.Struct{Fields: fields}
}

// labels returns a function that returns an endpoint's metadata for labels of metrics; nil if the
// proxy records no metrics of its requests.
func (out *Clusters) labels(service *model.Service) func(*model.Endpoint) *structpb.Struct {
	if !out.node.RecordsMetrics {
		return nil
	}
	return func(e *model.Endpoint) *structpb.Struct {
		return endpointLabels(e, service.Namespace, out.node)
	}
}

// withLabels returns metadata (nil: none) with labels. It leaves its argument unchanged.
func withLabels(metadata *corev3.Metadata, labels *structpb.Struct) *corev3.Metadata {
	out := &corev3.Metadata{FilterMetadata: maps.Clone(metadata.GetFilterMetadata())}
	if out.FilterMetadata == nil {
		out.FilterMetadata = map[string]*structpb.Struct{}
	}
	out.FilterMetadata[metricsKey] = labels
	return out
}

// serviceLabels returns the metadata of a cluster for labels of metrics.
func serviceLabels(host, name string) *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		metricsKey: metricsMetadata(map[string]string{"service": host, "service_name": name})}}
}
