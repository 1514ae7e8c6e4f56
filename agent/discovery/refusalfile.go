package discovery

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/discovery/lastgood"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/validate"
	"outrider.org/outrider/agent/discovery/view"
	"outrider.org/outrider/agent/recordfile"
	"outrider.org/outrider/agent/resource"
)

// The file Options.Refusals has what clients refused, by kind of proxy, and the last accepted
// versions: a new epoch must not get what the former one refused, also after a restart of the agent
// and a reboot.

// refusedState is what one kind of proxy refused.
type refusedState struct {
	kind
	resource.State
	overrides []view.Override
}

func (r refusedState) empty() bool { return len(r.Refusals)+len(r.overrides) == 0 }

// maxRefusedStates bounds the kinds of proxies without a view whose refusals are retained.
const maxRefusedStates = 64

var refusalFormat = recordfile.Format{Header: "outrider-refusals 1\n", Most: 16 << 20}

const kindRecord = 'k'

// inheritRefusals makes what its proxies refused before known to a new view: of a view or of an
// earlier server, of the same kind, of the same but for Envoy's version, or of the same proxy.
// Callers hold mu.
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
		v.Feed().Restore(best.State)
		v.Restore(best.overrides)
	}
	s.refusals = slices.DeleteFunc(s.refusals, func(r refusedState) bool { return rank(r.kind) == 3 })
}

// forgetRefusals drops what proxies refused that have had another view for idleAfter. Callers hold
// mu.
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

// refusedStates returns what all kinds of proxies refuse; none if nobody refuses anything. A kind
// that refuses nothing is listed, too, or it would inherit what another one refuses. Callers hold
// mu.
func (s *Server) refusedStates() (all []refusedState) {
	nothing := true
	for _, v := range s.views {
		state := refusedState{v.kind, v.Feed().State(), v.Overrides()}
		nothing = nothing && state.empty()
		all = append(all, state)
	}
	if nothing && len(s.refusals) == 0 {
		return nil
	}
	return append(all, s.refusals...)
}

// retainRefusals retains what the proxies of a view refused, which is dropped. Callers hold mu.
func (s *Server) retainRefusals(v *served) {
	state := refusedState{v.kind, v.Feed().State(), v.Overrides()}
	if state.empty() {
		return
	}
	if s.refusals = append(s.refusals, state); len(s.refusals) > maxRefusedStates {
		s.refusals = slices.Delete(s.refusals, 0, 1)
	}
}

// writtenState is a refusedState in the file.
type writtenState struct {
	kind
	Refusals  []writtenRefusal  `json:"refusals,omitempty"`
	Retained  []writtenResource `json:"retained,omitempty"`
	Overrides []writtenOverride `json:"overrides,omitempty"`
}

type writtenRefusal struct {
	Type     string   `json:"type"`
	Name     string   `json:"name"`
	Version  string   `json:"version"`
	Reason   string   `json:"reason"`
	Local    bool     `json:"local,omitempty"`
	Unbound  bool     `json:"unbound,omitempty"`
	Held     bool     `json:"held,omitempty"`
	Accepted []byte   `json:"accepted,omitempty"` // see writtenResource
	Replaced []string `json:"replaced,omitempty"` // listeners
}

// writtenResource is an encoded envoy.service.discovery.v3.Resource.
type writtenResource []byte

type writtenOverride struct {
	Type    string            `json:"type"`
	Name    string            `json:"name"`
	Reason  string            `json:"reason"`
	Filters []lastgood.Record `json:"filters,omitempty"`
	Refused []lastgood.Record `json:"refused,omitempty"`
}

// encodeRefusals returns the record of a kind of proxy. It is equal for equal states.
func encodeRefusals(state refusedState) ([]byte, error) {
	out := writtenState{kind: state.kind}
	for _, r := range state.Refusals {
		one := writtenRefusal{Type: r.Key.Type, Name: r.Key.Name, Version: r.Version,
			Reason: r.Reason, Local: r.Local, Unbound: r.Unbound, Held: r.Held}
		if r.Accepted != nil {
			one.Accepted = r.Accepted.Delta()
		}
		for _, key := range r.Replaced {
			one.Replaced = append(one.Replaced, key.Name)
		}
		out.Refusals = append(out.Refusals, one)
	}
	slices.SortFunc(out.Refusals, func(a, b writtenRefusal) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name))
	})
	for _, r := range state.Retained {
		out.Retained = append(out.Retained, r.Delta())
	}
	slices.SortFunc(out.Retained, slices.Compare[writtenResource])
	for _, o := range state.overrides {
		filters, err := lastgood.RecordsOf(o.Filters)
		if err != nil {
			return nil, err
		}
		refused, err := lastgood.RecordsOf(o.Refused)
		if err != nil {
			return nil, err
		}
		out.Overrides = append(out.Overrides, writtenOverride{Type: o.Key.Type, Name: o.Key.Name,
			Reason: o.Reason, Filters: filters, Refused: refused})
	}
	slices.SortFunc(out.Overrides, func(a, b writtenOverride) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name))
	})
	return json.Marshal(out)
}

// decodeRefusals is the inverse of encodeRefusals.
func decodeRefusals(text []byte, namespace string) (state refusedState, err error) {
	var in writtenState
	if err := json.Unmarshal(text, &in); err != nil {
		return state, err
	}
	state.kind = in.kind
	for _, r := range in.Refusals {
		one := resource.Refusal{Key: resource.Key{Type: r.Type, Name: r.Name}, Version: r.Version,
			Reason: r.Reason, Local: r.Local, Unbound: r.Unbound, Held: r.Held}
		if len(r.Accepted) > 0 {
			if one.Accepted, err = decodeResource(r.Accepted); err != nil {
				return state, err
			}
		}
		for _, name := range r.Replaced {
			one.Replaced = append(one.Replaced, resource.Key{Type: resource.ListenerType, Name: name})
		}
		state.Refusals = append(state.Refusals, one)
	}
	for _, r := range in.Retained {
		one, err := decodeResource(r)
		if err != nil {
			return state, err
		}
		state.Retained = append(state.Retained, one)
	}
	for _, o := range in.Overrides {
		one := view.Override{Key: resource.Key{Type: o.Type, Name: o.Name}, Reason: o.Reason}
		if one.Filters, err = objectsOf(o.Filters, namespace); err != nil {
			return state, err
		}
		if one.Refused, err = objectsOf(o.Refused, namespace); err != nil {
			return state, err
		}
		state.overrides = append(state.overrides, one)
	}
	return state, nil
}

func objectsOf(records []lastgood.Record, namespace string) (all []*object.Object, err error) {
	for _, r := range records {
		o, err := r.Object(namespace, validate.Object)
		if err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	return all, nil
}

func decodeResource(text []byte) (*resource.Resource, error) {
	var r discoveryv3.Resource
	if err := proto.Unmarshal(text, &r); err != nil {
		return nil, err
	}
	if r.GetResource().GetTypeUrl() == resource.SecretType {
		return nil, errors.New("a secret is not stored")
	}
	return resource.FromEncoded(r.GetResource().GetTypeUrl(), r.GetName(),
		r.GetResource().GetValue()), nil
}

// readRefusals reads the file. What cannot be used is logged.
func (s *Server) readRefusals() (all []refusedState) {
	if s.options.Refusals == "" {
		return nil
	}
	records, err := refusalFormat.Read(s.options.Refusals)
	for _, record := range records {
		state, failed := decodeRefusals(record.Text, s.settings.Namespace)
		if err = cmp.Or(err, failed); failed == nil && record.Kind == kindRecord {
			all = append(all, state)
		}
		s.refusalsWritten = append(s.refusalsWritten, record.Text)
	}
	if err != nil {
		s.options.Logger.Warn("cannot use stored refusals of resources", "error", err)
		s.refusalsWritten = [][]byte{nil} // replaces the file
	}
	return all[:min(len(all), maxRefusedStates)]
}

// persistRefusals writes the file if its content has changed. Only Run may call it.
func (s *Server) persistRefusals() error {
	if s.options.Refusals == "" {
		return nil
	}
	s.mu.Lock()
	states := s.refusedStates()
	s.mu.Unlock()
	var records [][]byte
	for _, state := range states {
		text, err := encodeRefusals(state)
		if err != nil {
			return fmt.Errorf("encode refusals: %w", err)
		}
		records = append(records, text)
	}
	slices.SortFunc(records, slices.Compare[[]byte])
	all := len(records)
	records = fitting(records, refusalFormat.Most)
	if slices.EqualFunc(records, s.refusalsWritten, slices.Equal[[]byte]) {
		return nil
	}
	if without := all - len(records); without > 0 {
		s.options.Logger.Warn("refusals of resources are too large to be stored", "kinds", without)
	}
	if err := refusalFormat.Write(s.options.Refusals, each(records)); err != nil {
		return err
	}
	s.refusalsWritten = records
	return nil
}

// fitting leaves out records that make a file larger than most bytes. To write nothing would leave
// an older file, with versions older than those that clients accepted since.
func fitting(records [][]byte, most int) [][]byte {
	const overhead = 16 // at most, of a record
	total := len(refusalFormat.Header)
	return slices.DeleteFunc(records, func(text []byte) bool {
		if total+len(text)+overhead > most {
			return true
		}
		total += len(text) + overhead
		return false
	})
}

func each(records [][]byte) iter.Seq2[byte, []byte] {
	return func(yield func(byte, []byte) bool) {
		for _, text := range records {
			if !yield(kindRecord, text) {
				return
			}
		}
	}
}
