package discovery

import (
	"net/netip"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/explain"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// LiveProblems returns the problems of a proxy's clusters that the counters of its Envoy show:
// names that do not resolve, servers whose certificates are not accepted; and applications that are
// reachable past Envoy. live has the counters by cluster, listening the host's listening addresses.
func (s *Server) LiveProblems(node *corev3.Node, live map[string]explain.Live,
	listening []netip.AddrPort) ([]Problem, error) {
	v, err := s.viewOf(node)
	if err != nil {
		return nil, err
	}
	snapshot, _ := v.Feed().Current()
	s.mu.Lock()
	problems := v.Exposed(listening)
	s.mu.Unlock()
	for r, findings := range explain.Findings(snapshot, live) {
		for _, f := range findings {
			if origin, ok := writtenIn(r, f.Rule); ok {
				problems = append(problems, object.ProblemAt(origin, condition.Warning, f.Message,
					f.Cure))
			}
		}
	}
	slices.SortFunc(problems, Problem.Compare)
	return problems, nil
}

// writtenIn returns the DestinationRule of a cluster if rule is set and there is one, else the
// cluster's first origin. ok is false if the cluster has no origin.
func writtenIn(r *resource.Resource, rule bool) (resource.Origin, bool) {
	for _, o := range r.Origins {
		if !rule || o.Kind == string(object.DestinationRule) {
			return o, true
		}
	}
	if len(r.Origins) == 0 {
		return resource.Origin{}, false // a cluster of Outrider's own
	}
	return r.Origins[0], true
}
