package xds

import (
	"context"
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/agent/resource"
)

// StreamStatus is the state of one client.
type StreamStatus struct {
	Stream
	Types []TypeStatus // by the order in which they are sent
}

// TypeStatus is the state of one type at one client.
type TypeStatus struct {
	Type            string
	Wildcard        bool   // subscribed to all resources of the type
	Names           int    // number of subscribed names
	VersionSent     string // of the last response; "": none
	VersionAccepted string // of the last accepted response; "": none
	Sent, Accepted  time.Time
	Pushes          uint64
	Pending         int // resources not yet sent, without refused ones
	Refused         []RefusedResource
	Held            []string // names of secrets that the client has
}

// RefusedResource is a resource that the client refused.
type RefusedResource struct {
	Name     string
	Version  string // of the refused content
	Accepted string // of the content that the client has instead; "": none
	Error    string // of the client
	Since    time.Time
	Origins  []resource.Origin
}

// Status returns the state of every client, by stream, without streams that end meanwhile.
func (s *Server) Status(ctx context.Context) []StreamStatus {
	var all []StreamStatus
	s.each(ctx, func(st *stream) { all = append(all, st.status()) })
	return all
}

func (st *stream) status() StreamStatus {
	status := StreamStatus{Stream: st.Stream}
	if st.session == nil { // no request received yet
		return status
	}
	for _, w := range st.session.order {
		of := w.status()
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

// holds reports whether the client has some version of a resource, whatever it answers to the
// responses under way.
func (s *session) holds(w *watch, name string) bool {
	if r := w.oldest(); r != nil && r.first {
		return false // it has answered nothing
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
