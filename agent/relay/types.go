package relay

import (
	"context"
	"time"

	"google.golang.org/grpc/peer"
)

// TypeStatus describes the state of a resource type on the stream of an Envoy.
type TypeStatus struct {
	PID            int32 // PID of the Envoy; 0 if unknown
	URL            string
	Version        string // version of the type that Envoy accepted last
	Resources      int    // number of resources of the type that Envoy has accepted
	Sent, Accepted time.Time
	Cached         bool // the accepted version is from the cache
	Pending        bool // Envoy has not answered the last response yet
	RefusalReason  string
	RefusedVersion string
}

// Types returns the types to which Envoys subscribe. Sessions that do not respond before ctx ends
// are left out.
func (s *Server) Types(ctx context.Context) (all []TypeStatus) {
	s.mu.Lock()
	var sessions []*session
	for session := range s.sessions {
		sessions = append(sessions, session)
	}
	s.mu.Unlock()
	for _, session := range sessions {
		reply := make(chan []TypeStatus, 1)
		select {
		case session.query <- reply:
			all = append(all, <-reply...)
		case <-session.stream.Context().Done():
		case <-ctx.Done():
		}
	}
	return all
}

// types returns the state of all types on the session's stream.
func (s *session) types() []TypeStatus {
	var pid int32
	if from, ok := peer.FromContext(s.stream.Context()); ok && s.server.options.EnvoyPID != nil {
		pid = s.server.options.EnvoyPID(from.Addr)
	}
	all := make([]TypeStatus, 0, len(s.order))
	for _, w := range s.order {
		t := w.shown
		t.PID, t.URL, t.Resources, t.Pending = pid, w.typeURL, len(w.held), len(w.pending) > 0
		if t.RefusalReason != "" && s.server.options.RedactError != nil {
			t.RefusalReason = s.server.options.RedactError(t.RefusalReason)
		}
		all = append(all, t)
	}
	return all
}
