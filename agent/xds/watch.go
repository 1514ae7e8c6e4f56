package xds

import (
	"time"

	"outrider.org/outrider/agent/resource"
)

// watch is the subscription of one stream to one type, and the state of its client. For every
// resource that is not in differs, the session assumes that the client has, or is receiving, the
// version in the snapshot. So its memory is proportional to the client's names, and the cost of a
// change to the size of the change.
type watch struct {
	typeURL string
	rank    int
	// each response contains all resources of the type (state of the world: clusters and listeners)
	full     bool
	wildcard bool
	// a request contained names; before that, a state-of-the-world request without names subscribes
	// to all resources
	named   bool
	names   *nameSet // names of resources that the client subscribes to
	differs map[string]difference
	refused map[string]*refused
	trial   *trial
	// the client has no resources yet, and differs is not used until the first response
	blank  bool
	answer bool // the client awaits a response, even if it contains no changes

	// the response that was sent last, if it is unanswered; meanwhile no other one of the type is
	// sent
	inflight    *response
	answerUntil time.Time // deadline of the answer to inflight
	late        []*response
	lastNonce   string

	pushes                       uint64
	versionSent, versionAccepted string
	lastSent, lastAccepted       time.Time
}

// difference describes a resource of which the client does not have the newest version.
type difference struct {
	// held is the version that the client has; nil: none. If it is from an earlier stream, its
	// content may be unknown.
	held   *resource.Resource
	forced bool // the client awaits a response even if it has the newest version
}

func newWatch(typeURL string, delta bool) *watch {
	return &watch{
		typeURL: typeURL, rank: rank(typeURL), full: !delta && carriesFullState(typeURL),
		blank: true,
		names: &nameSet{}, differs: map[string]difference{},
		refused: map[string]*refused{},
	}
}

// wants reports whether the client subscribes to a name.
func (w *watch) wants(name string) bool {
	return w.wildcard || w.names.has(name)
}

// note records that the client should have the version now of a resource, which is nil if the
// resource does not exist. Only if differs has no entry for the name yet, held is the version that
// the client has. forced demands a response even if the two are equal.
func (w *watch) note(name string, held, now *resource.Resource, forced bool) {
	if w.blank {
		return
	}
	if known, ok := w.differs[name]; ok {
		held, forced = known.held, forced || known.forced
	}
	w.hold(name, held, now, forced)
}

// hold records the version that the client has of a resource (held) and the one that it should have
// (now); nil is no version.
func (w *watch) hold(name string, held, now *resource.Resource, forced bool) {
	if same(held, now) && !forced {
		delete(w.differs, name)
		return
	}
	w.differs[name] = difference{held, forced}
}

// same reports whether two resources have the same content; nil is a resource that does not exist.
func same(x, y *resource.Resource) bool {
	if x == nil || y == nil {
		return x == y
	}
	return x.Version == y.Version
}
