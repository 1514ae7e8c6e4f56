package model

import (
	"maps"
	"slices"

	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// MutualTLSMode is the mode of mutual TLS for connections to a workload. The zero value, UNSET,
// means that no PeerAuthentication sets a mode; it has the effect of PERMISSIVE.
type MutualTLSMode = security.PeerAuthentication_MutualTLS_Mode

// Modes of mutual TLS.
const (
	Unset      = security.PeerAuthentication_MutualTLS_UNSET
	Disable    = security.PeerAuthentication_MutualTLS_DISABLE
	Permissive = security.PeerAuthentication_MutualTLS_PERMISSIVE
	Strict     = security.PeerAuthentication_MutualTLS_STRICT
)

// EffectivePeerAuthentication is the combined policy of the PeerAuthentications for connections to
// a workload.
type EffectivePeerAuthentication struct {
	Default MutualTLSSetting
	Ports   map[uint32]MutualTLSSetting // modes of the workload's ports that have a mode of their own
	// Shadowed are PeerAuthentications without effect, because an older one applies to the same
	// mesh, namespace or workload.
	Shadowed []ShadowedObject
}

// MutualTLSSetting is a mode of mutual TLS, with the object that sets it.
type MutualTLSSetting struct {
	Mode   MutualTLSMode
	Object *object.Object // PeerAuthentication that sets the mode; nil if Mode is UNSET
	Field  string         // field of Object that sets the mode
}

// Origins returns the origin of the object that sets the mode, none if Mode is UNSET.
func (m MutualTLSSetting) Origins() []resource.Origin {
	if m.Object == nil {
		return nil
	}
	return []resource.Origin{m.Object.Origin()}
}

// Origins returns the origins of all objects that set a mode.
func (p EffectivePeerAuthentication) Origins() []resource.Origin {
	all := p.Default.Origins()
	for _, mode := range p.Ports {
		for _, o := range mode.Origins() {
			if !slices.Contains(all, o) {
				all = append(all, o)
			}
		}
	}
	return all
}

// ShadowedObject is an object that has no effect because Winner has precedence.
type ShadowedObject struct{ Object, Winner *object.Object }

// PortMode returns the mode of mutual TLS of a port.
func (p EffectivePeerAuthentication) PortMode(port uint32) MutualTLSSetting {
	if mode, ok := p.Ports[port]; ok {
		return mode
	}
	return p.Default
}

// peerPolicies holds all PeerAuthentications. It is immutable.
type peerPolicies struct {
	objects []*object.Object // all PeerAuthentications, the oldest first
	root    string           // root namespace, whose PeerAuthentication may apply to the whole mesh
}

// EffectivePeerAuthentication returns the policy that PeerAuthentications set for a proxy.
func (w *Mesh) EffectivePeerAuthentication(node Node) EffectivePeerAuthentication {
	return w.peers.of(node.Namespace, node.Labels)
}

// of returns the policy of a workload. The mode of the mesh is overridden by that of the namespace,
// which is overridden by that of the workload, unless the latter is UNSET. Of several
// PeerAuthentications on the same level, the oldest one applies.
func (p *peerPolicies) of(namespace string, labels map[string]string) EffectivePeerAuthentication {
	var policy EffectivePeerAuthentication
	var levels [3]*object.Object // PeerAuthentications for the mesh, the namespace and the workload
	for _, o := range p.objects {
		selector := peerSpec(o).GetSelector().GetMatchLabels()
		level := 0
		switch {
		case o.Namespace == p.root && len(selector) == 0:
		case o.Namespace == p.root || o.Namespace != namespace || !SelectorMatches(selector, labels):
			continue
		case len(selector) == 0:
			level = 1
		default:
			level = 2
		}
		if levels[level] == nil {
			levels[level] = o
		} else {
			policy.Shadowed = append(policy.Shadowed, ShadowedObject{o, levels[level]})
		}
	}
	for _, o := range levels {
		if mode := peerSpec(o).GetMtls().GetMode(); mode != Unset {
			policy.Default = MutualTLSSetting{mode, o, "mtls.mode"}
		}
	}
	if own := peerSpec(levels[2]).GetPortLevelMtls(); len(own) > 0 {
		policy.Ports = make(map[uint32]MutualTLSSetting, len(own))
		for port, mtls := range own {
			policy.Ports[port] = policy.Default
			if mode := mtls.GetMode(); mode != Unset {
				policy.Ports[port] = MutualTLSSetting{mode, levels[2], "portLevelMtls"}
			}
		}
	}
	return policy
}

// namespace returns the mode of a namespace. It ignores modes of single workloads.
func (p *peerPolicies) namespace(namespace string) MutualTLSMode {
	return p.of(namespace, nil).Default.Mode
}

// peerSpec returns the spec of a PeerAuthentication; for a nil object it returns nil.
func peerSpec(o *object.Object) *security.PeerAuthentication {
	if o == nil {
		return nil
	}
	return o.Spec.(*security.PeerAuthentication)
}

// changePeers applies a change of a PeerAuthentication. It adds to hosts the hosts whose endpoints
// the PeerAuthentication may select.
func (w *Mesh) changePeers(c object.Change, hosts map[string]struct{}) {
	w.peers = &peerPolicies{objects: replace(w.peers.objects, c), root: w.mesh.RootNamespace}
	for _, o := range []*object.Object{c.Old, c.New} {
		if o == nil {
			continue
		}
		for host, services := range w.services {
			for _, s := range services {
				if (s.Namespace == o.Namespace || o.Namespace == w.peers.root) &&
					slices.ContainsFunc(s.Ports, func(p Port) bool { return p.IsMeshInternal() }) {
					hosts[host] = struct{}{}
				}
			}
		}
	}
}

// moveRoot updates the services after a change of the root namespace.
func (w *Mesh) moveRoot() {
	if w.peers.root == w.mesh.RootNamespace {
		return
	}
	w.peers = &peerPolicies{objects: w.peers.objects, root: w.mesh.RootNamespace}
	for host := range maps.Keys(w.services) {
		w.services[host] = newServices(host, w.entries[host], w.workloads, w.peers)
	}
}

// IsMeshInternal reports whether the ServiceEntry of the port describes workloads of the mesh.
func (p *Port) IsMeshInternal() bool {
	return p.Entry.Location == networking.ServiceEntry_MESH_INTERNAL
}

// DisablesMutualTLS reports whether the PeerAuthentications of the service's namespace disable
// mutual TLS.
func (s *Service) DisablesMutualTLS() bool { return s.peers.namespace(s.Namespace) == Disable }

// TLSModeLabel is the label of a workload from which clients learn whether the workload accepts
// mutual TLS. The value hasIdentity means that it does.
const (
	TLSModeLabel = "security.istio.io/tlsMode"
	hasIdentity  = "istio"
)

// takesMutualTLS reports whether an endpoint has an identity of the mesh: its label says so, or,
// without the label, it has a service account.
func takesMutualTLS(e *networking.WorkloadEntry) bool {
	if mode, ok := e.Labels[TLSModeLabel]; ok {
		return mode == hasIdentity
	}
	return e.ServiceAccount != ""
}
