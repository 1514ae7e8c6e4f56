package view

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
)

// ServedPorts are the service ports that the host of a captured proxy serves. If the proxy's
// Sidecar has no ingress, its resources depend on its addresses only through these ports.
type ServedPorts struct {
	// EquivalenceKey is equal for hosts whose proxies get equal resources, provided the proxies are
	// otherwise of one kind.
	EquivalenceKey string
	Problems       []object.Problem
	ports          []inboundPort
}

// SelectServedPorts selects, from the service ports at the addresses of a proxy's host, those
// that the proxy serves.
func SelectServedPorts(w *model.Mesh, node model.Node, scope *model.SidecarScope,
	candidates []EndpointPort) ServedPorts {
	candidates = slices.DeleteFunc(candidates, func(s EndpointPort) bool {
		return s.service.Namespace != node.Namespace ||
			w.Service(s.service.Host, node.Namespace) != s.service
	})
	ports, problems := servicePorts(w, node, scope, candidates)
	return ServedPorts{EquivalenceKey: keyOf(ports), Problems: dedupe(problems), ports: ports}
}

func keyOf(ports []inboundPort) string {
	var key strings.Builder
	for _, p := range ports {
		fmt.Fprintf(&key, "%d %q %d %s %s", p.Port, p.Name, p.Protocol, p.host, p.SpanName)
		if p.ConnectionPool != nil {
			text, err := proto.MarshalOptions{Deterministic: true}.Marshal(p.ConnectionPool)
			fmt.Fprintf(&key, " %x %v", text, err)
		}
		key.WriteByte('\n')
	}
	return key.String()
}

// SameObjects reports whether the ports come from the same versions of objects.
func (o ServedPorts) SameObjects(other ServedPorts) bool {
	return slices.EqualFunc(o.ports, other.ports, func(a, b inboundPort) bool {
		return a.object == b.object && a.field == b.field
	})
}

// SetServedPorts sets the ports that the hosts of all proxies of the view serve. They replace
// the ports found by the node's addresses. The next Update publishes them.
func (v *ProxyView) SetServedPorts(own ServedPorts) { v.own, v.ownChanged = &own, true }

// ServedPorts returns the ports set by SetServedPorts; the zero value if it was not
// called.
func (v *ProxyView) ServedPorts() (own ServedPorts) {
	if v.own != nil {
		own = *v.own
	}
	return own
}

// EndpointPort is a port that a service has at the address of an endpoint.
type EndpointPort struct {
	service *model.Service
	port    *model.Port
	order   int    // index of port in the service
	target  uint32 // port on which the application listens
}

// Host returns the host of the service.
func (s EndpointPort) Host() string { return s.service.Host }

// EndpointPortsByAddress returns the ports of all services of a host, by address. It ignores
// visibility.
func EndpointPortsByAddress(w *model.Mesh, host string) map[string][]EndpointPort {
	all := map[string][]EndpointPort{}
	for _, service := range w.Services(host) {
		eachServedPort(service, func(address string, s EndpointPort) {
			all[address] = append(all[address], s)
		})
	}
	return all
}

// eachServedPort calls do for each port of a service and each address that may be an address of a
// host.
func eachServedPort(service *model.Service, do func(address string, s EndpointPort)) {
	for i := range service.Ports {
		port := &service.Ports[i]
		if port.Entry.Resolution != networking.ServiceEntry_STATIC {
			continue
		}
		for _, e := range service.Endpoints(port, nil) {
			if parsed, err := netip.ParseAddr(e.Address); err == nil {
				do(parsed.String(), EndpointPort{service, port, i, e.Port})
			}
		}
	}
}

// servedBy returns the ports of a host's service, in the proxy's namespace, that have an endpoint
// on this machine.
func servedBy(w *model.Mesh, node model.Node, host string) (found []EndpointPort) {
	service := w.Service(host, node.Namespace)
	if service == nil || service.Namespace != node.Namespace || len(node.Addresses) == 0 {
		return nil
	}
	eachServedPort(service, func(address string, s EndpointPort) {
		if slices.Contains(node.Addresses, address) {
			found = append(found, s)
		}
	})
	return found
}

// servicePorts returns the ports of the services that a machine serves, sorted by number. Of two
// with the same number, the older one applies.
func servicePorts(w *model.Mesh, node model.Node, scope *model.SidecarScope, all []EndpointPort) (
	[]inboundPort, []object.Problem) {
	var problems []object.Problem
	byPort := map[uint32]inboundPort{}
	slices.SortFunc(all, func(a, b EndpointPort) int {
		return cmp.Or(object.CompareAge(a.service.OldestServiceEntry(),
			b.service.OldestServiceEntry()),
			cmp.Compare(a.service.Host, b.service.Host), cmp.Compare(a.target, b.target),
			cmp.Compare(a.order, b.order))
	})
	all = slices.CompactFunc(all, func(a, b EndpointPort) bool {
		// of several ports of a service with the same target port, the first one applies
		return a.service == b.service && a.target == b.target
	})
	for _, s := range all {
		field := fmt.Sprintf("ports[%d]", member{port: s.port}.index())
		if by, ok := byPort[s.target]; ok {
			if by.Protocol != s.port.Protocol && by.host != s.service.Host {
				problems = append(problems, s.port.Object.Warning(field, fmt.Sprintf(
					"what comes in by port %d speaks another protocol for host %s of "+
						"%s, which is older and takes precedence", s.target, by.host,
					by.object.Position()), "give both ports one protocol"))
			}
			continue
		}
		pool := scope.Spec.GetInboundConnectionPool()
		if pool == nil {
			pool = translate.ConnectionPool(w.DestinationRule(s.service, node), s.port.Number)
		}
		byPort[s.target] = inboundPort{object: s.port.Object, field: field, host: s.service.Host,
			InboundListener: translate.InboundListener{Port: s.target, Name: s.port.Name,
				Protocol: s.port.Protocol,
				SpanName: translate.SpanName(s.service.Host, s.port.Number), ConnectionPool: pool}}
	}
	ports := make([]inboundPort, 0, len(byPort))
	counted := w.Metrics(node, model.ServerMode) != nil
	traced := w.Tracing(node, model.ServerMode) != nil
	for _, d := range byPort {
		// If neither metrics nor traces name the service, proxies of different services share a
		// view.
		if !counted {
			d.host = ""
		}
		if !traced {
			d.SpanName = ""
		}
		ports = append(ports, d)
	}
	slices.SortFunc(ports, func(a, b inboundPort) int { return cmp.Compare(a.Port, b.Port) })
	return ports, problems
}
