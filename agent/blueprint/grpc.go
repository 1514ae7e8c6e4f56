package blueprint

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/config"
)

const grpcKey = "xds.grpc_bootstrap_file"

// serverListeners is the format of the name of the listener that a gRPC server requests from
// istiod; its argument is the server's address.
const serverListeners = "xds.istio.io/grpc/lds/inbound/%s"

// object is a JSON object.
type object = map[string]any

// GRPCBootstrap returns the content of [xds] grpc_bootstrap_file: the bootstrap's node, the agent's
// xDS socket and the workload's certificate files. It returns nil if the key is not set.
func (b *Blueprint) GRPCBootstrap() ([]byte, error) {
	c := b.loaded.Config
	path := c.XDS.GRPCBootstrapFile
	if path == "" {
		return nil, nil
	}
	if folder := filepath.Dir(path); unix.Access(folder, unix.W_OK) != nil {
		return nil, config.Errors{b.loaded.KeyError(grpcKey, "the agent may not write to "+folder,
			fmt.Sprintf("use a path in %s, or let the agent's user write %s and, under systemd, "+
				"name it in ReadWritePaths= of a drop-in of outrider.service",
				c.Paths.RuntimeDir, folder))}
	}
	var bootstrap struct{ Node object }
	if err := json.Unmarshal(b.rendered.Text, &bootstrap); err != nil {
		return nil, fmt.Errorf("decode the node of the rendered bootstrap: %w", err)
	}
	metadata, ok := bootstrap.Node["metadata"].(object)
	if !ok {
		return nil, config.Errors{b.loaded.KeyError(grpcKey, "the custom bootstrap has no node metadata",
			"add it, or remove the key")}
	}
	metadata["GENERATOR"] = "grpc" // istiod generates resources for gRPC, not for Envoy
	file := object{
		"xds_servers": []object{{"server_uri": "unix://" + c.XDS.Socket,
			"channel_creds": []object{{"type": "insecure"}}, "server_features": []string{"xds_v3"}}},
		"node":                                   bootstrap.Node,
		"server_listener_resource_name_template": serverListeners,
	}
	if files := certificates(c.Identity); files != nil {
		files["refresh_interval"] = "60s"
		file["certificate_providers"] = object{"default": object{"plugin_name": "file_watcher",
			"config": files}}
	}
	return json.MarshalIndent(file, "", "  ")
}

// certificates returns the workload's certificate files, nil if there are none.
func certificates(i config.Identity) object {
	switch {
	case i.Provider == "files":
		return object{"certificate_file": i.CertFile, "private_key_file": i.KeyFile,
			"ca_certificate_file": i.RootCAFile}
	case i.OutputDir != "":
		return object{"certificate_file": filepath.Join(i.OutputDir, "cert-chain.pem"),
			"private_key_file":    filepath.Join(i.OutputDir, "key.pem"),
			"ca_certificate_file": filepath.Join(i.OutputDir, "root-cert.pem")}
	}
	return nil
}
