package identity

import (
	"context"
	"time"
)

// entry is a secret that is configured or that an Envoy has subscribed to. The Manager's lock
// guards it. Its methods are the transitions between its states.
type entry struct {
	configured  bool
	provisional bool // the version may come from the settings of a reload that is still in progress
	subscribers int
	definition  definition // what worker obtains
	worker      *worker    // nil: none runs
	former      *worker    // worker of the previous settings; nil: none runs
	// the last version; for ROOTCA without the roots of the mesh configuration
	current *material
	served  *material // the version in the feed; for ROOTCA a new value at each update
	failure failure   // of the last attempt of worker
}

// worker is a goroutine that obtains a secret.
type worker struct {
	stop    context.CancelFunc
	started time.Time // by the wall clock
}

// definition is what a worker was started for: files, SPIRE or an issuer with its parameters.
type definition struct {
	files  SecretFiles
	folder string // [identity] credentials_dir, if the secret is a credential
	spire  bool
	issuer Issuer
	ratio  float64
	jitter float64
}

// failure is the error of the last attempt and the time of the first failed attempt. The zero value
// means that the last attempt succeeded.
type failure struct {
	err   error
	since time.Time // by the wall clock
}

// state says which worker obtains the versions of an entry. In all states the last version remains
// until a worker obtains a newer one or withdraw removes it.
//
//	state       worker former  transitions: next state
//	idle        -      -       start: obtaining
//	obtaining   yes    -       succeed: provided; supersede: superseded
//	provided    yes    -       supersede: superseded
//	superseded  -      yes     start: replacing; attach: idle
//	replacing   yes    yes     succeed: provided; supersede: superseded
//
// withdraw, called when settings were refused, ends the worker; the next state is idle or
// superseded.
type state int

const (
	idle      state = iota // no worker: another secret provides it, or nothing does
	obtaining              // a worker, which has no version yet
	provided               // a worker, which has provided the version
	// the worker of the previous settings continues; none of the new settings runs yet
	superseded
	// both workers run; that of the previous settings ends once the other one has a version
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

// supersede makes the worker the former one, which continues until the worker of the new settings
// has a version. If there is a former worker already, it continues and the newer worker ends.
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

// fail records a failed attempt of the worker. certain means that a retry without a change will
// fail as well, so the failure is reported without waiting for failureGrace.
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

// attach sets a version that arrived together with another secret, such as the roots that an
// authority sends with a certificate. It does nothing if a worker obtains this secret itself.
func (e *entry) attach(version *material) {
	if state := e.state(); state == idle || state == superseded {
		e.former.end()
		e.former, e.current = nil, version
	}
}

// withdraw ends the worker and removes the version, because their settings were refused.
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
