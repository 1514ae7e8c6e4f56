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
	Types []TypeStatus // types to which the client subscribes, in the order of sending
}

// TypeStatus describes the state of one type at one client.
type TypeStatus struct {
	Type               string
	Wildcard           bool   // the client subscribes to all resources of the type
	Names              int    // number of names to which the client subscribes
	VersionSent        string // version of the last response; "": none
	VersionAccepted    string // version of the last accepted response; "": none
	SentAt, AcceptedAt time.Time
	Pushes             uint64
	Pending            int // number of resources that must still be sent; refused ones do not count
	Refused            []RefusedResource
	HeldSecrets        []string // names of the secrets that the client has accepted
}

// RefusedResource describes a resource that the client refused.
type RefusedResource struct {
	Name     string
	Version  string // version of the resource that the client refused
	Accepted string // version that the client uses instead; "": none
	Error    string // error message of the client
	Since    time.Time
	Origins  []resource.Origin
}

// Status returns the state of every client, sorted by stream ID. Streams that end during the call
// are omitted.
func (s *Server) Status(ctx context.Context) []StreamStatus {
	var all []StreamStatus
	s.each(ctx, func(st *stream) { all = append(all, st.status()) })
	return all
}

func (st *stream) status() StreamStatus {
	status := StreamStatus{Stream: st.Stream}
	if st.session == nil { // the client's first request was not admitted yet
		return status
	}
	for _, w := range st.session.order {
		of := w.status()
		if w.oneByOne() { // removals of these resources are never sent
			of.Pending = max(0, of.Pending-len(st.session.pendingRemovals(w)))
		}
		if w.typeURL == resource.SecretType {
			for _, name := range w.names.sorted {
				if st.session.holds(w, name) {
					of.HeldSecrets = append(of.HeldSecrets, name)
				}
			}
		}
		status.Types = append(status.Types, of)
	}
	return status
}

// holds reports whether the client certainly has a version of a resource, that is, even if it
// refuses all unanswered responses.
func (s *session) holds(w *watch, name string) bool {
	if r := w.oldest(); r != nil && r.first {
		return false // the client has not answered its first response yet
	}
	return w.acknowledged(name, s.get(w, name)) != nil
}

func (w *watch) status() TypeStatus {
	status := TypeStatus{
		Type: w.typeURL, Wildcard: w.wildcard, Names: len(w.names.sorted), VersionSent: w.versionSent,
		VersionAccepted: w.versionAccepted,
		SentAt:          w.lastSent, AcceptedAt: w.lastAccepted, Pushes: w.pushes, Pending: max(0,
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
