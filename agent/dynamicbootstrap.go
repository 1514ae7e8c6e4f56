package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/relay"
)

// conditionNoBootstrap is active while the start waits for the upstream server's bootstrap.
const conditionNoBootstrap = "bootstrap-missing"

// bootstrapPause is the minimum pause between requests for a bootstrap. A random time of up to
// bootstrapPause is added to each pause.
const bootstrapPause = time.Second

// certificateWait bounds the wait for the client certificate with which the agent requests a
// bootstrap. When the agent starts, the certificate is being issued at the same time.
const certificateWait = 5 * time.Second

// bootstraps requests bootstraps from the upstream server.
type bootstraps struct {
	relay    *relay.Server
	identity *identity.Manager
	state    *reloadState
	first    atomic.Pointer[firstBootstrap] // for the first epoch; nil once it was used
}

// request implements blueprint.Builder.FetchUpstreamBootstrap.
func (b *bootstraps) request(ctx context.Context, c *config.Config, node []byte,
	use func(content []byte) error,
) (accepted func(), err error) {
	var parsed corev3.Node
	if err := protojson.Unmarshal(node, &parsed); err != nil {
		return nil, fmt.Errorf("decode the node of the bootstrap: %w", err)
	}
	upstream, start := upstreamOf(c), b.state.binary.Load() == nil
	if first := b.first.Swap(nil); first != nil && first.upstream.Equal(upstream) &&
		bytes.Equal(first.node, node) && use(first.content) == nil {
		return first.accepted, nil
	}
	if upstream.UseWorkloadCertificate {
		b.awaitCertificate(ctx)
	}
	return b.relay.FetchBootstrap(ctx, upstream, &parsed, start, use)
}

// firstBootstrap is the bootstrap requested at the start to learn which files Envoy reads. The
// first epoch uses it as well, so that a server that does not respond delays the start only once.
type firstBootstrap struct {
	upstream      relay.Upstream
	node, content []byte
	accepted      func()
}

// requestFirst implements blueprint.Builder.FetchUpstreamBootstrap for startFiles. It stores the
// bootstrap for the first epoch.
func (b *bootstraps) requestFirst(ctx context.Context, c *config.Config, node []byte,
	use func(content []byte) error,
) (accepted func(), err error) {
	first := &firstBootstrap{upstream: upstreamOf(c), node: node}
	first.accepted, err = b.request(ctx, c, node, func(content []byte) error {
		first.content = content
		return use(content)
	})
	if err == nil {
		b.first.Store(first)
	}
	return first.accepted, err
}

// awaitCertificate returns once the workload has a certificate, or after certificateWait.
func (b *bootstraps) awaitCertificate(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, certificateWait)
	defer cancel()
	feed, _ := b.identity.Feed(nil) // never fails
	for {
		_, next := feed.Current()
		if b.identity.KeyPair() != nil {
			return
		}
		select {
		case <-next:
		case <-ctx.Done():
			return
		}
	}
}

// startFiles returns the files that Envoy reads at its start. With [discovery] dynamic_bootstrap it
// waits until the upstream server sends a usable bootstrap or a reload disables the key. If no
// bootstrap can be made from the configuration, the result contains reload.files only; the start of
// the epoch then reports the error. The returned error is ctx.Err().
func (s *starter) startFiles(ctx context.Context) ([]string, error) {
	defer s.proxy.SetFirstEpochWaitReason("")
	defer s.board.Clear(conditionNoBootstrap)
	maker := s.maker
	maker.FetchUpstreamBootstrap = s.bootstraps.requestFirst
	for {
		current := s.state.InForce()
		plan, err := maker.Build(ctx, current)
		if err == nil {
			return plan.StartupFiles(), nil
		}
		if !errors.Is(err, relay.ErrNoBootstrap) {
			return blueprint.UniquePaths(slices.Clone(current.Config.Reload.Files)), nil
		}
		if s.watched != nil { // a change may end the wait
			s.watched.configure(current, nil)
		}
		sentence := "waiting for the bootstrap: " + err.Error()
		s.proxy.SetFirstEpochWaitReason(sentence)
		s.board.Raise(conditionNoBootstrap, condition.Error, sentence)
		select {
		case <-time.After(bootstrapPause + rand.N(bootstrapPause)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
