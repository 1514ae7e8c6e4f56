package xds

import (
	"time"

	"outrider.org/outrider/agent/resource"
)

// watch is what one stream wants of one type, and where the client stands. For every name it wants
// the client holds (or a response under way tells it to hold) what the session's snapshot holds,
// but for those in differs: so a change costs what it changes, and a client at rest costs its list
// of names.
type watch struct {
	typeURL  string
	rank     int
	full     bool // a response carries the whole state (state of the world: clusters and listeners)
	wildcard bool
	// names have been given at least once (state of the world: no names means all until then)
	named bool
	// subscribed by name → the request that last named it (state of the world)
	names   map[string]uint64
	differs map[string]difference
	refused map[string]*refused
	trial   *trial
	// the client holds nothing yet, and differs is not kept until the first response is made
	blank  bool
	answer bool // the client waits for a response even if there is nothing to tell

	inflight    *response // sent and not answered yet: nothing else of this type is sent meanwhile
	answerUntil time.Time // when its answer is no longer waited for
	late        []*response
	lastNonce   string

	pushes                       uint64
	versionSent, versionAccepted string
	lastSent, lastAccepted       time.Time
}

// difference is where a client does not hold what the snapshot holds.
type difference struct {
	// what it holds; nil: nothing. Of what it brought from an earlier stream only the version is
	// known
	held   *resource.Resource
	forced bool // it waits for an answer even if that tells nothing new
}

func newWatch(typeURL string, delta bool) *watch {
	return &watch{
		typeURL: typeURL, rank: rank(typeURL), full: !delta && carriesFullState(typeURL),
		blank: true,
		names: map[string]uint64{}, differs: map[string]difference{},
		refused: map[string]*refused{},
	}
}

// wants tells whether the client subscribed to a name.
func (w *watch) wants(name string) bool {
	if w.wildcard {
		return true
	}
	_, named := w.names[name]
	return named
}

// expect makes room for names.
func (w *watch) expect(n int) {
	if len(w.names) == 0 && n > 0 {
		w.names = make(map[string]uint64, n)
	}
}

// note takes in that under a name the client holds held (where nothing else is known of it) and
// should hold now; forced: it must be answered whatever it holds.
func (w *watch) note(name string, held, now *resource.Resource, forced bool) {
	if w.blank {
		return
	}
	if known, ok := w.differs[name]; ok {
		held, forced = known.held, forced || known.forced
	}
	w.hold(name, held, now, forced)
}

// hold records what the client holds, and should hold now.
func (w *watch) hold(name string, held, now *resource.Resource, forced bool) {
	if same(held, now) && !forced {
		delete(w.differs, name)
		return
	}
	w.differs[name] = difference{held, forced}
}

func (w *watch) key(name string) resource.Key { return resource.Key{Type: w.typeURL, Name: name} }

// same tells whether two resources have the same content; nil is one that does not exist.
func same(x, y *resource.Resource) bool {
	if x == nil || y == nil {
		return x == y
	}
	return x.Version == y.Version
}

// sendable tells whether the bytes of a resource are known, and not only its version.
func sendable(r *resource.Resource) bool { return len(r.DeltaField()) > 0 }
