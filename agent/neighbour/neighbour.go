// Package neighbour looks at what else is on this host before an agent takes something for itself: other instances, running or only
// configured, and whoever listens on a port. Two Envoys of one user can listen on the same port, and the kernel then deals the
// connections out to both: nobody but a look ahead would notice.
package neighbour

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/sockdiag"
)

// Agent is what a running agent says of itself.
type Agent struct {
	Started time.Time      // when it could first be asked (Presence); zero: not known
	Serves  bool           // an Envoy of its lives
	Claims  []config.Claim // of the configuration in force
}

// Host is where neighbours are looked for, and how they are asked.
type Host struct {
	// Directory of the configurations; "" = /etc/outrider.
	Directory string
	// Ask asks the agent of a runtime folder; running is whether there is one, even if it does not answer.
	Ask func(ctx context.Context, runtimeDir string) (agent Agent, running bool)
	// EnvoyLives tells whether an Envoy of a runtime folder lives, with or without its agent.
	EnvoyLives func(runtimeDir string) bool
	// Sockets returns the listening TCP sockets of the host (sockdiag.Listening).
	Sockets func() ([]sockdiag.Socket, error)
	// Program describes who listens on a socket; "": unknown.
	Program func(sockdiag.Socket) string
}

// neighbour is another agent of the host.
type neighbour struct {
	Agent
	name    string // of the instance, "" = none
	running bool
}

// String names it as its administrator knows it.
func (n neighbour) String() string {
	if n.name == "" {
		return "outrider.service"
	}
	return fmt.Sprintf("instance %q (outrider@%s.service)", n.name, n.name)
}

// askTime bounds the questions to all neighbours together.
const askTime = 2 * time.Second

// neighbours finds the others, those that only are configured too. Whoever has the same runtime folder is the same agent: a lock in
// it makes one of two.
func (h Host) neighbours(ctx context.Context, runtimeDir string) []neighbour {
	names, err := config.Instances(h.Directory)
	if err != nil {
		return nil // no folder of configurations, no instances
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	found := make([]neighbour, len(names))
	var asked sync.WaitGroup
	for i, name := range names {
		folder := config.RuntimeDir(name)
		found[i].name = name
		loaded, err := config.Load(config.Options{Directory: h.Directory, Instance: name, CheckOnly: true, InUnit: true, Environment: func(string) string { return "" }})
		if err == nil { // else it is broken, or not for us to read; it may run all the same
			folder, found[i].Claims = loaded.Config.Paths.RuntimeDir, loaded.Config.Claims()
		}
		if filepath.Clean(folder) == filepath.Clean(runtimeDir) {
			found[i].Claims = nil
			continue
		}
		asked.Go(func() {
			configured := found[i].Claims
			found[i].Agent, found[i].running = h.Ask(ctx, folder)
			if found[i].Claims == nil { // it does not run, or is too old to say
				found[i].Claims = configured
			}
			found[i].Serves = found[i].Serves || h.EnvoyLives(folder)
		})
	}
	asked.Wait()
	return found
}
