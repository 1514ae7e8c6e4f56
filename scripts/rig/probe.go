package rig

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// Probe sends requests to the rig's service continuously, each on a new connection, to measure
// outages with better resolution than the load's report, which has whole seconds.
type Probe struct {
	address string
	stop    chan struct{}
	done    chan struct{}

	mu       sync.Mutex
	requests []probed
}

type probed struct {
	begun, ended time.Time
	ok           bool
}

// The pace of a probe.
const (
	probePause   = 5 * time.Millisecond
	probeTimeout = 5 * time.Second // as in the load: later answers count as lost
)

// StartProbe starts a probe, which ends with the test at the latest.
func (r *Rig) StartProbe() *Probe {
	p := &Probe{address: fmt.Sprintf("127.0.0.1:%d", r.Ports.HTTP), stop: make(chan struct{}),
		done: make(chan struct{})}
	go p.run()
	r.t.Cleanup(p.Stop)
	return p
}

// Stop ends the probe. It may be called again.
func (p *Probe) Stop() {
	p.mu.Lock()
	select {
	case <-p.stop:
	default:
		close(p.stop)
	}
	p.mu.Unlock()
	<-p.done
}

func (p *Probe) run() {
	defer close(p.done)
	tick := time.NewTicker(probePause)
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-tick.C:
		}
		begun := time.Now()
		ok := p.request()
		p.mu.Lock()
		p.requests = append(p.requests, probed{begun, time.Now(), ok})
		p.mu.Unlock()
	}
}

func (p *Probe) request() bool {
	connection, err := net.DialTimeout("tcp", p.address, probeTimeout)
	if err != nil {
		return false
	}
	defer func() { _ = connection.Close() }()
	if connection.SetDeadline(time.Now().Add(probeTimeout)) != nil {
		return false
	}
	if _, err := fmt.Fprintf(connection,
		"GET /probe HTTP/1.1\r\nHost: web.test\r\nConnection: close\r\n\r\n"); err != nil {
		return false
	}
	answer, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// A request sent at most hangBefore after a moment and answered more than hangs later waited for a
// recovery.
const (
	hangBefore = 200 * time.Millisecond
	hangs      = 500 * time.Millisecond
)

// Recovered returns the time from a moment to the first answer after the last failure, or the
// longest time that requests of that moment waited; 0 if all were answered at once. ok is false if
// the last request was not answered.
func (p *Probe) Recovered(since time.Time) (after time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	down := false
	for _, requests := range p.requests {
		if requests.ended.Before(since) {
			continue
		}
		slow := requests.begun.Before(since.Add(hangBefore)) && requests.ended.Sub(requests.begun) > hangs
		if down && requests.ok || slow && requests.ok {
			after = requests.ended.Sub(since)
		}
		down = !requests.ok
	}
	return after, !down
}
