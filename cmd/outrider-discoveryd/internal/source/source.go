// Package source defines the interface of the sources of configuration and services in
// outrider-discoveryd: Kubernetes, Consul, another xDS server, memory. Each source is a package of
// its own.
package source

import (
	"context"
	"time"

	"outrider.org/outrider/agent/discovery"
)

// Sink is a function that receives the batches of a source. It does not block.
type Sink func(discovery.Batch)

// Source is a source of configuration, or a service registry. It delivers batches to a Sink: first
// one with Complete set, which contains the complete state, then changes.
type Source interface {
	// Name returns a unique name, which is used in Options.Sources, paths of inputs, messages and
	// metrics: "kubernetes", "consul-2".
	Name() string
	// Run delivers batches until ctx ends, then returns nil. It reconnects by itself. An error ends
	// the program.
	Run(ctx context.Context) error
	Status() Status
}

// Status is the state of a source, as shown in pages, metrics, conditions and by
// "outrider-discoveryd check".
type Status struct {
	Synced bool      // the source has delivered its complete state since this process started
	Since  time.Time // time of the last successful contact; zero: none
	Err    error     // why the source cannot be contacted now; nil: it is connected
	Inputs int       // number of objects or services that were delivered
	// Problem is a problem of a connected source, as a sentence for people: "the list is empty: the
	// 1,000 services of before stay"; "": no problem
	Problem string
}
