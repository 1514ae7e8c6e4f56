// Package lifecycle runs the long-running components of a program. It starts them in order and
// stops them in reverse order, so that a component may use those that were started before it until
// it has stopped.
package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// Component is a long-running part of a program.
type Component interface {
	Name() string
	// Run runs the component until ctx ends, then returns nil. If it returns earlier, the program
	// stops.
	Run(ctx context.Context) error
	// Ready returns a channel that Run closes when other components may use this one.
	Ready() <-chan struct{}
}

// Readiness implements Component.Ready. Its zero value is not ready. Its methods may be called
// concurrently.
type Readiness struct {
	make, close sync.Once
	ready       chan struct{}
}

// Ready returns a channel that MarkReady closes.
func (r *Readiness) Ready() <-chan struct{} { return r.channel() }

// MarkReady closes the channel of Ready. Only the first call has an effect.
func (r *Readiness) MarkReady() { r.close.Do(func() { close(r.channel()) }) }

func (r *Readiness) channel() chan struct{} {
	r.make.Do(func() { r.ready = make(chan struct{}) })
	return r.ready
}

// Group is a set of running components. Its methods must be called by one goroutine.
type Group struct {
	ctx     context.Context // result of Context
	end     context.CancelFunc
	running []running

	mu  sync.Mutex
	err error // first error
}

type running struct {
	stop context.CancelFunc
	done chan struct{} // closed when Run has returned
}

// NewGroup returns a Group without components that stops when ctx ends.
func NewGroup(ctx context.Context) *Group {
	g := &Group{}
	g.ctx, g.end = context.WithCancel(ctx)
	return g
}

// Context returns a context that ends when the group has to stop: after Fail, after a component's
// Run has returned, or at the end of the context passed to NewGroup.
func (g *Group) Context() context.Context { return g.ctx }

// Start starts components in order. It does not wait until they are ready.
func (g *Group) Start(parts ...Component) {
	for _, p := range parts {
		// This context does not end with g.ctx, because Wait stops the components one after the
		// other.
		ctx, stop := context.WithCancel(context.WithoutCancel(g.ctx))
		r := running{stop, make(chan struct{})}
		g.running = append(g.running, r)
		go func() {
			defer close(r.done)
			if err := p.Run(ctx); err != nil {
				g.Fail(fmt.Errorf("%s: %w", p.Name(), err))
			}
			g.end()
		}()
	}
}

// Await waits until components are ready. If the group has to stop first, it returns the error of
// Context.
func (g *Group) Await(parts ...Component) error {
	for _, p := range parts {
		select {
		case <-p.Ready():
		case <-g.ctx.Done():
			return g.ctx.Err()
		}
	}
	return nil
}

// Fail makes the group stop. Wait returns the first error that is not nil.
func (g *Group) Fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		g.err = err
	}
	g.end()
}

// Wait waits until the group has to stop. It then stops the components in reverse order, each after
// the one started later has returned. It returns the first error.
func (g *Group) Wait() error {
	<-g.ctx.Done()
	for _, r := range slices.Backward(g.running) {
		r.stop()
		<-r.done
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}
