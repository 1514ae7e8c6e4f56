// Package source defines the interface of outrider-discoveryd's configuration sources and service
// registries: Kubernetes, Consul, another xDS server, memory. Each is implemented by a package of
// its own.
package source

import (
	"context"
	"time"

	"outrider.org/outrider/agent/discovery"
)

// Sink is a function that receives the batches of a source. It must not block.
type Sink func(discovery.SourceUpdate)

// Source is a configuration source or a service registry. It delivers batches of changed inputs to
// a Sink. The first one has Complete set and contains the complete state.
type Source interface {
	// Name returns a unique name, such as "kubernetes" or "consul-2". It is part of
	// store.Options.Sources, paths of inputs, messages and metrics.
	Name() string
	// Run delivers batches until ctx ends, then returns nil. It reconnects by itself. If it returns
	// an error, the program stops.
	Run(ctx context.Context) error
	Status() Status
}

// Status is the state of a source, as shown in pages, metrics, conditions and by
// "outrider-discoveryd check".
type Status struct {
	Synced      bool      // the source has delivered its complete state since this process started
	LastContact time.Time // last successful contact; zero: none
	Err         error     // why the source cannot be contacted; nil: it is connected
	Inputs      int       // number of delivered objects or services
	// Problem is a problem of a connected source, for people, such as "the list is empty: the 1,000
	// services of before stay"; "": no problem
	Problem string
}
