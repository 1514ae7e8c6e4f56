package agent

import (
	"context"
	"slices"
	"time"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/xds"
)

// late is a part whose work can wait: on few processors it would take the time of those who start Envoy.
type late struct {
	part
	due    func(ctx context.Context) // returns when it may begin, or ctx ends
	atMost time.Duration
}

// Run waits until the part is due, for a moment at most, and then is the part.
func (l *late) Run(ctx context.Context) error {
	soon(ctx, l.due, l.atMost)
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the agent ends
	}
	return l.part.Run(ctx)
}

// soon returns when something is due, when its time is over, or when ctx ends.
func soon(ctx context.Context, due func(ctx context.Context), atMost time.Duration) {
	waiting, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	due(waiting)
}

const (
	// headStart is how long Envoy's start has precedence over all that it needs later or never. What it asks first, the embedded
	// discovery server, it asks some 50 ms after it was started.
	headStart = 200 * time.Millisecond
	// watchHeadStart is the same for watching files, and watchPause comes after it: those who wait for a ready proxy are answered
	// first. What changes before is told then, as a watcher knows what the files were when it was told of them.
	watchHeadStart = 2 * time.Second
	watchPause     = 200 * time.Millisecond
)

// spawned returns once there is an Envoy.
func (a *Agent) spawned(ctx context.Context) {
	for {
		changed := a.supervisor.Changed()
		if slices.ContainsFunc(a.supervisor.Epochs(), func(e epoch.Epoch) bool { return e.PID != 0 }) {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// begun returns a moment after the outcome of the start is known.
func (a *Agent) begun(ctx context.Context) {
	select {
	case <-a.decided:
	case <-ctx.Done():
		return
	}
	pause := time.NewTimer(watchPause)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
}

// inhabited tells the embedded discovery server which namespaces Envoys are in: one that an agent before this one has started may be in
// another than this agent's.
type inhabited struct {
	*Agent
	told []string
}

// Name is the part's name in logs and errors.
func (*inhabited) Name() string { return "namespaces" }

// tell tells what has changed, and returns what is closed when it may have changed again.
func (i *inhabited) tell() <-chan struct{} {
	changed := i.supervisor.Changed()
	var now []string
	for _, e := range i.supervisor.Epochs() {
		if e.Exited.IsZero() && e.Namespace != "" {
			now = append(now, e.Namespace)
		}
	}
	slices.Sort(now)
	if now = slices.Compact(now); !slices.Equal(now, i.told) {
		i.told = now
		i.discovery.Keep(now)
	}
	return changed
}

// Run tells until ctx ends.
func (i *inhabited) Run(ctx context.Context) error {
	for {
		select {
		case <-i.tell():
		case <-ctx.Done():
			return nil
		}
	}
}

// rehearsed is the embedded discovery server, with what Envoy's first request needs besides.
type rehearsed struct{ *discovery.Server }

// Run rehearses, and serves until ctx ends.
func (r rehearsed) Run(ctx context.Context) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the agent ends before it began
	}
	if err := xds.Rehearse(); err != nil {
		return err
	}
	return r.Server.Run(ctx)
}
