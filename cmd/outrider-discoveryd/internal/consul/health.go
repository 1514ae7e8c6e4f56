package consul

import (
	"log/slog"
	"sync"
	"time"
)

// health is the state of the contact with one datacentre. It is safe for concurrent use.
type health struct {
	logger *slog.Logger

	mu       sync.Mutex
	since    time.Time         // of the last answer
	errors   map[string]error  // by query
	problems map[string]string // by subject
}

// Queries of a watcher, and subjects of problems.
const (
	ofNames    = "catalog/services"
	ofCritical = "health/state/critical"
	ofWarning  = "health/state/warning"
	ofService  = "health/service"
	ofMissing  = "missing"
	ofEntries  = "entries"
)

func (h *health) open(o Options, datacenter string) {
	h.logger = o.Logger.With("registry", o.Name)
	if datacenter != "" {
		h.logger = h.logger.With("datacenter", datacenter)
	}
	h.errors, h.problems = map[string]error{}, map[string]string{}
}

// record notes the result of a query, and logs if Consul answers no more, or again.
func (h *health) record(query string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	failed := len(h.errors) > 0
	if err == nil {
		h.since = time.Now()
		delete(h.errors, query)
	} else {
		h.errors[query] = err
	}
	switch {
	case err != nil && !failed:
		h.logger.Warn("cannot query Consul", "query", query, "error", err)
	case failed && len(h.errors) == 0:
		h.logger.Info("Consul answers again")
	}
}

// note sets a problem and logs it; "" clears it.
func (h *health) note(subject, problem string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if problem != "" && h.problems[subject] != problem {
		h.logger.Warn("problem of the registry", "problem", problem)
	}
	h.problems[subject] = problem
}

// current returns the time of the last answer, a problem, and an error if there is no answer now.
func (h *health) current() (since time.Time, problem string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, query := range []string{ofNames, ofCritical, ofWarning, ofService} {
		if err == nil {
			err = h.errors[query]
		}
	}
	for _, subject := range []string{ofMissing, ofService, ofEntries, ofNames} {
		if problem == "" {
			problem = h.problems[subject]
		}
	}
	return h.since, problem, err
}
