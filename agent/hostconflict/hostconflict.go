// Package hostconflict finds conflicts with other agents and programs of this host before an agent
// puts a configuration in force. It finds other agents by their configuration files and queries
// them over their private sockets. It finds other programs by their listening sockets.
//
// The check is necessary because two Envoys of one user can listen on the same port: the kernel
// then distributes connections to both, without an error.
package hostconflict

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/sockdiag"
)

// OtherAgent is the state of a running agent.
type OtherAgent struct {
	Started time.Time          // when it began to respond (ReachableTime); zero: unknown
	Serves  bool               // the agent has a live Envoy
	Claims  []config.HostClaim // ports, sockets and base ID of the configuration in force
}

// Host gives access to the other agents and the sockets of this host.
type Host struct {
	// ConfigDir is the directory with the configurations of all instances; "": /etc/outrider.
	ConfigDir string
	// Query requests the state of the agent with a runtime directory. running reports whether there
	// is such an agent, even if it does not respond.
	Query func(ctx context.Context, runtimeDir string) (agent OtherAgent, running bool)
	// EnvoyLives reports whether an Envoy with a runtime directory runs, with or without its agent.
	EnvoyLives func(runtimeDir string) bool
	// Sockets returns the listening TCP sockets of the host (sockdiag.ListeningSockets).
	Sockets func() ([]sockdiag.Socket, error)
	// ListenerProgram describes the program that listens on a socket; "": unknown.
	ListenerProgram func(sockdiag.Socket) string
}

// otherAgent is another agent of the host.
type otherAgent struct {
	OtherAgent
	name    string // name of the instance; "": outrider.service
	running bool
}

// String returns the instance and unit of the agent.
func (n otherAgent) String() string {
	if n.name == "" {
		return "outrider.service"
	}
	return fmt.Sprintf("instance %q (outrider@%s.service)", n.name, n.name)
}

// queryTimeout bounds the duration of all concurrent requests to other agents.
const queryTimeout = 2 * time.Second

// otherAgents returns the other agents, including those that are configured but do not run. The
// agent with the same runtime directory is this one: a lock in that directory excludes a second
// agent.
func (h Host) otherAgents(ctx context.Context, runtimeDir string) []otherAgent {
	names, err := config.Instances(h.ConfigDir)
	if err != nil {
		return nil // without a directory of configurations there are no instances
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	found := make([]otherAgent, len(names))
	var queries sync.WaitGroup
	for i, name := range names {
		folder := config.RuntimeDir(name)
		found[i].name = name
		loaded, err := config.Load(config.Options{
			ConfigDirectory: h.ConfigDir, Instance: name, CheckOnly: true, RunsInUnit: true,
			Environment: func(string) string { return "" },
		})
		// With an invalid or unreadable configuration, the agent may still run in the default
		// directory.
		if err == nil {
			folder, found[i].Claims = loaded.Config.Paths.RuntimeDir, loaded.Config.Claims()
		}
		if filepath.Clean(folder) == filepath.Clean(runtimeDir) {
			found[i].Claims = nil
			continue
		}
		queries.Go(func() {
			configured := found[i].Claims
			found[i].OtherAgent, found[i].running = h.Query(ctx, folder)
			if found[i].Claims == nil { // the agent does not run, or is too old to report claims
				found[i].Claims = configured
			}
			found[i].Serves = found[i].Serves || h.EnvoyLives(folder)
		})
	}
	queries.Wait()
	return found
}
