package discovery

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// RequestsIstioObjects reports whether a client requests the configuration's objects instead of
// Envoy's resources. Such a client is a discovery server that uses this one as a source of objects.
// As in Istio, its node has GENERATOR=api.
func RequestsIstioObjects(node *corev3.Node) bool {
	return node.GetMetadata().GetFields()["GENERATOR"].GetStringValue() == "api"
}

// objectFeed publishes the objects in force as resources.
type objectFeed struct {
	feed    *resource.Feed
	encoded map[object.Key]encodedObject
	stale   bool // objects have changed since the last publication
}

type encodedObject struct {
	from *object.Object
	key  resource.Key
}

// objectsFeed returns the feed of the objects. Its first snapshot is published once all sources
// were read.
func (s *Server) objectsFeed() (*resource.Feed, error) {
	if s.options.EncodeObject == nil {
		return nil, status.Error(codes.PermissionDenied,
			"this server does not serve the objects of its configuration (GENERATOR=api)")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects == nil {
		s.objects = &objectFeed{feed: resource.NewFeed(), encoded: map[object.Key]encodedObject{},
			stale: true}
		s.wakeRun()
	}
	return s.objects.feed, nil
}

// publishObjects publishes objects that changed since its last call. Only Run may call it.
func (s *Server) publishObjects() {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, f := s.config, s.objects
	if f == nil || !f.stale || !c.loaded || c.closed != nil {
		return
	}
	f.stale = false
	var change resource.Change
	gone := f.encoded
	f.encoded = make(map[object.Key]encodedObject, len(gone))
	for _, o := range c.store.Objects(c.namespace) {
		before, known := gone[o.Key]
		if known && (before.from == o || object.Equal(before.from, o)) {
			f.encoded[o.Key] = before
			delete(gone, o.Key)
			continue
		}
		r, err := s.options.EncodeObject(o)
		if err != nil {
			s.options.Logger.Error("cannot encode object", "object", o.String(), "error", err)
			continue
		}
		delete(gone, o.Key)
		f.encoded[o.Key] = encodedObject{o, r.Key()}
		change.Set = append(change.Set, r)
	}
	for _, one := range gone {
		change.Remove = append(change.Remove, one.key)
	}
	slices.SortFunc(change.Remove, resource.Key.Compare)
	f.feed.Publish(change)
}

// objectsChanged records that objects have changed. Callers hold mu.
func (s *Server) objectsChanged() {
	if s.objects != nil {
		s.objects.stale = true
	}
}
