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
	"outrider.org/outrider/agent/lifecycle"
)

// processSettings determines the settings of Envoy's process from the mesh configuration:
// concurrency and environment variables. A change of them may need a new epoch, so settingsReloads
// requests a reload.
type processSettings struct {
	lifecycle.Readiness
	discovery *discovery.Server
	state     *reloadState
	pushed    <-chan struct{} // receives after the mesh configuration may have changed

	mu sync.Mutex
	// result of ProxySettingsTextsByFile for the last spec of an epoch, or at the last call of the
	// method changed; nil: no spec was made yet
	used map[string]string
}

// currentTime bounds reading the mesh configuration for the spec of an epoch, because its file
// system may hang. After this time, the settings that were read before are used.
const currentTime = 5 * time.Second

// of reads the mesh configuration again and returns the settings for a node. With an upstream
// server it returns none.
func (p *processSettings) of(
	ctx context.Context, c *config.Config, node config.Node,
) blueprint.EnvoyProcessSettings {
	if len(c.Discovery.Addresses) > 0 {
		return blueprint.EnvoyProcessSettings{}
	}
	ctx, cancel := context.WithTimeout(ctx, currentTime)
	defer cancel()
	select {
	case <-p.discovery.Ready():
		_ = p.discovery.Rescan(ctx) // fails only if ctx ends; the settings read before are used
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used = p.discovery.ProxySettingsTextsByFile()
	settings := p.discovery.ProxySettings(node.Namespace, node.Labels)
	return blueprint.EnvoyProcessSettings{Concurrency: settings.Concurrency,
		Environment: settings.Environment}
}

// changed returns the files whose process settings have changed since the last spec was made, or
// since the last call of changed.
func (p *processSettings) changed() (files []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used == nil || len(p.state.InForce().Config.Discovery.Addresses) > 0 {
		return nil
	}
	now := p.discovery.ProxySettingsTextsByFile()
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

// Name implements lifecycle.Component.
func (p *processSettings) Name() string { return "process settings" }

// settingsReloads requests a reload when the process settings in the mesh configuration change.
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
