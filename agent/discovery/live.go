package discovery

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/explain"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// ProblemsInStatistics returns problems of a proxy's clusters that its Envoy's statistics show:
// names that cannot be resolved, and servers whose certificates are refused. live has the
// statistics by cluster.
func (s *Server) ProblemsInStatistics(node *corev3.Node,
	live map[string]explain.ClusterStats) ([]Problem, error) {
	v, err := s.viewOf(node)
	if err != nil {
		return nil, err
	}
	snapshot, _ := v.Feed().Current()
	var problems []Problem
	for r, findings := range explain.Findings(snapshot, live) {
		for _, f := range findings {
			if origin, ok := writtenIn(r, f.InDestinationRule); ok {
				problems = append(problems, object.ProblemAt(origin, condition.Warning, f.Message,
					f.Fix))
			}
		}
	}
	slices.SortFunc(problems, Problem.Compare)
	return problems, nil
}

// StrictMTLSPorts returns for which ports of a proxy's host mutual TLS is required; see
// view.ProxyView.StrictMTLSPorts.
func (s *Server) StrictMTLSPorts(
	node *corev3.Node,
) (func(port uint16) (policy resource.Origin, strict, ownPort bool), error) {
	v, err := s.viewOf(node)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return v.StrictMTLSPorts(), nil
}

// writtenIn returns the object in which a cluster's problem can be fixed: the DestinationRule if
// rule is set and there is one, else the cluster's first origin. The second result is false if the
// cluster has no origin.
func writtenIn(r *resource.Resource, rule bool) (resource.Origin, bool) {
	for _, o := range r.Origins {
		if !rule || o.Kind == string(object.DestinationRule) {
			return o, true
		}
	}
	if len(r.Origins) == 0 {
		return resource.Origin{}, false // the cluster is made by Outrider, not from an object
	}
	return r.Origins[0], true
}
