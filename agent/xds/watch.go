package xds

import (
	"time"

	"outrider.org/outrider/agent/resource"
)

// watch is the subscription of one stream to one type, and the state of its client. For every name
// the client holds the snapshot's resource, or a response in flight has it, except for names in
// differs. So a change costs what it changes, and an idle client its list of names.
type watch struct {
	typeURL  string
	rank     int
	full     bool // a response carries the whole state (state of the world: clusters and listeners)
	wildcard bool
	// named: a request had names (state of the world: until then no names means all).
	named   bool
	names   *nameSet // subscribed to
	differs map[string]difference
	refused map[string]*refused
	trial   *trial
	// blank: the client has nothing yet; differs is unused until the first response.
	blank  bool
	answer bool // the client waits for a response even if nothing differs

	inflight    *response // sent and not answered; nothing else of the type is sent meanwhile
	answerUntil time.Time // when the wait for its answer ends
	late        []*response
	lastNonce   string

	pushes                       uint64
	versionSent, versionAccepted string
	lastSent, lastAccepted       time.Time
}

// difference is a name of which the client does not hold the snapshot's resource.
type difference struct {
	// held is what the client has; nil: nothing. From an earlier stream only the version is known.
	held   *resource.Resource
	forced bool // the client waits for an answer even if it has the resource
}

func newWatch(typeURL string, delta bool) *watch {
	return &watch{
		typeURL: typeURL, rank: rank(typeURL), full: !delta && carriesFullState(typeURL),
		blank: true,
		names: &nameSet{}, differs: map[string]difference{},
		refused: map[string]*refused{},
	}
}

// wants reports whether the client subscribed to a name.
func (w *watch) wants(name string) bool {
	return w.wildcard || w.names.has(name)
}

// note records that the client should hold now, and holds held unless differs knows better. forced
// demands an answer in any case.
func (w *watch) note(name string, held, now *resource.Resource, forced bool) {
	if w.blank {
		return
	}
	if known, ok := w.differs[name]; ok {
		held, forced = known.held, forced || known.forced
	}
	w.hold(name, held, now, forced)
}

// hold records what the client holds and should hold.
func (w *watch) hold(name string, held, now *resource.Resource, forced bool) {
	if same(held, now) && !forced {
		delete(w.differs, name)
		return
	}
	w.differs[name] = difference{held, forced}
}

// same reports whether two resources have the same content; nil: it does not exist.
func same(x, y *resource.Resource) bool {
	if x == nil || y == nil {
		return x == y
	}
	return x.Version == y.Version
}
