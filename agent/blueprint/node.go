package blueprint

import (
	"cmp"
	"context"
	"maps"

	"outrider.org/outrider/agent/config"
)

// node returns the node of a configuration with the values that this host and its cloud supply.
func (m Maker) node(ctx context.Context, loaded *config.Loaded) (config.Node, error) {
	c := loaded.Config
	node, err := c.Node.Resolve(m.Host)
	if err != nil {
		return node, config.Errors{loaded.Fault("node", err.Error(), "")}
	}
	if len(c.Discovery.Addresses) == 0 { // the embedded server needs one address only
		node.ExtraIPs = c.Node.ExtraIPs
	}
	if node.Cloud == "" {
		return node, nil
	}
	facts, err := m.Cloud.Read(ctx, node.Cloud)
	if err != nil {
		return node, config.Errors{loaded.Fault("node.cloud_platform", err.Error(),
			"remove the key on a machine elsewhere").WithCause(err)}
	}
	node.Locality = cmp.Or(node.Locality, facts.Locality)
	labels := map[string]string{}
	maps.Copy(labels, facts.Labels)
	maps.Copy(labels, node.Labels)
	node.Labels = labels
	return node, nil
}
