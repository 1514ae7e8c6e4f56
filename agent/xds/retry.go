package xds

import (
	"cmp"
	"context"
	"slices"

	"outrider.org/outrider/agent/resource"
)

// Retry sends resources once more to the client that refused them on the stream with an ID: the
// cause of the refusal may have ended, for example another program's use of a port.
func (s *Server) Retry(ctx context.Context, id uint64, typeURL string, names []string) {
	s.each(ctx, func(st *stream) {
		if st.ID != id || st.session == nil || st.session.watches[typeURL] == nil {
			return
		}
		for _, name := range names {
			if r := st.session.watches[typeURL].refused[name]; r != nil {
				r.again = true
			}
		}
	})
}

// each calls do for each open stream, by ID, on the goroutine that owns the stream's session. It
// returns early if ctx ends.
func (s *Server) each(ctx context.Context, do func(*stream)) {
	s.mu.Lock()
	streams := make([]*stream, 0, len(s.streams))
	for _, st := range s.streams {
		streams = append(streams, st)
	}
	s.mu.Unlock()
	slices.SortFunc(streams, func(x, y *stream) int { return cmp.Compare(x.ID, y.ID) })
	for _, st := range streams {
		done := make(chan struct{})
		select {
		case st.inspect <- func(st *stream) { do(st); close(done) }:
			select {
			case <-done:
			case <-st.done: // a panic ended the stream
			}
		case <-st.done:
		case <-ctx.Done():
			return
		}
	}
}

// retry marks refused listeners and clusters to be sent once more. Envoy refuses them while their
// secret is invalid, for example if a certificate was replaced and its key was not.
func (s *session) retry() {
	for _, typeURL := range [...]string{resource.ListenerType, resource.ClusterType} {
		if w := s.watches[typeURL]; w != nil {
			for _, r := range w.refused {
				r.again = true
			}
		}
	}
}
