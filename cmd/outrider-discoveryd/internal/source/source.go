// Package source defines what brings configuration and services to outrider-discoveryd: Kubernetes,
// Consul, another xDS server, memory. Each source is a package of its own.
package source

import (
	"context"
	"time"

	"outrider.org/outrider/agent/discovery"
)

// Sink receives the batches of a source. It does not block.
type Sink func(discovery.Batch)

// Source is a configuration source or a service registry. It delivers to a Sink: its first batch
// has All and its complete state, never half a list; those that follow have what changed.
type Source interface {
	// Name returns its unique name, in Options.Sources, paths of inputs, messages and metrics:
	// "kubernetes", "consul-2".
	Name() string
	// Run delivers until ctx ends, then returns nil. It connects again by itself. An error ends the
	// program.
	Run(ctx context.Context) error
	Status() Status
}

// Status is the state of a source, in pages, metrics, conditions and "outrider-discoveryd check".
type Status struct {
	Synced bool      // it has delivered its complete state since the start of this process
	Since  time.Time // of the last successful contact; zero: none
	Err    error     // why there is no contact now; nil: it is connected
	Inputs int       // objects or services that it has delivered
	// Problem is what a person must know although the source is connected: "the list is empty: the
	// 1,000 services of before stay". "": nothing
	Problem string
}
