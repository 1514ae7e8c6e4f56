package model

import "strings"

// NodeType is what a proxy is for.
type NodeType string

// The types, as node ids begin.
const (
	Sidecar NodeType = "sidecar"
	Router  NodeType = "router"
)

// Node is what translation wants to know of a proxy. Proxies with equal ones get the same
// resources.
type Node struct {
	Type         NodeType
	Namespace    string
	Labels       map[string]string
	Locality     Locality
	IstioVersion string            // "" if it says none
	Metadata     map[string]string // further text that it says of itself
	Network      string            // "" is the one that everything is in that names none

	Interception Interception
	// IP addresses of the machine; nil: not known, or proxies with other ones are to get the same
	Addresses []string
}

// Locality is where a proxy or an endpoint is. Parts that are not known are "".
type Locality struct{ Region, Zone, Subzone string }

// ParseLocality reads region/zone/subzone; parts at the end may be missing.
func ParseLocality(text string) Locality {
	parts := append(strings.SplitN(text, "/", 3), "", "")
	return Locality{Region: parts[0], Zone: parts[1], Subzone: parts[2]}
}

// String is region/zone/subzone without the parts at the end that are not known.
func (l Locality) String() string {
	return strings.TrimRight(l.Region+"/"+l.Zone+"/"+l.Subzone, "/")
}

// TopologyLabels are the labels that tell region, zone and subzone, as Istio and Kubernetes call
// them.
var TopologyLabels = [3]string{"topology.kubernetes.io/region", "topology.kubernetes.io/zone",
	"topology.istio.io/subzone"}

// NetworkLabel tells the network.
const NetworkLabel = "topology.istio.io/network"

// LocalityLabel tells where a workload is that does not say so otherwise, with dots instead of
// slashes.
const LocalityLabel = "istio-locality"

// OfOneProxy tells whether a key of a proxy's metadata names the proxy itself: what is made for it
// would be for it alone.
func OfOneProxy(key string) bool { return key == "NAME" || key == "INSTANCE_IPS" }

// Interception is how connections that nobody meant for a proxy get to it.
type Interception string

// The modes, as the metadata of nodes has them.
const (
	// NONE: there is none; applications connect to the proxy themselves
	NoInterception Interception = ""
	Redirect       Interception = "REDIRECT" // by address translation
	Tproxy         Interception = "TPROXY"   // by routing, with the addresses as they were
)

// Captured tells whether connections are intercepted.
func (n Node) Captured() bool { return n.Interception != NoInterception }
