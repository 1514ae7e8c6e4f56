package epoch

import (
	"fmt"
	"syscall"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
)

// stop is the progress of a stop.
type stop struct {
	now        bool      // stop without a drain
	drained    bool      // the drain has ended
	terminated time.Time // when SIGTERM was sent
	killed     time.Time // when SIGKILL was sent
	cleaning   bool      // the keeper is removing the files and shared memory of ended Envoys
}

// stopRequested is the event of a call of Stop.
type stopRequested struct {
	config config.Envoy
	now    bool
}

func (e stopRequested) apply(m *machine) {
	switch {
	case m.stop == nil:
		m.beginStop(e)
	case e.now:
		m.stop.now = true
		m.do(cancelJob{stopJob})
	}
}

func (m *machine) beginStop(e stopRequested) {
	m.stop = &stop{now: e.now}
	m.backOff.at, m.replaceAt = time.Time{}, time.Time{}
	m.refusePending(ErrStopping)
	m.refuseUndrain(m.refusal(-1, ErrStopping))
	m.abort(ErrStopping)
	live := m.live()
	if live == nil {
		m.do(publish{condition.Event{Kind: condition.KindStopping,
			Sentence: "stopping; no epoch is live"}})
		m.stop.drained = true
		return
	}
	live.stopBegun = true
	m.annotate(live)
	m.publish(notice{kind: condition.KindStopping, epoch: live.Number,
		sentence: fmt.Sprintf("stopping: epoch %d drains", live.Number),
		message:  "stopping: the live epoch drains"})
	c := e.config
	// a requested drain has begun already: wait only for the rest of its time
	if rest := max(live.ListenersCloseAt.Sub(m.now), 0); !live.ListenersCloseAt.IsZero() {
		c.TerminationDrainDuration = min(c.TerminationDrainDuration, rest)
		c.MinimumDrainDuration = min(c.MinimumDrainDuration, rest)
	}
	drain := drainToStop{id: live.ID, number: live.Number, admin: live.AdminAddress,
		config: c, until: m.now.Add(c.MaximumDrainDuration)}
	for _, p := range m.older() {
		drain.older = append(drain.older, leaving{p.ID, p.LatestDrainEnd})
	}
	m.do(drain)
}

// stopDrained is the event that the drain of a stop has ended.
type stopDrained struct{}

func (stopDrained) apply(m *machine) { m.stop.drained = true }

// cleanedUp is the event that the keeper's cleanup has ended.
type cleanedUp struct{ err error }

func (e cleanedUp) apply(m *machine) { m.finish(e.err) }

// reconcileStop continues a stop: it sends SIGTERM once all epochs have drained, SIGKILL later, and
// requests the keeper's cleanup when no process is left.
func (m *machine) reconcileStop() {
	stop := m.stop
	patience := terminateTimeout
	if stop.now {
		patience = abortTimeout
	}
	switch {
	case stop.cleaning:
	case m.link != connected: // the keeper may be re-executing itself; its Envoys continue to run
		if m.link == disconnected && m.due(m.lostAt.Add(keeperPatience)) {
			m.finish(fmt.Errorf("end Envoy: %w", errKeeperLost))
		}
	case m.attempt != nil: // the attempt's process is being killed, which takes at most killTimeout
	case len(m.processes) == 0:
		stop.cleaning = true
		m.do(cleanUp{})
	case !stop.drained && !stop.now && m.live() != nil:
		m.endOverdue()
	case stop.terminated.IsZero():
		stop.terminated = m.now
		m.terminate()
		m.wakeAt(m.now.Add(patience))
	case stop.killed.IsZero():
		if !m.due(stop.terminated.Add(patience)) {
			return
		}
		stop.killed = m.now
		for _, p := range m.processes {
			m.kill(p, "it did not end on SIGTERM")
		}
		m.wakeAt(m.now.Add(killTimeout))
	case m.due(stop.killed.Add(killTimeout)):
		m.finish(fmt.Errorf("%d epochs did not end on SIGKILL within %s", len(m.processes),
			killTimeout))
	}
}

// terminate sends SIGTERM to the newest epoch of each lineage, which makes its parent exit, too.
func (m *machine) terminate() {
	newest := map[int]*process{}
	for _, p := range m.processes {
		if other := newest[p.Lineage]; other == nil || other.RestartEpoch < p.RestartEpoch {
			newest[p.Lineage] = p
		}
	}
	for _, p := range m.processes {
		if newest[p.Lineage] == p {
			m.signal(p, syscall.SIGTERM, "stopping")
		}
	}
}
