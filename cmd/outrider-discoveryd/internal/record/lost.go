package record

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/registration"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
)

// cautious is a source whose stored objects stay in use although its list is empty, until a reload.
type cautious interface{ RemoveRetainedInputs() }

func (r *Recorder) isCautious(name string) bool {
	return slices.ContainsFunc(r.sources, func(s source.Source) bool {
		_, ok := s.(cautious)
		return ok && s.Name() == name
	})
}

// isRegistered reports whether an input is the WorkloadEntry of a registered workload. If the
// source loses it, the server to which the workload is connected writes it again.
func isRegistered(in store.SourceInput) bool {
	return strings.HasSuffix(kindOf(in.Path), ":"+string(object.WorkloadEntry)) &&
		bytes.Contains(in.Text, []byte(registration.GroupAnnotation))
}

// withLost adds stored inputs to a source's complete list, because the source may have lost its
// data: the inputs of kinds that the source had in an earlier run and of which its list has none.
// They stay in use until a complete list contains their kind again, the source changes them, or the
// program is reloaded. WorkloadEntries of registered workloads are not added, because their
// workloads may have left. Callers hold mu.
func (r *Recorder) withLost(b discovery.SourceUpdate, s *state) discovery.SourceUpdate {
	present := map[string]bool{}
	for _, in := range b.Inputs {
		present[kindOf(in.Path)] = true
	}
	maps.DeleteFunc(s.lost, func(path string,
		_ store.SourceInput) bool {
		return present[kindOf(path)]
	})
	if len(s.lost) == 0 {
		return b
	}
	b.Inputs = slices.Clone(b.Inputs)
	for _, path := range slices.Sorted(maps.Keys(s.lost)) {
		b.Inputs = append(b.Inputs, s.lost[path])
	}
	r.board.Raise(conditionOf(b.Source), condition.Warning, fmt.Sprintf("source %s lacks all %d "+
		"inputs of some kinds that it had before the start: they stay until they change; a reload "+
		"removes them", b.Source, len(s.lost)))
	return b
}

// kindOf returns the kind of an input: its path up to the first slash, which is the source's name
// followed, in some sources, by the kind of objects or the datacentre.
func kindOf(path string) string {
	if kind, _, ok := strings.Cut(path, "/"); ok {
		return kind
	}
	source, _, _ := strings.Cut(path, ":")
	return source
}

// RemoveRetainedInputs removes the stored inputs that withLost has added to the lists of sources.
func (r *Recorder) RemoveRetainedInputs() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, s := range r.states {
		if len(s.lost) == 0 {
			continue
		}
		b := discovery.SourceUpdate{Source: name}
		for path := range s.lost {
			b.Inputs = append(b.Inputs, store.SourceInput{Path: path})
			delete(s.inputs, path)
		}
		clear(s.lost)
		r.board.Clear(conditionOf(name))
		r.changes(s)
		r.next(b)
	}
}
