package model

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

// Scope is what the sidecars of one kind see of a world, as the Sidecar object that applies to them
// has it.
type Scope struct {
	Object   *object.Object      // nil: none applies, and everything is seen
	Spec     *networking.Sidecar // nil with Object
	Shadowed []*object.Object    // that would apply too, were they older
	egress   []*Egress
}

// Egress is one of the listeners that the outbound traffic of a scope comes to.
type Egress struct {
	Spec    *networking.IstioEgressListener // nil where nothing is restricted
	Index   int                             // in the Sidecar's egress
	reader  string                          // the namespace of the proxy
	imports []pattern
	exclude []pattern // of what imports let in
}

// pattern is "namespace/host" of an egress listener: "*" is every namespace.
type pattern struct{ namespace, host string }

// Scope returns what a sidecar sees: as the oldest Sidecar of its namespace says whose selector it
// answers to, else the oldest there without a selector, else the oldest of the root namespace
// without one.
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

// everything is what an egress listener lets in that is not restricted.
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
			case "": // ~/HOST excludes it in all namespaces
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

// Equal tells whether two scopes let the same in.
func (s *Scope) Equal(other *Scope) bool {
	return other != nil && s.Object == other.Object && slices.Equal(s.Shadowed, other.Shadowed)
}

// Restricts tells whether there may be something that the scope does not let in.
func (s *Scope) Restricts() bool { return s.Spec != nil && len(s.Spec.Egress) > 0 }

// Egress returns the listener that traffic to a port comes to: that with the port, else that
// without any. nil if there is none.
func (s *Scope) Egress(port uint32) *Egress {
	for _, e := range s.egress {
		if number := e.Spec.GetPort().GetNumber(); number == port || number == 0 {
			return e
		}
	}
	return nil
}

// Listeners are all that traffic of the scope comes to.
func (s *Scope) Listeners() []*Egress { return s.egress }

// Imports returns the service of a host that one of the listeners lets in, nil if none does.
func (s *Scope) Imports(w *World, host string) *Service {
	for _, e := range s.egress {
		if found := e.Service(w, host); found != nil {
			return found
		}
	}
	return nil
}

// HasServiceLike tells whether a service that a pattern covers is let in.
func (s *Scope) HasServiceLike(w *World, pattern string) bool {
	for host := range w.services {
		if Covers(pattern, host) && s.Imports(w, host) != nil {
			return true
		}
	}
	return false
}

// Ports are those of a host's services whose listeners let them in, each with the service that
// counts there.
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

// GetProtocol is what the listener's port is said to speak, "" where nothing is said.
func (e *Egress) GetProtocol() string {
	if e == nil {
		return ""
	}
	return e.Spec.GetPort().GetProtocol()
}

// Service returns the service of a host as World.Service does, among those that are let in.
func (e *Egress) Service(w *World, host string) *Service {
	return w.service(host, e.reader, func(s *Service) bool {
		return !e.excludes(s.Namespace, host) && slices.ContainsFunc(e.imports,
			func(p pattern) bool { return p.takes(s.Namespace) && Covers(p.host, host) })
	})
}

// Requests returns the VirtualServices for requests to a host as World.Requests does, among those
// that are let in.
func (e *Egress) Requests(w *World, host string) []*Routing {
	return w.requests(host, e.reader, e.lets)
}

// Connections returns the VirtualServices for connections to a host as World.Connections does,
// among those that are let in.
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

// excludes reports whether all of a host, perhaps with a wildcard, is excluded in a namespace.
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

// OutboundPolicy is what is done with traffic to what nobody knows.
type OutboundPolicy struct {
	AllowAny bool                    // it is let pass
	Proxy    *networking.Destination // through which; nil: to where it was addressed
}

// Policy returns what the Sidecar says, else the mesh.
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
