package consul

import (
	"log/slog"
	"sync"
	"time"
)

// health records the results of queries to one datacentre. It is safe for concurrent use.
type health struct {
	logger *slog.Logger

	mu       sync.Mutex
	since    time.Time         // time of the last successful query
	errors   map[string]error  // last error of each failing query, by query
	problems map[string]string // problems that an operator must solve, by subject
}

// Names of the queries to a datacentre, and subjects of problems.
const (
	ofNames    = "catalog/services"
	ofCritical = "health/state/critical"
	ofWarning  = "health/state/warning"
	ofService  = "health/service"
	// the list of registered workloads in the key/value store
	ofWorkloads = "kv/" + workloadKeys
	ofMissing   = "missing"
	ofEntries   = "entries"
)

func (h *health) open(o Options, datacenter string) {
	h.logger = o.Logger.With("registry", o.Name)
	if datacenter != "" {
		h.logger = h.logger.With("datacenter", datacenter)
	}
	h.errors, h.problems = map[string]error{}, map[string]string{}
}

// record records the result of a query. It logs the first failure, and when no query fails any
// more.
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
		h.logger.Info("Consul responds again")
	}
}

// note sets the problem of a subject and logs it; "" clears the problem.
func (h *health) note(subject, problem string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if problem != "" && h.problems[subject] != problem {
		h.logger.Warn("cannot use a part of Consul's catalogue", "problem", problem)
	}
	h.problems[subject] = problem
}

// failure returns the error of a query; nil if its last attempt succeeded.
func (h *health) failure(query string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.errors[query]
}

// current returns the time of the last successful query, a problem for the operator ("": none), and
// the error of a failing query.
func (h *health) current() (since time.Time, problem string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, query := range []string{ofNames, ofCritical, ofWarning, ofService,
		ofWorkloads} {
		if err == nil {
			err = h.errors[query]
		}
	}
	for _, subject := range []string{ofMissing, ofService, ofEntries, ofNames, ofWorkloads} {
		if problem == "" {
			problem = h.problems[subject]
		}
	}
	return h.since, problem, err
}
