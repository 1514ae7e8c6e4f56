package model

import "strings"

// NodeType is the role of a proxy.
type NodeType string

// Types of proxies, as in the prefix of node IDs.
const (
	Sidecar NodeType = "sidecar"
	Router  NodeType = "router"
)

// Node holds the properties of a proxy on which translation depends. Proxies with equal nodes get
// equal resources.
type Node struct {
	Type         NodeType
	Namespace    string
	Cluster      string // name of the proxy's service in its spans
	Labels       map[string]string
	Locality     Locality
	IstioVersion string            // version of Istio; "" if not set
	EnvoyVersion string            // version of Envoy; "" if unknown; resources do not depend on it
	Metadata     map[string]string // metadata for which Node has no field
	Network      string            // network of the proxy; "": the default network
	Identity     bool              // the proxy gets a certificate of the mesh over SDS
	IPv6         bool              // captured connections may use IPv6
	// whether the proxy's agent gets a table of names for its DNS proxy
	WantsNameTable bool

	// RecordsMetrics reports whether the proxy records Istio's metrics of outgoing requests, which
	// have labels of the destination.
	RecordsMetrics bool

	Interception Interception
	// IP addresses of the machine; nil if unknown, or if the proxy's resources do not depend on
	// them
	Addresses []string
}

// Locality is the location of a proxy or an endpoint. Parts that are not known are "".
type Locality struct{ Region, Zone, Subzone string }

// ParseLocality reads region/zone/subzone. Trailing parts may be missing.
func ParseLocality(text string) Locality {
	parts := append(strings.SplitN(text, "/", 3), "", "")
	return Locality{Region: parts[0], Zone: parts[1], Subzone: parts[2]}
}

// String returns region/zone/subzone without unknown trailing parts.
func (l Locality) String() string {
	return strings.TrimRight(l.Region+"/"+l.Zone+"/"+l.Subzone, "/")
}

// TopologyLabels are the Kubernetes and Istio labels for region, zone and subzone.
var TopologyLabels = [3]string{"topology.kubernetes.io/region", "topology.kubernetes.io/zone",
	"topology.istio.io/subzone"}

// IdentityMetadataKey is the metadata key that is set for proxies that get a certificate of the
// mesh over SDS.
const IdentityMetadataKey = "OUTRIDER_IDENTITY"

// IPv6MetadataKey is the metadata key that is set for proxies whose listeners for captured
// connections serve IPv6.
const IPv6MetadataKey = "OUTRIDER_IPV6"

// NetworkLabel is the label with the network of a workload.
const NetworkLabel = "topology.istio.io/network"

// LocalityLabel is the label with the locality of a workload that specifies its locality nowhere
// else. It has dots instead of slashes.
const LocalityLabel = "istio-locality"

// IsPerProxyMetadataKey reports whether a metadata key identifies a single proxy. Resources that
// depend on such a key cannot be shared.
func IsPerProxyMetadataKey(key string) bool { return key == "NAME" || key == "INSTANCE_IPS" }

// Interception is the mode in which connections are redirected to the proxy.
type Interception string

// Interception modes, as in node metadata.
const (
	// NONE: applications connect to the proxy themselves
	NoInterception Interception = ""
	// iptables REDIRECT: the destination address is rewritten
	Redirect Interception = "REDIRECT"
	Tproxy   Interception = "TPROXY" // iptables TPROXY: addresses are preserved
)

// IsIntercepted reports whether connections are intercepted.
func (n Node) IsIntercepted() bool { return n.Interception != NoInterception }
