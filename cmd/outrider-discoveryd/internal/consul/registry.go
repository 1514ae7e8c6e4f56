// Package consul is a service registry: the services of Consul's catalogue and their health. Store
// registers workloads in Consul.
//
// A watcher for each datacentre sends three blocking queries with small responses: the names of the
// services, the critical checks, and the checks in state warning. A changed check names its
// service, which the watcher reads first (urgent). A change of the catalogue names no service, so
// the watcher reads all services again (sweep). A blocking query for each service would need its
// own connection: 1,000 connections are more than Consul accepts from one client
// (http_max_conns_per_client).
//
//	catalog/services ──┐             ┌─ urgent ─┐
//	state/critical ────┼─> watcher ──┤          ├─> health/service/NAME ─> Service
//	state/warning ─────┘             └─ sweep ──┘
//
// Each service of a datacentre becomes one ServiceEntry. A fourth blocking query reads the
// WorkloadEntries of registered workloads from the key/value store.
package consul

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/store"

	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
)

// partialWait is how long the first batch waits for datacentres that do not respond. After this
// time the registry delivers the services of the other datacentres.
const partialWait = 10 * time.Second

// Options configures a Registry.
type Options struct {
	Name        string   // name of the source
	Address     string   // address of Consul: http://HOST:PORT, https://HOST:PORT or unix:///PATH
	CAFile      string   // file with CA certificates for https; "": the system's
	TokenFile   string   // file with a token, read for each query; "": no token
	Datacenters []string // datacentres to read; none: that of the Consul agent at Address
	Namespace   string   // namespace of the ServiceEntries; "": "consul"
	Domain      string   // domain of the hosts, which are NAME.DOMAIN; "": "service.consul"
	Sink        source.Sink
	Logger      *slog.Logger
}

// Registry delivers the services of Consul. It implements source.Source.
type Registry struct {
	options  Options
	client   *client
	watchers []*watcher
	late     time.Duration // partialWait, except in tests

	mu         sync.Mutex // guards all fields below
	inputs     map[string]store.SourceInput
	incomplete map[*watcher]bool // watchers of datacentres that are not complete yet
	synced     bool
	// partialWait has passed, so changes are delivered even before all datacentres are complete
	partial bool
}

// New returns a registry. Run connects to Consul.
func New(options Options) (*Registry, error) {
	for _, variable := range []string{"CONSUL_NAMESPACE", "CONSUL_PARTITION"} {
		if value := os.Getenv(variable); value != "" {
			return nil, fmt.Errorf("%s=%s: namespaces and partitions of Consul Enterprise are not "+
				"supported", variable, value)
		}
	}
	if options.Namespace == "" {
		options.Namespace = "consul"
	}
	if options.Domain == "" {
		options.Domain = "service.consul"
	}
	client, err := newClient(options)
	if err != nil {
		return nil, err
	}
	r := &Registry{options: options, client: client, late: partialWait,
		inputs: map[string]store.SourceInput{}, incomplete: map[*watcher]bool{}}
	datacenters := options.Datacenters
	if len(datacenters) == 0 {
		datacenters = []string{""}
	}
	for _, datacenter := range datacenters {
		w := newWatcher(r, datacenter)
		r.watchers, r.incomplete[w] = append(r.watchers, w), true
	}
	return r, nil
}

// Name returns the name of the registry as a source.
func (r *Registry) Name() string { return r.options.Name }

// Run watches all datacentres until the context ends. It returns nil.
func (r *Registry) Run(ctx context.Context) error {
	late := time.AfterFunc(r.late, r.deliverPart)
	defer late.Stop()
	var running sync.WaitGroup
	for _, w := range r.watchers {
		running.Go(func() { w.run(ctx) })
	}
	running.Wait()
	r.client.close()
	return nil
}

// RemoveRetainedInputs accepts Consul's current list of services as complete: it removes services
// that the registry retained because Consul had lost data.
func (r *Registry) RemoveRetainedInputs() {
	for _, w := range r.watchers {
		select {
		case w.accept <- struct{}{}:
		default: // the channel has a signal already
		}
	}
}

// deliver stores changed inputs and sends them to the sink. completed is a watcher whose datacentre
// has just become complete, or nil. The first batch contains all inputs, and is sent when all
// datacentres are complete.
func (r *Registry) deliver(changed []store.SourceInput, completed *watcher) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, input := range changed {
		if len(input.Objects) == 0 && input.Text == nil {
			delete(r.inputs, input.Path)
		} else {
			r.inputs[input.Path] = input
		}
	}
	delete(r.incomplete, completed)
	switch {
	case !r.synced && len(r.incomplete) == 0:
		r.synced = true
		r.send(r.all(), true)
	case (r.synced || r.partial) && len(changed) > 0:
		r.send(changed, false)
	}
}

// deliverPart sends the inputs of the datacentres that have responded, if some have not responded
// within partialWait.
func (r *Registry) deliverPart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.partial = true; !r.synced && len(r.inputs) > 0 {
		r.send(r.all(), false)
	}
}

// all returns all inputs, sorted by path. Callers hold mu.
func (r *Registry) all() []store.SourceInput {
	return slices.SortedFunc(maps.Values(r.inputs), func(a, b store.SourceInput) int {
		return strings.Compare(a.Path, b.Path)
	})
}

func (r *Registry) send(inputs []store.SourceInput, all bool) {
	r.options.Sink(discovery.SourceUpdate{Source: r.options.Name, Inputs: inputs, Complete: all})
}

// Status returns the state of the registry, with the errors of all datacentres. LastContact is the
// time of the last successful query to the datacentre that has been silent for longest.
func (r *Registry) Status() source.Status {
	r.mu.Lock()
	status := source.Status{Synced: r.synced, Inputs: len(r.inputs)}
	r.mu.Unlock()
	var errs []error
	var problems []string
	for i, w := range r.watchers {
		since, problem, err := w.health.current()
		if i == 0 || since.Before(status.LastContact) {
			status.LastContact = since
		}
		if err != nil && w.datacenter != "" {
			err = fmt.Errorf("datacenter %s: %w", w.datacenter, err)
		}
		errs = append(errs, err)
		if problem != "" {
			problems = append(problems, problem)
		}
	}
	status.Err, status.Problem = errors.Join(errs...), strings.Join(problems, "; ")
	return status
}
