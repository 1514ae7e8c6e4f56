package keeper

import (
	"context"
	"fmt"
	"os"
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

// measure lists all processes with what the living ones use. It reads kernel tables, which may be
// long, without holding the lock.
func (s *server) measure() ([]Process, error) {
	processes := s.list()
	var pids []int
	for _, p := range processes {
		if p.Exit == nil {
			pids = append(pids, p.PID)
		}
	}
	found, err := countTraffic(pids, s.info.Folder)
	if err != nil {
		s.complain("%v", err)
	}
	for i := range processes {
		p := &processes[i]
		if p.Exit != nil {
			continue
		}
		its := found[p.PID]
		if err != nil { // the agent must not take too low a count for an idle Envoy
			its.downstream = max(its.downstream, 1)
		}
		p.Connections, p.Downstream, p.Listening = its.established, &its.downstream, its.listening
		p.MemoryBytes = residentBytes(p.PID)
	}
	return processes, nil
}

// residentBytes returns the resident size of a process, 0 if it has exited.
func residentBytes(pid int) uint64 {
	var size, resident uint64 // in pages
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err == nil {
		_, err = fmt.Sscan(string(content), &size, &resident)
	}
	if err != nil {
		return 0
	}
	return resident * uint64(os.Getpagesize())
}
