package view

import (
	"cmp"
	"maps"
	"slices"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// secrets publishes the file secrets of a view. It publishes a secret as long as at least one unit
// of the view, such as a host or a port, needs the secret.
type secrets struct {
	inspect InspectSecrets
	// origins by secret and by the unit that needs it
	users map[translate.ConfiguredSecret]map[string][]resource.Origin
	needs map[string][]translate.ConfiguredSecret
	// secrets that must be published again, because their users or files have changed
	dirty map[translate.ConfiguredSecret]struct{}
}

// InspectSecrets returns the state of the files of each secret, in the same order.
type InspectSecrets func([]translate.ConfiguredSecret) []SecretFiles

// SecretFiles describes the files of a secret.
type SecretFiles struct {
	Fingerprint uint32   // hash that changes with the files' content; 0 if unknown
	NotReadYet  []string // files that were not read yet, because their file system does not answer
	Missing     []string // files that do not exist
	Unreadable  []string // for each unreadable file, why the proxy cannot read it, and the fix
}

func newSecrets(inspect InspectSecrets) secrets {
	return secrets{inspect: inspect, users: map[translate.ConfiguredSecret]map[string][]resource.Origin{},
		needs: map[string][]translate.ConfiguredSecret{},
		dirty: map[translate.ConfiguredSecret]struct{}{}}
}

// need replaces the secrets that a unit needs.
func (s *secrets) need(unit string, wanted map[translate.ConfiguredSecret][]resource.Origin) {
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

// reread marks the secrets that are read from one of the files as changed.
func (s *secrets) reread(files map[string]bool) {
	for secret := range s.users {
		if slices.ContainsFunc(secret.Files(), func(path string) bool { return files[path] }) {
			s.dirty[secret] = struct{}{}
		}
	}
}

// publish publishes changed secrets that a unit needs, and withdraws those that no unit needs any
// more.
func (s *secrets) publish(v *ProxyView) {
	var needed []translate.ConfiguredSecret
	for secret := range s.dirty {
		if len(s.users[secret]) > 0 {
			needed = append(needed, secret)
			continue
		}
		unit := "secret/" + secret.Name()
		delete(s.users, secret)
		v.put(unit)
		v.report(unit, nil)
	}
	clear(s.dirty)
	if len(needed) == 0 {
		return
	}
	found := s.inspect(needed)
	for i, secret := range needed {
		unit := "secret/" + secret.Name()
		origins := s.origins(secret)
		// resource to publish; nil for a credential, which the SDS server provides
		var out *resource.Resource
		var err error
		if secret.Credential == "" {
			out, err = secret.Resource(found[i].Fingerprint, origins...)
		}
		var problems []object.Problem
		report := func(message, fix string) {
			problems = append(problems, object.ProblemAt(origins[0], condition.Error, message,
				fix))
		}
		if err != nil {
			report("Envoy would refuse the certificate: "+err.Error(), "correct the value it names")
		}
		if secret.IsFromExternalSDSServer() && secret.Location.Socket == "" {
			report(secret.Credential+" is of an SDS server of the host, and none is configured: "+
				"connections fail", "set [identity] credentials_sds of the agent to the server's socket; "+
				"outrider-discoveryd has no such credentials")
		}
		for _, path := range found[i].Missing {
			if secret.IsFromExternalSDSServer() {
				report(path+" does not exist: Envoy keeps the credentials that it has from there; "+
					"without them, connections fail",
					"start the SDS server, or correct [identity] credentials_sds")
				continue
			}
			report(path+" does not exist: Envoy keeps what it read there before; "+
				"without that, connections fail", "create it")
		}
		for _, denied := range found[i].Unreadable {
			report(denied, "")
		}
		for _, path := range found[i].NotReadYet {
			report(path+" could not be read yet: its file system does not answer; Envoy gets the "+
				"certificate as soon as it does", "check the mount")
		}
		if len(found[i].NotReadYet) > 0 { // Envoy would hang as well if it read the files
			v.put(unit)
		} else {
			v.put(unit, out)
		}
		v.report(unit, problems)
	}
}

// origins returns the objects that need a secret, sorted by position.
func (s *secrets) origins(secret translate.ConfiguredSecret) []resource.Origin {
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
