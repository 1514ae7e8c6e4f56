package discovery

import (
	"slices"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"

	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/view"
	"outrider.org/outrider/agent/resource"
)

// maxEdits bounds the number of published changes of files that a server records.
const maxEdits = 64

// edit is a change of the mesh files after which resources were published.
type edit struct {
	at      time.Time
	objects map[object.Key]bool
	mesh    bool // whether MeshConfig changed as well
}

// edited records a published change of the files. Callers hold mu.
func (s *Server) edited(e edit) {
	e.at = time.Now()
	if s.edits = append(s.edits, e); len(s.edits) > maxEdits {
		s.edits = slices.Delete(s.edits, 0, 1)
	}
}

// likeliest returns the object that most likely caused a refusal: one that changed since the last
// accepted version of the resource, else MeshConfig if it has changed since, else the first of
// candidates; zero if none is known. Callers hold mu.
func (s *Server) likeliest(v *view.ProxyView, of *resource.RefusedVersion) resource.Origin {
	likely := candidates(v, of.Resource, of.Reason)
	mesh := false
	for _, origins := range [][]resource.Origin{likely, of.Resource.Origins} {
		for _, o := range origins {
			changed, meshChanged := s.changedSince(o, of)
			if changed {
				return o
			}
			mesh = mesh || meshChanged
		}
	}
	switch {
	case mesh:
		return resource.Origin{File: s.settings.MeshConfigFile, Line: 1}
	case len(likely) > 0:
		return likely[0]
	}
	return resource.Origin{}
}

// changedSince reports whether an object changed since the last accepted version of a refused
// resource (changed), and whether MeshConfig changed between that version and the object's change
// (mesh). Callers hold mu.
func (s *Server) changedSince(o resource.Origin, of *resource.RefusedVersion) (changed, mesh bool) {
	key := object.Key{Kind: object.Kind(o.Kind), Namespace: o.Namespace, Name: o.Name}
	for _, e := range s.edits {
		if e.at.Before(of.Since) || of.Since.IsZero() {
			continue
		}
		if e.objects[key] {
			return true, mesh
		}
		mesh = mesh || e.mesh
	}
	return false, mesh
}

// candidates returns the objects that may have caused a refusal, the most likely one first. For a
// route configuration, these are the objects of the virtual host that contains the text quoted in
// Envoy's reason: a domain, a cluster, a regular expression. If the first origin of the resource is
// an EnvoyFilter, all origins are returned.
func candidates(v *view.ProxyView, r *resource.Resource, reason string) []resource.Origin {
	if r.Type != resource.RouteType || len(r.Origins) > 0 && r.Origins[0].Kind == "EnvoyFilter" {
		return r.Origins
	}
	routes := &routev3.RouteConfiguration{}
	if err := proto.Unmarshal(r.EncodedMessage(), routes); err != nil {
		return r.Origins
	}
	if host := quotedHost(routes.VirtualHosts, reason); host != nil && len(host.Domains) > 0 {
		if origins := v.VirtualHostOrigins(r.Name, host.Domains[0]); len(origins) > 0 {
			return origins
		}
	}
	return r.Origins
}

// quotedHost returns the virtual host that contains the longest string quoted in a reason, or nil.
// It ignores strings that all of several virtual hosts contain.
func quotedHost(hosts []*routev3.VirtualHost, reason string) *routev3.VirtualHost {
	first, count, last := map[string]*routev3.VirtualHost{}, map[string]int{},
		map[string]*routev3.VirtualHost{}
	for _, host := range hosts {
		note := func(values protopath.Values) error {
			text, ok := values.Index(-1).Value.Interface().(string)
			if !ok || last[text] == host || !mentions(reason, text) {
				return nil
			}
			if last[text] = host; first[text] == nil {
				first[text] = host
			}
			count[text]++
			return nil
		}
		if err := protorange.Range(host.ProtoReflect(), note); err != nil {
			return nil
		}
	}
	longest := ""
	for text := range first {
		if (count[text] < len(hosts) || len(hosts) == 1) && (len(text) > len(longest) ||
			len(text) == len(longest) && text < longest) {
			longest = text
		}
	}
	return first[longest]
}
