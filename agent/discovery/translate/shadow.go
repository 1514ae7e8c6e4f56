package translate

import (
	"fmt"
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
)

// ownRoute is a translated route, with the object and the field that define it.
type ownRoute struct {
	*routev3.Route
	object *object.Object
	index  int // index of the route in the field http of object
	field  string
}

// shadow finds unreachable routes of a virtual host: all of their requests match a VirtualService
// that has precedence.
type shadow struct {
	host string
	// first VirtualService with a route for a match, by the match's key and by its prefix (see
	// prefixKey)
	claimed  map[string]*model.MergedVirtualService
	problems []object.Problem
}

// add adds the routes of a VirtualService. It is called in order of precedence. Package validate
// compares the routes of one VirtualService with each other.
func (s *shadow) add(routing *model.MergedVirtualService, routes []ownRoute) {
	var found []object.Problem
	hidden := 0
	for _, route := range routes {
		by := s.claimedBy(route.Match)
		if by == nil || s.fallsBack(routing, by) {
			continue
		}
		hidden++
		if problem := s.problem(route.object, route.field, by); !slices.Contains(found, problem) {
			found = append(found, problem)
		}
	}
	if hidden > 1 && hidden == len(routes) {
		found = []object.Problem{s.problem(routing.Object, "http", s.claimedBy(routes[0].Match))}
	}
	s.problems = append(s.problems, found...)
	if s.claimed == nil {
		s.claimed = map[string]*model.MergedVirtualService{}
	}
	for _, route := range routes {
		keys := []string{matchKey(route.Match)}
		if prefix := route.Match.GetPrefix(); prefix != "/" && route.Match.CaseSensitive == nil {
			keys = append(keys, prefixKey(beside(route.Match), prefix))
		}
		for _, key := range keys {
			if s.claimed[key] == nil {
				s.claimed[key] = routing
			}
		}
	}
}

// fallsBack reports whether routing matches the host only by a pattern, while by, which has
// precedence, names the host. The pattern is then meant for other hosts, so unreachable routes for
// this host are no problem.
func (s *shadow) fallsBack(routing, by *model.MergedVirtualService) bool {
	return !slices.Contains(routing.Hosts, s.host) && slices.Contains(by.Hosts, s.host)
}

// claimedBy returns the VirtualService that has precedence and matches every request that m
// matches, or nil. Routes for all requests come last (see GatewayVirtualHost), so they can only
// shadow each other.
func (s *shadow) claimedBy(m *routev3.RouteMatch) *model.MergedVirtualService {
	if by := s.claimed[matchKey(m)]; by != nil || isEverything(m) || m.CaseSensitive != nil {
		return by
	}
	// a match has a prefix, a path or a regular expression, so at most one of the two is not empty
	path := m.GetPrefix() + m.GetPath()
	for _, conditions := range slices.Compact([]string{"", beside(m)}) {
		for end := range len(path) {
			if by := s.claimed[prefixKey(conditions, path[:end+1])]; by != nil {
				return by
			}
		}
	}
	return nil
}

func (s *shadow) problem(o *object.Object, field string,
	by *model.MergedVirtualService) object.Problem {
	return o.Warning(field,
		fmt.Sprintf("is never reached for host %s: %s at %s is older and counts", s.host,
			by.Object.Key, by.Object.Position()),
		"put the routes into one VirtualService, or let each have hosts of its own")
}

// matchKey returns a key that is equal for equivalent request matches.
func matchKey(m *routev3.RouteMatch) string {
	if isEverything(m) {
		m = everything()
	}
	return object.EncodeDeterministic(m)
}

// beside returns a key for all conditions of a request match except its path.
func beside(m *routev3.RouteMatch) string {
	other := proto.CloneOf(m)
	other.PathSpecifier = nil
	return object.EncodeDeterministic(other)
}

func prefixKey(beside, prefix string) string { return beside + "\x00" + prefix }
