package discovery

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"outrider.org/outrider/agent/discovery/view"
	"outrider.org/outrider/agent/recordfile"
	"outrider.org/outrider/agent/resource"
)

// The file Options.RefusalFile contains the refusals by kind of proxy, with the last accepted
// versions. With it, a new epoch does not get a resource that the previous one refused, even after
// a restart of the agent or a reboot.

// refusedState is a JSON record of the file Options.RefusalFile: what one kind of proxy refused.
type refusedState struct {
	kind
	resource.RefusalState
	Overrides []view.EnvoyFilterOverride `json:"overrides,omitempty"`
}

func (r refusedState) empty() bool { return len(r.Refused)+len(r.Overrides) == 0 }

func (v *served) refusedState() refusedState {
	return refusedState{v.kind, v.Feed().State(), v.EnvoyFilterOverrides()}
}

// maxRefusedStates bounds the number of kinds of proxies without a view whose refusals are
// retained.
const maxRefusedStates = 64

var refusalFormat = recordfile.Format{Header: "outrider-refusals 1\n", MaxBytes: 16 << 20}

const kindRecord = 'k'

// inheritRefusals passes earlier refusals to a new view. It prefers those of the same kind of proxy
// to those of the kind that differs only in Envoy's version, and these to those of another kind of
// the same proxy. Callers hold mu.
func (s *Server) inheritRefusals(v *served) {
	rank := func(k kind) int {
		switch {
		case k.Node == v.kind.Node && k.Version == v.kind.Version:
			return 3
		case k.Node == v.kind.Node:
			return 2
		case k.Proxy == v.kind.Proxy:
			return 1
		}
		return 0
	}
	var best refusedState
	for _, state := range s.refusedStates() {
		if better := rank(state.kind) - rank(best.kind); better > 0 ||
			better == 0 && best.empty() && !state.empty() {
			best = state
		}
	}
	if rank(best.kind) > 0 {
		v.Feed().Restore(best.RefusalState)
		v.RestoreEnvoyFilterOverrides(best.Overrides)
	}
	s.refusals = slices.DeleteFunc(s.refusals, func(r refusedState) bool { return rank(r.kind) == 3 })
}

// forgetRefusals drops retained refusals once a view of the same proxies (by node or name) has
// existed for longer than idleAfter. Callers hold mu.
func (s *Server) forgetRefusals(now time.Time) {
	s.refusals = slices.DeleteFunc(s.refusals, func(r refusedState) bool {
		for _, v := range s.views {
			if (v.kind.Node == r.Node || v.kind.Proxy == r.Proxy) && now.Sub(v.created) > idleAfter {
				return true
			}
		}
		return false
	})
}

// refusedStates returns the refusals by kind of proxy; nil if there are none at all. It includes
// kinds without refusals, which would otherwise inherit those of another kind. Callers hold mu.
func (s *Server) refusedStates() (all []refusedState) {
	nothing := true
	for _, v := range s.views {
		state := v.refusedState()
		nothing = nothing && state.empty()
		all = append(all, state)
	}
	if nothing && len(s.refusals) == 0 {
		return nil
	}
	return append(all, s.refusals...)
}

// retainRefusals retains the refusals of a view that is dropped. Callers hold mu.
func (s *Server) retainRefusals(v *served) {
	state := v.refusedState()
	if state.empty() {
		return
	}
	if s.refusals = append(s.refusals, state); len(s.refusals) > maxRefusedStates {
		s.refusals = slices.Delete(s.refusals, 0, 1)
	}
}

// readRefusals reads the file. It logs and skips unusable records.
func (s *Server) readRefusals() (all []refusedState) {
	if s.options.RefusalFile == "" {
		return nil
	}
	records, err := refusalFormat.Read(s.options.RefusalFile)
	for _, record := range records {
		var state struct {
			refusedState
			Overrides []json.RawMessage `json:"overrides"`
		}
		failed := json.Unmarshal(record.Text, &state)
		for _, text := range state.Overrides {
			var one view.EnvoyFilterOverride
			// The record may have an EnvoyFilter that an earlier version of the agent found valid
			// and this version does not. Only the overrides with that EnvoyFilter are skipped.
			if invalid := json.Unmarshal(text, &one); invalid != nil {
				err = cmp.Or(err, invalid)
				continue
			}
			state.refusedState.Overrides = append(state.refusedState.Overrides, one)
		}
		if failed != nil {
			err = cmp.Or(err, failed)
		} else if record.Kind == kindRecord {
			all = append(all, state.refusedState)
		}
	}
	if err != nil {
		s.options.Logger.Warn("cannot use persisted refusals of resources", "error", err)
	} else {
		s.refusalsSum = sumOf(records)
	}
	return all[:min(len(all), maxRefusedStates)]
}

// refusalsMark returns a digest that changes whenever refusals may have changed. It depends on the
// sequences of snapshots, because each change of refusals publishes a snapshot. Callers hold mu.
func (s *Server) refusalsMark() [sha256.Size]byte {
	mark := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(s.views)) {
		snapshot, _ := s.views[key].Feed().Current()
		_, _ = fmt.Fprintf(mark, "%q %d\n", key, snapshot.Sequence)
	}
	for _, r := range s.refusals {
		_, _ = fmt.Fprintf(mark, "%q\n", r.kind)
	}
	return [sha256.Size]byte(mark.Sum(nil))
}

// persistRefusals writes the file Options.RefusalFile if its content has changed. Only Run may call
// it.
func (s *Server) persistRefusals() error {
	if s.options.RefusalFile == "" {
		return nil
	}
	s.mu.Lock()
	mark := s.refusalsMark()
	if mark == s.refusalsSeen {
		s.mu.Unlock()
		return nil
	}
	states := s.refusedStates()
	s.mu.Unlock()
	var records []recordfile.Record
	for _, state := range states {
		text, err := json.Marshal(state)
		if err != nil {
			return fmt.Errorf("encode refusals: %w", err)
		}
		records = append(records, recordfile.Record{Kind: kindRecord, Text: text})
	}
	slices.SortFunc(records, func(x, y recordfile.Record) int { return bytes.Compare(x.Text, y.Text) })
	records, without := refusalFormat.DropExcess(records)
	if sum := sumOf(records); sum != s.refusalsSum {
		if without > 0 {
			s.options.Logger.Warn("cannot persist refused resources of some proxies: too large",
				"kinds", without)
		}
		if err := refusalFormat.Write(s.options.RefusalFile, slices.Values(records)); err != nil {
			return err
		}
		s.refusalsSum = sum
	}
	s.refusalsSeen = mark
	return nil
}

// sumOf returns a digest of records.
func sumOf(records []recordfile.Record) [sha256.Size]byte {
	sum := sha256.New()
	for _, r := range records {
		_, _ = fmt.Fprintf(sum, "%d\n%s", len(r.Text), r.Text)
	}
	return [sha256.Size]byte(sum.Sum(nil))
}
