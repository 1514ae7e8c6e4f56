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

// rescope determines which Sidecar applies, if that may have changed. If another one applies, it
// returns a ChangeSummary of everything.
func (s *sidecar) rescope(v *ProxyView, touched model.ChangeSummary) model.ChangeSummary {
	if s.scope != nil && !touched.SidecarsChanged {
		return touched
	}
	scope := v.world.SidecarScope(v.node)
	if scope.Equal(s.scope) {
		touched.SidecarsChanged = false
		return touched
	}
	s.scope = scope
	s.reportShadowed(v)
	s.capture(v)
	s.readProxy(v)
	s.replaceProxies(v)
	for _, p := range s.ports {
		p.listenerDirty, p.routesDirty = true, true
	}
	everything := v.world.EverythingChanged()
	for host := range touched.ChangedHosts { // hosts that do not exist any more are touched as well
		everything.ChangedHosts[host] = struct{}{}
	}
	return everything
}

// reportShadowed reports Sidecars that have no effect because an older one applies.
func (s *sidecar) reportShadowed(v *ProxyView) {
	var problems []object.Problem
	for _, o := range s.scope.Shadowed {
		by := s.scope.Object
		problems = append(problems, o.Warning("workloadSelector", fmt.Sprintf(
			"%s at %s is for the same proxies, is older and takes precedence", by.Key,
			by.Position()), "let one Sidecar apply to a proxy"))
	}
	v.report("sidecar", problems)
}

// capture publishes the cluster for requests to unknown hosts, and the listeners and clusters for
// captured connections.
func (s *sidecar) capture(v *ProxyView) {
	var unknown translate.Clusters
	policy := s.scope.OutboundPolicy(v.world)
	if policy.DynamicDNS {
		unknown = translate.DynamicDNSClusters(v.world.MeshConfig(), v.node)
	}
	v.put("unknown", unknown.Resources...)
	v.report("unknown", unknown.Problems)
	v.secrets.need("unknown", unknown.Secrets)
	const unit = "capture"
	if !v.node.IsIntercepted() {
		return
	}
	clusters, err := translate.UnknownDestinationClusters(v.world.MeshConfig(), v.node)
	if err == nil {
		var listener *resource.Resource
		if listener, err = translate.VirtualOutbound(v.world.MeshConfig(), v.node,
			s.fallback(v), v.metrics(model.ClientMode), &v.telemetry.client,
			policy.DynamicDNS); err == nil {
			v.put(unit, append(clusters, listener)...)
		}
	}
	var problems []object.Problem
	if err != nil {
		problems = append(problems, object.Problem{Severity: condition.Error,
			Message: "cannot build the listeners of captured connections: " + err.Error()})
	}
	v.report(unit, problems)
}

// fallback returns the cluster for captured connections to unknown destinations.
func (s *sidecar) fallback(v *ProxyView) string {
	policy := s.scope.OutboundPolicy(v.world)
	switch {
	case !policy.AllowAny:
		return translate.BlackHoleCluster
	case policy.EgressProxy != nil:
		return proxyCluster(policy)
	}
	return translate.PassthroughCluster
}

// unknown returns the virtual host for requests to unknown hosts on a listener. Without
// interception the original destination is not known, so requests can only be forwarded to the
// egress proxy, or to the addresses in DNS. The latter are blocked if remote hosts may reach the
// listener.
func (s *sidecar) unknown(v *ProxyView, at bindAddress) *routev3.VirtualHost {
	switch policy := s.scope.OutboundPolicy(v.world); {
	case policy.DynamicDNS && at.isReachable():
		return translate.BlockAllHost()
	case policy.DynamicDNS:
		return translate.DynamicDNSHost()
	case policy.AllowAny && policy.EgressProxy != nil:
		return translate.AllowAnyHost(proxyCluster(policy))
	case policy.AllowAny && v.node.IsIntercepted():
		return translate.AllowAnyHost(translate.PassthroughCluster)
	}
	return translate.BlockAllHost()
}

func proxyCluster(policy model.OutboundPolicy) string {
	return translate.ClusterName(policy.EgressProxy.GetPort().GetNumber(),
		policy.EgressProxy.Subset,
		policy.EgressProxy.Host)
}

// egressProxy identifies the scope's egress proxy as a reader in readers.
const egressProxy = "\x00egressProxy"

// readProxy records the egress proxy for unknown traffic as a reader of its host, so that the host
// gets clusters.
func (s *sidecar) readProxy(v *ProxyView) {
	reads := map[string]struct{}{}
	if proxy := s.scope.OutboundPolicy(v.world).EgressProxy; proxy != nil {
		reads[proxy.Host] = struct{}{}
	}
	s.read(egressProxy, reads)
}
