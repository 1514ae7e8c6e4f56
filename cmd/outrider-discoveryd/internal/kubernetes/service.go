package kubernetes

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
)

// exportAnnotation is the annotation with the namespaces in which a Service is visible.
const exportAnnotation = "networking.istio.io/exportTo"

// spec holds the fields of a Service that the registry uses.
type spec struct {
	namespace, name, host string
	created               time.Time
	labels, annotations   map[string]string
	exportTo              []string
	addresses             []string
	family                string // address family of the first address
	ports                 []*networking.ServicePort
	selector              map[string]string // selects Pods and WorkloadEntries; nil: none
	// ports for the WorkloadEntries that the selector selects
	workloadPorts []*networking.ServicePort
	externalName  string
}

func newSpec(o *corev1.Service, domain string) *spec {
	s := &spec{namespace: o.Namespace, name: o.Name,
		host:    o.Name + "." + o.Namespace + ".svc." + domain,
		created: o.CreationTimestamp.Time, labels: o.Labels}
	for part := range strings.SplitSeq(o.Annotations[exportAnnotation], ",") {
		if part = strings.TrimSpace(part); part != "" {
			s.exportTo = append(s.exportTo, part)
		}
	}
	distribution := o.Annotations[model.TrafficDistributionAnnotation]
	if o.Spec.TrafficDistribution != nil {
		distribution = *o.Spec.TrafficDistribution
	}
	if distribution != "" {
		s.annotations = map[string]string{model.TrafficDistributionAnnotation: distribution}
	}
	if len(o.Spec.IPFamilies) > 0 {
		s.family = string(o.Spec.IPFamilies[0])
	}
	for _, address := range o.Spec.ClusterIPs {
		if address != corev1.ClusterIPNone {
			s.addresses = append(s.addresses, address)
		}
	}
	if o.Spec.Type == corev1.ServiceTypeExternalName {
		s.externalName, s.addresses = o.Spec.ExternalName, nil
	} else if o.Spec.ClusterIP != corev1.ClusterIPNone {
		s.selector = o.Spec.Selector
	}
	for i := range o.Spec.Ports {
		s.addPort(&o.Spec.Ports[i])
	}
	return s
}

func (s *spec) addPort(in *corev1.ServicePort) {
	if in.Protocol != "" && in.Protocol != corev1.ProtocolTCP {
		return
	}
	port := &networking.ServicePort{Number: uint32(in.Port), Name: in.Name,
		Protocol: protocolOf(in)}
	s.ports = append(s.ports, port)
	if len(s.selector) == 0 {
		return
	}
	own := &networking.ServicePort{Number: port.Number, Name: port.Name, Protocol: port.Protocol}
	switch {
	case in.TargetPort.Type == intstr.Int:
		own.TargetPort = uint32(in.TargetPort.IntVal)
	case in.TargetPort.StrVal != in.Name:
		return // a ServiceEntry cannot map the port to a target port with another name
	}
	s.workloadPorts = append(s.workloadPorts, own)
}

// protocolOf returns the protocol of a port as Istio does: appProtocol, else the prefix of the
// port's name, else TCP for well-known ports of protocols in which the server may send first, else
// "".
func protocolOf(port *corev1.ServicePort) string {
	name := port.Name
	if port.AppProtocol != nil {
		switch name = *port.AppProtocol; name {
		case "kubernetes.io/h2c":
			return "HTTP2"
		case "kubernetes.io/ws":
			return "HTTP"
		case "kubernetes.io/wss":
			return "HTTPS"
		}
	}
	const web = "GRPC-WEB"
	if upper := strings.ToUpper(name); strings.HasPrefix(upper, web) {
		return web
	} else if prefix, _, _ := strings.Cut(upper, "-"); prefix != "" {
		if _, known := model.ParseProtocol(prefix, ""); known {
			return prefix
		}
	}
	switch port.Port {
	case 25, 53, 3306, 27017: // SMTP, DNS, MySQL and MongoDB
		return "TCP"
	}
	return ""
}

// entry completes in, a ServiceEntry of the Service, and returns it as an object. index is its
// position among the Service's ServiceEntries.
func (s *spec) entry(path, suffix string, index int, in *networking.ServiceEntry) *object.Object {
	in.Hosts, in.ExportTo = []string{s.host}, s.exportTo
	return &object.Object{
		Key: object.Key{Kind: object.ServiceEntry, Namespace: s.namespace,
			Name: "service:" + s.name + suffix},
		APIVersion: object.NetworkingGroup + "/v1", Labels: s.labels, Annotations: s.annotations,
		Created: s.created, File: path, Index: index, Spec: in}
}

// entries returns the ServiceEntries for a Service: one with the addresses of the Service and with
// the endpoints that have all its ports; one for each smaller set of ports that other endpoints
// have; and one that selects WorkloadEntries. Only TCP ports are used. A Service without a TCP port
// has no ServiceEntry.
func (r *Registry) entries(path string, in *service) []*object.Object {
	s := in.spec
	switch {
	case len(s.ports) == 0:
		return nil
	case s.externalName != "":
		return []*object.Object{s.entry(path, "", 0, &networking.ServiceEntry{Ports: s.ports,
			Location: networking.ServiceEntry_MESH_EXTERNAL, Resolution: networking.ServiceEntry_DNS,
			Endpoints: []*networking.WorkloadEntry{{Address: s.externalName}}})}
	}
	groups := r.endpoints(in)
	all := s.portNames(nil)
	found := []*object.Object{s.entry(path, "", 0, &networking.ServiceEntry{Ports: s.ports,
		Addresses: s.addresses, Location: networking.ServiceEntry_MESH_INTERNAL,
		Resolution: networking.ServiceEntry_STATIC, Endpoints: groups[all]})}
	delete(groups, all)
	for _, names := range slices.Sorted(maps.Keys(groups)) {
		var ports []*networking.ServicePort
		for _, port := range s.ports {
			if slices.Contains(strings.Split(names, ","), port.Name) {
				ports = append(ports, port)
			}
		}
		found = append(found, s.entry(path, ":"+names, len(found), &networking.ServiceEntry{
			Ports: ports, Location: networking.ServiceEntry_MESH_INTERNAL,
			Resolution: networking.ServiceEntry_STATIC, Endpoints: groups[names]}))
	}
	if len(s.workloadPorts) > 0 {
		found = append(found, s.entry(path, ":workloads", len(found), &networking.ServiceEntry{
			Ports: s.workloadPorts, Location: networking.ServiceEntry_MESH_INTERNAL,
			Resolution:       networking.ServiceEntry_STATIC,
			WorkloadSelector: &networking.WorkloadSelector{Labels: s.selector}}))
	}
	return found
}

// portNames returns the names of the Service's ports, joined by commas. If only is not nil, it
// omits ports that are not in only.
func (s *spec) portNames(only map[string]uint32) string {
	names := make([]string, 0, len(s.ports))
	for _, port := range s.ports {
		if _, ok := only[port.Name]; ok || only == nil {
			names = append(names, port.Name)
		}
	}
	return strings.Join(names, ",")
}

// endpoints returns the endpoints of a Service, grouped by the names of their ports and sorted by
// address. A Pod with addresses of both families is one endpoint, with the family of the Service if
// possible.
func (r *Registry) endpoints(in *service) map[string][]*networking.WorkloadEntry {
	groups := map[string][]*networking.WorkloadEntry{}
	families := map[string]string{} // address family of each Pod's endpoint
	for _, slice := range in.sortedSlices() {
		ports := maps.Clone(slice.ports)
		maps.DeleteFunc(ports, func(name string, _ uint32) bool {
			return !slices.ContainsFunc(in.spec.ports, func(p *networking.ServicePort) bool {
				return p.Name == name
			})
		})
		if len(ports) == 0 {
			continue
		}
		names := in.spec.portNames(ports)
		for i := range slice.endpoints {
			e := &slice.endpoints[i]
			if e.pod != "" {
				if family, ok := families[e.pod]; ok && family != slice.family {
					continue
				}
				families[e.pod] = slice.family
			}
			if w := r.workload(e, ports); w != nil {
				groups[names] = append(groups[names], w)
			}
		}
	}
	for _, group := range groups {
		slices.SortStableFunc(group, func(a, b *networking.WorkloadEntry) int {
			return cmp.Compare(a.Address, b.Address)
		})
	}
	return groups
}

// workload returns the WorkloadEntry for an endpoint. It returns nil if the Pod, which has the
// service account, is not known yet.
func (r *Registry) workload(e *endpoint, ports map[string]uint32) *networking.WorkloadEntry {
	w := &networking.WorkloadEntry{Address: e.address, Ports: ports, Locality: r.nodes[e.node]}
	if e.pod == "" {
		return w
	}
	p, ok := r.pods[e.pod]
	if !ok {
		return nil
	}
	w.Labels, w.ServiceAccount = p.labels, p.account
	w.Network = p.labels[model.NetworkLabel]
	if e.node == "" {
		w.Locality = r.nodes[p.node]
	}
	if p.where != "" {
		w.Locality = p.where
	}
	return w
}
