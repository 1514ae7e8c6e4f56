package blueprint

import (
	"cmp"
	"context"
	"maps"

	"outrider.org/outrider/agent/config"
)

// node returns the configured node, completed with values from this host and its cloud.
func (m Builder) node(ctx context.Context, loaded *config.Loaded) (config.Node, error) {
	c := loaded.Config
	node, err := c.Node.WithHostDefaults(m.Host)
	if err != nil {
		return node, config.Errors{loaded.KeyError("node", err.Error(), "")}
	}
	if len(c.Discovery.Addresses) == 0 { // the embedded server uses no detected extra address
		node.ExtraIPs = c.Node.ExtraIPs
	}
	if node.Cloud == "" {
		return node, nil
	}
	facts, err := m.Cloud.Read(ctx, node.Cloud)
	if err != nil {
		return node, config.Errors{loaded.KeyError("node.cloud_platform", err.Error(),
			"remove the key on a machine elsewhere").WithCause(err)}
	}
	node.Locality = cmp.Or(node.Locality, facts.Locality)
	labels := map[string]string{}
	maps.Copy(labels, facts.Labels)
	maps.Copy(labels, node.Labels)
	node.Labels = labels
	return node, nil
}
