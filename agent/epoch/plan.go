package epoch

import (
	"fmt"
	"path/filepath"
	"time"
)

// decideNext begins the attempt that is due, if any: Envoy that died comes first, then what was asked for, then a cure.
func (s *Supervisor) decideNext() {
	live, now := s.live(), time.Now()
	due := s.doubt
	if live == nil {
		due = s.guard.at
	}
	spec := s.good
	if spec == nil && s.pending == nil { // nothing that ever worked: what was asked for last is as good as anything
		spec = s.wanted
	}
	if spec != nil && spec.frozen != nil && live != nil { // it has to wait for what Apply brings
		spec = nil
	}
	if spec != nil && !due.IsZero() {
		if live == nil && !now.Before(due) && s.blocked() {
			due = s.guard.at
		}
		if !now.Before(due) {
			s.begin(&attempt{spec: spec, reason: s.guard.reason, guard: true})
			return
		}
		s.at(due)
		if live == nil && due.Sub(now) <= provenFirst && (s.pending == nil || !spec.tried()) {
			return
		}
	}
	if s.pending != nil && s.mayStart(s.pending.spec, live) {
		next := s.pending
		s.pending = nil
		s.begin(&attempt{spec: next.spec, reason: next.reason, callers: next.callers})
		return
	}
	known := live != nil && s.good != nil && s.good.frozen == nil
	if known && len(s.undraining) > 0 && s.pending == nil && s.mayStart(s.good, live) {
		s.begin(&attempt{spec: s.good, reason: reasonUndrain, undrain: true})
		return
	}
	if live != nil && (s.pending != nil || len(s.undraining) > 0) {
		s.watchIdle()
	}
	if known && len(s.processes) == 1 && s.wantsCure(live) {
		live.cured = now
		s.begin(&attempt{spec: s.good, reason: cureReason(live), guard: true})
	}
}

// plan decides number, lineage and mode of an attempt, and from which epoch it takes over.
func (s *Supervisor) plan(a *attempt) {
	capable := a.spec.HotRestartVersion != ""
	fits := func(parent *process) bool {
		return parent != nil && !a.sideBySide && capable && parent.hot &&
			parent.spec.HotRestartVersion == a.spec.HotRestartVersion
	}
	p := &process{spec: a.spec, hot: capable, ended: make(chan struct{})}
	p.Phase, p.Hash, p.Namespace, p.Reason = Starting, a.spec.Hash, a.spec.Namespace, a.reason
	live := s.live()
	a.parent, a.mode = live, SideBySide
	switch {
	case live != nil:
		p.Number = live.Number + 1
	case s.last != nil && len(s.processes) > 0:
		// The newest died and an older one is left: it is the parent again, however little it does.
		p.Number = s.last.Number
		a.parent, a.mode = s.parentOf(s.last), First
	case len(s.processes) > 0: // whoever came after them is not known to anybody
		a.parent, a.mode = s.processes[len(s.processes)-1], First
		p.Number = a.parent.Number + 1
	default:
		a.parent, a.mode = nil, First
		if a.spec.frozen != nil {
			p.Number = a.spec.frozen.number
		}
	}
	if fits(a.parent) {
		a.mode = Hot
		p.RestartEpoch, p.Lineage, p.root = a.parent.RestartEpoch+1, a.parent.Lineage, a.parent.root
	} else {
		p.Lineage, p.root = s.freeLineage(a), p.Number
		if a.mode == First {
			a.parent = nil
		}
	}
	p.Mode = a.mode
	p.BootstrapPath = filepath.Join(s.options.ConfigDir, fmt.Sprintf("envoy-rev%d.json", p.Number))
	p.AdminAddress = a.spec.AdminAddress(p.launch())
	p.admin = s.options.Admin(p.AdminAddress)
	s.counter++
	p.ID = fmt.Sprintf("%s-%d", s.prefix, s.counter)
	a.process = p
}

// parentOf returns the epoch that an epoch took over from by hot restart, if it still lives.
func (s *Supervisor) parentOf(child *process) *process {
	for _, p := range s.processes {
		if p != child && p.Lineage == child.Lineage && p.root == child.root && p.RestartEpoch == child.RestartEpoch-1 {
			return p
		}
	}
	return nil
}

// freeLineage returns the lowest slot that no living epoch uses and that is not to be avoided.
func (s *Supervisor) freeLineage(a *attempt) int {
	first := 0
	if a.spec.frozen != nil {
		first = a.spec.frozen.lineage
	}
	for slot := first; ; slot++ {
		free := !a.avoid[slot]
		for _, p := range s.processes {
			free = free && p.Lineage != slot
		}
		if free {
			return slot
		}
	}
}
