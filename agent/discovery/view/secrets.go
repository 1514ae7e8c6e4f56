package view

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// secrets are the files' secrets of a view. Units may need the same one: it is published once, and
// for as long as one does.
type secrets struct {
	look  Look
	users map[translate.FileSecret]map[string][]resource.Origin // by unit
	needs map[string][]translate.FileSecret
	dirty map[translate.FileSecret]struct{} // whose users changed, or whose files
}

// Look looks at the files of secrets, and tells what they hold in the order of these.
type Look func([]translate.FileSecret) []Held

// Held is what the files of a secret hold.
type Held struct {
	Fingerprint uint32   // changes when what they hold does; 0 where nobody knows
	Missing     []string // of the files
	Denied      []string // why the proxy cannot read files, and the cure
}

func newSecrets(look Look) secrets {
	return secrets{look: look, users: map[translate.FileSecret]map[string][]resource.Origin{},
		needs: map[string][]translate.FileSecret{},
		dirty: map[translate.FileSecret]struct{}{}}
}

// need makes wanted what a unit needs.
func (s *secrets) need(unit string, wanted map[translate.FileSecret][]resource.Origin) {
	for _, secret := range s.needs[unit] {
		if _, still := wanted[secret]; !still {
			delete(s.users[secret], unit)
			s.dirty[secret] = struct{}{}
		}
	}
	for secret, origins := range wanted {
		if s.users[secret] == nil {
			s.users[secret] = map[string][]resource.Origin{}
		}
		if before, known := s.users[secret][unit]; !known || !slices.Equal(before, origins) {
			s.users[secret][unit] = origins
			s.dirty[secret] = struct{}{}
		}
	}
	if len(wanted) == 0 {
		delete(s.needs, unit)
	} else {
		s.needs[unit] = slices.Collect(maps.Keys(wanted))
	}
}

// reread has secrets made anew that read one of the files.
func (s *secrets) reread(files map[string]bool) {
	for secret := range s.users {
		if slices.ContainsFunc(secret.Files(), func(path string) bool { return files[path] }) {
			s.dirty[secret] = struct{}{}
		}
	}
}

// publish publishes what is needed now and takes back what is needed no more.
func (s *secrets) publish(v *View) {
	var needed []translate.FileSecret
	for secret := range s.dirty {
		if len(s.users[secret]) > 0 {
			needed = append(needed, secret)
			continue
		}
		unit := "secret/" + secret.Name()
		delete(s.users, secret)
		v.put(unit)
		v.tell(unit, nil)
	}
	clear(s.dirty)
	if len(needed) == 0 {
		return
	}
	found := s.look(needed)
	for i, secret := range needed {
		unit := "secret/" + secret.Name()
		origins := s.origins(secret)
		out, err := secret.Resource(found[i].Fingerprint, origins...)
		var problems []object.Problem
		tell := func(message, cure string) {
			problems = append(problems, Fault(origins[0], message, cure))
		}
		if err != nil {
			tell("Envoy would refuse the certificate: "+err.Error(), "correct the value it names")
		}
		for _, path := range found[i].Missing {
			tell(path+" does not exist: Envoy keeps what it read there before; "+
				"without that, connections fail", "create it")
		}
		for _, denied := range found[i].Denied {
			tell(denied, "")
		}
		v.put(unit, out)
		v.tell(unit, problems)
	}
}

// origins returns the objects that need a secret, by place.
func (s *secrets) origins(secret translate.FileSecret) []resource.Origin {
	var origins []resource.Origin
	for _, from := range s.users[secret] {
		origins = append(origins, from...)
	}
	slices.SortFunc(origins, func(a, b resource.Origin) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Name, b.Name))
	})
	return origins
}

// Fault is an error in the object that something came from.
func Fault(from resource.Origin, message, cure string) object.Problem {
	return object.Problem{File: from.File, Line: from.Line,
		Object:   fmt.Sprintf("%s %s/%s", from.Kind, from.Namespace, from.Name),
		Severity: condition.Error, Message: message, Cure: cure}
}
