package discovery

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/credential"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// refusal is Envoy's refusal of a resource. It is dropped when the resource changes.
type refusal struct {
	version string
	reason  string
	problem Problem
	// policy: the proxy keeps another version of what a PeerAuthentication decides.
	policy bool
}

// RefusedResource is a resource that a proxy refused.
type RefusedResource struct {
	Name    string
	Version string // "": unknown, or the proxy may have refused another resource
	Held    bool   // the proxy has another version of it
}

// Refused records that Envoy refused resources of a type, and reverts the objects whose change
// produced them. Where that is impossible, the proxy keeps its version, each resource becomes a
// problem of the object it came from, and Refused returns its name. If refused is empty, it
// considers the resources that the reason mentions. placed reports whether all these problems have
// a file and a line.
func (s *Server) Refused(typeURL string, refused []RefusedResource, reason error) (
	unresolved []string, placed bool) {
	defer s.persistSoon()
	s.mu.Lock()
	defer s.mu.Unlock()
	found, placed := false, true
	for _, v := range s.views {
		for _, one := range s.blamed(v, typeURL, refused, reason.Error()) {
			snapshot, _ := v.Feed().Current()
			r := snapshot.Get(resource.Key{Type: typeURL, Name: one.Name})
			if r == nil {
				_, removed := v.Feed().LastChange(resource.Key{Type: typeURL, Name: one.Name})
				found = found || removed
				continue
			}
			found = true
			origins := guilty(v.View, r, reason.Error())
			p := refusedProblem(r, origins, reason)
			// a secret is refused because of its files, not of an object
			certain := one.Version != "" && typeURL != resource.SecretType
			switch {
			case certain && one.Version != r.Version: // replaced since
			case certain && (one.Held || !r.Accepted()) && s.fallBack(v, r, origins, p.Message):
			default:
				s.refusals[r.Key()] = refusal{version: r.Version, reason: reason.Error(),
					problem: p, policy: one.Held && polices(r.Origins)}
				unresolved = append(unresolved, one.Name)
				placed = placed && p.File != ""
			}
		}
	}
	if !found {
		names := make([]string, len(refused))
		for i, one := range refused {
			names[i] = one.Name
		}
		s.options.Logger.Warn("Envoy refused resources that no object explains", "type", typeURL,
			"names", names, "error", reason)
		return names, false
	}
	s.reportProblems()
	slices.Sort(unresolved)
	return slices.Compact(unresolved), placed
}

// polices reports whether a PeerAuthentication is among origins.
func polices(origins []resource.Origin) bool {
	return slices.ContainsFunc(origins, func(o resource.Origin) bool {
		return o.Kind == string(object.PeerAuthentication)
	})
}

// unenforced returns why a policy is not in force, nil if none is known: Envoy refused what it
// decides, and keeps the version before. Callers hold mu.
func (s *Server) unenforced() *string {
	why := ""
	for _, r := range s.refusals {
		if text := "a policy may not be in force: " + r.problem.String(); r.policy &&
			(why == "" || text < why) {
			why = text
		}
	}
	if why == "" {
		return nil
	}
	return &why
}

// Cured records that Envoy accepts resources that it refused before.
func (s *Server) Cured(typeURL string, names []string) {
	defer s.persistSoon()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		delete(s.refusals, resource.Key{Type: typeURL, Name: name})
	}
	s.reportProblems()
}

// blamed returns the resources that a refusal is about. If refused is empty, these are the
// resources that the text mentions. Several secrets are narrowed to those of which the text
// mentions a file or its directory, if there are any.
func (s *Server) blamed(v *served, typeURL string, refused []RefusedResource,
	text string) []RefusedResource {
	var found []RefusedResource
	switch {
	case len(refused) == 0:
		snapshot, _ := v.Feed().Current()
		for name := range snapshot.Set(typeURL) {
			if mentions(text, name) {
				found = append(found, RefusedResource{Name: name})
			}
		}
		return found
	case typeURL == resource.SecretType && len(refused) > 1:
		for _, one := range refused {
			_, files, _ := strings.Cut(one.Name, ":")
			for path := range strings.SplitSeq(files, "~") {
				if mentions(text, path) || mentions(text, filepath.Dir(path)+"/") {
					found = append(found, one)
					break
				}
			}
		}
	}
	if len(found) == 0 {
		return refused
	}
	return found
}

// mentions reports whether a text contains a name that is not part of a longer one.
func mentions(text, name string) bool {
	const partOfName = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_|"
	for {
		at := strings.Index(text, name)
		if at < 0 || name == "" {
			return false
		}
		end := at + len(name)
		if (at == 0 || strings.IndexByte(partOfName, text[at-1]) < 0) && (end == len(text) ||
			strings.IndexByte(partOfName, text[end]) < 0) {
			return true
		}
		text = text[end:]
	}
}

// keyMismatch is BoringSSL's reason for a key that is not the certificate's.
const keyMismatch = "KEY_VALUES_MISMATCH"

// described returns the kind and name of a resource for people: for secrets, their files or
// credential.
func described(r *resource.Resource) string {
	pair, isPair := strings.CutPrefix(r.Name, "file-cert:")
	authorities, isRoot := strings.CutPrefix(r.Name, "file-root:")
	switch {
	case r.Type == resource.SecretType && isPair:
		certificate, key, _ := strings.Cut(pair, "~")
		return "certificate in " + certificate + " with the key in " + key
	case r.Type == resource.SecretType && isRoot:
		return "authorities in " + strings.ReplaceAll(authorities, "~", " and ")
	}
	if title, ok := credential.Title(r.Name); ok {
		return title
	}
	return r.Type[strings.LastIndexByte(r.Type, '.')+1:] + " " + r.Name
}

// refusedProblem returns the problem of a refused resource, at the first object that it is from.
func refusedProblem(r *resource.Resource, origins []resource.Origin, reason error) Problem {
	message := fmt.Sprintf("Envoy refused the %s: %v", described(r), reason)
	fix := "correct it; the version that Envoy accepted before, if any, stays in use"
	files, isPair := strings.CutPrefix(r.Name, "file-cert:")
	if isPair && strings.Contains(reason.Error(), keyMismatch) {
		certificate, key, _ := strings.Cut(files, "~")
		message = fmt.Sprintf("%s: the private key is not that of the certificate in %s", key,
			certificate)
		fix = "replace both files; the pair that Envoy accepted before, if any, stays in use"
	}
	if len(origins) == 0 {
		return Problem{Severity: condition.Error, Message: message, Fix: fix}
	}
	return object.ProblemAt(origins[0], condition.Error, message, fix)
}

// forgetRefusals drops the refusals of resources that were removed or changed since.
func (s *Server) forgetRefusals() {
	for key, r := range s.refusals {
		current := false
		for _, v := range s.views {
			snapshot, _ := v.Feed().Current()
			now := snapshot.Get(key)
			current = current || now != nil && now.Version == r.version
		}
		if !current {
			delete(s.refusals, key)
		}
	}
}
