package xds

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"outrider.org/outrider/agent/resource"
)

// ResendResources sends resources again to the client on the stream with the given ID that refused
// them. The cause of the refusal may have ended, for example another program's use of a port.
func (s *Server) ResendResources(ctx context.Context, id uint64, typeURL string, names []string) {
	s.each(ctx, func(st *stream) {
		if st.ID != id || st.session == nil || st.session.watches[typeURL] == nil {
			return
		}
		for _, name := range names {
			if r := st.session.watches[typeURL].refused[name]; r != nil {
				r.again = true
			}
		}
		st.setAlarm(time.Now())
	})
}

// each calls do for each open stream, in the order of IDs, while holding the lock of the stream. It
// stops early if ctx ends.
func (s *Server) each(ctx context.Context, do func(*stream)) {
	s.mu.Lock()
	streams := slices.Collect(maps.Values(s.streams))
	s.mu.Unlock()
	slices.SortFunc(streams, func(x, y *stream) int { return cmp.Compare(x.ID, y.ID) })
	for _, st := range streams {
		if ctx.Err() != nil {
			return
		}
		st.locked(do)
	}
}

// locked calls do while holding the lock of the stream, unless the stream has ended.
func (st *stream) locked(do func(*stream)) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.closed {
		do(st)
	}
}

// retry marks refused listeners and clusters to be sent again. Envoy may have refused them because
// a secret was invalid, for example while a certificate was replaced and its key was not.
func (s *session) retry() {
	for _, typeURL := range [...]string{resource.ListenerType, resource.ClusterType} {
		if w := s.watches[typeURL]; w != nil {
			for _, r := range w.refused {
				r.again = true
			}
		}
	}
}
