package agent

import (
	"context"
	"errors"
	"fmt"

	"outrider.org/outrider/agent/capture"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/dns"
	"outrider.org/outrider/agent/endpoints"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/journal"
	"outrider.org/outrider/agent/lifecycle"
)

// run is one run of the agent.
type run struct {
	*base
	life    *agentEnd
	state   *reloadState
	link    *epoch.KeeperLink
	capture *capture.Controller
	dns     *dns.Server // nil if disabled
	pings   []pinger
	stages  []stage
}

// stage is a list of components that start in order, after the previous stage has finished
// starting.
type stage struct {
	parts []lifecycle.Component
	await lifecycle.Component // component to wait for after the start of parts; nil: no wait
	// called after the wait; an error ends the agent; may be nil
	then func(ctx context.Context) error
}

// pinger checks a goroutine without which the agent counts as hanging.
type pinger struct {
	name string
	ping func(ctx context.Context) error // returns once the goroutine has responded
}

// ping returns once all goroutines of pings have responded. The notifier calls it before it resets
// systemd's watchdog.
func (r *run) ping(ctx context.Context) error {
	for _, p := range r.pings {
		if err := p.ping(ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// run starts the stages. It returns when a component or ctx has ended and all components have
// stopped in reverse order.
func (r *run) run(ctx context.Context) error {
	group := lifecycle.NewGroup(ctx)
	for _, s := range r.stages {
		group.Start(s.parts...)
		if s.await != nil && group.Await(s.await) != nil {
			break // Await fails only if the group has ended
		}
		if s.then == nil {
			continue
		}
		if err := s.then(group.Context()); err != nil {
			group.Fail(err)
			break
		}
	}
	return group.Wait()
}

// end is called after all components have ended. Depending on the reason, it terminates the keeper
// with Envoy, and outrider-capture. It returns the error of the program.
func (r *run) end(err error) error {
	switch {
	case errors.Is(err, epoch.ErrRestartsExhausted):
		r.link.ShutdownKeeper()
		return exitf(ExitRestartsExhausted, "%w", err)
	case err != nil:
		if _, ok := errors.AsType[*ExitError](err); ok {
			r.link.ShutdownKeeperIfIdle()
			return err
		}
		return &ExitError{Code: ExitInternal, Err: err}
	case r.life.restarts.Load():
		r.log.Info("agent ended for a restart; Envoy continues serving")
	case r.life.stopping.Load():
		r.link.ShutdownKeeper()
		if r.dns != nil {
			r.dns.CloseStoredSockets()
		}
		r.capture.Stop(context.Background()) // the context of the run has ended
		tidy(r.state.InForce().Config, r.log)
	}
	return nil
}

// awaitKeeper waits for the result of connecting to the keeper.
func awaitKeeper(
	ctx context.Context, b *base, c *config.Config, link *epoch.KeeperLink, connected <-chan error,
) error {
	if err := <-connected; err != nil || c.Envoy.Enabled {
		return err
	}
	return endEnvoys(ctx, link, b.log)
}

// newEvents returns the component that logs conditions and events.
func newEvents(b *base, proxy *epoch.Proxy) *journal.EventLog {
	return &journal.EventLog{Conditions: b.board, Log: b.logOf("agent"), Logs: b.logs,
		LiveEpoch: proxy,
		SkippedConditions: []string{conditionRefused, discovery.ConditionMeshProblems,
			epoch.ConditionRestartsExhausted, conditionResourcesRefused(""), endpoints.ConditionFailing}}
}
