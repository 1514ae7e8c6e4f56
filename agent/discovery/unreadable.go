package discovery

import (
	"cmp"
	"slices"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// UnreadableSecretFiles checks the current certificate files of all proxies. By the name of a
// secret, it returns the problem of a file that a proxy could not read if it started now.
func (s *Server) UnreadableSecretFiles() map[string]Problem {
	if s.certificates == nil {
		return nil // the files are on other hosts
	}
	s.certificates.refresh(reloadWait)
	secrets := map[translate.ConfiguredSecret]resource.Origin{}
	s.mu.Lock()
	for _, v := range s.views {
		v.ConfiguredSecrets(func(secret translate.ConfiguredSecret, users []resource.Origin) {
			if secret.Credential == "" { // the agent reads credentials, and retains their content
				secrets[secret] = users[0]
			}
		})
	}
	s.mu.Unlock()
	found := map[string]Problem{}
	for secret, from := range secrets {
		for _, path := range secret.Files() {
			missing, why := s.certificates.access(path)
			if missing {
				found[secret.Name()] = object.ProblemAt(from, condition.Error,
					path+" does not exist", "create it")
			} else if why != "" {
				found[secret.Name()] = object.ProblemAt(from, condition.Error, why, "")
			}
		}
	}
	return found
}

// ObjectsUsingSecrets returns, by the name of a secret, the objects that use it, sorted by position
// and without duplicates.
func (s *Server) ObjectsUsingSecrets() map[string][]resource.Origin {
	found := map[string][]resource.Origin{}
	s.mu.Lock()
	for _, v := range s.views {
		v.ConfiguredSecrets(func(secret translate.ConfiguredSecret, users []resource.Origin) {
			found[secret.Name()] = append(found[secret.Name()], users...)
		})
	}
	s.mu.Unlock()
	for name, users := range found {
		slices.SortFunc(users, func(a, b resource.Origin) int {
			return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line),
				cmp.Compare(a.Name, b.Name))
		})
		found[name] = slices.Compact(users)
	}
	return found
}
