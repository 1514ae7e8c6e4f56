package agent

import (
	"context"
	"fmt"
	"sync"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/epoch"
)

// conditionViewYields is active while Envoy's own admin interface occupies the view's port.
const conditionViewYields = "admin-view-yields"

// viewPort resolves conflicts between the admin view and Envoy's own admin interface, whose address
// a custom bootstrap decides. The view stops listening before an epoch with the same address starts
// and resumes once an epoch with another address is live.
type viewPort struct {
	yield   func(taken []string) string // View.Yield
	epochs  func() []epoch.Epoch
	changed func() <-chan struct{} // closed when the epochs change
	board   *condition.Board

	mu   sync.Mutex
	held map[uint64]string // admin address of the requested epoch, by reload ID
	// last is the admin address of the live epoch, or of the last or next one if none is live.
	last string
}

// Name returns the name of the part.
func (*viewPort) Name() string { return "admin-port" }

// Run updates the view on each change of the epochs until ctx ends.
func (p *viewPort) Run(ctx context.Context) error {
	for {
		changed := p.changed()
		p.update()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// hold makes the view yield to the epoch that a reload requests, until over.
func (p *viewPort) hold(id uint64, spec *epoch.Spec) {
	p.mu.Lock()
	p.held[id] = spec.AdminAddress(epoch.Launch{})
	p.mu.Unlock()
	p.update()
}

// over ends hold.
func (p *viewPort) over(id uint64) {
	p.mu.Lock()
	delete(p.held, id)
	p.mu.Unlock()
	p.update()
}

// update passes the admin addresses of the epochs to the view. While no epoch is live, the last
// one's counts, since it may be restarted at any time.
func (p *viewPort) update() {
	p.mu.Lock()
	defer p.mu.Unlock()
	var live, starting *epoch.Epoch
	for _, e := range p.epochs() {
		switch {
		case e.State.Serves():
			live = &e
		case e.State == epoch.Starting:
			starting = &e
		}
	}
	switch {
	case live != nil:
		p.last = live.AdminAddress
	case starting != nil:
		p.last = starting.AdminAddress
	}
	taken := []string{p.last}
	if starting != nil {
		taken = append(taken, starting.AdminAddress)
	}
	for _, address := range p.held {
		taken = append(taken, address)
	}
	switch yields := p.yield(taken); yields {
	case "":
		p.board.Clear(conditionViewYields)
	case p.last:
		p.board.Raise(conditionViewYields, condition.Info,
			fmt.Sprintf("The bootstrap has Envoy's own admin interface on %s: "+
				"there is no view of it on [envoy] admin_port, and every local user may change Envoy there.", yields))
	}
}
