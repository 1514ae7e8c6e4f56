package web

import (
	"cmp"
	"net"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/xds"
)

// States of a host, in order of decreasing severity.
const (
	refused = "refused" // the client has refused resources (NACK)
	pending = "pending" // the client has not accepted all that was sent, or nothing was sent
	synced  = "synced"  // the client has accepted all that was sent (ACK)
)

var states = []string{refused, pending, synced}

// ConnectedHost is a connected proxy: all streams with the same node ID and identity. During a hot
// restart a proxy has two streams.
type ConnectedHost struct {
	Node     string `json:"node"` // ID in the node that the client sent
	Name     string `json:"name"` // third segment of the ID; Istio's agents send NAME.NAMESPACE
	Kind     string `json:"kind,omitempty"`
	Address  string `json:"address"`            // IP address of the client
	Identity string `json:"identity,omitempty"` // SPIFFE ID; "": the client has no identity
	Agent    string `json:"agent,omitempty"`    // program and version that the client reports
	Envoy    string `json:"envoy,omitempty"`    // Envoy version that the client reports
	State    string `json:"state"`
	Reason   string `json:"reason,omitempty"` // a refused resource, with the client's error message
	// time of the last accepted response
	LastAckAt time.Time `json:"accepted,omitzero"`
	Since     time.Time `json:"connected"` // start of the oldest stream
	// expiry of the client certificate on the newest stream
	CertificateEnds time.Time `json:"certificateEnds,omitzero"`
	Streams         int       `json:"streams"`

	newest uint64 // ID of the newest stream
}

// longest is the length in bytes to which texts of clients are cut off.
const longest = 256

// shorten returns a text that a client has sent, cut off at longest, as valid UTF-8.
func shorten(text string) string {
	if len(text) > longest {
		text = text[:longest] + "…"
	}
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "�")
	}
	return text
}

// hosts returns the hosts that have streams, sorted by decreasing severity of their state, then by
// name.
func hosts(streams []xds.StreamStatus) []ConnectedHost {
	type key struct{ node, identity string }
	known := make(map[key]*ConnectedHost, len(streams))
	for i := range streams {
		s := &streams[i]
		if len(s.Types) == 0 {
			continue // the client has requested only debug information, or nothing
		}
		one := hostOf(s)
		if before := known[key{s.Node.GetId(), s.Peer.Identity}]; before != nil {
			before.merge(one)
		} else {
			known[key{s.Node.GetId(), s.Peer.Identity}] = &one
		}
	}
	all := make([]ConnectedHost, 0, len(known))
	for _, h := range known {
		all = append(all, *h)
	}
	slices.SortFunc(all, func(x, y ConnectedHost) int {
		return cmp.Or(cmp.Compare(rank(x.State), rank(y.State)), cmp.Compare(x.Name, y.Name),
			cmp.Compare(x.Node, y.Node), cmp.Compare(x.Identity, y.Identity))
	})
	return all
}

func rank(state string) int { return slices.Index(states, state) }

// merge adds another stream of the same host. The host gets the worse state of both streams, and
// the version, address and certificate of the newer one.
func (h *ConnectedHost) merge(other ConnectedHost) {
	newest, oldest := h, &other
	if other.newest > h.newest {
		newest, oldest = &other, h
	}
	merged := *newest
	if rank(oldest.State) < rank(newest.State) {
		merged.State, merged.Reason = oldest.State, oldest.Reason
	}
	if oldest.LastAckAt.After(merged.LastAckAt) {
		merged.LastAckAt = oldest.LastAckAt
	}
	if oldest.Since.Before(merged.Since) {
		merged.Since = oldest.Since
	}
	merged.Streams = h.Streams + other.Streams
	*h = merged
}

func hostOf(s *xds.StreamStatus) ConnectedHost {
	node := s.Node
	h := ConnectedHost{Node: shorten(node.GetId()), Identity: s.Peer.Identity, Since: s.OpenedAt,
		Streams: 1, newest: s.ID, Address: s.Peer.Address,
		Agent: shorten(agent(s)), Envoy: shorten(discovery.EnvoyVersion(node))}
	if host, _, err := net.SplitHostPort(h.Address); err == nil {
		h.Address = host
	}
	h.Name = h.Node
	if parts := strings.Split(node.GetId(), "~"); len(parts) == 4 {
		h.Kind, h.Name = shorten(parts[0]), shorten(parts[2])
	}
	if s.Peer.Certificate != nil {
		h.CertificateEnds = s.Peer.Certificate.NotAfter
	}
	h.State = synced
	for _, t := range s.Types {
		if t.AcceptedAt.After(h.LastAckAt) {
			h.LastAckAt = t.AcceptedAt
		}
		if len(t.Refused) > 0 {
			h.State = refused
			h.Reason = shorten(t.Refused[0].Name + ": " + t.Refused[0].Error)
		} else if h.State == synced && (t.VersionSent != t.VersionAccepted || t.Pending > 0) {
			h.State = pending
		}
	}
	if h.LastAckAt.IsZero() && h.State == synced {
		h.State = pending // nothing was sent yet
	}
	return h
}

// agent returns the program that the client reports, without the version of its gRPC library.
// Istio's agents report their version in the node instead.
func agent(s *xds.StreamStatus) string {
	program, _, _ := strings.Cut(s.Peer.UserAgent, " ")
	if program != "" && !strings.HasPrefix(program, "grpc-") {
		return program
	}
	version := s.Node.GetMetadata().GetFields()["ISTIO_VERSION"].GetStringValue()
	if version == "" {
		return ""
	}
	return "istio/" + version
}
