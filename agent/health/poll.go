package health

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"outrider.org/outrider/agent/backoff"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/probe"
)

// poll checks the workload with the current settings until ctx ends.
func (c *Checker) poll(ctx context.Context) {
	c.mu.Lock()
	s, leaving := c.settings, c.leaving
	c.mu.Unlock()
	if !s.Enabled || leaving != "" || backoff.Sleep(ctx, s.InitialDelay) != nil {
		return
	}
	var successes, failures int
	for c.awaitReady(ctx); ctx.Err() == nil; {
		started := time.Now()
		err := c.check(ctx, s)
		switch {
		case errors.Is(err, errDrains):
			successes, failures = 0, 0
			c.reached(ctx, StateUnhealthy, err)
			c.awaitReady(ctx)
			continue
		case err != nil:
			successes, failures = 0, failures+1
			if failures >= s.FailureThreshold {
				c.reached(ctx, StateUnhealthy, err)
			}
		default:
			successes, failures = successes+1, 0
			if successes >= s.SuccessThreshold {
				c.reached(ctx, StateHealthy, nil)
			}
		}
		c.awaitNext(ctx, started.Add(s.Period))
	}
}

func (c *Checker) awaitReady(ctx context.Context) {
	c.options.Proxy.WaitReady(ctx, func(string) {})
}

// awaitNext returns when the next check is due, a drain is requested or ctx ends.
func (c *Checker) awaitNext(ctx context.Context, due time.Time) {
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	for {
		changed := c.options.Proxy.Changed()
		if c.options.Proxy.Draining() {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// reached changes the state after a threshold was reached. It has no effect once ctx has ended.
func (c *Checker) reached(ctx context.Context, state State, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	// the settings have changed since the check, or MarkLeaving was called
	case ctx.Err() != nil || c.leaving != "":
	case state == StateHealthy:
		c.set(StateHealthy, "")
	case c.status.State != StateUnhealthy || c.status.Reason == reasonDrains:
		c.set(StateUnhealthy, why.Error())
	}
}

// set changes the state and reports it. Callers hold mu.
func (c *Checker) set(state State, reason string) {
	if c.status.State == state && c.status.Reason == reason {
		return
	}
	c.status = Status{State: state, Since: time.Now(), Reason: reason}
	c.options.Logger.Info("health of the workload has changed", "health", state, "reason", reason)
	if state == StateHealthy || slices.Contains(requested, reason) {
		c.options.Conditions.Clear(conditionUnhealthy)
	} else {
		c.options.Conditions.Raise(conditionUnhealthy, condition.Error,
			"the workload is unhealthy and gets no traffic of the mesh: "+reason)
	}
	c.options.OnChange(state == StateHealthy, reason)
}

const reasonDrains = "the proxy drains"

// requested are the reasons for which no condition is raised, because somebody requested the state.
var requested = []string{reasonDrains, ReasonStopping, ReasonLeavingMesh}

var errDrains = errors.New(reasonDrains)

// check returns why the workload is unhealthy now, or nil.
func (c *Checker) check(ctx context.Context, s Settings) error {
	if c.options.Proxy.Draining() {
		return errDrains
	}
	if ready, why := c.options.Proxy.ReadyContext(ctx); !ready {
		return errors.New("the proxy is not ready: " + why)
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	err := c.probe(ctx, s.Health)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("the health probe got no answer within %s", s.Timeout)
	}
	return err
}

func (c *Checker) probe(ctx context.Context, s config.Health) error {
	switch {
	case s.HTTP != "":
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.HTTP, nil)
		if err != nil {
			return err
		}
		request.Header.Set("User-Agent", "outrider-probe")
		code, err := probe.HTTP(request)
		if err == nil && (code < http.StatusOK || code >= http.StatusBadRequest) {
			err = fmt.Errorf("the application answered %d", code)
		}
		return err
	case s.TCP != "":
		return probe.TCP(ctx, s.TCP)
	case s.GRPC != "":
		return probe.GRPC(ctx, s.GRPC)
	case len(s.Exec) > 0:
		return c.options.Exec(ctx, s.Exec)
	case s.Unit != "":
		state, err := c.options.UnitState(ctx, s.Unit)
		if err == nil && !slices.Contains([]string{"active", "reloading", "refreshing"}, state) {
			err = fmt.Errorf("%s is %s", s.Unit, state)
		}
		return err
	}
	return nil
}
