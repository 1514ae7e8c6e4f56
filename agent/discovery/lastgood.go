package discovery

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"time"

	"outrider.org/outrider/agent/discovery/lastgood"
	"outrider.org/outrider/agent/discovery/meshfile"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/validate"
	"outrider.org/outrider/agent/lifecycle"
)

// persisted is the state stored in Options.LastGoodFile. Only Run uses it.
type persisted struct {
	state lastgood.State // state in the file, or in the last attempt to write it
	stale bool           // the file does not contain state
	// again receives when it is time to retry a failed write; nil: no write has failed
	again <-chan time.Time
}

// readLastGood reads the last good versions from Options.LastGoodFile. stale reports whether some
// of them cannot be used, so that the file must be written again.
func readLastGood(o Options) (state lastgood.State, stale bool) {
	if o.LastGoodFile == "" {
		return lastgood.State{}, false
	}
	state, wrong := lastgood.Read(o.LastGoodFile, o.Settings.Namespace, validate.Object)
	for _, err := range wrong {
		o.Logger.Warn("cannot use stored last-good version", "error", err)
	}
	return state, len(wrong) > 0
}

// restoreMesh applies the MeshConfig that the previous process stored as last good.
func (s *Server) restoreMesh(text []byte) {
	if len(text) == 0 {
		return
	}
	read, problems := meshfile.Parse(s.settings.MeshConfigFile, text)
	if read == nil {
		s.options.Logger.Warn("cannot use stored last-good MeshConfig", "error",
			problems[0].Message)
		return
	}
	s.mesh, s.meshText, s.meshKnown = read, text, true
}

// logRestored logs the number of last good versions in force, and how many of their files are
// missing. Only Run may call it.
func (s *Server) logRestored() {
	now, waiting := s.lastGood(), s.config.store.CountLastGoodAwaitingFiles()
	if objects := len(now.Objects) - waiting; objects+len(now.MeshConfig) > 0 {
		s.options.Logger.Info("restored last-good objects of previous run",
			"objects", objects, "mesh_config", len(now.MeshConfig) > 0)
	}
	if waiting > 0 {
		s.options.Logger.Warn("last-good objects not applied: their files are missing",
			"objects", waiting)
	}
}

// lastGood returns the versions in force whose files are invalid or missing. Only Run may call it.
func (s *Server) lastGood() lastgood.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.config
	state := lastgood.State{Objects: c.held, MissingPaths: c.away, PolicyFolderInodes: c.folders,
		PolicyCountsByFile:               c.policies,
		PolicyLocationsIncomplete:        c.lost,
		WriterRefusedUnknownFilterFields: c.store.HasKind(object.EnvoyFilter)}
	if s.meshBad && s.meshKnown {
		state.MeshConfig = s.meshText
		if len(state.MeshConfig) == 0 { // empty text: Istio's defaults are in force
			state.MeshConfig = []byte("{}\n")
		}
	}
	state.RevertedByOldAgent = s.reverted.Load()
	return state
}

// persist stores the last good versions for the next server if they have changed. Only Run may call
// it.
func (s *Server) persist() {
	err := s.persistRefusals()
	if s.options.LastGoodFile != "" {
		err = errors.Join(err, s.persistLastGood())
	}
	if err != nil && s.persisted.again == nil {
		s.options.Logger.Warn("cannot persist last-good mesh config", "error", err)
	}
	s.persisted.again = lifecycle.RetryTimer(err)
}

func (s *Server) persistLastGood() error {
	now, last := s.lastGood(), s.persisted.state
	if !s.persisted.stale &&
		now.WriterRefusedUnknownFilterFields == last.WriterRefusedUnknownFilterFields &&
		now.PolicyLocationsIncomplete == last.PolicyLocationsIncomplete &&
		slices.Equal(now.Objects, last.Objects) && slices.Equal(now.MissingPaths,
		last.MissingPaths) &&
		maps.Equal(now.PolicyFolderInodes, last.PolicyFolderInodes) &&
		maps.Equal(now.PolicyCountsByFile,
			last.PolicyCountsByFile) &&
		bytes.Equal(now.MeshConfig, last.MeshConfig) &&
		now.RevertedByOldAgent == last.RevertedByOldAgent {
		return nil
	}
	err := lastgood.Write(s.options.LastGoodFile, now)
	s.persisted.state, s.persisted.stale = now, err != nil
	return err
}
