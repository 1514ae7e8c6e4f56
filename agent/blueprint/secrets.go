package blueprint

import (
	"bytes"
	"cmp"

	"outrider.org/outrider/agent/config"
)

// secretCluster is the name of the cluster from which Envoy gets the workload's certificate. Mutual
// TLS in resources of the mesh refers to it.
const secretCluster = "sds-grpc"

// missingSecrets returns a fault if a bootstrap of the user gets resources from Outrider's xDS
// socket and nothing of the source of the certificate that some of them need: Envoy would refuse
// those. A certificate that is written to output_dir may be for others.
func (b *Blueprint) missingSecrets() *config.Error {
	c := b.loaded.Config
	file, key := cmp.Or(c.Envoy.CustomConfigFile, c.Envoy.TemplateFile), templateKey
	if c.Envoy.CustomConfigFile != "" {
		key = customKey
	}
	socket := c.SDS.Socket
	if c.Identity.Provider == "spire" {
		socket = c.Identity.SpireSocket
	}
	has := func(text string) bool { return bytes.Contains(b.rendered.Text, []byte(text)) }
	if file == "" || c.Identity.Provider == "none" || c.Identity.OutputDir != "" ||
		!has(c.XDS.Socket) || has(socket) || has(`"`+secretCluster+`"`) {
		return nil
	}
	return b.loaded.Fault(key, file+" has no cluster "+secretCluster+", from which Envoy gets the "+
		"certificate of [identity] provider",
		"add the cluster, with HTTP/2 to the Unix socket "+socket)
}
