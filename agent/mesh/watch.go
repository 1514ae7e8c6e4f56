package mesh

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/watch"
)

// watchDebounce merges the events of one change. The discovery server debounces further
// (discovery.debounce_after).
const watchDebounce = time.Millisecond

// watchSuffixes are the extensions of files that the discovery server reads in a directory.
var watchSuffixes = []string{".yaml", ".yml", ".json"}

// Watch watches the files of the embedded discovery server, and the certificates that its objects
// refer to.
type Watch struct {
	*watch.Watcher
	mu                 sync.Mutex
	mesh, certificates []string
}

// NewWatch watches the files of a configuration.
func NewWatch(c *config.Config, log *slog.Logger) (*Watch, error) {
	m := &Watch{Watcher: watch.New(watch.Options{
		Debounce: func() time.Duration { return watchDebounce },
		MaxDelay: func() time.Duration { return watchDebounce },
		Suffixes: watchSuffixes,
		Access:   true, // modes matter: Envoy's user reads the certificates
		Logger:   log,
	})}
	if err := m.Configure(c); err != nil {
		return nil, fmt.Errorf("watch discovery.files: %w", err)
	}
	return m, nil
}

// Configure replaces the watched files by those of a configuration.
func (m *Watch) Configure(c *config.Config) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mesh = watchPaths(c)
	return m.Set(slices.Concat(m.mesh, m.certificates))
}

// SetCertificates replaces the watched certificates.
func (m *Watch) SetCertificates(files []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.certificates = files
	return m.Set(slices.Concat(m.mesh, m.certificates))
}

// watchPaths returns the patterns of the files that the discovery server reads: a file, or a
// directory with everything below it. The suffix "/..." ignores changes of mode and owner alone
// (watch.Options.Access).
func watchPaths(c *config.Config) []string {
	var paths []string
	for _, path := range c.Discovery.Files {
		paths = append(paths, path+"/...")
	}
	if c.Discovery.MeshConfigFile != "" {
		paths = append(paths, c.Discovery.MeshConfigFile+"/...")
	}
	return paths
}
