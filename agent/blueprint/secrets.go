package blueprint

import (
	"bytes"
	"cmp"

	"outrider.org/outrider/agent/config"
)

// secretCluster is the name of the cluster from which Envoy gets the workload's certificate. Mutual
// TLS in resources of the mesh refers to it.
const secretCluster = "sds-grpc"

// missingSecrets returns a fault if a bootstrap of the user gets resources of the mesh and has no
// cluster for the certificate that some of them need: Envoy would refuse those.
func (b *Blueprint) missingSecrets() *config.Error {
	c, text := b.loaded.Config, b.rendered.Text
	key := templateKey
	if c.Envoy.CustomConfigFile != "" {
		key = customKey
	}
	file := cmp.Or(c.Envoy.CustomConfigFile, c.Envoy.TemplateFile)
	dynamic := bytes.Contains(text, []byte(`"dynamic_resources"`)) ||
		bytes.Contains(text, []byte(`"dynamicResources"`))
	if file == "" || c.Identity.Provider == "none" || !dynamic ||
		bytes.Contains(text, []byte(`"`+secretCluster+`"`)) {
		return nil
	}
	socket := c.SDS.Socket
	if c.Identity.Provider == "spire" {
		socket = c.Identity.SpireSocket
	}
	return b.loaded.Fault(key, file+" has no cluster "+secretCluster+", from which Envoy gets the "+
		"certificate of [identity] provider",
		"add the cluster, with HTTP/2 to the Unix socket "+socket)
}
