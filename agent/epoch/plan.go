package epoch

import (
	"fmt"
	"path/filepath"
	"slices"
)

// startNext begins the next attempt that is due, if any. A restart of the last good spec takes
// precedence over a request, and a request over a repair.
func (m *machine) startNext() {
	live := m.live()
	due := m.replaceAt
	if live == nil {
		due = m.backOff.at
	}
	spec := m.lastGood
	if spec == nil && m.pending == nil { // no spec ever worked: try the last requested one again
		spec = m.lastTried
	}
	// an adopted epoch's spec is incomplete until Apply
	if spec != nil && spec.adopted != nil && live != nil {
		spec = nil
	}
	if spec != nil && !due.IsZero() {
		due = m.unobstructed(live, due)
		if m.due(due) {
			m.begin(&attempt{spec: spec, reason: m.backOff.reason, repair: true})
			return
		}
		failed := spec.adopted != nil && m.lastGoodFailed
		if live == nil && due.Sub(m.now) <= provenFirst && (m.pending == nil || !failed) {
			return
		}
	}
	if m.pending != nil && (m.mayStart(m.pending.spec, live) || m.mayAbort(m.pending.abort)) {
		next := m.pending
		m.pending = nil
		m.begin(&attempt{spec: next.spec, reason: next.reason, calls: next.calls, abort: next.abort})
		return
	}
	undrain := len(m.drain.undrains) > 0
	known := live != nil && m.lastGood != nil && m.lastGood.adopted == nil
	if known && undrain && m.pending == nil && m.mayStart(m.lastGood, live) {
		m.begin(&attempt{spec: m.lastGood, reason: reasonUndrain, undrain: true})
		return
	}
	if live != nil && (m.pending != nil || undrain) {
		m.watchIdle()
	}
	if known && len(m.processes) == 1 && m.wantsRepair(live) {
		live.repaired = m.now
		m.begin(&attempt{spec: m.lastGood, reason: repairReason(live), repair: true})
	}
}

// plan decides an attempt's number, lineage and mode, and its parent.
func (m *machine) plan(a *attempt) {
	capable := a.spec.HotRestartVersion != ""
	p := &process{launchState: launchState{spec: a.spec, hot: capable}}
	p.State, p.SpecDigest, p.MeshNamespace, p.Reason = StateStarting, a.spec.Digest, a.spec.Namespace, a.reason
	p.DrainTime = a.spec.DrainTime
	live := m.live()
	a.parent, a.mode = live, SideBySide
	switch {
	case live != nil:
		p.Number = live.Number + 1
	case m.last != nil && len(m.processes) > 0:
		// The newest epoch has exited, and an older one is left. The attempt starts the newest
		// epoch again, with the older one as its parent.
		p.Number = m.last.Number
		a.parent, a.mode = m.parentOf(m.last), FirstStart
	case len(m.processes) > 0: // the newest epoch has exited, and its number is unknown
		a.parent, a.mode = m.processes[len(m.processes)-1], FirstStart
		p.Number = a.parent.Number + 1
	default:
		a.parent, a.mode = nil, FirstStart
		if a.spec.adopted != nil {
			p.Number = a.spec.adopted.number
		}
	}
	parent := a.parent
	if parent != nil && !a.sideBySide && capable && parent.hot &&
		parent.spec.HotRestartVersion == a.spec.HotRestartVersion {
		a.mode = HotRestart
		p.RestartEpoch, p.Lineage, p.root = parent.RestartEpoch+1, parent.Lineage, parent.root
	} else {
		p.Lineage, p.root = m.freeLineage(a), p.Number
		if a.mode == FirstStart {
			a.parent = nil
		}
	}
	p.Mode = a.mode
	p.BootstrapPath = filepath.Join(m.config.ConfigDir, fmt.Sprintf("envoy-rev%d.json", p.Number))
	p.AdminAddress = a.spec.AdminAddress(p.launch())
	m.idCounter++
	p.ID = fmt.Sprintf("%s-%d", m.idPrefix, m.idCounter)
	a.process = p
}

// freeLineage returns the lowest lineage number that no running epoch uses and that is not in
// a.avoid.
func (m *machine) freeLineage(a *attempt) int {
	slot := 0
	if a.spec.adopted != nil {
		slot = a.spec.adopted.lineage
	}
	inUse := func(p *process) bool { return p.Lineage == slot }
	for slices.Contains(a.avoid, slot) || slices.ContainsFunc(m.processes, inUse) {
		slot++
	}
	return slot
}
