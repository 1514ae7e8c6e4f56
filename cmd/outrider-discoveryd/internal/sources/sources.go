// Package sources creates the sources and registries of a configuration.
package sources

import (
	"fmt"
	"log/slog"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/memory"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
)

// New returns the sources and registries that deliver to sink: all but the files, which the
// discovery server reads itself.
func New(c *config.Discoveryd, sink source.Sink,
	logOf func(part string) *slog.Logger) (all []source.Source, err error) {
	for _, s := range c.Sources {
		switch s.Type {
		case "files":
		case "memory":
			all = append(all, memory.New(s, false, sink, logOf(s.Name)))
		default:
			return nil, fmt.Errorf("a source of type %s is not yet in this version", s.Type)
		}
	}
	for _, s := range c.Registries {
		switch s.Type {
		case "memory":
			all = append(all, memory.New(s, true, sink, logOf(s.Name)))
		default:
			return nil, fmt.Errorf("a registry of type %s is not yet in this version", s.Type)
		}
	}
	return all, nil
}
