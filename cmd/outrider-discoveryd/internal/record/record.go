// Package record stores the last complete state of each configuration source. If a source cannot be
// contacted at the start, package record delivers the stored state instead.
//
//	source → Recorder.AcceptUpdate → discovery.Server
//	            ↓    ↑ at the end of startWait
//	         state_dir/source-NAME
package record

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/lastgood"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/lifecycle"
	"outrider.org/outrider/agent/recordfile"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
)

const (
	startWait  = 10 * time.Second // maximum wait until all sources have synchronised
	poll       = 50 * time.Millisecond
	writeDelay = 5 * time.Second // minimum delay between a change of a state and writing it
	writeShare = 100             // writing takes at most 1/writeShare of the time
	retryDelay = time.Minute     // delay after a failure to write a state
)

var format = recordfile.Format{Header: "outrider-discoveryd source 1\n", MaxBytes: 512 << 20}

// Kinds of records in the file: an input as text, and an input as decoded objects in JSON. The text
// of each record begins with the input's path and a zero byte.
const (
	textRecord    = 't'
	objectsRecord = 'o'
)

// Recorder passes the batches of sources to the next sink, and stores the state of each source. It
// is ready once every source has synchronised, or once startWait is over and the stored states are
// delivered.
type Recorder struct {
	lifecycle.Readiness
	directory string
	next      source.Sink
	board     *condition.Registry
	log       *slog.Logger
	sources   []source.Source
	changed   chan struct{} // receives a value after a change of a state

	mu     sync.Mutex
	states map[string]*state
}

// state contains the current inputs of one source: its objects or services.
type state struct {
	complete bool // the source has delivered its complete state
	dirty    bool
	inputs   map[string]store.SourceInput
	// stored inputs that the source has not delivered again; see withLost
	lost map[string]store.SourceInput
}

// New returns a recorder that stores states below a directory and passes batches to next.
func New(directory string, next source.Sink, board *condition.Registry,
	log *slog.Logger) *Recorder {
	return &Recorder{directory: directory, next: next, board: board, log: log,
		changed: make(chan struct{}, 1), states: map[string]*state{}}
}

// SetSources sets the sources. It must be called before Run.
func (r *Recorder) SetSources(sources []source.Source) { r.sources = sources }

// AcceptUpdate updates the state of a source by a batch, and passes the batch to the next sink.
func (r *Recorder) AcceptUpdate(b discovery.SourceUpdate) {
	var stored []store.SourceInput
	if b.Complete && r.isCautious(b.Source) && !r.has(b.Source) {
		stored, _ = r.stored(b.Source)
		stored = slices.DeleteFunc(stored, isRegistered)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.states[b.Source]
	if s == nil {
		s = &state{lost: map[string]store.SourceInput{}}
		r.states[b.Source] = s
	}
	if b.Complete || s.inputs == nil {
		s.complete, s.inputs = b.Complete, map[string]store.SourceInput{}
	}
	if b.Complete {
		r.board.Clear(conditionOf(b.Source))
		for _, in := range stored {
			s.lost[in.Path] = in
		}
		b = r.withLost(b, s)
	} else if len(s.lost) > 0 {
		for _, in := range b.Inputs {
			delete(s.lost, in.Path)
		}
		if len(s.lost) == 0 {
			r.board.Clear(conditionOf(b.Source))
		}
	}
	for _, in := range b.Inputs {
		if in.Text == nil && in.Objects == nil {
			delete(s.inputs, in.Path)
		} else {
			s.inputs[in.Path] = in
		}
	}
	r.changes(s)
	r.next(b) // called with mu held, so that batches of one source are delivered in order
}

// changes marks a state as changed, so that Run stores it. Callers hold mu.
func (r *Recorder) changes(s *state) {
	s.dirty = true
	select {
	case r.changed <- struct{}{}:
	default: // a signal is already pending
	}
}

// conditionOf returns the code of the condition that is active while a source has not synchronised
// since the start, or while its stored inputs are served.
func conditionOf(name string) string { return "source-" + name }

// Name returns the name of this component.
func (r *Recorder) Name() string { return "source recorder" }

// Run waits for the sources, delivers the stored states of those that have not synchronised, and
// then stores changed states until ctx ends.
func (r *Recorder) Run(ctx context.Context) error {
	r.await(ctx)
	for _, s := range r.sources {
		if !r.has(s.Name()) {
			r.restore(s)
		}
	}
	r.MarkReady()
	pause := writeDelay
	for {
		select {
		case <-ctx.Done():
			r.write()
			return nil
		case <-r.changed:
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		begun := time.Now()
		if r.write() {
			pause = max(writeDelay, time.Since(begun)*writeShare)
		} else {
			pause = retryDelay
		}
	}
}

// await waits until all sources have delivered their complete states, but at most for startWait.
func (r *Recorder) await(ctx context.Context) {
	end := time.After(startWait)
	for slices.ContainsFunc(r.sources, func(s source.Source) bool { return !r.has(s.Name()) }) {
		select {
		case <-ctx.Done():
			return
		case <-end:
			return
		case <-time.After(poll):
		}
	}
}

// has reports whether a source has delivered its complete state.
func (r *Recorder) has(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.states[name]
	return s != nil && s.complete
}

func (r *Recorder) path(name string) string { return filepath.Join(r.directory, "source-"+name) }

// restore delivers the stored state of a source that has not synchronised.
func (r *Recorder) restore(s source.Source) {
	inputs, known := r.stored(s.Name())
	// mu must not be held during the call of Status: Status needs the source's lock, which the
	// source holds while it calls AcceptUpdate, and AcceptUpdate needs mu.
	err := cmp.Or(s.Status().Err, errors.New("the source has not delivered its state yet"))
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.states[s.Name()]
	if now != nil && now.complete {
		return
	}
	// The source may already have delivered inputs, which are newer than the stored ones.
	if now != nil {
		inputs = append(inputs, slices.Collect(maps.Values(now.inputs))...)
	}
	served := "and no state of it is stored"
	if known {
		served = fmt.Sprintf("its %d stored inputs are served", len(inputs))
		r.next(discovery.SourceUpdate{Source: s.Name(), Complete: true, Inputs: inputs})
	}
	r.board.Raise(conditionOf(s.Name()), condition.Warning, fmt.Sprintf(
		"source %s has not synchronised since the start (%v): %s", s.Name(), err, served))
}

// stored returns the stored state of a source. known is false if there is none, or if any part of
// it cannot be read.
func (r *Recorder) stored(name string) (inputs []store.SourceInput, known bool) {
	if _, err := os.Lstat(r.path(name)); errors.Is(err, fs.ErrNotExist) {
		return nil, false
	}
	records, err := format.Read(r.path(name))
	if err != nil {
		r.log.Warn("cannot read stored state of source", "source", name, "error", err)
		return nil, false
	}
	for _, one := range records {
		in, err := decode(one)
		if err != nil { // the input that cannot be decoded may be a policy
			r.log.Warn("cannot use stored state of source", "source", name, "error", err)
			return nil, false
		}
		inputs = append(inputs, in)
	}
	return inputs, true
}

// write stores all changed states. If one could not be stored, ok is false and the state stays
// marked as changed.
func (r *Recorder) write() (ok bool) {
	ok = true
	for name, inputs := range r.takeDirty() {
		records := func(yield func(recordfile.Record) bool) {
			for _, path := range slices.Sorted(maps.Keys(inputs)) {
				one, err := encode(inputs[path])
				if err != nil {
					r.log.Warn("cannot store one object of source", "source", name, "error", err)
				} else if !yield(one) {
					return
				}
			}
		}
		if err := format.Write(r.path(name), records); err != nil {
			r.log.Warn("cannot store state of source", "source", name, "error", err)
			ok = false
			r.mu.Lock()
			r.changes(r.states[name])
			r.mu.Unlock()
		}
	}
	return ok
}

// takeDirty returns the inputs of the changed states, by source, and marks the states as unchanged.
func (r *Recorder) takeDirty() map[string]map[string]store.SourceInput {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]map[string]store.SourceInput{}
	for name, s := range r.states {
		if s.dirty && s.complete {
			// a copy, because encoding takes too long to hold mu during it
			s.dirty, all[name] = false, maps.Clone(s.inputs)
		}
	}
	return all
}

func encode(in store.SourceInput) (recordfile.Record, error) {
	one := recordfile.Record{Kind: textRecord, Text: in.Text}
	if in.Text == nil {
		text, err := lastgood.Objects(in.Objects).MarshalJSON()
		if err != nil {
			return one, err
		}
		one = recordfile.Record{Kind: objectsRecord, Text: text}
	}
	one.Text = append(append([]byte(in.Path), 0), one.Text...)
	return one, nil
}

// decode decodes a record that encode has created.
func decode(one recordfile.Record) (store.SourceInput, error) {
	path, text, ok := bytes.Cut(one.Text, []byte{0})
	in := store.SourceInput{Path: string(path)}
	switch {
	case ok && one.Kind == textRecord:
		in.Text = text
		return in, nil
	case ok && one.Kind == objectsRecord:
		var objects lastgood.Objects
		err := objects.UnmarshalJSON(text)
		in.Objects = objects
		return in, err
	}
	return in, errors.New("the stored state has a record of an unknown kind")
}
