package epoch

import (
	"context"
	"fmt"
	"time"
)

// How the connections of a replaced epoch are counted while a new epoch waits for it.
const (
	idleSettle = 500 * time.Millisecond // after its child became live
	idleEvery  = 300 * time.Millisecond // longer than keeper.MeasurementAge
)

// mayStart reports whether an epoch of a spec may be started beside the live one: no older epoch is
// left, or only an idle one that the live epoch is to end. Envoy does that itself, before its time
// and safely: in the handshake with its child the live epoch tells its own parent to exit. While
// clients are connected to the parent that would cut them.
func (s *Supervisor) mayStart(spec *Spec, live *process) bool {
	if live == nil || len(s.processes) == 1 {
		return true
	}
	parent := s.endedBy(live)
	return parent != nil && parent.idle && spec.HotRestartVersion == live.spec.HotRestartVersion
}

// endedBy returns the only older epoch, if it is the live one's parent in a hot restart, which the
// live one ends.
func (s *Supervisor) endedBy(live *process) *process {
	if len(s.processes) != 2 {
		return nil
	}
	if parent := s.parentOf(live); parent != nil && parent.Phase == Draining && parent.child == "hot" {
		return parent
	}
	return nil
}

// watchIdle starts the helper that finds out whether the older epoch is idle. It is called while a
// new epoch waits for it.
func (s *Supervisor) watchIdle() {
	live := s.live()
	parent := s.endedBy(live)
	if parent == nil || parent.idle || parent.counting {
		return
	}
	parent.counting = true
	settled := live.Live.Add(idleSettle)
	s.help(func(ctx context.Context) {
		if sleep(ctx, time.Until(settled)) {
			s.countConnections(ctx, parent)
		}
	})
}

// countConnections asks the keeper for the connections of an epoch until it has none, twice in a
// row, or has exited. One that still has a listener is not idle. It runs in a helper.
func (s *Supervisor) countConnections(ctx context.Context, p *process) {
	for quiet := 0; quiet < countsQuiet; {
		all, err := s.measured(ctx)
		its, ok := all[p.ID]
		left := int(its.Connections)
		switch {
		case err != nil: // the keeper is busy, or replaces itself
			quiet, left = 0, -1
		case !ok || its.Exit != nil:
			return
		case its.Connections == 0 && !its.Listening:
			quiet++
		default:
			quiet = 0
		}
		busy, idle := quiet == 0, quiet == countsQuiet
		s.post(func() { p.left, p.busy, p.idle = left, busy, idle })
		if idle || !sleep(ctx, idleEvery) {
			return
		}
	}
}

// logWait notes in the log, once per epoch, that a request waits for it.
func (s *Supervisor) logWait(old *process) {
	counted := old.busy || s.endedBy(s.live()) != old // else it may be idle
	if old.awaited || !counted {
		return
	}
	old.awaited = true
	s.log.Info(fmt.Sprintf("waiting for epoch %d to finish draining", old.Number), "epoch", old.Number, "connections", old.left,
		"until", old.Ends.Format(time.TimeOnly))
}

// waitsFor says in words what a request waits for while an older epoch ends.
func waitsFor(old *process) string {
	why := fmt.Sprintf("waiting for epoch %d to finish draining", old.Number)
	switch {
	case old.left == 1:
		why += ", 1 connection left"
	case old.left > 1:
		why += fmt.Sprintf(", %d connections left", old.left)
	}
	return why
}

// measured asks the keeper what all processes have open, by id.
func (s *Supervisor) measured(ctx context.Context) (map[string]Process, error) {
	var keeper Keeper
	if err := s.call(ctx, func() { keeper = s.keeper }); err != nil {
		return nil, err
	}
	if keeper == nil {
		return nil, errKeeperLost
	}
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	processes, err := keeper.Measure(asking)
	found := map[string]Process{}
	for _, one := range processes {
		found[one.ID] = one
	}
	return found, err
}
