package discovery

import (
	"path/filepath"
	"slices"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/meshfile"
	"outrider.org/outrider/agent/discovery/model"
)

// meshRead is the result of reading MeshConfig from its file.
type meshRead struct {
	file     string
	sequence uint64       // number of the read, in the order in which reads began; from 1
	config   *mesh.Config // MeshConfig in the file; nil if the file is invalid
	text     []byte
	problems []Problem
}

// readMesh reads MeshConfig from its file. Callers must not hold mu, because the file system may
// not answer.
func (s *Server) readMesh(file string) meshRead {
	r := meshRead{file: file, sequence: s.meshReads.Add(1)}
	r.config, r.text, r.problems = meshfile.Read(file)
	return r
}

// takeMesh puts the MeshConfig of a read in force, if no newer read of the configured file was
// applied. If it is invalid, the previous MeshConfig stays in force. Callers hold mu.
func (s *Server) takeMesh(r meshRead) {
	if r.file == s.settings.MeshConfigFile && (r.file != s.meshRead.file ||
		r.sequence > s.meshRead.sequence) {
		s.meshRead = r
	}
	r = s.meshRead
	if message := s.reverted.Load().WhyMeshConfigReverted(r.text); r.config != nil &&
		message != "" &&
		r.config.EqualMutualTLS(s.mesh) {
		r.config, r.problems = nil, append(slices.Clip(r.problems), Problem{File: r.file, Line: 1,
			Severity: condition.Error, Message: message, Fix: revertedFix})
	}
	s.meshProblems, s.meshBad = r.problems, r.config == nil
	if r.config != nil {
		s.mutualChanged = s.mutualChanged || !r.config.EqualMutualTLS(s.mesh)
		s.mesh, s.meshText, s.meshKnown = r.config, r.text, true
	}
}

// effectiveMesh returns MeshConfig with the server's settings applied, which have precedence.
func (s *Server) effectiveMesh() *mesh.Config {
	m := *s.mesh
	m.SystemRoots, m.ReservedAddresses = s.options.SystemRoots, s.settings.ReservedAddresses
	m.Credentials = s.settings.Credentials
	if s.settings.AccessLog.File != "" {
		m.AccessLog = s.settings.AccessLog
		m.AccessLog.ConfiguredOnHost = true
	}
	m.AccessLog.FailureLogCluster = s.settings.AccessLog.FailureLogCluster
	return &m
}

// TrustDomains returns the trust domain of the MeshConfig in force, followed by its aliases.
func (s *Server) TrustDomains() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mesh.TrustDomainWithAliases()
}

// reconfigure puts the effective MeshConfig in force, and reports whether it has changed.
func (s *Server) reconfigure() bool {
	m := s.effectiveMesh()
	changed := !m.Equal(s.config.world.MeshConfig())
	if changed {
		everything := s.config.world.SetMeshConfig(m)
		s.config.cache.Clear()
		for _, v := range s.views {
			if s.isCurrent(v) && s.config.closed == nil {
				v.Reconfigure(everything)
			}
		}
		s.outdated = true
		s.sharing.move(everything)
		s.dropCertificates()
	}
	if s.close(model.ChangeSummary{}) {
		s.reopen()
	}
	s.options.OnTrustChange(m.TrustedCAs, m.SPIFFEBundleURLs)
	s.reportProblems()
	return changed
}

// remesh reads MeshConfig again if its file is among the changed paths; nil means that every file
// may have changed. Only Run may call it.
func (s *Server) remesh(paths []string) {
	file := s.current().MeshConfigFile
	if file == "" || paths != nil && !slices.Contains(paths, filepath.Clean(file)) {
		return
	}
	read := s.readMesh(file)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.applyMesh(read) {
		s.options.Logger.Info("MeshConfig changed", "file", file)
	}
}

// applyMesh applies the result of reading MeshConfig, together with the server's Settings. It
// reports whether the effective MeshConfig has changed. Callers hold mu.
func (s *Server) applyMesh(read meshRead) bool {
	s.takeMesh(read)
	changed := s.reconfigure()
	if changed {
		s.edited(edit{mesh: true})
	}
	return changed
}
