package blueprint

import (
	"context"
	"encoding/json"
	"fmt"

	"outrider.org/outrider/bootstrap"
)

// requestUpstream sends the node of b's bootstrap to the upstream server, renders the bootstrap
// that the server returns, and stores it in b.
func (m Builder) requestUpstream(ctx context.Context, b *Blueprint,
	request bootstrap.Request) error {
	var own struct{ Node json.RawMessage }
	if err := json.Unmarshal(b.rendered.Text, &own); err != nil {
		return fmt.Errorf("decode the node of the rendered bootstrap: %w", err)
	}
	accepted, err := m.FetchUpstreamBootstrap(ctx, b.loaded.Config, own.Node,
		func(content []byte) error {
			request.Upstream, request.ResultIsSecret = content, true
			rendered, err := m.RenderBootstrap(ctx, request)
			if err == nil {
				b.rendered = rendered
			}
			return err
		})
	if err != nil {
		return b.refused(err).WithCause(err)
	}
	b.OnBootstrapAccepted = accepted
	return nil
}
