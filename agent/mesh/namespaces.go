package mesh

import (
	"context"
	"slices"

	"outrider.org/outrider/agent/part"
)

// Namespaces reports the namespaces of living epochs to the embedded discovery server: an epoch
// that an earlier agent started may have another namespace than the configuration.
type Namespaces struct {
	part.Readiness
	Supervisor Supervisor
	Discovery  interface{ Keep(namespaces []string) }

	reported []string
}

// Name returns the name of the part.
func (*Namespaces) Name() string { return "namespaces" }

// update reports the namespaces if they changed, and returns a channel that is closed at the next
// change of an epoch.
func (n *Namespaces) update() <-chan struct{} {
	changed := n.Supervisor.Changed()
	var now []string
	for _, e := range n.Supervisor.Epochs() {
		if e.Exited.IsZero() && e.Namespace != "" {
			now = append(now, e.Namespace)
		}
	}
	slices.Sort(now)
	if now = slices.Compact(now); !slices.Equal(now, n.reported) {
		n.reported = now
		n.Discovery.Keep(now)
	}
	return changed
}

// Run reports changes until ctx ends.
func (n *Namespaces) Run(ctx context.Context) error {
	for {
		changed := n.update()
		n.MarkReady()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}
