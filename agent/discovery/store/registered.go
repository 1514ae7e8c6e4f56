package store

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

// If two service registries have a service for the same host, only the service of the registry that
// comes first in Options.Sources is in force. All other ServiceEntries for a host are merged: those
// of the same registry, and those that users write.

// registeredHosts returns the hosts of an object that is a service of a registry (see
// SourceInput.Objects); nil for other objects.
func registeredHosts(o *object.Object) []string {
	if spec, ok := o.Spec.(*networking.ServiceEntry); ok && strings.Contains(o.Name, ":") {
		return spec.Hosts
	}
	return nil
}

func (s *Store) addHosts(o *object.Object) {
	for _, host := range registeredHosts(o) {
		all := s.registered[host]
		at, _ := slices.BinarySearchFunc(all, o, s.compareCandidates)
		s.registered[host] = slices.Insert(all, at, o)
	}
}

func (s *Store) removeHosts(o *object.Object) {
	for _, host := range registeredHosts(o) {
		rest := slices.DeleteFunc(s.registered[host], func(x *object.Object) bool { return x == o })
		if s.registered[host] = rest; len(rest) == 0 {
			delete(s.registered, host)
		}
	}
}

// affected returns the keys of objects that may come into force, or be replaced, because an object
// changed.
func (s *Store) affected(o *object.Object) []object.Key {
	keys := []object.Key{o.Key}
	for _, host := range registeredHosts(o) {
		for _, other := range s.registered[host] {
			keys = append(keys, other.Key)
		}
	}
	return keys
}

// owner returns the service that replaces o: o is a service of a registry, and a registry that
// precedes this registry has a service for the same host. It returns nil if there is none.
func (s *Store) owner(o *object.Object) *object.Object {
	for _, host := range registeredHosts(o) {
		if all := s.registered[host]; len(all) > 0 {
			_, first := s.rank(all[0].File)
			if _, own := s.rank(o.File); first < own {
				return all[0]
			}
		}
	}
	return nil
}
