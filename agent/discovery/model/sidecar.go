package model

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

// Scope is the visible part of a world for some sidecars, as defined by their Sidecar object.
type Scope struct {
	Object   *object.Object      // nil: no Sidecar applies and everything is visible
	Spec     *networking.Sidecar // nil if Object is
	Shadowed []*object.Object    // younger Sidecars that match as well
	egress   []*Egress
}

// Egress is one egress listener of a scope.
type Egress struct {
	Spec    *networking.IstioEgressListener // nil: unrestricted
	Index   int                             // in the Sidecar's egress list
	reader  string                          // namespace of the proxy
	imports []pattern
	exclude []pattern // exceptions to imports
}

// pattern is a "namespace/host" pattern of an egress listener; namespace "*" matches all.
type pattern struct{ namespace, host string }

// Scope returns the scope of a sidecar: the oldest matching Sidecar of its namespace with a
// workloadSelector, else the oldest without one, else the oldest without one in the root namespace.
func (w *World) Scope(node Node) *Scope {
	var selected, plain, root []*object.Object
	for _, o := range w.sidecars {
		selector := o.Spec.(*networking.Sidecar).GetWorkloadSelector().GetLabels()
		switch {
		case o.Namespace == node.Namespace && len(selector) > 0:
			if Selects(selector, node.Labels) {
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
	return &Scope{egress: []*Egress{{reader: node.Namespace, imports: everything}}}
}

// everything is the import list of an unrestricted egress listener.
var everything = []pattern{{"*", "*"}}

func newScope(o *object.Object, shadowed []*object.Object, reader string) *Scope {
	s := &Scope{Object: o, Spec: o.Spec.(*networking.Sidecar), Shadowed: shadowed}
	for i, listener := range s.Spec.Egress {
		e := &Egress{Spec: listener, Index: i, reader: reader}
		for _, host := range listener.Hosts {
			namespace, name, _ := strings.Cut(strings.ToLower(host), "/")
			namespace, excluded := strings.CutPrefix(namespace, "~")
			switch namespace {
			case ".":
				namespace = reader
			case "": // ~/HOST excludes the host in all namespaces
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
		s.egress = []*Egress{{reader: reader, imports: everything}}
	}
	return s
}

// Equal reports whether two scopes import the same.
func (s *Scope) Equal(other *Scope) bool {
	return other != nil && s.Object == other.Object && slices.Equal(s.Shadowed, other.Shadowed)
}

// Restricts reports whether the scope may hide services.
func (s *Scope) Restricts() bool { return s.Spec != nil && len(s.Spec.Egress) > 0 }

// Egress returns the egress listener for traffic to a port: the one with that port, else the one
// without a port, else nil.
func (s *Scope) Egress(port uint32) *Egress {
	for _, e := range s.egress {
		if number := e.Spec.GetPort().GetNumber(); number == port || number == 0 {
			return e
		}
	}
	return nil
}

// Listeners returns all egress listeners of the scope.
func (s *Scope) Listeners() []*Egress { return s.egress }

// Imports returns the service of a host that any egress listener imports, or nil.
func (s *Scope) Imports(w *World, host string) *Service {
	for _, e := range s.egress {
		if found := e.Service(w, host); found != nil {
			return found
		}
	}
	return nil
}

// HasServiceLike reports whether the scope imports a service that a pattern covers.
func (s *Scope) HasServiceLike(w *World, pattern string) bool {
	for host := range w.services {
		if Covers(pattern, host) && s.Imports(w, host) != nil {
			return true
		}
	}
	return false
}

// Ports returns the imported ports of a host, each with the service that has precedence there.
func (s *Scope) Ports(w *World, host string) map[uint32]*Service {
	found := map[uint32]*Service{}
	chosen := map[*Egress]*Service{}
	for _, candidate := range w.services[host] {
		for i := range candidate.Ports {
			number := candidate.Ports[i].Number
			e := s.Egress(number)
			if e == nil {
				continue
			}
			service, known := chosen[e]
			if !known {
				service = e.Service(w, host)
				chosen[e] = service
			}
			if service != nil && service.Port(number) != nil {
				found[number] = service
			}
		}
	}
	return found
}

// GetProtocol returns the protocol of the listener's port, "" if not set.
func (e *Egress) GetProtocol() string {
	if e == nil {
		return ""
	}
	return e.Spec.GetPort().GetProtocol()
}

// Service is World.Service restricted to what the listener imports.
func (e *Egress) Service(w *World, host string) *Service {
	return w.service(host, e.reader, func(s *Service) bool {
		return !e.excludes(s.Namespace, host) && slices.ContainsFunc(e.imports,
			func(p pattern) bool { return p.takes(s.Namespace) && Covers(p.host, host) })
	})
}

// Requests is World.Requests restricted to what the listener imports.
func (e *Egress) Requests(w *World, host string) []*Routing {
	return w.requests(host, e.reader, e.lets)
}

// Connections is World.Connections restricted to what the listener imports.
func (e *Egress) Connections(w *World, host string) []*Routing {
	return w.connections(host, e.reader, e.lets)
}

func (e *Egress) lets(r *Routing) bool {
	return slices.ContainsFunc(e.imports, func(p pattern) bool {
		return p.takes(r.Object.Namespace) && slices.ContainsFunc(r.Hosts, func(h string) bool {
			return (Covers(p.host, h) || Covers(h, p.host)) && !e.excludes(r.Object.Namespace, h)
		})
	})
}

// excludes reports whether the listener excludes all of a host, which may be a wildcard, in a
// namespace.
func (e *Egress) excludes(namespace, host string) bool {
	return slices.ContainsFunc(e.exclude, func(p pattern) bool {
		return p.takes(namespace) &&
			Covers(p.host, host)
	})
}

func (p pattern) takes(namespace string) bool {
	return p.namespace == "*" ||
		p.namespace == namespace
}

// OutboundPolicy says how to handle traffic to unknown destinations.
type OutboundPolicy struct {
	AllowAny bool                    // pass it on
	Proxy    *networking.Destination // the egress proxy; nil: pass it to the original destination
}

// Policy returns the outbound policy of the Sidecar, else of the mesh.
func (s *Scope) Policy(w *World) OutboundPolicy {
	if p := s.Spec.GetOutboundTrafficPolicy(); p != nil {
		policy := OutboundPolicy{AllowAny: p.Mode == networking.OutboundTrafficPolicy_ALLOW_ANY}
		if to := p.EgressProxy; to != nil {
			policy.Proxy = &networking.Destination{Host: FullName(to.Host, s.Object.Namespace,
				w.domain), Subset: to.Subset, Port: to.Port}
		}
		return policy
	}
	return OutboundPolicy{AllowAny: w.mesh.AllowAny}
}
