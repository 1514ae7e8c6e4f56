package keeper

import (
	"context"
	"slices"
	"sync"
	"time"
)

// MeasurementAge is how old a measurement may be that the keeper returns again. It is shorter than
// the pause between two questions of an agent that stops Envoy and waits for its clients to leave.
const MeasurementAge = 250 * time.Millisecond

// measurement shares measuring among callers: one runs at a time, whoever calls meanwhile gets its
// result, and a result that is new enough is returned again. A caller that leaves ends nothing.
type measurement struct {
	take func() ([]Process, error)

	mu   sync.Mutex
	last *sample
}

// sample is a measurement that runs or has ended.
type sample struct {
	ended chan struct{} // closed at its end, after the other fields are set

	at        time.Time
	processes []Process
	err       error
}

// get returns a result that is at most maxAge old, or the error of ctx.
func (m *measurement) get(ctx context.Context, maxAge time.Duration) ([]Process, error) {
	current := m.current(maxAge)
	select {
	case <-current.ended:
		return slices.Clone(current.processes), current.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// current returns the sample that runs or is new enough, else it begins one.
func (m *measurement) current(maxAge time.Duration) *sample {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last != nil && !m.last.expired(maxAge) {
		return m.last
	}
	begun := &sample{ended: make(chan struct{})}
	m.last = begun
	go func() {
		defer close(begun.ended)
		begun.processes, begun.err = m.take()
		begun.at = time.Now()
	}()
	return begun
}

// expired reports whether a sample has ended and failed, or ended more than maxAge ago.
func (s *sample) expired(maxAge time.Duration) bool {
	select {
	case <-s.ended:
		return s.err != nil || time.Since(s.at) > maxAge
	default:
		return false
	}
}

// measure lists all processes with what the living ones use. It reads the kernel's tables, which
// may be long, without the lock.
func (s *server) measure() ([]Process, error) {
	processes := s.list()
	var pids []int
	for _, p := range processes {
		if p.Exit == nil {
			pids = append(pids, p.PID)
		}
	}
	system := usage{proc: "/proc"}
	found, err := system.traffic(pids, s.info.Folder)
	failed := err != nil
	if failed {
		s.complain("%v", err)
	}
	for i := range processes {
		p := &processes[i]
		if p.Exit != nil {
			continue
		}
		its := found[p.PID]
		if failed { // a stop must not take what was not seen for nothing
			its.downstream = max(its.downstream, 1)
		}
		p.Connections, p.Downstream, p.Listening = its.established, &its.downstream, its.listening
		if p.MemoryBytes, err = system.memory(p.PID); err != nil {
			p.MemoryBytes = 0 // it has just exited
		}
	}
	return processes, nil
}
