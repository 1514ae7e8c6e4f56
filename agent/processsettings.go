package agent

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/part"
)

// processSettings are the settings of Envoy's process that the mesh configuration has. A change of
// them may need a new epoch: Run requests a reload.
type processSettings struct {
	part.Readiness
	discovery *discovery.Server
	state     *reloadState
	pushed    <-chan struct{} // receives after the mesh configuration may have changed

	mu   sync.Mutex
	used map[string]string // ProcessInputs of the last spec or request; nil: there was none
}

// currentTime bounds reading the mesh configuration for a spec: its file system may hang. The
// settings read before are used then.
const currentTime = 5 * time.Second

// of returns the settings for a node, of the files as they are now. With an upstream server there
// are none.
func (p *processSettings) of(
	ctx context.Context, c *config.Config, node config.Node,
) blueprint.Process {
	if len(c.Discovery.Addresses) > 0 {
		return blueprint.Process{}
	}
	ctx, cancel := context.WithTimeout(ctx, currentTime)
	defer cancel()
	select {
	case <-p.discovery.Ready():
		_ = p.discovery.Rescan(ctx) // an error is the end of ctx
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used = p.discovery.ProcessInputs()
	settings := p.discovery.ProxySettings(node.Namespace, node.Labels)
	return blueprint.Process{Concurrency: settings.Concurrency, Environment: settings.Environment}
}

// changed returns the files that were changed since the last spec or call.
func (p *processSettings) changed() (files []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used == nil || len(p.state.InForce().Config.Discovery.Addresses) > 0 {
		return nil
	}
	now := p.discovery.ProcessInputs()
	all := maps.Clone(p.used)
	maps.Copy(all, now)
	for file := range all {
		if now[file] != p.used[file] {
			files = append(files, file)
		}
	}
	p.used = now
	slices.Sort(files)
	return files
}

// Name implements part.Part.
func (p *processSettings) Name() string { return "process settings" }

// settingsReloads reloads when the settings of Envoy's process change.
type settingsReloads struct {
	*processSettings
	reloader *reloader
}

// Run requests a reload after each change until ctx ends. The reloader logs the outcome.
func (r settingsReloads) Run(ctx context.Context) error {
	r.MarkReady()
	for {
		select {
		case <-r.pushed:
			if files := r.changed(); len(files) > 0 {
				_ = r.reloader.submit(ctx, &reload{reason: "changed: " + strings.Join(files, ", "),
					ifChanged: true, files: files})
			}
		case <-ctx.Done():
			return nil
		}
	}
}
