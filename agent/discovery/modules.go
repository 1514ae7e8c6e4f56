package discovery

import (
	"maps"
	"slices"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/readfile"
	"outrider.org/outrider/agent/wasm"
)

// newModules returns a fetcher for the modules of extensions, nil if clients fetch them.
func (s *Server) newModules() *wasm.Fetcher {
	if !s.options.FetchWasmModules {
		return nil
	}
	return wasm.NewFetcher(wasm.FetcherOptions{File: s.options.WasmModuleCacheFile,
		AllowsLocalAddress: s.mayBeLocal,
		Conditions:         s.options.Conditions, Logger: s.options.Logger})
}

// anyModule stands for the content of every Wasm module in Check, which fetches no modules.
var anyModule = []byte{0}

// lookForModule returns an error if the source of a module is a file that cannot be read. It only
// looks for files if local is set, which means that they are on this host.
func lookForModule(from wasm.Source, local bool) ([]byte, error) {
	if path, ok := from.Path(); ok && local {
		file, err := readfile.OpenRegular(path)
		if err != nil {
			return nil, err
		}
		_ = file.Close() // nothing was written
	}
	return anyModule, nil
}

// setModules makes a model.Mesh use the fetched modules.
func (s *Server) setModules(world *model.Mesh) {
	if s.modules != nil {
		world.SetModules(s.modules.Module)
	}
}

// modulesChanged receives after a change of the fetched modules.
func (s *Server) modulesChanged() <-chan struct{} {
	if s.modules == nil {
		return nil
	}
	return s.modules.Changed()
}

// requireModules makes the fetcher fetch the modules that proxies of the served namespaces may
// need. Callers hold mu.
func (s *Server) requireModules() {
	if s.modules == nil || !s.config.loaded {
		return
	}
	all := s.config.world.ModuleSources(s.settings.Namespace)
	for _, v := range s.views {
		maps.Copy(all, v.Mesh().ModuleSources(v.Node().Namespace))
	}
	s.modules.SetSources(slices.Collect(maps.Keys(all)))
}

// publishModules publishes changed modules. Only Run may call it.
func (s *Server) publishModules() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.updateViews(model.ChangeSummary{ModulesChanged: true})
	s.reportProblems()
}
