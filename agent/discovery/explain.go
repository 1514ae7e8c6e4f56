package discovery

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/explain"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/view"
	"outrider.org/outrider/agent/resource"
)

// Explanation is what becomes of a request, and what is wrong with the objects that decide it or
// with what would.
type Explanation struct {
	explain.Answer
	Problems []Problem
}

// mostRelated is how many problems an explanation names.
const mostRelated = 10

// Explain says what the proxy that tells itself as node would do with a request. live is what its
// Envoy has counted of its clusters, nil if that is not known. An error says why there is nothing
// for such a proxy.
func (s *Server) Explain(node *corev3.Node, request explain.Request,
	live map[string]explain.Live) (Explanation, error) {
	v, err := s.viewOf(node)
	if err != nil {
		return Explanation{}, err
	}
	s.mu.Lock()
	proxy, refusals := proxyOf(v.View), maps.Clone(s.refusals)
	request = addressed(request, v.Node(), v.realm.world)
	proxy.Idle, proxy.IdleCure = idleGateway(v.realm.world, v.Node(), request.Port)
	problems := s.problems
	s.mu.Unlock()

	proxy.Origins = func(routes, domain string) []resource.Origin {
		s.mu.Lock()
		defer s.mu.Unlock()
		return v.HostOrigins(routes, domain)
	}
	proxy.Refused = func(key resource.Key) string { return refusals[key].reason }
	proxy.Live = live
	answer := explain.Explain(proxy, request)
	return Explanation{Answer: answer, Problems: related(answer, request, problems)}, nil
}

// Explain says what a proxy that reads files and directories would do with a request, as Check says
// what is wrong with them.
func Explain(paths []string, options CheckOptions, request explain.Request) (Explanation, error) {
	c, err := read(paths, options)
	if err != nil {
		return Explanation{}, err
	}
	proxy := proxyOf(c.view)
	proxy.Origins = c.view.HostOrigins
	proxy.Idle, proxy.IdleCure = idleGateway(c.world, c.view.Node(), request.Port)
	answer := explain.Explain(proxy, addressed(request, c.view.Node(), c.world))
	return Explanation{Answer: answer, Problems: related(answer, request, c.problems)}, nil
}

// proxyOf is what proxies of a view have now.
func proxyOf(v *view.View) explain.Proxy {
	snapshot, _ := v.Feed().Current()
	proxy := explain.Proxy{Resources: snapshot, Router: v.Node().Type == model.Router,
		Captured: v.Node().Captured()}
	for _, text := range v.Node().Addresses {
		if address, err := netip.ParseAddr(text); err == nil {
			proxy.Own = append(proxy.Own, address)
		}
	}
	return proxy
}

// addressed adds the address that a captured connection is to where the request does not tell it: a
// host's name stands for the first address of its service.
func addressed(request explain.Request, node model.Node, world *model.World) explain.Request {
	if request.Address.IsValid() || !node.Captured() {
		return request
	}
	if address, err := netip.ParseAddr(request.Host); err == nil {
		request.Address = address
		return request
	}
	service := world.Service(request.Host, node.Namespace)
	if service == nil {
		return request
	}
	if port := service.Port(request.Port); port != nil {
		for _, text := range port.Entry.Addresses {
			if address, err := netip.ParseAddr(text); err == nil {
				request.Address = address
				return request
			}
		}
	}
	return request
}

// related are the problems of the objects that decide, and those that speak of the request's host:
// what it says may count for nothing.
func related(answer explain.Answer, request explain.Request, problems []Problem) []Problem {
	places := map[string]bool{}
	for _, step := range answer.Steps {
		if len(step.Origins) > mostRelated {
			continue // listeners and routes of many hosts: most of them are not concerned
		}
		for _, o := range step.Origins {
			places[fmt.Sprintf("%s %s/%s", o.Kind, o.Namespace, o.Name)] = true
		}
	}
	var found []Problem
	for _, p := range problems {
		speaks := slices.ContainsFunc(strings.Fields(p.Message),
			func(word string) bool { return strings.Trim(word, ",;:[]()") == request.Host })
		if p.Severity != condition.Info && (places[p.Object] || speaks) &&
			len(found) < mostRelated {
			found = append(found, p)
		}
	}
	return found
}
