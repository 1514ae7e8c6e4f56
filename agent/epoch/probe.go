package epoch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"outrider.org/outrider/agent/condition"
)

// reasonAdminLost says why a live epoch has no admin interface.
const reasonAdminLost = "an epoch that failed took it over"

// probing is the state of the regular probe of the live epoch's admin interface.
type probing struct {
	running bool
	// probe immediately: a failed epoch may have closed the admin interface of its parent
	examining bool
	at        time.Time
}

// hangs reports whether an error of an Admin means that Envoy's main thread does not respond. Any
// other error means that the admin interface is closed or does not exist.
func hangs(err error) bool {
	var network net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, syscall.EAGAIN) ||
		errors.As(err, &network) && network.Timeout()
}

// reconcileProbe probes the live epoch at intervals.
func (m *machine) reconcileProbe() {
	live := m.live()
	if live == nil || m.probe.running || m.attempt != nil || live.AdminLost || !m.due(m.probe.at) {
		return
	}
	m.startProbe(live, false)
}

// examine probes an epoch immediately.
func (m *machine) examine(p *process) {
	m.probe.examining = true
	m.startProbe(p, true)
}

func (m *machine) startProbe(p *process, examine bool) {
	m.probe.running = true
	m.do(probe{p.ID, p.AdminAddress, examine})
}

// probed is the event of a completed probe.
type probed struct {
	id      string
	examine bool
	err     error
}

func (e probed) apply(m *machine) {
	m.probe.running, m.probe.at = false, m.now.Add(probeInterval)
	if e.examine {
		m.probe.examining = false
	}
	p := m.find(e.id)
	switch {
	case p == nil || !p.State.Serves():
	case e.examine && e.err != nil && !hangs(e.err):
		m.adminLost(p, reasonAdminLost)
	case e.examine || m.attempt != nil:
	case e.err != nil:
		m.unanswered(p, e.err)
	default:
		p.misses = 0
		if p.AdminUnresponsive {
			p.AdminUnresponsive = false
			m.clear(conditionSilent)
		}
	}
}

// unanswered counts unanswered probes. If Envoy does not answer probeMisses of them, it is sent
// SIGCONT; if it does not answer the next one either, startNext replaces it.
func (m *machine) unanswered(p *process, err error) {
	p.misses++
	switch {
	case p.misses < probeMisses:
	case !hangs(err):
		m.adminLost(p, err.Error())
		p.AdminUnresponsive = true
	case !p.AdminUnresponsive:
		p.AdminUnresponsive = true
		m.raise(conditionSilent, condition.Warning, "Epoch %d does not answer on its admin "+
			"interface (%d questions in a row); its listeners may still serve. It is replaced if "+
			"it stays so.", p.Number, p.misses)
		m.do(sendSignal{p.ID, p.Number, syscall.SIGCONT, "its admin interface does not answer"})
	}
}

// wantsRepair reports whether a live epoch must be replaced because its admin interface does not
// respond or is gone.
func (m *machine) wantsRepair(p *process) bool {
	if !p.AdminLost && (!p.AdminUnresponsive || p.misses == probeMisses) {
		return false // decide after the probe that follows SIGCONT
	}
	return p.repaired.IsZero() || m.due(p.repaired.Add(repairInterval))
}

// repairReason returns the reason for which an epoch replaces p.
func repairReason(p *process) string {
	if p.AdminLost && !p.AdminUnresponsive {
		return fmt.Sprintf("it brings back the admin interface that epoch %d closed for one that "+
			"failed", p.Number)
	}
	return fmt.Sprintf("the admin interface of epoch %d does not answer", p.Number)
}

// adminLost records that a live epoch has no admin interface any more, so that startNext replaces
// it.
func (m *machine) adminLost(p *process, why string) {
	p.AdminLost = true
	m.annotate(p)
	m.raise(conditionAdminLost, condition.Warning, "Epoch %d serves, but its admin interface is "+
		"gone (%s): no statistics, no drain. The agent starts an epoch that brings it back as "+
		"soon as there can be one.", p.Number, why)
}
