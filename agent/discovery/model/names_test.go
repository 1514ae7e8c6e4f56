package model

import (
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

func TestChangesNames(t *testing.T) {
	entry := func(change func(*object.Object, *networking.ServiceEntry)) *object.Object {
		spec := &networking.ServiceEntry{Hosts: []string{"a.test"}, Addresses: []string{"10.0.0.1"},
			Endpoints: []*networking.WorkloadEntry{{Address: "10.1.0.1"}}}
		o := &object.Object{Key: object.Key{Kind: object.ServiceEntry, Name: "a"}, Spec: spec}
		change(o, spec)
		return o
	}
	before := entry(func(*object.Object, *networking.ServiceEntry) {})
	for name, test := range map[string]struct {
		change func(*object.Object, *networking.ServiceEntry)
		want   bool
	}{
		"endpoints": {func(_ *object.Object, s *networking.ServiceEntry) { s.Endpoints = nil }, false},
		"hosts": {func(_ *object.Object, s *networking.ServiceEntry) {
			s.Hosts = append(s.Hosts, "b.test")
		}, true},
		"addresses": {func(_ *object.Object, s *networking.ServiceEntry) { s.Addresses = nil }, true},
		"exportTo": {func(_ *object.Object, s *networking.ServiceEntry) {
			s.ExportTo = []string{"."}
		}, true},
		"age": {func(o *object.Object, _ *networking.ServiceEntry) { o.Created = time.Now() }, true},
	} {
		if got := ChangesDNSNames(object.Change{Old: before,
			New: entry(test.change)}); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	for kind, want := range map[object.Kind]bool{object.ServiceEntry: true, object.Sidecar: true,
		object.DestinationRule: false} {
		o := &object.Object{Key: object.Key{Kind: kind}, Spec: before.Spec}
		for _, c := range []object.Change{{New: o}, {Old: o}} {
			if got := ChangesDNSNames(c); got != want {
				t.Errorf("%+v: %t", c, got)
			}
		}
	}
}
