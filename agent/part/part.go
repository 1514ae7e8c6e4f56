// Package part runs the long-running parts of a program: it starts them in order and stops them in
// reverse, so that a part may use those that were started before it until its own end.
package part

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// Part is a long-running part of a program.
type Part interface {
	Name() string
	// Run runs the part until ctx ends, then returns nil. Any earlier return ends the program.
	Run(ctx context.Context) error
	// Ready returns a channel that is closed once Run has started what other parts use.
	Ready() <-chan struct{}
}

// Readiness implements Ready. Its zero value is not ready. Its methods may be called concurrently.
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

// Group is a set of running parts. Its methods must be called by one goroutine.
type Group struct {
	ctx     context.Context // lives as long as the group: ends once a part's Run has returned
	end     context.CancelFunc
	running []running

	mu  sync.Mutex
	err error // the first
}

type running struct {
	stop context.CancelFunc
	done chan struct{} // closed when Run has returned
}

// NewGroup returns a Group without parts. Context ends with ctx.
func NewGroup(ctx context.Context) *Group {
	g := &Group{}
	g.ctx, g.end = context.WithCancel(ctx)
	return g
}

// Context returns a context that ends as soon as the group has to stop.
func (g *Group) Context() context.Context { return g.ctx }

// Start starts parts in order.
func (g *Group) Start(parts ...Part) {
	for _, p := range parts {
		// Not a child of g.ctx: Wait stops the parts one after the other.
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

// Await waits until parts are ready. It returns the error of Context if that ends first.
func (g *Group) Await(parts ...Part) error {
	for _, p := range parts {
		select {
		case <-p.Ready():
		case <-g.ctx.Done():
			return g.ctx.Err()
		}
	}
	return nil
}

// Fail makes the group stop. The first error that is not nil is the result of Wait.
func (g *Group) Fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		g.err = err
	}
	g.end()
}

// Wait waits until Context ends, then stops the parts in reverse order, each once its successor has
// returned. It returns the first error.
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
