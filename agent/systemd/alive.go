package systemd

import (
	"context"
	"strconv"
	"sync"
	"time"
)

const (
	extendBy    = 30 * time.Second // value of EXTEND_TIMEOUT_USEC=: the timeout from now on
	extendEvery = 5 * time.Second
	patience    = 10 * time.Second // timeout of Options.Ping without a watchdog
)

const watchdogFed = "WATCHDOG=1"

var extension = "EXTEND_TIMEOUT_USEC=" + strconv.FormatInt(extendBy.Microseconds(), 10)

// Name returns the component's name.
func (n *Notifier) Name() string { return "systemd" }

// Run feeds the watchdog and extends the unit's timeouts during long phases, as long as the control
// loop responds. If the loop hangs, systemd terminates the agent. Run also resends pending
// messages. It returns when ctx ends.
func (n *Notifier) Run(ctx context.Context) error {
	n.MarkReady()
	if n.address == "" {
		<-ctx.Done()
		return nil
	}
	var loops sync.WaitGroup
	loops.Go(func() { n.again(ctx) })
	loops.Go(func() { n.checkLoop(ctx) })
	loops.Wait()
	return nil
}

// checkLoop checks the control loop periodically and notifies the manager after each response. With
// a watchdog, a check starts every quarter of its interval and may take half of it, so successive
// notifications are at most three quarters apart.
func (n *Notifier) checkLoop(ctx context.Context) {
	every, wait := extendEvery, patience
	if n.watchdog > 0 {
		every, wait = min(every, n.watchdog/4), min(wait, n.watchdog/2)
	}
	hung := false
	ticker := time.NewTicker(max(every, time.Millisecond))
	defer ticker.Stop()
	for {
		attempt, cancel := context.WithTimeout(ctx, wait)
		err := n.ping(attempt)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			n.alive()
			if hung {
				n.log.Warn("the control loop responds again")
			}
			hung = false
		case !hung:
			hung = true
			n.log.Error(
				"the control loop does not respond: watchdog notifications stop until it does",
				"waited", wait.String(), "error", err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// alive reports a response of the control loop to the manager.
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

// extended returns the lines of a message that extends the unit's timeout. EXTEND_TIMEOUT_USEC=
// alone would also extend the watchdog (service_extend_timeout in src/core/service.c) and delay the
// detection of a hang. systemd processes WATCHDOG= of the same message last, which restores the
// watchdog's interval.
func (n *Notifier) extended() []string {
	if n.watchdog > 0 {
		return []string{watchdogFed, extension}
	}
	return []string{extension}
}
