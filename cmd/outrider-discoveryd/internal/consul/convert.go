package consul

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/consul/api"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
)

// Metadata keys of an instance with a special meaning. All other keys only become labels.
const (
	metaProtocol = "protocol"        // protocol of the port: http, http2, grpc, tcp, …
	metaPort     = "service-port"    // port of the service, if its instances have different ports
	metaAccount  = "service-account" // service account of the instance's identity
)

const (
	maxLabels = 64    // maximum number of tags of an instance that become labels
	maxWeight = 65535 // largest weight that Consul permits
	// maximum length in bytes of a DNS label, and of the name or value of a Kubernetes label
	maxWord    = 63
	maxHost    = 253 // maximum length of a host name in bytes
	ownService = "consul"
)

// isHost reports whether a text is a host name; a single DNS label is one, too.
func isHost(text string) bool {
	for word := range strings.SplitSeq(text, ".") {
		if !object.IsIdentifier(word, "-", maxWord) {
			return false
		}
	}
	return len(text) <= maxHost
}

// isLabel reports whether key and value are a valid Kubernetes label. This excludes tags that
// configure load balancers, and metadata with whole sentences.
func isLabel(key, value string) bool {
	prefix, name, ok := strings.Cut(key, "/")
	if !ok {
		prefix, name = "x", key
	}
	return object.IsIdentifier(prefix, "-_.", maxHost) && object.IsIdentifier(name, "-_.", maxWord) &&
		(value == "" || object.IsIdentifier(value, "-_.", maxWord))
}

// convert returns a service with the ServiceEntry that represents its instances. Instances that are
// critical or in maintenance do not become endpoints. A service without a port gets no
// ServiceEntry, nor do the sidecar proxies and gateways of Consul's own mesh.
func (w *watcher) convert(name string, found read) *service {
	s := &service{name: name, index: found.meta.LastIndex, nodes: map[string]bool{}}
	var instances []*api.ServiceEntry
	for _, e := range found.entries {
		switch {
		case e.Node == nil || e.Service == nil:
		case isForeign(e.Service.Namespace) || isForeign(e.Service.Partition):
			w.health.note(ofEntries, fmt.Sprintf("service %s: namespace %q, partition %q: those of "+
				"Consul Enterprise are not supported", name, e.Service.Namespace,
				e.Service.Partition))
		case e.Service.Kind == api.ServiceKindTypical:
			instances = append(instances, e)
			s.nodes[e.Node.Node] = true
		}
	}
	if len(instances) == 0 {
		return s
	}
	slices.SortFunc(instances, func(a, b *api.ServiceEntry) int {
		return cmp.Or(cmp.Compare(a.Node.Node, b.Node.Node),
			cmp.Compare(a.Service.ID, b.Service.ID))
	})
	number, protocol := portOf(instances), protocolOf(name, instances)
	if number == 0 {
		return s
	}
	name = strings.ToLower(name)
	entry := &networking.ServiceEntry{
		Hosts:    []string{name + "." + strings.ToLower(w.registry.options.Domain)},
		Location: networking.ServiceEntry_MESH_INTERNAL,
		Ports: []*networking.ServicePort{{Number: number, Protocol: strings.ToUpper(protocol),
			Name: protocol}},
	}
	byDatacenter := name + ".service." + strings.ToLower(instances[0].Node.Datacenter) + ".consul"
	// A TCP connection has no Host header, which would distinguish the services of different
	// datacentres.
	kind, _ := model.ParseProtocol(protocol, "")
	if kind != model.TCP && !slices.Contains(entry.Hosts, byDatacenter) {
		entry.Hosts = append(entry.Hosts, byDatacenter)
	}
	entry.Endpoints, entry.Resolution = endpoints(instances, protocol)
	s.object = &object.Object{
		Key: object.Key{Kind: object.ServiceEntry, Namespace: w.registry.options.Namespace,
			Name: "service:" + w.qualified(s.name)},
		APIVersion: object.NetworkingGroup + "/v1", File: w.path(s.name), Spec: entry,
	}
	return s
}

func isForeign(name string) bool { return name != "" && name != "default" }

// endpoints returns the endpoints of a service, made from its healthy instances. If no instance has
// an IP address, the proxy resolves the host names of the instances with DNS. Otherwise instances
// with host names are omitted.
func endpoints(instances []*api.ServiceEntry, portName string) ([]*networking.WorkloadEntry,
	networking.ServiceEntry_Resolution) {
	resolution := networking.ServiceEntry_DNS
	for _, e := range instances {
		if _, err := netip.ParseAddr(addressOf(e)); err == nil {
			resolution = networking.ServiceEntry_STATIC
		}
	}
	var found []*networking.WorkloadEntry
	for _, e := range instances {
		address := addressOf(e)
		_, err := netip.ParseAddr(address)
		weight := weightOf(e)
		if weight == 0 || err != nil && (resolution == networking.ServiceEntry_STATIC ||
			!isHost(address)) {
			continue
		}
		labels := labelsOf(e.Service)
		endpoint := &networking.WorkloadEntry{Address: address, Labels: labels, Weight: weight,
			ServiceAccount: labels[metaAccount]}
		if port := e.Service.DefaultPort(); port > 0 && port <= 65535 {
			endpoint.Ports = map[string]uint32{portName: uint32(port)}
		}
		if endpoint.Labels[model.LocalityLabel] == "" {
			endpoint.Locality = localityOf(e)
		}
		found = append(found, endpoint)
	}
	if len(found) == 0 {
		// With DNS resolution and no endpoints, a proxy would resolve the host of the ServiceEntry.
		resolution = networking.ServiceEntry_STATIC
	}
	return found, resolution
}

func addressOf(e *api.ServiceEntry) string { return cmp.Or(e.Service.Address, e.Node.Address) }

// weightOf returns the weight of an instance for its health state; 0: it receives no requests.
func weightOf(e *api.ServiceEntry) uint32 {
	weight := 0
	switch e.Checks.AggregatedStatus() {
	case api.HealthPassing:
		weight = e.Service.Weights.Passing
	case api.HealthWarning:
		weight = e.Service.Weights.Warning
	}
	return uint32(min(max(weight, 0), maxWeight)) //nolint:gosec // within bounds
}

// localityOf returns the locality (REGION/ZONE) of an instance, else that of its node, else the
// name of the datacentre.
func localityOf(e *api.ServiceEntry) string {
	for _, l := range []*api.Locality{e.Service.Locality, e.Node.Locality} {
		switch {
		case l == nil || !isLabel(l.Region, l.Zone):
		case l.Zone != "":
			return l.Region + "/" + l.Zone
		default:
			return l.Region
		}
	}
	return e.Node.Datacenter
}

// labelsOf returns the labels of an instance: those of its tags (KEY=VALUE or KEY) and metadata
// that are valid labels. Metadata has precedence.
func labelsOf(s *api.AgentService) map[string]string {
	labels := make(map[string]string, len(s.Tags)+len(s.Meta))
	for _, tag := range s.Tags[:min(len(s.Tags), maxLabels)] {
		key, value, ok := strings.Cut(tag, "=")
		if !ok {
			value = "true"
		}
		if isLabel(key, value) {
			labels[key] = value
		}
	}
	for key, value := range s.Meta {
		if isLabel(key, value) {
			labels[key] = value
		}
	}
	return labels
}

// portOf returns the port number of a service: that in the metadata of an instance, else the most
// frequent port of the instances, and the lowest of equally frequent ones. Each instance still
// receives requests on its own port.
func portOf(instances []*api.ServiceEntry) uint32 {
	count := map[uint32]int{}
	var best uint32
	for _, e := range instances {
		number := e.Service.DefaultPort()
		if text := e.Service.Meta[metaPort]; text != "" {
			if fixed, err := strconv.ParseUint(text, 10, 16); err == nil && fixed > 0 {
				return uint32(fixed)
			}
		}
		if number <= 0 || number > 65535 {
			continue
		}
		n := uint32(number)
		if count[n]++; best == 0 || count[n] > count[best] || count[n] == count[best] && n < best {
			best = n
		}
	}
	return best
}

// protocolOf returns the protocol of a service's port in lower case: that in the metadata or in a
// tag protocol=NAME of an instance, else the prefix of the service's name, as in Istio's port
// names, else tcp.
func protocolOf(name string, instances []*api.ServiceEntry) string {
	for _, e := range instances {
		protocol := strings.ToLower(labelsOf(e.Service)[metaProtocol])
		if _, ok := model.ParseProtocol(protocol, ""); ok && protocol != "" {
			return protocol
		}
	}
	prefix, _, _ := strings.Cut(strings.ToLower(name), "-")
	if _, ok := model.ParseProtocol(prefix, ""); ok {
		return prefix
	}
	return "tcp"
}
