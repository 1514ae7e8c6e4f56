package discovery

import (
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// Unreadable checks the current certificate files of all proxies. It returns the problem of each
// secret that a proxy could not read if it started now, by the secret's name.
func (s *Server) Unreadable() map[string]Problem {
	if s.certificates == nil {
		return nil // the files are on other hosts
	}
	s.certificates.refresh(reloadWait)
	secrets := map[translate.FileSecret]resource.Origin{}
	s.mu.Lock()
	for _, v := range s.views {
		v.FileSecrets(func(secret translate.FileSecret, from resource.Origin) {
			if secret.Credential == "" { // the agent retains the others
				secrets[secret] = from
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
