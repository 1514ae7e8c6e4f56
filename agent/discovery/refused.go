package discovery

import (
	"fmt"
	"path/filepath"
	"strings"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/resource"
)

// refusal is what Envoy said of a resource; it stands until the resource changes.
type refusal struct {
	version string
	reason  string
	problem Problem
}

// Refused tells that Envoy refused resources of a type; the version it had goes on. names may be empty where Envoy does
// not say which: those that its words mention are taken then. Each becomes a problem of the object it came from.
func (s *Server) Refused(typeURL string, names []string, reason error) {
	defer s.rememberTold()
	s.mu.Lock()
	defer s.mu.Unlock()
	found := false
	for _, v := range s.views {
		snapshot, _ := v.Feed().Current()
		set := snapshot.Set(typeURL)
		mentioned := blamed(typeURL, names, reason.Error())
		if len(names) == 0 {
			for name := range set {
				if mentions(reason.Error(), name) {
					mentioned = append(mentioned, name)
				}
			}
		}
		for _, name := range mentioned {
			if r := set[name]; r != nil {
				found = true
				key := resource.Key{Type: typeURL, Name: name}
				s.refusals[key] = refusal{version: r.Version, reason: reason.Error(), problem: refusedProblem(r, s.standIn(r), guilty(v.View, r, reason.Error()), reason)}
			}
		}
	}
	if !found {
		s.options.Logger.Warn("Envoy refused resources that no object explains", "type", typeURL, "names", names, "error", reason)
		return
	}
	s.tellProblems()
}

// Cured tells that Envoy takes resources that it refused before.
func (s *Server) Cured(typeURL string, names []string) {
	defer s.rememberTold()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		delete(s.refusals, resource.Key{Type: typeURL, Name: name})
	}
	s.tellProblems()
}

// blamed narrows secrets to those with a file that a text has, or the folder of one; if none has, all stay.
func blamed(typeURL string, names []string, text string) []string {
	if typeURL != resource.SecretType || len(names) < 2 {
		return names
	}
	var found []string
	for _, name := range names {
		_, files, _ := strings.Cut(name, ":")
		for path := range strings.SplitSeq(files, "~") {
			if mentions(text, path) || mentions(text, filepath.Dir(path)+"/") {
				found = append(found, name)
				break
			}
		}
	}
	if len(found) == 0 {
		return names
	}
	return found
}

// mentions tells whether a text has a name that is not a part of a longer one.
func mentions(text, name string) bool {
	const partOfName = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_|"
	for {
		at := strings.Index(text, name)
		if at < 0 || name == "" {
			return false
		}
		end := at + len(name)
		if (at == 0 || strings.IndexByte(partOfName, text[at-1]) < 0) && (end == len(text) || strings.IndexByte(partOfName, text[end]) < 0) {
			return true
		}
		text = text[end:]
	}
}

func refusedProblem(r, standIn *resource.Resource, origins []resource.Origin, reason error) Problem {
	kind := r.Type[strings.LastIndexByte(r.Type, '.')+1:]
	p := Problem{Severity: condition.Error, Message: fmt.Sprintf("Envoy refused the %s %s: %v", kind, r.Name, reason),
		Cure: "correct it; the version that Envoy accepted before, if any, stays in use"}
	if standIn != nil {
		p.Cure = "correct it; the version before stays in use (" + standIn.Version + ")"
	}
	if len(origins) > 0 {
		o := origins[0]
		p.File, p.Line, p.Object = o.File, o.Line, fmt.Sprintf("%s %s/%s", o.Kind, o.Namespace, o.Name)
	}
	return p
}

// forgetRefusals drops those of resources that are gone or changed since.
func (s *Server) forgetRefusals() {
	for key, r := range s.refusals {
		stands := false
		for _, v := range s.views {
			snapshot, _ := v.Feed().Current()
			now := snapshot.Get(key)
			stands = stands || now != nil && now.Version == r.version
		}
		if !stands {
			delete(s.refusals, key)
		}
	}
}
