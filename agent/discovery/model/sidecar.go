package model

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

// SidecarScope is the part of the mesh that one Sidecar object makes visible to its proxies: the
// services and VirtualServices that its egress listeners import.
type SidecarScope struct {
	Object   *object.Object      // Sidecar that applies; nil: none, and everything is visible
	Spec     *networking.Sidecar // spec of Object; nil if Object is nil
	Shadowed []*object.Object    // younger Sidecars that match as well and have no effect
	egress   []*EgressListener
}

// EgressListener is one egress listener of a scope.
type EgressListener struct {
	Spec    *networking.IstioEgressListener // spec of the listener; nil: unrestricted
	Index   int                             // index in the Sidecar's egress list
	reader  string                          // namespace of the proxy to which the listener belongs
	imports []pattern
	exclude []pattern // hosts that are excluded from the imports
}

// pattern is a "namespace/host" pattern of an egress listener; namespace "*" matches all.
type pattern struct{ namespace, host string }

// SidecarScope returns the scope of a sidecar, defined by one Sidecar object: the oldest in its
// namespace whose workloadSelector matches, else the oldest without a selector, else the oldest
// without a selector in the root namespace.
func (w *Mesh) SidecarScope(node Node) *SidecarScope {
	var selected, plain, root []*object.Object
	for _, o := range w.sidecars {
		selector := o.Spec.(*networking.Sidecar).GetWorkloadSelector().GetLabels()
		switch {
		case o.Namespace == node.Namespace && len(selector) > 0:
			if SelectorMatches(selector, node.Labels) {
				selected = append(selected, o)
			}
		case o.Namespace == node.Namespace:
			plain = append(plain, o)
		case o.Namespace == w.mesh.RootNamespace && len(selector) == 0:
			root = append(root, o)
		}
	}
	for _, candidates := range [][]*object.Object{selected, plain, root} {
		if len(candidates) > 0 {
			return newScope(candidates[0], candidates[1:], node.Namespace)
		}
	}
	return &SidecarScope{egress: []*EgressListener{{reader: node.Namespace, imports: everything}}}
}

// everything is the list of imports of an unrestricted egress listener.
var everything = []pattern{{"*", "*"}}

func newScope(o *object.Object, shadowed []*object.Object, reader string) *SidecarScope {
	s := &SidecarScope{Object: o, Spec: o.Spec.(*networking.Sidecar), Shadowed: shadowed}
	for i, listener := range s.Spec.Egress {
		e := &EgressListener{Spec: listener, Index: i, reader: reader}
		for _, host := range listener.Hosts {
			namespace, name, _ := strings.Cut(strings.ToLower(host), "/")
			namespace, excluded := strings.CutPrefix(namespace, "~")
			switch namespace {
			case ".":
				namespace = reader
			case "": // the pattern ~/HOST excludes a host in all namespaces
				namespace = "*"
			}
			if excluded {
				e.exclude = append(e.exclude, pattern{namespace, name})
			} else {
				e.imports = append(e.imports, pattern{namespace, name})
			}
		}
		s.egress = append(s.egress, e)
	}
	if len(s.egress) == 0 {
		s.egress = []*EgressListener{{reader: reader, imports: everything}}
	}
	return s
}

// Equal reports whether two scopes are of the same Sidecar object, with the same Shadowed.
func (s *SidecarScope) Equal(other *SidecarScope) bool {
	return other != nil && s.Object == other.Object && slices.Equal(s.Shadowed, other.Shadowed)
}

// RestrictsEgress reports whether the scope may make services invisible.
func (s *SidecarScope) RestrictsEgress() bool { return s.Spec != nil && len(s.Spec.Egress) > 0 }

// EgressListener returns the egress listener for traffic to a port: the one with the port, else the
// one without a port. It returns nil if there is neither, or if an HTTP proxy has the port.
func (s *SidecarScope) EgressListener(port uint32) *EgressListener {
	for _, e := range s.egress {
		if number := e.Spec.GetPort().GetNumber(); number == port || number == 0 {
			if IsHTTPProxy(e.Spec) {
				return nil
			}
			return e
		}
	}
	return nil
}

// EgressListeners returns all egress listeners of the scope except HTTP proxies.
func (s *SidecarScope) EgressListeners() []*EgressListener {
	return slices.DeleteFunc(slices.Clone(s.egress),
		func(e *EgressListener) bool { return IsHTTPProxy(e.Spec) })
}

// ImportedService returns the service of a host that some egress listener imports, or nil.
func (s *SidecarScope) ImportedService(w *Mesh, host string) *Service {
	for _, e := range s.egress {
		if found := e.service(w, host); found != nil {
			return found
		}
	}
	return nil
}

// HasMatchingService reports whether the scope imports a service whose host matches a pattern.
func (s *SidecarScope) HasMatchingService(w *Mesh, pattern string) bool {
	for host := range w.services {
		if HostCovers(pattern, host) && s.ImportedService(w, host) != nil {
			return true
		}
	}
	return false
}

// ImportedPorts returns the imported ports of a host, each with the service that has precedence for
// the port.
func (s *SidecarScope) ImportedPorts(w *Mesh, host string) map[uint32]*Service {
	found := map[uint32]*Service{}
	chosen := map[*EgressListener]*Service{}
	for _, candidate := range w.services[host] {
		for i := range candidate.Ports {
			number := candidate.Ports[i].Number
			e := s.EgressListener(number)
			if e == nil {
				continue
			}
			service, known := chosen[e]
			if !known {
				service = e.service(w, host)
				chosen[e] = service
			}
			if service != nil && service.Port(number) != nil {
				found[number] = service
			}
		}
	}
	return found
}

// GetProtocol returns the protocol of the egress listener's port, "" if not set.
func (e *EgressListener) GetProtocol() string {
	if e == nil {
		return ""
	}
	return e.Spec.GetPort().GetProtocol()
}

// service returns the service of a host, as Mesh.Service does, if the egress listener imports it.
func (e *EgressListener) service(w *Mesh, host string) *Service {
	return w.service(host, e.reader, func(s *Service) bool {
		return !e.excludes(s.Namespace, host) && slices.ContainsFunc(e.imports,
			func(p pattern) bool { return p.takes(s.Namespace) && HostCovers(p.host, host) })
	})
}

// HTTPVirtualServices returns the VirtualServices of Mesh.HTTPVirtualServices that the egress
// listener imports.
func (e *EgressListener) HTTPVirtualServices(w *Mesh, host string) []*MergedVirtualService {
	return w.requests(host, e.reader, e.lets)
}

// TCPVirtualServices returns the VirtualServices of Mesh.TCPVirtualServices that the egress
// listener imports.
func (e *EgressListener) TCPVirtualServices(w *Mesh, host string) []*MergedVirtualService {
	return w.connections(host, e.reader, e.lets)
}

func (e *EgressListener) lets(r *MergedVirtualService) bool {
	return slices.ContainsFunc(e.imports, func(p pattern) bool {
		return p.takes(r.Object.Namespace) && slices.ContainsFunc(r.Hosts, func(h string) bool {
			return (HostCovers(p.host, h) || HostCovers(h, p.host)) && !e.excludes(r.Object.Namespace, h)
		})
	})
}

// excludes reports whether the egress listener excludes a host (which may be a wildcard) completely
// in a namespace.
func (e *EgressListener) excludes(namespace, host string) bool {
	return slices.ContainsFunc(e.exclude, func(p pattern) bool {
		return p.takes(namespace) &&
			HostCovers(p.host, host)
	})
}

func (p pattern) takes(namespace string) bool {
	return p.namespace == "*" ||
		p.namespace == namespace
}

// OutboundPolicy says where traffic to unknown destinations is sent.
type OutboundPolicy struct {
	AllowAny   bool // traffic to unknown destinations is forwarded
	DynamicDNS bool // requests to unknown hosts are forwarded to the addresses of the host
	// destination of traffic to unknown destinations; nil: its original one
	EgressProxy *networking.Destination
}

// OutboundPolicy returns the outbound policy of the Sidecar, or of the mesh if the Sidecar has
// none.
func (s *SidecarScope) OutboundPolicy(w *Mesh) OutboundPolicy {
	if p := s.Spec.GetOutboundTrafficPolicy(); p != nil {
		policy := OutboundPolicy{AllowAny: p.Mode == networking.OutboundTrafficPolicy_ALLOW_ANY}
		if to := p.EgressProxy; to != nil {
			policy.EgressProxy = &networking.Destination{Host: FullName(to.Host, s.Object.Namespace,
				w.domain), Subset: to.Subset, Port: to.Port}
		}
		return policy
	}
	return OutboundPolicy{AllowAny: w.mesh.AllowAnyOutbound, DynamicDNS: w.mesh.DynamicDNS}
}
