package xds

import (
	"time"

	"outrider.org/outrider/agent/resource"
)

// watch is the subscription of one stream to one type, with the state of its client. The client is
// assumed to have, or to be receiving, the snapshot's version of every resource except those in
// differs. So memory is proportional to the client's names, and the cost of a change to its size.
type watch struct {
	typeURL string
	rank    int
	// each response has all resources of the type (state of the world: clusters and listeners)
	full     bool
	wildcard bool
	// named: a request had names. In the state of the world, requests without names mean all
	// resources until then.
	named   bool
	names   *nameSet // names of resources that the client subscribes to
	differs map[string]difference
	refused map[string]*refused
	trial   *trial
	// blank: the client has no resources yet; differs is unused until the first response.
	blank  bool
	answer bool // the client waits for a response even if there are no changes

	// response that is not answered; no other one of the type is sent meanwhile
	inflight    *response
	answerUntil time.Time // deadline of the answer to inflight
	late        []*response
	lastNonce   string

	pushes                       uint64
	versionSent, versionAccepted string
	lastSent, lastAccepted       time.Time
}

// difference describes a resource whose newest version the client does not have.
type difference struct {
	// held is the version that the client has; nil: none. Of a resource from an earlier stream only
	// the version is known.
	held   *resource.Resource
	forced bool // the client waits for an answer even if it has the newest version
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

// note records that the client should have the version now. It is assumed to have held, unless
// differs already has another version. forced demands a response in any case.
func (w *watch) note(name string, held, now *resource.Resource, forced bool) {
	if w.blank {
		return
	}
	if known, ok := w.differs[name]; ok {
		held, forced = known.held, forced || known.forced
	}
	w.hold(name, held, now, forced)
}

// hold records that the client has the version held of a resource and should have now.
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
