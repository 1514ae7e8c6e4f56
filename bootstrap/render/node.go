package render

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

func (b *builder) node() *corev3.Node {
	n := b.in.Node
	for _, part := range []struct{ what, value string }{{"type", n.Type}, {"ID", n.ID},
		{"service cluster", n.ServiceCluster}} {
		if part.value == "" {
			b.fail("the node's %s is missing", part.what)
		}
		if strings.Contains(part.value, "~") {
			b.fail("the node's %s %q has a ~, which separates the parts of a node's name",
				part.what, part.value)
		}
	}
	node := &corev3.Node{Id: n.ServiceNode(), Cluster: n.ServiceCluster}
	if n.Locality != "" {
		parts := strings.SplitN(n.Locality, "/", 3)
		parts = append(parts, "", "")
		node.Locality = &corev3.Locality{Region: parts[0], Zone: parts[1], SubZone: parts[2]}
	}
	metadata, err := b.metadata()
	if err != nil {
		b.fail("node metadata: %w", err)
	}
	node.Metadata = metadata
	return node
}

// metadata returns the keys that Istio's servers read, without empty values.
func (b *builder) metadata() (*structpb.Struct, error) {
	n := b.in.Node
	values := map[string]any{}
	text := func(key, value string) {
		if value != "" {
			values[key] = value
		}
	}
	text("NAME", strings.TrimSuffix(n.ID, "."+n.Namespace))
	text("NAMESPACE", n.Namespace)
	text("SERVICE_ACCOUNT", n.ServiceAccount)
	text("CLUSTER_ID", n.ClusterID)
	text("MESH_ID", n.MeshID)
	text("NETWORK", n.Network)
	text("AUTO_REGISTER_GROUP", n.WorkloadGroup)
	text("INTERCEPTION_MODE", n.InterceptionMode)
	text("OUTLIER_LOG_PATH", b.in.OutlierLogPath)
	addresses := make([]string, len(n.IPs))
	for i, ip := range n.IPs {
		addresses[i] = ip.String()
	}
	text("INSTANCE_IPS", strings.Join(addresses, ","))
	text("TRUST_DOMAIN", n.TrustDomain)
	if len(n.Labels) > 0 {
		values["LABELS"] = n.Labels
	}
	if n.DNSCapture {
		values["DNS_CAPTURE"] = "true" // Istio's servers read booleans as text
	}
	if n.DisableInternalTelemetry {
		values["DISABLE_INTERNAL_TELEMETRY"] = "true"
	}
	if port := readyPort(b.in.Ready); port != 0 {
		values["ENVOY_STATUS_PORT"] = port
	}
	if _, port, err := net.SplitHostPort(b.in.Prometheus); err == nil {
		values["ENVOY_PROMETHEUS_PORT"] = json.Number(port)
	}
	if b.in.Template.STSPort > 0 {
		values["STS_PORT"] = fmt.Sprint(b.in.Template.STSPort)
	}
	if n.IPv6 {
		values["OUTRIDER_IPV6"] = "true" // read by the discovery server
	}
	if b.in.ExternalSDSSocket != "" {
		values["credential"] = "true" // istiod then refers to the cluster of credentials sds://NAME
	}
	if n.Identity {
		values["OUTRIDER_IDENTITY"] = "true" // read by the discovery server
	}
	if len(n.ProxyConfig) > 0 {
		values["PROXY_CONFIG"] = n.ProxyConfig
	}
	maps.Copy(values, n.Metadata)
	// Convert the values through JSON, which can represent every value of a configuration file.
	encoded, err := json.Marshal(values)
	if err != nil {
		return nil, err
	}
	metadata := &structpb.Struct{}
	if err := metadata.UnmarshalJSON(encoded); err != nil {
		return nil, err
	}
	return metadata, nil
}
