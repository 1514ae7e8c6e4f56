package discovery

import (
	"bytes"
	"slices"
	"sync"

	"outrider.org/outrider/agent/discovery/lastgood"
	"outrider.org/outrider/agent/discovery/meshfile"
	"outrider.org/outrider/agent/discovery/validate"
)

// kept is what Options.LastGood holds.
type kept struct {
	mu    sync.Mutex
	state lastgood.State // as was last written, or tried
	stale bool           // the file says something else

	failing bool // it cannot be written, and that is told
}

// recall reads what the server before this one had in force though its text was bad. stale tells
// that not all of it was taken.
func recall(o Options) (state lastgood.State, stale bool) {
	if o.LastGood == "" {
		return lastgood.State{}, false
	}
	state, wrong := lastgood.Read(o.LastGood, o.Settings.Namespace, validate.Object)
	for _, err := range wrong {
		o.Logger.Warn("a last good version from before this start cannot be used: what only it "+
			"served is withdrawn until its file is corrected", "error", err)
	}
	return state, len(wrong) > 0
}

// restoreMesh puts the configuration of the mesh into force that the server before this one had,
// though its file was bad.
func (s *Server) restoreMesh(text []byte) {
	if len(text) == 0 {
		return
	}
	read, problems := meshfile.Parse(s.settings.MeshConfigFile, text, s.options.Identity)
	if read == nil {
		s.options.Logger.Warn("the last good version of MeshConfig from before this start cannot "+
			"be used: while its file is bad the defaults are in force", "error",
			problems[0].Message)
		return
	}
	s.mesh, s.meshText = read, text
}

// tellRecalled tells what is served that no file says, and what is not though it was kept. Only Run
// may call it.
func (s *Server) tellRecalled() {
	s.mu.Lock()
	here := s.here
	s.mu.Unlock()
	now, waiting := s.inForce(), here.store.Waiting()
	if objects := len(now.Objects) - waiting; objects+len(now.Mesh)+len(now.Refused) > 0 {
		s.options.Logger.Info("last good versions from before this start go on in place of what "+
			"is bad now", "objects", objects, "mesh_config", len(now.Mesh) > 0, "refused_objects",
			len(now.Refused))
	}
	if waiting > 0 {
		s.options.Logger.Warn("last good versions from before this start are kept, and not "+
			"served: what held their files is not there", "objects", waiting)
	}
}

// inForce is what is in force though its text is bad now, or waits for its file.
func (s *Server) inForce() lastgood.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := lastgood.State{Objects: s.here.held}
	if s.here.restricted && s.here.loaded && !s.here.closed {
		state.Objects, state.Complete = s.here.inForce(), true
	}
	if s.meshBad {
		state.Mesh = s.meshText
	}
	state.Refused, state.RefusedMesh = s.here.refusedObjects(), s.refusedMesh
	return state
}

// ending tells whether Run has ended, or is about to.
func (s *Server) ending() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// rememberSoon has Run remember, for those who must not wait for a file.
func (s *Server) rememberSoon() {
	select {
	case s.unwritten <- struct{}{}:
	default: // it is about to
	}
}

// rememberTold has what a proxy said remembered, by Run or, once that has ended, here: a proxy may
// say something while all ends.
func (s *Server) rememberTold() {
	if s.ending() {
		s.remember()
	} else {
		s.rememberSoon()
	}
}

// remember writes what is in force though its text is bad now, for the server after this one, if
// that has changed.
func (s *Server) remember() {
	if s.options.LastGood == "" {
		return
	}
	s.kept.mu.Lock()
	defer s.kept.mu.Unlock()
	now := s.inForce()
	if !s.kept.stale && now.Complete == s.kept.state.Complete && slices.Equal(now.Objects,
		s.kept.state.Objects) && slices.Equal(now.Refused, s.kept.state.Refused) &&
		now.RefusedMesh == s.kept.state.RefusedMesh && bytes.Equal(now.Mesh, s.kept.state.Mesh) {
		return
	}
	failing := s.kept.failing
	err := lastgood.Write(s.options.LastGood, now)
	// then it is tried again at the next push
	s.kept.state, s.kept.stale, s.kept.failing = now, err != nil, err != nil
	if err != nil && !failing {
		s.options.Logger.Warn("what is served though its file is bad now could not be "+
			"remembered: correct the file before a restart, which withdraws it", "error", err)
	}
}
