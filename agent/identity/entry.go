package identity

import (
	"context"
	"time"
)

// entry is a secret that is configured or that an Envoy has subscribed to. The Manager's lock
// guards it. Its methods are its state transitions.
type entry struct {
	configured  bool
	provisional bool // the version may come from a provider whose settings may be refused
	subscribers int
	definition  definition // of worker
	worker      *worker    // nil: none runs
	former      *worker    // of the settings before
	current     *material  // the last version; of ROOTCA without the roots of the mesh configuration
	served      *material  // in the feed; roots are merged anew each time
	failure     failure    // of the last attempt
}

// worker is a goroutine that obtains a secret.
type worker struct {
	stop    context.CancelFunc
	started time.Time // by the wall clock
}

// definition is the source for which a worker was started.
type definition struct {
	files  SecretFiles
	folder string // of credentials, for the secret of one
	spire  bool
	issuer Issuer
	ratio  float64
	jitter float64
}

// failure is the error of the last attempt and the time since when attempts fail. Zero: the last
// attempt succeeded.
type failure struct {
	err   error
	since time.Time // by the wall clock
}

// state says who obtains versions of an entry. The last version remains in all states, until a
// better one exists or withdraw removes it.
//
//	state       worker former  what ends it
//	idle        -      -       start: obtaining
//	obtaining   yes    -       succeed: provided; supersede: superseded
//	provided    yes    -       supersede: superseded
//	superseded  -      yes     start: replacing; attach: idle
//	replacing   yes    yes     succeed: provided; supersede: superseded
//
// withdraw, of settings that were refused, ends the worker: idle or superseded.
type state int

const (
	idle      state = iota // no worker: another secret provides it, or nothing does
	obtaining              // a worker, which has no version yet
	provided               // a worker, which has provided the version
	// its worker has the previous settings; the worker of the new ones has no version yet
	superseded
	// as superseded, but replaced only once the worker of the new settings has a version
	replacing
)

func (e *entry) state() state {
	switch {
	case e.worker != nil && e.former != nil:
		return replacing
	case e.former != nil:
		return superseded
	case e.worker == nil:
		return idle
	case e.current == nil:
		return obtaining
	default:
		return provided
	}
}

// start makes w the worker.
func (e *entry) start(w *worker) { e.worker, e.failure = w, failure{} }

// supersede makes the current worker the former one. It continues until the worker of the new
// settings has a version.
func (e *entry) supersede() {
	if e.former == nil {
		e.former = e.worker
	} else {
		e.worker.end()
	}
	e.worker, e.failure = nil, failure{}
}

// succeed records that the worker has a version; the former worker ends.
func (e *entry) succeed() {
	e.former.end()
	e.former, e.failure = nil, failure{}
}

// fail records a failed attempt of the worker. certain means that waiting cannot help, so the
// failure is reported at once.
func (e *entry) fail(err error, now time.Time, certain bool) {
	switch {
	case !e.failure.since.IsZero():
	case certain:
		e.failure.since = now.Add(-failureGrace)
	default:
		e.failure.since = now
	}
	e.failure.err = err
}

// attach sets a version that arrived with another secret, unless a worker obtains this secret
// itself.
func (e *entry) attach(version *material) {
	if state := e.state(); state == idle || state == superseded {
		e.former.end()
		e.former, e.current = nil, version
	}
}

// withdraw removes the version of settings that were refused.
func (e *entry) withdraw() {
	e.worker.end()
	e.worker, e.current = nil, nil
}

// end ends the workers.
func (e *entry) end() {
	e.worker.end()
	e.former.end()
}

func (w *worker) end() {
	if w != nil {
		w.stop()
	}
}
