package rig

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// Probe asks the rig's service again and again, on a connection of its own each time, to tell when nobody served and for how
// long. The load's report knows whole seconds only.
type Probe struct {
	address string
	stop    chan struct{}
	done    chan struct{}

	mu    sync.Mutex
	asked []probed
}

type probed struct {
	begun, ended time.Time
	ok           bool
}

// The pace of a probe.
const (
	probePause   = 5 * time.Millisecond
	probeTimeout = 5 * time.Second // as the load's: who answers later has not
)

// StartProbe starts a probe that ends with the test at the latest.
func (r *Rig) StartProbe() *Probe {
	p := &Probe{address: fmt.Sprintf("127.0.0.1:%d", r.Ports.HTTP), stop: make(chan struct{}), done: make(chan struct{})}
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
		ok := p.ask()
		p.mu.Lock()
		p.asked = append(p.asked, probed{begun, time.Now(), ok})
		p.mu.Unlock()
	}
}

func (p *Probe) ask() bool {
	connection, err := net.DialTimeout("tcp", p.address, probeTimeout)
	if err != nil {
		return false
	}
	defer func() { _ = connection.Close() }()
	if connection.SetDeadline(time.Now().Add(probeTimeout)) != nil {
		return false
	}
	if _, err := fmt.Fprintf(connection, "GET /probe HTTP/1.1\r\nHost: web.test\r\nConnection: close\r\n\r\n"); err != nil {
		return false
	}
	answer, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// slowAnswer is what counts as not served, though an answer came: far above what a busy machine does to a request.
const slowAnswer = 500 * time.Millisecond

// Recovered is how long after a moment the last question got its answer that was not answered, or slowly; 0 if all
// were answered well. ok is false if nothing was answered since.
func (p *Probe) Recovered(since time.Time) (after time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	down := false
	for _, asked := range p.asked {
		if asked.ended.Before(since) {
			continue
		}
		slow := asked.ended.Sub(asked.begun) > slowAnswer
		if down && asked.ok || slow && asked.ok {
			after = asked.ended.Sub(since)
		}
		down = !asked.ok
	}
	return after, !down
}
