package rig

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// Probe repeatedly sends requests to the rig's backend, each on a new connection. It measures
// outages more precisely than the load's report, whose resolution is one second.
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

// Pause between two requests, and time limit of each.
const (
	probePause = 5 * time.Millisecond
	// as in package load, which counts a request without a response after this time as lost
	probeTimeout = 5 * time.Second
)

// StartProbe starts a Probe. It ends when Stop is called or the test ends.
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

// A request waited for the recovery from a fault if it was sent at most hangBefore after the fault,
// or before it, and took longer than hangs.
const (
	hangBefore = 200 * time.Millisecond
	hangs      = 500 * time.Millisecond
)

// Recovered returns the time from a fault (since) until the first success after the last failed
// request. If a request that waited for the recovery succeeded later, it is the time until that
// response. It is 0 if no request failed or waited. ok is false if the last request failed.
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
