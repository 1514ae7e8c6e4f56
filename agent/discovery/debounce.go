package discovery

import (
	"context"
	"time"

	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
)

// publishChanges publishes the objects of changed files and of accepted updates, once no further
// ones arrive within the debounce time. Only Run may call it.
func (s *Server) publishChanges(ctx context.Context, paths []string) {
	begun := time.Now()
	paths = append(s.debounce(ctx, paths), s.certificates.takeChanged()...)
	if ctx.Err() != nil {
		return
	}
	s.debounced.Observe(time.Since(begun))
	begun = time.Now()
	s.remesh(paths)
	s.read(func(of *store.Store) []object.Change {
		return append(of.Reload(paths), s.takeAccepted(of)...)
	}, paths)
	s.pushed.Observe(time.Since(begun))
}

// debounce collects changed paths until nothing has changed for DebounceAfter, at most for
// DebounceMax.
func (s *Server) debounce(ctx context.Context, paths []string) []string {
	deadline := time.Now().Add(s.current().DebounceMax)
	for {
		wait := min(s.current().DebounceAfter, time.Until(deadline))
		if wait <= 0 {
			return paths
		}
		quiet := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			quiet.Stop()
			return paths
		case more, ok := <-s.options.ChangedPaths:
			quiet.Stop()
			if !ok {
				s.options.ChangedPaths = nil
			}
			paths = append(paths, more...)
		case <-s.received:
			quiet.Stop()
		// a new proxy may be waiting for the objects of its namespace: they need not wait for the
		// debounce time
		case <-s.wake:
			quiet.Stop()
			s.applyNamespaces()
		case <-quiet.C:
			return paths
		}
	}
}
