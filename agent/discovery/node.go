package discovery

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/discovery/model"
)

// maxAddresses is the maximum number of addresses in INSTANCE_IPS. After a change of an endpoint,
// the server looks up each address of every connected proxy.
const maxAddresses = 1024

// parseNode parses a proxy's node in Istio's form: the ID is type~ip~name.namespace~domain, and the
// metadata has NAMESPACE, LABELS, NETWORK, INTERCEPTION_MODE and INSTANCE_IPS. If the node has no
// locality, parseNode uses the label istio-locality, which has dots in place of slashes.
//
// As in istiod, the proxy of an Istio agent (pilot-agent) has a certificate of the mesh, and its
// connections are redirected unless the node says otherwise.
func parseNode(node *corev3.Node, namespace string) (model.Node, error) {
	parts := strings.Split(node.GetId(), "~")
	if len(parts) != 4 {
		return model.Node{}, fmt.Errorf("node id %q is not of the form type~ip~name~domain",
			node.GetId())
	}
	fields := node.GetMetadata().GetFields()
	n := model.Node{Type: model.NodeType(parts[0]), Namespace: fields["NAMESPACE"].GetStringValue()}
	if n.Type != model.Sidecar && n.Type != model.Router {
		return model.Node{}, fmt.Errorf("node id %q: type %q is neither sidecar nor router",
			node.GetId(), n.Type)
	}
	if n.Namespace == "" {
		n.Namespace = namespaceOf(parts[3], namespace)
	}
	if n.Type == model.Sidecar {
		var err error
		mode := fields["INTERCEPTION_MODE"].GetStringValue()
		if mode == "" && isIstios(fields) {
			mode = string(model.Redirect)
		}
		if n.Interception, err = interception(mode); err != nil {
			return model.Node{}, fmt.Errorf("node id %q: %w", node.GetId(), err)
		}
		more := strings.Split(fields["INSTANCE_IPS"].GetStringValue(), ",")
		if len(more) > maxAddresses {
			return model.Node{}, fmt.Errorf("node id %q: INSTANCE_IPS has %d addresses, more than %d",
				node.GetId(), len(more), maxAddresses)
		}
		n.Addresses = addresses(parts[1], more)
	}
	if labels := fields["LABELS"].GetStructValue().GetFields(); len(labels) > 0 {
		n.Labels = make(map[string]string, len(labels))
		for key, value := range labels {
			n.Labels[key] = value.GetStringValue()
		}
	}
	n.Network, n.IstioVersion = fields["NETWORK"].GetStringValue(),
		fields["ISTIO_VERSION"].GetStringValue()
	n.EnvoyVersion, n.Cluster = EnvoyVersion(node), node.GetCluster()
	n.IPv6 = fields[model.IPv6MetadataKey].GetStringValue() == "true"
	for key, value := range fields {
		text, ok := value.GetKind().(*structpb.Value_StringValue)
		if ok && !model.IsPerProxyMetadataKey(key) {
			if n.Metadata == nil {
				n.Metadata = map[string]string{}
			}
			n.Metadata[key] = text.StringValue
		}
	}
	if isIstios(fields) {
		if n.Metadata == nil {
			n.Metadata = map[string]string{}
		}
		n.Metadata[model.IdentityMetadataKey] = "true"
	}
	n.Identity = n.Metadata[model.IdentityMetadataKey] == "true"
	n.Locality = model.Locality{Region: node.GetLocality().GetRegion(),
		Zone: node.GetLocality().GetZone(), Subzone: node.GetLocality().GetSubZone()}
	if n.Locality == (model.Locality{}) {
		n.Locality = model.ParseLocality(strings.ReplaceAll(n.Labels[model.LocalityLabel], ".",
			"/"))
	}
	return n, nil
}

// isIstios reports whether metadata is that of a pilot-agent, which expects the server to have the
// name PILOT_SAN.
func isIstios(metadata map[string]*structpb.Value) bool { return metadata["PILOT_SAN"] != nil }

// EnvoyVersion returns the version of a proxy's Envoy, "" if the node does not contain it.
func EnvoyVersion(node *corev3.Node) string {
	build := node.GetUserAgentBuildVersion()
	if v := build.GetVersion(); v != nil {
		return fmt.Sprintf("%d.%d.%d", v.GetMajorNumber(), v.GetMinorNumber(), v.GetPatch())
	}
	return node.GetUserAgentVersion()
}

func interception(mode string) (model.Interception, error) {
	switch m := model.Interception(mode); m {
	case model.NoInterception, "NONE":
		return model.NoInterception, nil
	case model.Redirect, model.Tproxy:
		return m, nil
	}
	return "", fmt.Errorf("interception mode %q is not REDIRECT, TPROXY or NONE", mode)
}

// addresses returns a proxy's IP addresses without duplicates: that in its ID (own), then those in
// INSTANCE_IPS (more).
func addresses(own string, more []string) []string {
	var found []string
	for _, text := range append([]string{own}, more...) {
		address, err := netip.ParseAddr(strings.TrimSpace(text))
		if err == nil && !slices.Contains(found, address.String()) {
			found = append(found, address.String())
		}
	}
	return found
}

// namespaceOf returns the namespace in a domain of the form namespace.svc.cluster.local. For a
// domain of another form, it returns its second argument.
func namespaceOf(domain, otherwise string) string {
	if namespace, rest, ok := strings.Cut(domain, "."); ok && strings.HasPrefix(rest, "svc.") {
		return namespace
	}
	return otherwise
}

// SameNode reports whether a proxy that sends node gets the same resources as one that sends known,
// the node of a bootstrap. Fields that Envoy's command line can set are ignored.
func SameNode(known, node *corev3.Node) bool {
	filled := &corev3.Node{Id: cmp.Or(known.GetId(), node.GetId()), Metadata: known.GetMetadata(),
		Cluster: cmp.Or(known.GetCluster(), node.GetCluster()), Locality: known.GetLocality()}
	if filled.Locality == nil {
		filled.Locality = node.GetLocality()
	}
	want, err := parseNode(filled, "")
	if err != nil {
		return false
	}
	got, err := parseNode(node, "")
	return err == nil && nodeKey(got) == nodeKey(want)
}

// proxyName returns a name of a proxy that reloads do not change: the name and domain in the node's
// ID, and the metadata GENERATOR, which is grpc for gRPC applications.
func proxyName(node *corev3.Node) string {
	parts := strings.Split(node.GetId(), "~")
	generator := node.GetMetadata().GetFields()["GENERATOR"].GetStringValue()
	return strings.Join(append(parts[min(2, len(parts)):], generator), "~")
}

// nodeKey returns a key that is equal for proxies with equal resources. It does not depend on the
// version of Envoy.
func nodeKey(n model.Node) string {
	var key strings.Builder
	fmt.Fprintf(&key, "%s\n%s\n%q\n%q\n%q\n%q\n%s\n%q", n.Type, n.Namespace, n.Cluster, n.Network, n.Locality,
		n.IstioVersion, n.Interception, n.Addresses)
	for _, texts := range []map[string]string{n.Labels, n.Metadata} {
		for _, name := range slices.Sorted(maps.Keys(texts)) {
			fmt.Fprintf(&key, "\n%q=%q", name, texts[name])
		}
		key.WriteByte('\n')
	}
	return key.String()
}
