package relay

import (
	"fmt"
	"maps"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	xdsresource "outrider.org/outrider/agent/resource"
)

// Subscription is a type that the agent requests for itself on each stream to the upstream server,
// after Envoy's first request for listeners. Envoy does not receive the responses. Accepted
// resources are cached.
type Subscription struct {
	TypeURL string
	// Apply uses the resources of a response or of the cache. removed has the names of resources
	// that no longer exist. If Apply returns an error, the response is refused. Calls may be
	// concurrent, because the sessions of two Envoys may overlap. Apply must not block.
	Apply func(resources []*anypb.Any, removed []string) error
}

// ReportHealthToUpstream makes the agent send a request without resource names on each stream to
// the upstream server: on open streams immediately, and on later ones after Envoy's first request
// for listeners. problem is the error detail of the request; nil: none. A later call with the same
// type replaces the request. In this way the agent reports the workload's health to istiod.
func (s *Server) ReportHealthToUpstream(typeURL string, problem *rpcstatus.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.announced[typeURL] = problem
	for session := range s.sessions {
		select {
		case session.announce <- struct{}{}:
		default: // the session has an unread notification already
		}
	}
}

// subscribe sends, on a stream to the upstream server that was just opened, the requests of the
// agent itself: its subscriptions, and its reports (see ReportHealthToUpstream). Without such a
// stream, it passes cached resources to the subscriptions.
func (s *session) subscribe() error {
	switch {
	// Wait for Envoy's first request for listeners. On the stream of a client with another node,
	// the upstream server would answer for that node.
	case s.watches[xdsresource.ListenerType] == nil, !s.own:
		return nil
	case !s.opened:
		if s.offline {
			s.applyCached()
		}
		return nil
	}
	for _, own := range s.server.options.Subscriptions {
		if err := s.forward(&request{typeURL: own.TypeURL}); err != nil {
			return err
		}
	}
	return s.sendAnnouncements()
}

func (s *session) sendAnnouncements() error {
	if s.watches[xdsresource.ListenerType] == nil || !s.own {
		return nil
	}
	s.server.mu.Lock()
	announced := maps.Clone(s.server.announced)
	s.server.mu.Unlock()
	for typeURL, problem := range announced {
		if err := s.forward(&request{typeURL: typeURL, problem: problem}); err != nil {
			return err
		}
	}
	return nil
}

// subscription returns the agent's subscription to a type, nil if there is none.
func (s *session) subscription(typeURL string) *Subscription {
	for i, own := range s.server.options.Subscriptions {
		if own.TypeURL == typeURL {
			return &s.server.options.Subscriptions[i]
		}
	}
	return nil
}

// apply passes a response to a subscription of the agent, and answers it with ACK or NACK.
func (s *session) apply(own *Subscription, r *response) error {
	answer := &request{typeURL: r.typeURL, nonce: r.nonce}
	if err := own.apply(r.resources, r.removed); err != nil {
		return s.refuse(r, err)
	}
	s.server.refusals.RemoveAccepted(s.id, r.typeURL, nil)
	answer.version = r.version
	if cache := s.cache(); cache != nil && len(r.resources) > 0 {
		held := map[string]resource{}
		for _, one := range r.resources {
			held[one.name] = one
		}
		cache.put(
			identityOf(s.node, s.link.upstream.name()), r.typeURL, r.version, held)
	}
	return s.forward(answer)
}

// refuse answers a response with NACK. Envoy does not receive the response.
func (s *session) refuse(r *response, why error) error {
	s.refused(r.typeURL, r.version, why.Error())
	return s.forward(&request{typeURL: r.typeURL, nonce: r.nonce, problem: &rpcstatus.Status{
		Code: int32(codes.Internal), Message: why.Error()}})
}

// applyCached passes cached resources to the agent's subscriptions.
func (s *session) applyCached() {
	for _, own := range s.server.options.Subscriptions {
		known, _ := s.known(own.TypeURL)
		if known == nil {
			continue
		}
		var resources []resource
		for _, one := range known {
			resources = append(resources, one)
		}
		if err := own.apply(resources, nil); err != nil {
			s.log.Warn("cannot apply cached resources of upstream server", "type", own.TypeURL, "error", err)
		}
	}
}

// ApplyCachedResources passes the cached resources of a type to the agent's subscription before an
// Envoy has connected. It uses the resources that a node with this ID accepted last, even if the
// node's metadata has changed since.
func (s *Server) ApplyCachedResources(nodeID, typeURL string) {
	if s.options.Cache == nil {
		return
	}
	for _, own := range s.options.Subscriptions {
		known := s.options.Cache.newest(s.upstream.Load().name(), nodeID, typeURL)
		if own.TypeURL != typeURL || len(known) == 0 {
			continue
		}
		if err := own.apply(known, nil); err != nil {
			s.options.Logger.Warn("cannot apply cached resources of upstream server",
				"type", typeURL, "error", err)
		}
	}
}

func (o *Subscription) apply(resources []resource, removed []string) error {
	var decoded []*anypb.Any
	for _, one := range resources {
		message := &anypb.Any{}
		if err := proto.Unmarshal(one.body, message); err != nil {
			return fmt.Errorf("decode a resource: %w", err)
		}
		decoded = append(decoded, message)
	}
	return o.Apply(decoded, removed)
}
