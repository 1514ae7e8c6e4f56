package agent

import (
	"fmt"
	"log/slog"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/watch"
)

// meshDebounce lets the events of one change arrive; the quiet time before a push is the discovery server's own
// (discovery.debounce_after).
const meshDebounce = time.Millisecond

// meshSuffixes are the files that the discovery server reads in a folder.
var meshSuffixes = []string{".yaml", ".yml", ".json"}

// newMeshWatcher watches the files of the embedded discovery server.
func newMeshWatcher(c *config.Config, log *slog.Logger) (*watch.Watcher, error) {
	watcher := watch.New(watch.Options{
		Debounce: func() time.Duration { return meshDebounce },
		MaxDelay: func() time.Duration { return meshDebounce },
		Suffixes: meshSuffixes,
		Logger:   log,
	})
	if err := watcher.Set(meshPaths(c)); err != nil {
		return nil, fmt.Errorf("watch discovery.files: %w", err)
	}
	return watcher, nil
}

// meshPaths are what the discovery server reads.
func meshPaths(c *config.Config) []string {
	var paths []string
	for _, path := range c.Discovery.Files {
		paths = append(paths, path+"/...") // a folder with all below it; of a file just the file
	}
	if c.Discovery.MeshConfigFile != "" {
		paths = append(paths, c.Discovery.MeshConfigFile)
	}
	return paths
}

// discoveryOptions are the embedded server's part of a configuration.
func (a *Agent) discoveryOptions(c *config.Config, changes <-chan []string) discovery.Options {
	return discovery.Options{
		Files: c.Discovery.Files, Namespace: c.Node.Namespace, OwnAddresses: true, Changes: changes, Settings: meshSettings(c), Board: a.board, Logger: a.logOf("discovery"),
	}
}

// meshSettings are its [live] keys.
func meshSettings(c *config.Config) discovery.Settings {
	return discovery.Settings{
		MeshConfigFile: c.Discovery.MeshConfigFile,
		DebounceAfter:  c.Discovery.DebounceAfter, DebounceMax: c.Discovery.DebounceMax,
		AccessLog: discovery.AccessLog{File: c.Telemetry.AccessLogFile, Format: c.Telemetry.AccessLogFormat},
	}
}

// discoveryStatus says where the proxy's configuration comes from.
func (b backend) discoveryStatus() api.Discovery {
	var errors, warnings int
	for _, p := range b.discovery.Problems() {
		switch p.Severity {
		case condition.Error:
			errors++
		case condition.Warning:
			warnings++
		}
	}
	detail := ""
	if errors+warnings > 0 {
		detail = fmt.Sprintf("%d errors, %d warnings: outrider mesh check names them", errors, warnings)
	}
	return api.Discovery{State: "embedded", Since: b.started, Detail: detail}
}
