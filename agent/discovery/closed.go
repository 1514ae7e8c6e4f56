package discovery

import (
	"cmp"
	"maps"
	"slices"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/resource"
)

// close determines, after a change, whether the server serves resources. opened reports whether it
// starts to serve them with this change. While it serves none, proxies retain their resources.
// Callers of all functions in this file hold mu.
func (s *Server) close(touched model.ChangeSummary) (opened bool) {
	c, was := s.config, s.config.closed
	c.closed = c.unlisted
	if at := s.withoutMesh(); at != nil {
		c.closed = cmp.Or(c.closed, nothingServed(s.meshProblems[*at]))
	}
	if was != nil || c.closed != nil {
		c.withhold(touched)
	}
	return was != nil && c.closed == nil
}

// withoutMesh returns the index, in meshProblems, of the error in MeshConfig that prevents serving:
// no valid version is known, and there are policies whose scope depends on MeshConfig
// (rootNamespace, trustDomainAliases, …). It returns nil if there is no such error.
func (s *Server) withoutMesh() *int {
	if s.meshKnown {
		return nil
	}
	for kind, n := range s.config.objects {
		if n > 0 && kind.CanRestrictAccess() {
			at := slices.IndexFunc(s.meshProblems, func(p Problem) bool {
				return p.Severity == condition.Error
			})
			return &at
		}
	}
	return nil
}

// reportedMesh returns the problems of MeshConfig.
func (s *Server) reportedMesh() []Problem {
	at := s.withoutMesh()
	if at == nil {
		return s.meshProblems
	}
	all := slices.Clone(s.meshProblems)
	all[*at].Message += "; until it is corrected nothing is served, because access policies depend " +
		"on it and no valid version is known"
	return all
}

// reopen makes all views that are current (isCurrent) publish their resources, once resources are
// served again.
func (s *Server) reopen() {
	c := s.config
	for _, v := range s.views {
		if s.isCurrent(v) {
			touched := v.SetMesh(c.world, c.cache)
			maps.Copy(touched.ChangedHosts, c.withheld.ChangedHosts)
			maps.Copy(touched.RoutedGateways, c.withheld.RoutedGateways)
			s.update(v, touched)
		}
	}
	c.withheld = model.ChangeSummary{}
	s.outdated = true
	s.sharing.move(model.ChangeSummary{SidecarsChanged: true})
}

// withhold records a change that happens while nothing is served.
func (c *configuration) withhold(touched model.ChangeSummary) {
	if c.withheld.ChangedHosts == nil {
		c.withheld.ChangedHosts, c.withheld.RoutedGateways = map[string]struct{}{}, map[string]struct{}{}
	}
	maps.Copy(c.withheld.ChangedHosts, touched.ChangedHosts)
	maps.Copy(c.withheld.RoutedGateways, touched.RoutedGateways)
}

// update updates a view. While no resources are served, it publishes an empty change, so that a
// waiting proxy gets a response without resources.
func (s *Server) update(v *served, touched model.ChangeSummary) {
	if s.config.closed != nil {
		v.Feed().Publish(resource.Change{})
		return
	}
	v.Update(touched)
}
