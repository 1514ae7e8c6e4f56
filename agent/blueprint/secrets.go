package blueprint

import (
	"bytes"
	"cmp"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/credential"
)

// secretCluster is the name of the cluster from which Envoy fetches the workload's certificate.
// Resources of the mesh that use mutual TLS refer to it by this name.
const secretCluster = "sds-grpc"

// missingSecrets checks a user's own bootstrap that gets resources from Outrider's xDS socket. It
// returns an error if the bootstrap lacks a cluster from which these resources fetch the workload's
// certificate or credentials, because Envoy would refuse them. With [identity] output_dir the
// certificate is not required: the user's bootstrap may read it from its files.
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
	if file == "" || !has(c.XDS.Socket) {
		return nil
	}
	if host := c.Identity.CredentialsSDS; host != "" &&
		!has(`"`+credential.ExternalSDSClusterName+`"`) {
		return b.loaded.KeyError(key,
			file+" has no cluster "+credential.ExternalSDSClusterName+", from which Envoy "+
				"gets credentials sds://NAME", "add the cluster, with HTTP/2 to the Unix socket "+host+
				", or remove [identity] credentials_sds")
	}
	if c.Identity.Provider == "none" || c.Identity.OutputDir != "" || has(socket) ||
		has(`"`+secretCluster+`"`) {
		return nil
	}
	return b.loaded.KeyError(key,
		file+" has no cluster "+secretCluster+", from which Envoy gets the "+
			"certificate of [identity] provider",
		"add the cluster, with HTTP/2 to the Unix socket "+socket)
}
