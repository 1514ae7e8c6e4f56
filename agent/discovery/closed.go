package discovery

import (
	"cmp"
	"maps"
	"slices"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/resource"
)

// close decides after a change whether resources are served, and reports whether that begins now.
// While nothing is served, proxies retain what they have. Callers of all functions in this file
// hold mu.
func (s *Server) close(touched model.Touched) (opened bool) {
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

// withoutMesh returns the index of the error in MeshConfig because of which nothing may be served:
// there are policies whose scope depends on MeshConfig (rootNamespace, trustDomainAliases, …), and
// no valid version of it is known. It returns nil if there is none.
func (s *Server) withoutMesh() *int {
	if s.meshKnown {
		return nil
	}
	for kind, n := range s.config.objects {
		if n > 0 && kind.Restricts() {
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

// reopen makes all current views publish their resources after a time in which nothing was served.
func (s *Server) reopen() {
	c := s.config
	for _, v := range s.views {
		if s.isCurrent(v) {
			touched := v.Move(c.world, c.cache)
			maps.Copy(touched.Hosts, c.withheld.Hosts)
			maps.Copy(touched.Bindings, c.withheld.Bindings)
			s.update(v, touched)
		}
	}
	c.withheld = model.Touched{}
	s.outdated = true
	s.sharing.move(model.Touched{Sidecars: true})
}

// withhold records a change that happens while nothing is served.
func (c *configuration) withhold(touched model.Touched) {
	if c.withheld.Hosts == nil {
		c.withheld.Hosts, c.withheld.Bindings = map[string]struct{}{}, map[string]struct{}{}
	}
	maps.Copy(c.withheld.Hosts, touched.Hosts)
	maps.Copy(c.withheld.Bindings, touched.Bindings)
}

// update updates a view. While nothing is served it publishes an empty change, so that a proxy that
// waits for its first resources gets an answer without any.
func (s *Server) update(v *served, touched model.Touched) {
	if s.config.closed != nil {
		v.Feed().Publish(resource.Change{})
		return
	}
	v.Update(touched)
}
