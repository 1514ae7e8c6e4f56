package epoch

import (
	"fmt"
	"slices"
	"syscall"
	"time"
)

// endOverdue ends draining epochs that should have exited by now.
func (m *machine) endOverdue() {
	for _, p := range m.older() {
		if p.LatestDrainEnd.IsZero() || !p.killed.IsZero() {
			continue
		}
		kill, why := p.LatestDrainEnd.Add(overdue), "its child should have ended it"
		if p.endedBy == endedBySupervisor {
			if p.ending == "" && !m.due(p.LatestDrainEnd) {
				continue
			}
			if p.ending == "" {
				m.signal(p, syscall.SIGTERM, "replaced, and its drain is over")
			}
			kill, why = p.LatestDrainEnd.Add(terminateTimeout), "it did not end on SIGTERM"
		}
		if m.due(kill) {
			m.kill(p, why)
		}
	}
}

// drainSideBySide drains an epoch that an epoch of another lineage has replaced, until
// p.LatestDrainEnd at the latest. An earlier agent may have started this drain already; Envoy
// ignores the second request.
func (m *machine) drainSideBySide(p *process, begun time.Time) {
	p.drainJob, p.closes = true, begun.Add(p.spec.DrainTime)
	// without an admin interface the epoch accepts connections until it exits
	if p.AdminLost || p.closes.After(p.LatestDrainEnd) {
		p.closes = p.LatestDrainEnd
	}
	m.do(drainOlder{id: p.ID, admin: p.AdminAddress, ends: p.LatestDrainEnd, closes: p.closes,
		drainable: !p.AdminLost, brief: p.spec.DrainTime < acceptQueued, steer: m.steering(p)})
}

// steer directs new connections of a draining epoch's ports to the live epoch.
func (m *machine) steer(p *process) {
	if s := m.steering(p); s != nil {
		m.do(*s)
	}
}

func (m *machine) steering(p *process) *steer {
	live := m.live()
	if live == nil || live == p {
		return nil
	}
	return &steer{from: p.ID, to: live.ID, number: p.Number, closes: p.closes}
}

// drainedOlder is the event of an older epoch that has no connections left, or that cannot be
// drained.
type drainedOlder struct {
	id  string
	err error
}

func (e drainedOlder) apply(m *machine) {
	p := m.find(e.id)
	switch {
	case p == nil:
	case e.err == nil:
		p.LatestDrainEnd = m.now
	case hangs(e.err): // an Envoy that hangs may accept connections without serving them
		m.kill(p, fmt.Sprintf("replaced, and it does not answer: %v", e.err))
	default: // the epoch serves the connections that it accepts until its drain time is over
		m.warn("epoch cannot be drained", "epoch", p.Number, "error", e.err)
	}
}

// mayStart reports whether an epoch with this spec may start beside the live one: no older epoch is
// left, or the only one is idle and the live epoch ends it. In the handshake with a child, an Envoy
// makes its own parent exit immediately, which would cut connections of a parent that is not idle.
func (m *machine) mayStart(spec *Spec, live *process) bool {
	if live == nil || len(m.processes) == 1 {
		return true
	}
	parent := m.endedByLive()
	return parent != nil && parent.idle &&
		spec.HotRestartVersion == live.spec.HotRestartVersion
}

// mayAbort reports whether numbers contains all draining epochs, so that a start is possible after
// killing them.
func (m *machine) mayAbort(numbers []int) bool {
	return !slices.ContainsFunc(m.older(),
		func(p *process) bool { return !slices.Contains(numbers, p.Number) })
}

// endedByLive returns the only older epoch if the live epoch is its child in a hot restart and
// therefore ends it; otherwise nil.
func (m *machine) endedByLive() *process {
	live := m.live()
	if live == nil || len(m.processes) != 2 {
		return nil
	}
	parent := m.parentOf(live)
	if parent != nil && parent.State == StateDraining && parent.endedBy == endedByChild {
		return parent
	}
	return nil
}

// watchIdle starts to count the connections of the older epoch whose end a request awaits.
func (m *machine) watchIdle() {
	if parent := m.endedByLive(); parent != nil && !parent.idle && !parent.counting {
		parent.counting = true
		m.do(countConnections{parent.ID, m.live().LiveSince.Add(countDelay)})
	}
}

// counted is the event of a connection count of an older epoch.
type counted struct {
	id         string
	left       int
	busy, idle bool
}

func (e counted) apply(m *machine) {
	if p := m.find(e.id); p != nil {
		p.left, p.busy, p.idle = e.left, e.busy, e.idle
	}
}
