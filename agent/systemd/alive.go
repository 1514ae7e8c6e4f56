package systemd

import (
	"context"
	"strconv"
	"sync"
	"time"
)

const (
	extendBy    = 30 * time.Second // how much longer a phase may last from now on
	extendEvery = 5 * time.Second
	patience    = 10 * time.Second // for a beat, where no watchdog sets one
)

const watchdogFed = "WATCHDOG=1"

var extension = "EXTEND_TIMEOUT_USEC=" + strconv.FormatInt(extendBy.Microseconds(), 10)

// Name is the part's name.
func (n *Notifier) Name() string { return "systemd" }

// Run tells the manager that the agent is alive, as long as its control loop turns: it feeds the watchdog and lets a phase that
// lasts outlast the unit's time-outs. An agent whose loop stands still gets neither, and is ended by systemd. Run also sends
// what the manager's socket did not take at first. It returns when ctx ends.
func (n *Notifier) Run(ctx context.Context) error {
	if n.address == "" {
		<-ctx.Done()
		return nil
	}
	var loops sync.WaitGroup
	loops.Go(func() { n.again(ctx) })
	loops.Go(func() { n.beats(ctx) })
	loops.Wait()
	return nil
}

// beats asks the control loop to answer, and tells the manager each time that it did. With a watchdog a beat begins each
// quarter of its interval and may take half of it, so that one answer is never later than three quarters after the other.
func (n *Notifier) beats(ctx context.Context) {
	every, wait := extendEvery, patience
	if n.watchdog > 0 {
		every, wait = min(every, n.watchdog/4), min(wait, n.watchdog/2)
	}
	standsStill := false
	ticker := time.NewTicker(max(every, time.Millisecond))
	defer ticker.Stop()
	for {
		attempt, cancel := context.WithTimeout(ctx, wait)
		err := n.beat(attempt)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			n.alive()
			if standsStill {
				n.log.Warn("the control loop turns again")
			}
			standsStill = false
		case !standsStill:
			standsStill = true
			n.log.Error("the control loop stands still: systemd is not told that the agent is alive until it turns", "waited", wait.String(), "error", err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// alive tells that the control loop has turned.
func (n *Notifier) alive() {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.state.lasts():
		n.post(aliveKind, n.extended()...)
	case n.watchdog > 0:
		n.post(aliveKind, watchdogFed)
	}
}

// extended is what a phase that may last begins with. The extension moves the watchdog, too, where it is what systemd heard last
// (service_extend_timeout in src/core/service.c): an agent that hangs before its next beat, even if the phase has ended, would
// be noticed that much later. Of one message systemd takes WATCHDOG= last, which puts the watchdog back to its own interval.
func (n *Notifier) extended() []string {
	if n.watchdog > 0 {
		return []string{watchdogFed, extension}
	}
	return []string{extension}
}
