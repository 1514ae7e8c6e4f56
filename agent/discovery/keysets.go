package discovery

import (
	"crypto/x509"
	"os"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/jwks"
)

// newKeySets returns a fetcher for the key sets of RequestAuthentications. roots is a file with
// trusted CA certificates, or "" for the system's.
func (s *Server) newKeySets(roots string) *jwks.Fetcher {
	options := jwks.Options{File: s.options.KeySetCacheFile, AllowsLocalAddress: s.mayBeLocal,
		Conditions: s.options.Conditions, Logger: s.options.Logger, Refresh: s.options.KeySetRefresh}
	if roots != "" {
		options.Roots = func() *x509.CertPool {
			pool := x509.NewCertPool()
			pem, err := os.ReadFile(roots)
			if err != nil || !pool.AppendCertsFromPEM(pem) {
				s.options.Logger.Warn("cannot read root certificates for JWKS servers",
					"file", roots, "error", err)
			}
			return pool
		}
	}
	return jwks.New(options)
}

// mayBeLocal reports whether a host of a key set may have a local address (of this machine,
// link-local, or of a metadata service). A ServiceEntry for exactly this host permits it.
func (s *Server) mayBeLocal(host string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.config.world.HasExactServiceHost(host)
}

// requireKeySets makes the fetcher fetch the key sets that the objects in force need. Callers hold
// mu.
func (s *Server) requireKeySets() {
	s.keySets.SetSources(s.config.world.KeySetSources())
}

// publishKeySets publishes changed key sets. Only Run may call it.
func (s *Server) publishKeySets() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.updateViews(model.ChangeSummary{KeySetsChanged: true})
	s.reportProblems()
}
