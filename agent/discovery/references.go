package discovery

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
)

// references holds, by VirtualService, destinations that no object defines (Istio's IST0101).
// Translation reports equal problems, but only for routes that a proxy gets; gather removes
// duplicates.
type references map[*object.Object]reference

type reference struct {
	hosts    map[string]struct{} // hosts of all destinations of the VirtualService
	problems []Problem
}

// update checks new VirtualServices, and checks again those that a change of hosts may affect.
// Delegates, which have neither hosts nor gateways, are always checked.
func (r references) update(w *model.Mesh, touched model.ChangeSummary) {
	patterns := false // a touched wildcard may match any host
	for host := range touched.ChangedHosts {
		patterns = patterns || model.IsWildcard(host)
	}
	count := 0
	for o := range w.VirtualServices() {
		count++
		known, ok := r[o]
		stale := !ok || patterns && len(known.hosts) > 0
		for host := range known.hosts {
			if _, changed := touched.ChangedHosts[host]; changed {
				stale = true
			}
			// a service that the pattern matches may have appeared or disappeared
			if model.IsWildcard(host) {
				for service := range touched.ChangedHosts {
					stale = stale || model.HostCovers(host, service)
				}
			}
		}
		if stale {
			r[o] = refer(w, o)
		}
	}
	if len(r) > count {
		maps.DeleteFunc(r, func(o *object.Object, _ reference) bool {
			return w.VirtualService(o.Key) != o
		})
	}
}

// problems returns the problems of all destinations that no object defines, unsorted.
func (r references) problems() []Problem {
	var all []Problem
	for _, one := range r {
		all = append(all, one.problems...)
	}
	return all
}

// refer checks the destinations of a VirtualService.
func refer(w *model.Mesh, o *object.Object) reference {
	found := reference{hosts: map[string]struct{}{}}
	warn := func(field, message, fix string) {
		found.problems = append(found.problems, o.Warning(field, message, fix))
	}
	spec := o.Spec.(*networking.VirtualService)
	destinations(spec, func(field string, to *networking.Destination) {
		host := model.FullName(to.GetHost(), o.Namespace, w.Domain())
		found.hosts[host] = struct{}{}
		switch {
		case !w.HasOverlappingService(host):
			warn(field+".host", fmt.Sprintf("no service has the host %s", host),
				"requests get 503; add a ServiceEntry or correct the host")
		case to.GetSubset() != "" && !w.HasSubset(host, to.GetSubset()):
			warn(field+".subset",
				fmt.Sprintf("no DestinationRule for %s has a subset %s", host, to.GetSubset()),
				"requests get 503; add the subset or correct its name")
		}
	})
	return found
}

// destinations calls each with the field and the destination of every route and mirror of a
// VirtualService. It skips destinations of weight 0 among several.
func destinations(v *networking.VirtualService, each func(string, *networking.Destination)) {
	for i, route := range v.Http {
		for j, to := range route.GetRoute() {
			if len(route.Route) == 1 || to.GetWeight() > 0 {
				each(fmt.Sprintf("http[%d].route[%d].destination", i, j), to.GetDestination())
			}
		}
		if route.GetMirror() != nil {
			each(fmt.Sprintf("http[%d].mirror", i), route.Mirror)
		}
		for j, mirror := range route.GetMirrors() {
			each(fmt.Sprintf("http[%d].mirrors[%d].destination", i, j), mirror.GetDestination())
		}
	}
	connections := func(field string, i int, routes []*networking.RouteDestination) {
		for j, to := range routes {
			if len(routes) == 1 || to.GetWeight() > 0 {
				each(fmt.Sprintf("%s[%d].route[%d].destination", field, i, j), to.GetDestination())
			}
		}
	}
	for i, route := range v.Tls {
		connections("tls", i, route.GetRoute())
	}
	for i, route := range v.Tcp {
		connections("tcp", i, route.GetRoute())
	}
}

// mostNodes is the maximum number of kinds of proxies for which unselected Gateways are reported.
// More kinds indicate a fleet, whose proxies connect and disconnect often.
const mostNodes = 8

// unselected reports Gateways that select none of the served proxies. If another Gateway selects a
// served proxy, the severity is only informational: the reported Gateways are probably for proxies
// on other machines.
func unselected(w *model.Mesh, views map[string]*served) []Problem {
	if len(views) == 0 || len(views) > mostNodes {
		return nil
	}
	// the message is about the last node; sort gateway proxies behind sidecars, because a Gateway
	// object is meant for them
	var nodes []model.Node
	for _, key := range slices.Sorted(maps.Keys(views)) {
		nodes = append(nodes, views[key].Node())
	}
	slices.SortStableFunc(nodes, func(a, b model.Node) int { return cmp.Compare(b.Type, a.Type) })
	severity := condition.Warning
	var problems []Problem
	for _, o := range w.AllGateways() {
		selector := o.Spec.(*networking.Gateway).Selector
		message, fix := "", ""
		for _, node := range nodes {
			if message, fix = unselecting(selector, node); message == "" {
				severity = condition.Info
				break
			}
		}
		if message != "" {
			found := object.Finding{Field: "selector", Message: message, Fix: fix}
			problem := o.NewProblem(found)
			if len(selector) == 0 {
				// without a selector in the file, the problem is reported for the whole object
				problem.Field = ""
			}
			problems = append(problems, problem)
		}
	}
	for i := range problems {
		problems[i].Severity = severity
	}
	return problems
}

// unselecting returns why a selector does not match a proxy, and the fix; "" if it matches.
func unselecting(selector map[string]string, node model.Node) (message, fix string) {
	selects := model.SelectorMatches(selector, node.Labels)
	switch {
	case selects && node.Type == model.Router:
		return "", ""
	case node.Type == model.Router:
		return fmt.Sprintf("has no effect here: its selector is %s, the labels of this proxy "+
				"are %s", labels(selector), labels(node.Labels)),
			"set [node] labels, or correct the selector"
	case selects:
		fix = "set type = \"router\" in [node]"
	default:
		fix = fmt.Sprintf("set type = \"router\" and labels that its selector %s matches in "+
			"[node]", labels(selector))
	}
	return "has no effect here: this proxy is a sidecar, and Gateways are for routers", fix
}

// idleGateway explains why a proxy has no server on a port: it names a Gateway with such a server
// that does not select the proxy, and the fix. Both are "" if there is no such Gateway.
func idleGateway(w *model.Mesh, node model.Node, port uint32) (why, fix string) {
	for _, o := range w.AllGateways() {
		gateway := o.Spec.(*networking.Gateway)
		message, fix := unselecting(gateway.Selector, node)
		listens := func(s *networking.Server) bool { return s.GetPort().GetNumber() == port }
		if message != "" && slices.ContainsFunc(gateway.Servers, listens) {
			return fmt.Sprintf("%s at %s %s", o.Key, o.Position(), message), fix
		}
	}
	return "", ""
}

// lostGateway explains why a request for a host may fail: a VirtualService for the host names a
// Gateway that does not exist. It returns "" if there is none.
func lostGateway(w *model.Mesh, host string) (why, fix string) {
	for _, o := range slices.SortedFunc(w.VirtualServices(), object.CompareAge) {
		spec := o.Spec.(*networking.VirtualService)
		for _, written := range spec.Gateways {
			name := model.GatewayName(written, o.Namespace)
			if written == model.MeshGateway || w.HasGateway(name) || !slices.ContainsFunc(spec.Hosts,
				func(h string) bool { return model.HostCovers(h, host) }) {
				continue
			}
			return fmt.Sprintf("%s at %s has the host, and there is no Gateway %s", o.Key,
				o.Position(), name), "add the Gateway, or correct its name"
		}
	}
	return "", ""
}

// labels formats labels as key=value pairs, separated by commas.
func labels(of map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(of)) {
		all = append(all, key+"="+of[key])
	}
	return cmp.Or(strings.Join(all, ","), "none")
}
