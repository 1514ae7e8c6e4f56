package discovery

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/explain"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/view"
	"outrider.org/outrider/agent/resource"
)

// Explanation describes how a proxy handles a request, with the problems that may explain it: those
// of the objects that determine the answer, and those that mention the request's host.
type Explanation struct {
	explain.Answer
	Problems []Problem
}

// mostRelated bounds the number of problems in an explanation. It also bounds the origins of a step
// of the explanation: if a step has more, all of them are ignored.
const mostRelated = 10

// Explain returns how a proxy with a node would handle a request. It returns an error if the proxy
// would get no resources.
func (s *Server) Explain(node *corev3.Node, request explain.Request,
	state explain.EnvoyState) (Explanation, error) {
	v, err := s.viewOf(node)
	if err != nil {
		return Explanation{}, err
	}
	n, err := parseNode(node, v.Node().Namespace)
	if err != nil {
		return Explanation{}, err
	}
	s.mu.Lock()
	// several hosts may share the view, so the addresses are those of the node
	proxy := proxyOf(v.ProxyView, n.Addresses)
	request = addressed(request, v.Node(), v.Mesh())
	proxy.NonSelectingGateway, proxy.NonSelectingGatewayFix = idleGateway(v.Mesh(), v.Node(),
		request.Port)
	problems, peer := s.problems, peerOf(v.Mesh(), v.Node())
	why, fix := lostGateway(v.Mesh(), request.Host)
	var process ProxySettings
	if s.options.FilesAreLocal {
		process = v.Mesh().ProxySettings(v.Node())
	}
	s.mu.Unlock()

	proxy.VirtualHostOrigins = func(routes, domain string) []resource.Origin {
		s.mu.Lock()
		defer s.mu.Unlock()
		return v.VirtualHostOrigins(routes, domain)
	}
	proxy.FilterOrigins = func(listener, filter string) []resource.Origin {
		s.mu.Lock()
		defer s.mu.Unlock()
		return v.FilterOrigins(listener, filter)
	}
	snapshot, _ := v.Feed().Current()
	proxy.RefusalReason = func(key resource.Key) string {
		if of := snapshot.Refusal(key); of != nil {
			return of.Reason
		}
		return ""
	}
	proxy.PeerMutualTLS = func(cluster, endpoint string) explain.PeerMutualTLS {
		s.mu.Lock()
		defer s.mu.Unlock()
		return peer(cluster, endpoint)
	}
	proxy.ClusterStats, proxy.SPIFFEID = state.ClusterStats, state.SPIFFEID
	answer := withProcess(explain.Explain(proxy, request), process)
	return explained(answer, request, problems, why, fix), nil
}

// Explain returns how a proxy configured by files and directories would handle a request. It reads
// them as Check does.
func Explain(paths []string, options CheckOptions, request explain.Request) (Explanation, error) {
	c, err := read(paths, options)
	if err != nil {
		return Explanation{}, err
	}
	proxy := proxyOf(c.view, c.view.Node().Addresses)
	proxy.VirtualHostOrigins, proxy.PeerMutualTLS = c.view.VirtualHostOrigins, peerOf(c.world,
		c.view.Node())
	proxy.FilterOrigins = c.view.FilterOrigins
	proxy.NonSelectingGateway, proxy.NonSelectingGatewayFix = idleGateway(c.world, c.view.Node(),
		request.Port)
	why, fix := lostGateway(c.world, request.Host)
	answer := withProcess(explain.Explain(proxy, addressed(request, c.view.Node(), c.world)),
		c.world.ProxySettings(c.view.Node()))
	return explained(answer, request, c.problems, why, fix), nil
}

// explained adds problems to an answer. If the request fails, it also adds why and fix, which name
// a missing Gateway (lostGateway).
func explained(answer explain.Answer, request explain.Request, problems []Problem,
	why, fix string) Explanation {
	if answer.Reason != "" && why != "" {
		answer.Reason, answer.Fix = answer.Reason+"; "+why, fix
	}
	return Explanation{Answer: answer, Problems: related(answer, request, problems)}
}

// proxyOf describes a proxy of a view for the explanation: its current resources and its addresses.
func proxyOf(v *view.ProxyView, addresses []string) explain.Proxy {
	snapshot, _ := v.Feed().Current()
	proxy := explain.Proxy{Resources: snapshot, IsGateway: v.Node().Type == model.Router,
		Captured: v.Node().IsIntercepted()}
	for _, text := range addresses {
		if address, err := netip.ParseAddr(text); err == nil {
			proxy.OwnAddresses = append(proxy.OwnAddresses, address)
		}
	}
	return proxy
}

// addressed sets the destination address of a captured outbound connection, if the request has
// none: the request's host if that is an address, else the first address of the host's service.
func addressed(request explain.Request, node model.Node, world *model.Mesh) explain.Request {
	if request.DestinationAddress.IsValid() || !node.IsIntercepted() || request.Inbound() {
		return request
	}
	if address, err := netip.ParseAddr(request.Host); err == nil {
		request.DestinationAddress = address
		return request
	}
	service := world.Service(request.Host, node.Namespace)
	if service == nil {
		return request
	}
	if port := service.Port(request.Port); port != nil {
		for _, text := range port.Entry.Addresses {
			if address, err := netip.ParseAddr(text); err == nil {
				request.DestinationAddress = address
				return request
			}
		}
	}
	return request
}

// peerOf returns a function that returns the mode of mutual TLS of an endpoint.
func peerOf(world *model.Mesh, node model.Node) func(cluster,
	endpoint string) explain.PeerMutualTLS {
	return func(cluster, endpoint string) explain.PeerMutualTLS {
		// the name of a cluster: outbound|80|v1|reviews.example.com
		parts := strings.SplitN(cluster, "|", 4)
		if len(parts) < 4 {
			return explain.PeerMutualTLS{}
		}
		service := world.Service(parts[3], node.Namespace)
		number, _ := strconv.ParseUint(parts[1], 10, 16)
		if service == nil || service.Port(uint32(number)) == nil {
			return explain.PeerMutualTLS{}
		}
		port := service.Port(uint32(number))
		for _, e := range service.Endpoints(port, nil) {
			if net.JoinHostPort(e.Address, fmt.Sprint(e.Port)) == endpoint && port.IsMeshInternal() {
				mode := service.MutualTLSSetting(e)
				if mode.Object == nil {
					break
				}
				return explain.PeerMutualTLS{Mode: mode.Mode.String(),
					Policy:        mode.Object.Origin().String(),
					AutoMutualTLS: e.MutualTLS}
			}
		}
		return explain.PeerMutualTLS{}
	}
}

// related returns the problems of the objects that determine an answer, and those that mention the
// request's host. If no listener accepts the connection, it adds problems that mention the
// request's port. If the request fails, it adds problems of whole files: an unreadable file may
// contain the object that is missing.
func related(answer explain.Answer, request explain.Request, problems []Problem) []Problem {
	deciding := map[string]bool{}
	for _, step := range answer.Steps {
		if len(step.Origins) > mostRelated {
			// a listener or route configuration of many hosts: most of its origins do not concern
			// the request
			continue
		}
		for _, o := range step.Origins {
			deciding[o.Object()] = true
		}
	}
	var found []Problem
	for _, p := range problems {
		speaks := slices.ContainsFunc(strings.Fields(p.Message),
			func(word string) bool { return strings.Trim(word, ",;:[]()") == request.Host }) ||
			answer.Outcome == explain.OutcomeConnectionRefused &&
				strings.Contains(p.Message, fmt.Sprintf("port %d ", request.Port)) ||
			answer.Reason != "" && p.Object == ""
		if p.Severity != condition.Info && (deciding[p.Object] || speaks) &&
			len(found) < mostRelated {
			found = append(found, p)
		}
	}
	return found
}
