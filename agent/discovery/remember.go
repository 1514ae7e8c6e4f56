package discovery

import "outrider.org/outrider/agent/resource"

// borrowStandIns has a view that is new go on as others of its namespace do where the newest is the same for them: the next epoch may
// be of another kind, as it has other labels. Callers hold mu.
func (s *Server) borrowStandIns(to *served) {
	mine, _ := to.Feed().Current()
	for _, v := range s.newest() {
		if v == to || v.namespace != to.namespace {
			continue
		}
		theirs, _ := v.Feed().Current()
		for _, r := range v.Feed().StandIns() {
			key := resource.Key{Type: r.Type, Name: r.Name}
			now, same := mine.Get(key), theirs.Get(key)
			if now != nil && same != nil && now.Version == same.Version && to.Feed().StandIn(key) == nil {
				to.Feed().Recall(r)
			}
		}
	}
}

// standIn is what goes on under a key in place of what was refused, nil if that is not known. Callers hold mu.
func (s *Server) standIn(key resource.Key) *resource.Resource {
	for _, v := range s.newest() {
		if r := v.Feed().StandIn(key); r != nil {
			return r
		}
	}
	return nil
}
