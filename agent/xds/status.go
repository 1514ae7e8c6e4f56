package xds

import (
	"context"
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/agent/resource"
)

// StreamStatus describes the state of one client.
type StreamStatus struct {
	Stream
	Types []TypeStatus // types that the client subscribes to, in the order in which they are sent
}

// TypeStatus describes the state of one type at one client.
type TypeStatus struct {
	Type            string
	Wildcard        bool   // subscribed to all resources of the type
	Names           int    // number of subscribed names
	VersionSent     string // version of the last response; "": none
	VersionAccepted string // version of the last accepted response; "": none
	Sent, Accepted  time.Time
	Pushes          uint64
	Pending         int // number of resources to be sent, without refused ones
	Refused         []RefusedResource
	Held            []string // names of the secrets that the client has
}

// RefusedResource describes a resource that the client refused.
type RefusedResource struct {
	Name     string
	Version  string // version of the resource that the client refused
	Accepted string // version that the client has instead; "": none
	Error    string // error message of the client
	Since    time.Time
	Origins  []resource.Origin
}

// Status returns the state of every client, sorted by stream. It leaves out streams that end during
// the call.
func (s *Server) Status(ctx context.Context) []StreamStatus {
	var all []StreamStatus
	s.each(ctx, func(st *stream) { all = append(all, st.status()) })
	return all
}

func (st *stream) status() StreamStatus {
	status := StreamStatus{Stream: st.Stream}
	if st.session == nil { // the client has not sent a request yet
		return status
	}
	for _, w := range st.session.order {
		of := w.status()
		if w.oneByOne() { // no removals are sent
			of.Pending = max(0, of.Pending-len(st.session.pendingRemovals(w)))
		}
		if w.typeURL == resource.SecretType {
			for _, name := range w.names.sorted {
				if st.session.holds(w, name) {
					of.Held = append(of.Held, name)
				}
			}
		}
		status.Types = append(status.Types, of)
	}
	return status
}

// holds reports whether the client has some version of a resource, however it answers the responses
// in flight.
func (s *session) holds(w *watch, name string) bool {
	if r := w.oldest(); r != nil && r.first {
		return false // the client has not answered any response
	}
	return w.acknowledged(name, s.get(w, name)) != nil
}

func (w *watch) status() TypeStatus {
	status := TypeStatus{
		Type: w.typeURL, Wildcard: w.wildcard, Names: len(w.names.sorted), VersionSent: w.versionSent,
		VersionAccepted: w.versionAccepted,
		Sent:            w.lastSent, Accepted: w.lastAccepted, Pushes: w.pushes, Pending: max(0,
			len(w.differs)-len(w.refused)),
	}
	for name, r := range w.refused {
		refused := RefusedResource{Name: name, Version: r.resource.Version, Error: r.message,
			Since: r.since, Origins: r.resource.Origins}
		if r.instead != nil {
			refused.Accepted = r.instead.Version
		}
		status.Refused = append(status.Refused, refused)
	}
	slices.SortFunc(status.Refused, func(x, y RefusedResource) int {
		return strings.Compare(x.Name, y.Name)
	})
	return status
}
