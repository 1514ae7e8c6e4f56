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

// Keys of an instance's metadata that have a meaning. All other keys are only labels.
const (
	metaProtocol = "protocol"        // protocol of the port: http, http2, grpc, tcp, …
	metaPort     = "service-port"    // port of the service, if its instances have several
	metaAccount  = "service-account" // service account of the instance's identity
)

const (
	maxLabels  = 64    // labels of one instance that come from its tags
	maxWeight  = 65535 // largest weight that Consul permits
	maxWord    = 63    // bytes of a part of a host name, and of the value of a label
	maxHost    = 253   // bytes of a host name
	ownService = "consul"
)

// isHost reports whether a text is a host name, or the first part of one.
func isHost(text string) bool {
	for word := range strings.SplitSeq(text, ".") {
		if !object.IsIdentifier(word, "-", maxWord) {
			return false
		}
	}
	return len(text) <= maxHost
}

// isLabel reports whether key and value are a label as in Kubernetes. Tags for load balancers and
// metadata with sentences are not.
func isLabel(key, value string) bool {
	prefix, name, ok := strings.Cut(key, "/")
	if !ok {
		prefix, name = "x", key
	}
	return object.IsIdentifier(prefix, "-_.", maxHost) && object.IsIdentifier(name, "-_.", maxWord) &&
		(value == "" || object.IsIdentifier(value, "-_.", maxWord))
}

// convert returns a service and its ServiceEntry, made from its registered instances. Instances
// that are critical or in maintenance are no endpoints. There is no ServiceEntry for a service
// without a port, or for a proxy of Consul's mesh.
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
	// a TCP connection does not contain the host, so several services cannot be distinguished
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

// endpoints returns the endpoints for healthy instances. If all instances have host names, the
// service is resolved with DNS; otherwise instances with host names are left out.
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
		// With DNS, a ServiceEntry without endpoints would resolve its own host.
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

// localityOf returns region/zone of an instance, else of its node, else the datacentre.
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

// labelsOf returns those tags (KEY=VALUE or a word) and metadata of an instance that are labels.
// Metadata has precedence.
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

// portOf returns the number of a service's port: from the metadata, else the most frequent port of
// its instances, the lowest of several. Each instance receives requests on its own port.
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

// protocolOf returns the protocol of a service's port in lower case: from the metadata or a tag
// protocol=NAME of the first instance with a known one, else by the prefix of the service's name,
// as Istio does with names of ports, else tcp.
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
