package keeper

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"
)

// MaxMeasurementAge is the maximum age of a measurement that the keeper reuses. It is shorter than
// the interval at which an agent polls while it waits for clients to leave.
const MaxMeasurementAge = 250 * time.Millisecond

// measurement shares results among callers: one measurement runs at a time, and a recent result is
// returned again. A measurement continues when a caller no longer waits for it.
type measurement struct {
	take func() ([]Process, error)

	mu   sync.Mutex
	last *sample
}

// sample is a measurement in progress or its result.
type sample struct {
	ended chan struct{} // closed once the other fields are set

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

// current returns the sample in progress or a recent one, or starts one.
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

// expired reports whether a measurement has failed, or ended more than maxAge ago.
func (s *sample) expired(maxAge time.Duration) bool {
	select {
	case <-s.ended:
		return s.err != nil || time.Since(s.at) > maxAge
	default:
		return false
	}
}

// measure lists all processes with the resources of the living ones. It holds no lock, as reading
// kernel tables may take long.
func (s *server) measure() ([]Process, error) {
	processes := s.list()
	own := map[int][]netip.AddrPort{}
	for _, p := range processes {
		if p.Exit == nil {
			own[p.PID] = p.OutriderListeners
		}
	}
	listened, missed := s.listened.look()
	found, err := countTraffic(own, s.info.Folder, listened)
	if err = errors.Join(err, missed); err != nil {
		s.logf("%v", err)
	}
	for i := range processes {
		p := &processes[i]
		if p.Exit != nil {
			continue
		}
		its := found[p.PID]
		if err != nil { // with too low counts, an Envoy with connections might be reported as idle
			its.downstream = max(its.downstream, 1)
		}
		p.TCPConnections, p.ClientConnections, p.HasListeners = its.established, its.downstream, its.listening
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
