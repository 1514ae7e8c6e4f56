package discovery

import (
	"bytes"
	"path/filepath"
	"slices"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/meshfile"
)

// readMesh reads MeshConfig. If it is invalid, or Envoy refused it, the previous one stays in
// force.
func (s *Server) readMesh() {
	read, text, problems := meshfile.Read(s.settings.MeshConfigFile)
	if refused := s.refusedMesh; refused != nil && read != nil {
		if bytes.Equal(text, refused.Text) && read.SameMutualTLS(s.mesh) {
			read = nil
			problems = append(problems, Problem{File: s.settings.MeshConfigFile, Line: 1,
				Severity: condition.Error, Message: refused.Message,
				Cure: "correct it; the text before stays in use until it changes, or a reload " +
					"tries it again"})
		} else {
			s.refusedMesh = nil
		}
	}
	s.meshProblems, s.meshBad = problems, read == nil
	if read != nil {
		s.mesh, s.meshText = read, text
	}
}

// effectiveMesh returns MeshConfig with the server's settings, which take precedence.
func (s *Server) effectiveMesh() *mesh.Config {
	m := *s.mesh
	m.SystemRoots, m.Taken = s.options.SystemRoots, s.settings.Taken
	m.Credentials = s.settings.Credentials
	if s.settings.AccessLog.File != "" {
		m.AccessLog = s.settings.AccessLog
	}
	return &m
}

// reconfigure applies the effective MeshConfig to all realms and reports whether it changed.
func (s *Server) reconfigure() bool {
	m, changed := s.effectiveMesh(), false
	for _, r := range s.realms {
		if m.Equal(r.world.Mesh()) {
			continue
		}
		changed = true
		everything := r.world.SetMesh(m)
		r.cache.Clear()
		for _, v := range s.views {
			if v.realm == r && !r.closed {
				v.Reconfigure(everything)
			}
		}
	}
	if changed {
		s.dropCertificates()
	}
	s.options.TrustBundle(m.Authorities, m.Bundles)
	s.reportProblems()
	return changed
}

// remesh reads MeshConfig again if its file is among changed paths; nil: all.
func (s *Server) remesh(paths []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	file := s.settings.MeshConfigFile
	if file == "" || paths != nil && !slices.Contains(paths, filepath.Clean(file)) {
		return
	}
	if s.applyMesh() {
		s.options.Logger.Info("mesh configuration changed", "file", file)
	}
}

// applyMesh reads MeshConfig, applies it with the settings, and reports whether it changed. Callers
// hold mu.
func (s *Server) applyMesh() bool {
	change := &meshChange{before: s.mesh, beforeText: s.meshText}
	s.readMesh()
	change.afterText = s.meshText
	changed := s.reconfigure()
	if changed {
		s.applied(&applied{mesh: change})
	}
	return changed
}
