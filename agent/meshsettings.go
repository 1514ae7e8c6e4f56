package agent

import (
	"fmt"
	"log/slog"
	"time"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/credential"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/watch"
)

// discoverySettings returns the settings of the embedded discovery server that a reload can change.
func discoverySettings(c *config.Config) discovery.Settings {
	return discovery.Settings{
		Namespace:         c.Node.Namespace,
		MeshConfigFile:    c.Discovery.MeshConfigFile,
		ReservedAddresses: reservedByAgent(c),
		Credentials:       credentials(c),
		Workload: discovery.Workload{Group: c.Node.WorkloadGroup, Labels: c.Node.Labels,
			ServiceAccount: c.Node.ServiceAccount, Network: c.Node.Network},
		DebounceAfter: c.Discovery.DebounceAfter, DebounceMax: c.Discovery.DebounceMax,
		ServesNoEnvoy: len(c.Discovery.Addresses) > 0,
		AccessLog: discovery.AccessLog{File: c.Telemetry.AccessLogFile,
			Format: c.Telemetry.AccessLogFormat, FailureLogCluster: failures(c)},
	}
}

// discoveryCluster is the name of the bootstrap's cluster for the agent's xDS server.
const discoveryCluster = "xds-grpc"

// failures returns the cluster to which listeners report failed requests. It returns "" with a
// bootstrap written by the user, which may not have the cluster.
func failures(c *config.Config) string {
	if c.Envoy.CustomConfigFile != "" || c.Envoy.TemplateFile != "" {
		return ""
	}
	return discoveryCluster
}

// reportsFailures reports whether Envoy's listeners report failed requests to the agent.
func reportsFailures(c *config.Config) bool {
	return len(c.Discovery.Addresses) == 0 && failures(c) != ""
}

func credentials(c *config.Config) discovery.CredentialLocation {
	found := discovery.CredentialLocation{Folder: c.Identity.CredentialsDir,
		Socket: c.Identity.CredentialsSDS}
	if c.Identity.Provider == "spire" {
		found.Cluster = credential.SDSClusterName
	}
	return found
}

// reservedByAgent returns the addresses that the agent and its bootstrap listen on.
func reservedByAgent(c *config.Config) []discovery.ReservedAddress {
	var reserved []discovery.ReservedAddress
	for _, claim := range c.Claims() {
		if claim.Port != 0 {
			reserved = append(reserved, discovery.ReservedAddress{Address: claim.Host, Port: uint32(claim.Port),
				Owner: claim.KeyWithTable() + " of the agent", IsEnvoys: claim.Envoy})
		}
	}
	return reserved
}

// meshDebounce merges the events of one change. The discovery server debounces further
// (discovery.debounce_after).
const meshDebounce = time.Millisecond

// newMeshWatch returns the watcher of the mesh configuration. In directories it watches only files
// with the suffixes that the discovery server reads.
func newMeshWatch(c *config.Config, log *slog.Logger) (*watch.Watcher, error) {
	watcher := watch.New(watch.Options{
		Delays:   watch.Delays{Debounce: meshDebounce, MaxDelay: meshDebounce},
		Suffixes: []string{".yaml", ".yml", ".json"}, Logger: log,
	})
	if err := watcher.SetPaths(meshPaths(c)); err != nil {
		return nil, fmt.Errorf("watch discovery.files: %w", err)
	}
	return watcher, nil
}

// meshPaths returns the files of the mesh configuration: the MeshConfig, files, and directories
// with everything below them.
func meshPaths(c *config.Config) []string {
	var paths []string
	for _, path := range c.Discovery.Files {
		paths = append(paths, path+"/...")
	}
	if c.Discovery.MeshConfigFile != "" {
		paths = append(paths, c.Discovery.MeshConfigFile)
	}
	return paths
}
