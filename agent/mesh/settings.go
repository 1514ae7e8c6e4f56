// Package mesh connects the embedded discovery server with one agent: the files that it watches,
// the sockets on which Envoy connects, what Envoy accepts and refuses, the ports of its listeners,
// and metrics.
//
//	files → Watch → discovery.Server → xds.Server ← Sockets ← Envoy
//	                      ↑                 ↓
//	                      └─── Observer ←── ACK, NACK → conditions, events
package mesh

import (
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/credential"
	"outrider.org/outrider/agent/discovery"
)

// Settings returns the [live] keys of the embedded discovery server.
func Settings(c *config.Config) discovery.Settings {
	return discovery.Settings{
		Namespace:      c.Node.Namespace,
		MeshConfigFile: c.Discovery.MeshConfigFile,
		Taken:          takenByAgent(c),
		Credentials:    credentials(c),
		DebounceAfter:  c.Discovery.DebounceAfter, DebounceMax: c.Discovery.DebounceMax,
		Unused: c.Discovery.Address != "",
		AccessLog: discovery.AccessLog{File: c.Telemetry.AccessLogFile,
			Format: c.Telemetry.AccessLogFormat, Failures: failures(c)},
	}
}

// discoveryCluster is the bootstrap's cluster of the agent's xDS server.
const discoveryCluster = "xds-grpc"

// failures returns the cluster that listeners send failed requests to; "" for bootstraps of users,
// which may not have it.
func failures(c *config.Config) string {
	if c.Envoy.CustomConfigFile != "" || c.Envoy.TemplateFile != "" {
		return ""
	}
	return discoveryCluster
}

// ReportsFailures reports whether Envoy's listeners send failed requests to the agent.
func ReportsFailures(c *config.Config) bool {
	return c.Discovery.Address == "" && failures(c) != ""
}

func credentials(c *config.Config) discovery.Credentials {
	found := discovery.Credentials{Folder: c.Identity.CredentialsDir}
	if c.Identity.Provider == "spire" {
		found.Cluster = credential.Cluster
	}
	return found
}

// takenByAgent returns the addresses that the agent and its bootstrap listen on.
func takenByAgent(c *config.Config) []discovery.Taken {
	var taken []discovery.Taken
	for _, claim := range c.Claims() {
		if claim.Port != 0 {
			taken = append(taken, discovery.Taken{Address: claim.Host, Port: uint32(claim.Port),
				By: claim.Setting() + " of the agent", Envoy: claim.Envoy})
		}
	}
	return taken
}
