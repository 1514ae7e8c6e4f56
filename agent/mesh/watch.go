package mesh

import (
	"fmt"
	"log/slog"
	"time"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/watch"
)

// watchDebounce merges the events of one change. The discovery server debounces further
// (discovery.debounce_after).
const watchDebounce = time.Millisecond

// watchSuffixes are the extensions of files that the discovery server reads in a directory.
var watchSuffixes = []string{".yaml", ".yml", ".json"}

// Watch watches the files of the embedded discovery server.
type Watch struct{ *watch.Watcher }

// NewWatch watches the files of a configuration.
func NewWatch(c *config.Config, log *slog.Logger) (*Watch, error) {
	m := &Watch{watch.New(watch.Options{
		Delays:   watch.Delays{Debounce: watchDebounce, MaxDelay: watchDebounce},
		Suffixes: watchSuffixes,
		Logger:   log,
	})}
	if err := m.Configure(c); err != nil {
		return nil, fmt.Errorf("watch discovery.files: %w", err)
	}
	return m, nil
}

// Configure replaces the watched files by those of a configuration: the MeshConfig, files, and
// directories with everything below them.
func (m *Watch) Configure(c *config.Config) error {
	var paths []string
	for _, path := range c.Discovery.Files {
		paths = append(paths, path+"/...")
	}
	if c.Discovery.MeshConfigFile != "" {
		paths = append(paths, c.Discovery.MeshConfigFile)
	}
	return m.Set(paths)
}
