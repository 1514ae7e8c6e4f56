package blueprint

import (
	"context"
	"encoding/json"
	"fmt"

	"outrider.org/outrider/bootstrap"
)

// askUpstream renders the bootstrap of the upstream server. It requests it for the node of the
// bootstrap that b has.
func (m Maker) askUpstream(ctx context.Context, b *Blueprint, request bootstrap.Request) error {
	var own struct{ Node json.RawMessage }
	if err := json.Unmarshal(b.rendered.Text, &own); err != nil {
		return fmt.Errorf("read the node of the bootstrap: %w", err)
	}
	content, accepted, err := m.Upstream(ctx, b.loaded.Config, own.Node)
	if err != nil {
		return b.loaded.Fault(dynamicKey, err.Error(),
			"check the server, or remove the key").Because(err)
	}
	request.Upstream, request.Secret, b.Accepted = content, true, accepted
	b.rendered, err = m.Render(ctx, request)
	return err
}
