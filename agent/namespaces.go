package agent

import (
	"context"
	"slices"
)

// namespaces reports the namespaces of living epochs to the embedded discovery server: an epoch
// that an earlier agent started may have another namespace than the configuration.
type namespaces struct {
	*Agent
	reported []string
}

// Name is the part's name in logs and errors.
func (*namespaces) Name() string { return "namespaces" }

// update reports the namespaces if they changed, and returns a channel that is closed at the next
// change of an epoch.
func (n *namespaces) update() <-chan struct{} {
	changed := n.supervisor.Changed()
	var now []string
	for _, e := range n.supervisor.Epochs() {
		if e.Exited.IsZero() && e.Namespace != "" {
			now = append(now, e.Namespace)
		}
	}
	slices.Sort(now)
	if now = slices.Compact(now); !slices.Equal(now, n.reported) {
		n.reported = now
		n.discovery.Keep(now)
	}
	return changed
}

// Run reports changes until ctx ends.
func (n *namespaces) Run(ctx context.Context) error {
	for {
		select {
		case <-n.update():
		case <-ctx.Done():
			return nil
		}
	}
}
