package view

import (
	"fmt"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// rescope finds out which Sidecar applies, if that may have changed; another one touches
// everything.
func (s *sidecar) rescope(v *View, touched model.Touched) model.Touched {
	if s.scope != nil && !touched.Sidecars {
		return touched
	}
	scope := v.world.Scope(v.node)
	if scope.Equal(s.scope) {
		touched.Sidecars = false
		return touched
	}
	s.scope = scope
	s.tellShadowed(v)
	s.capture(v)
	s.readProxy(v)
	for _, p := range s.ports {
		p.listenerDirty, p.routesDirty = true, true
	}
	everything := v.world.Everything()
	for host := range touched.Hosts { // that are gone
		everything.Hosts[host] = struct{}{}
	}
	return everything
}

// tellShadowed tells of Sidecars that do not count.
func (s *sidecar) tellShadowed(v *View) {
	var problems []object.Problem
	for _, o := range s.scope.Shadowed {
		by := s.scope.Object
		problems = append(problems, o.Problem(object.Finding{Field: "workloadSelector",
			Severity: condition.Warning,
			Message: fmt.Sprintf("%s at %s:%d is for the same proxies, is older and counts",
				by.Key, by.File, by.Line), Cure: "let one Sidecar apply to a proxy"}))
	}
	v.tell("sidecar", problems)
}

// capture makes what takes captured connections.
func (s *sidecar) capture(v *View) {
	const unit = "capture"
	if !v.node.Captured() {
		return
	}
	clusters, err := translate.CaptureClusters(v.world.Mesh(), v.node)
	if err == nil {
		var listener *resource.Resource
		if listener, err = translate.VirtualOutbound(v.world.Mesh(), v.node,
			s.fallback(v)); err == nil {
			v.put(unit, append(clusters, listener)...)
		}
	}
	var problems []object.Problem
	if err != nil {
		problems = append(problems, object.Problem{Severity: condition.Error,
			Message: "what takes captured connections cannot be made: " + err.Error()})
	}
	v.tell(unit, problems)
}

// fallback is the cluster of captured connections that nobody knows.
func (s *sidecar) fallback(v *View) string {
	policy := s.scope.Policy(v.world)
	switch {
	case !policy.AllowAny:
		return translate.BlackHoleCluster
	case policy.Proxy != nil:
		return proxyCluster(policy)
	}
	return translate.PassthroughCluster
}

// unknown is what is done with requests to hosts that nobody knows. Without interception they can
// be let pass to a proxy only: where they were meant to go is not known.
func (s *sidecar) unknown(v *View) *routev3.VirtualHost {
	switch policy := s.scope.Policy(v.world); {
	case policy.AllowAny && policy.Proxy != nil:
		return translate.AllowAny(proxyCluster(policy))
	case policy.AllowAny && v.node.Captured():
		return translate.AllowAny(translate.PassthroughCluster)
	}
	return translate.BlockAll()
}

func proxyCluster(policy model.OutboundPolicy) string {
	return translate.ClusterName(policy.Proxy.GetPort().GetNumber(), policy.Proxy.Subset,
		policy.Proxy.Host)
}

// egressProxy is what stands for the proxy of a scope among those that read hosts.
const egressProxy = "\x00egressProxy"

// readProxy gives the proxy that unknown traffic is sent through its clusters, and tells if it is
// not there.
func (s *sidecar) readProxy(v *View) {
	reads := map[string]struct{}{}
	if proxy := s.scope.Policy(v.world).Proxy; proxy != nil {
		reads[proxy.Host] = struct{}{}
	}
	s.read(egressProxy, reads)
}
