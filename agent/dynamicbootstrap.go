package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/relay"
)

// conditionNoBootstrap is active while the start waits for the bootstrap of the upstream server.
const conditionNoBootstrap = "bootstrap-missing"

// bootstrapPause is the shortest pause between requests for a bootstrap, and the longest random
// addition to it.
const bootstrapPause = time.Second

// certificateWait bounds the wait for the certificate that a request for a bootstrap needs. At the
// start it is issued meanwhile.
const certificateWait = 5 * time.Second

// upstreamBootstrap implements blueprint.Maker.Upstream.
func (a *Agent) upstreamBootstrap(ctx context.Context, c *config.Config, node []byte,
	use func(content []byte) error,
) (accepted func(), err error) {
	var parsed corev3.Node
	if err := protojson.Unmarshal(node, &parsed); err != nil {
		return nil, fmt.Errorf("decode the node of the bootstrap: %w", err)
	}
	upstream, start := upstreamOf(c), a.serving.Load() == nil
	if first := a.bootstrap.Swap(nil); first != nil && first.upstream == upstream &&
		bytes.Equal(first.node, node) && use(first.content) == nil {
		return first.accepted, nil
	}
	if upstream.Workload {
		a.awaitCertificate(ctx)
	}
	return a.relay.Bootstrap(ctx, upstream, &parsed, start, use)
}

// firstBootstrap is the bootstrap from which a start knows its files. The first epoch uses it, too:
// a server that does not respond delays a start once.
type firstBootstrap struct {
	upstream      relay.Upstream
	node, content []byte
	accepted      func()
}

// requestFirst implements blueprint.Maker.Upstream for startFiles. It retains the bootstrap so that
// the first epoch does not request it again.
func (a *Agent) requestFirst(ctx context.Context, c *config.Config, node []byte,
	use func(content []byte) error,
) (accepted func(), err error) {
	first := &firstBootstrap{upstream: upstreamOf(c), node: node}
	first.accepted, err = a.upstreamBootstrap(ctx, c, node, func(content []byte) error {
		first.content = content
		return use(content)
	})
	if err == nil {
		a.bootstrap.Store(first)
	}
	return first.accepted, err
}

// awaitCertificate returns once the workload has a certificate, at the latest after
// certificateWait.
func (a *Agent) awaitCertificate(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, certificateWait)
	defer cancel()
	feed, _ := a.identity.Feed(nil) // never fails
	for {
		_, next := feed.Current()
		if a.identity.Pair() != nil {
			return
		}
		select {
		case <-next:
		case <-ctx.Done():
			return
		}
	}
}

// startFiles returns the files that Envoy reads at its start. It waits until the upstream server
// sends a usable bootstrap ([discovery] dynamic_bootstrap), which a reload may make unnecessary. If
// no bootstrap can be made from the configuration, only those of reload.files are known, and the
// start reports the error. The error is that of ctx.
func (a *Agent) startFiles(ctx context.Context) ([]string, error) {
	defer a.proxy.SetWaiting("")
	defer a.board.Clear(conditionNoBootstrap)
	maker := a.maker.Maker
	maker.Upstream = a.requestFirst
	for {
		current := a.reloader.InForce()
		plan, err := maker.Make(ctx, current)
		if err == nil {
			return plan.Files(), nil
		}
		if !errors.Is(err, relay.ErrNoBootstrap) {
			return blueprint.Unique(slices.Clone(current.Config.Reload.Files)), nil
		}
		if a.watched != nil { // a change may end the wait
			a.watched.configure(current, nil)
		}
		sentence := "waiting for the bootstrap: " + err.Error()
		a.proxy.SetWaiting(sentence)
		a.board.Raise(conditionNoBootstrap, condition.Error, sentence)
		select {
		case <-time.After(bootstrapPause + rand.N(bootstrapPause)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
