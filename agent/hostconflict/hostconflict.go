// Package hostconflict finds conflicts with other agents and programs of this host before an agent
// puts a configuration in force. Other agents are known by their configuration files and are
// queried over their private sockets; other programs are known by their listening sockets.
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

// Agent is the state of a running agent.
type Agent struct {
	Started time.Time      // time of its first answer (PresenceTime); zero: unknown
	Serves  bool           // the agent has a live Envoy
	Claims  []config.Claim // of the configuration in force
}

// Host gives access to the other agents and the sockets of this host.
type Host struct {
	// Directory of the configurations; "": /etc/outrider.
	Directory string
	// Query requests the state of the agent of a runtime folder. running reports whether there is
	// one, even if it does not answer.
	Query func(ctx context.Context, runtimeDir string) (agent Agent, running bool)
	// EnvoyLives reports whether an Envoy of a runtime folder lives, with or without its agent.
	EnvoyLives func(runtimeDir string) bool
	// Sockets returns the listening TCP sockets of the host (sockdiag.ListeningSockets).
	Sockets func() ([]sockdiag.Socket, error)
	// Program describes who listens on a socket; "": unknown.
	Program func(sockdiag.Socket) string
}

// otherAgent is another agent of the host.
type otherAgent struct {
	Agent
	name    string // of the instance; "": none
	running bool
}

// String returns its name and unit.
func (n otherAgent) String() string {
	if n.name == "" {
		return "outrider.service"
	}
	return fmt.Sprintf("instance %q (outrider@%s.service)", n.name, n.name)
}

// queryTimeout bounds all requests to other agents together.
const queryTimeout = 2 * time.Second

// otherAgents returns the other agents, also those that are configured but do not run. An agent
// with the same runtime folder is this one: the lock there excludes a second.
func (h Host) otherAgents(ctx context.Context, runtimeDir string) []otherAgent {
	names, err := config.Instances(h.Directory)
	if err != nil {
		return nil // no folder of configurations, no instances
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	found := make([]otherAgent, len(names))
	var queries sync.WaitGroup
	for i, name := range names {
		folder := config.RuntimeDir(name)
		found[i].name = name
		loaded, err := config.Load(config.Options{
			Directory: h.Directory, Instance: name, CheckOnly: true, InUnit: true,
			Environment: func(string) string { return "" },
		})
		if err == nil { // an invalid or unreadable configuration may still have a running agent
			folder, found[i].Claims = loaded.Config.Paths.RuntimeDir, loaded.Config.Claims()
		}
		if filepath.Clean(folder) == filepath.Clean(runtimeDir) {
			found[i].Claims = nil
			continue
		}
		queries.Go(func() {
			configured := found[i].Claims
			found[i].Agent, found[i].running = h.Query(ctx, folder)
			if found[i].Claims == nil { // the agent does not run, or is too old to report claims
				found[i].Claims = configured
			}
			found[i].Serves = found[i].Serves || h.EnvoyLives(folder)
		})
	}
	queries.Wait()
	return found
}
