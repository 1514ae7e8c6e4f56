package web

import (
	"context"
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/model"
)

// answer is the content of a web page. Its JSON form is available, too.
type answer struct {
	Version string    `json:"version"`
	AsOf    time.Time `json:"asOf"`
	Ready   bool      `json:"ready"`
	Reason  string    `json:"reason,omitempty"` // reason why the server is not ready
	// hosts are missing, because some xDS streams did not report their state in time
	Partial    bool                     `json:"partial,omitempty"`
	Counts     counts                   `json:"counts"`
	Conditions []condition.Condition    `json:"conditions"`
	Sources    []Source                 `json:"sources"`
	Problems   *list[discovery.Problem] `json:"problems,omitempty"`
	Hosts      *list[ConnectedHost]     `json:"hosts,omitempty"`
	Services   *list[Service]           `json:"services,omitempty"`
}

// counts has the total numbers, independent of the lists in an answer.
type counts struct {
	Hosts     map[string]int `json:"hosts"` // by state
	Services  int            `json:"services"`
	Endpoints int            `json:"endpoints"` // endpoints that receive requests
	Unhealthy int            `json:"unhealthyWorkloads"`
	Problems  map[string]int `json:"problems"` // by severity
}

// list is one page of the rows of a list.
type list[T any] struct {
	Rows     []T    `json:"rows"`
	Total    int    `json:"total"`
	Matching int    `json:"matching"` // rows that match Query
	Page     int    `json:"page"`     // number of this page, from 1
	Pages    int    `json:"pages"`
	Query    string `json:"query,omitempty"`
}

// Maximum number of rows of a list, if the page shows all lists and if it shows only one.
const (
	rowsOfAll = 25
	rowsOfOne = 100
)

// Names of lists, which are also their URL paths.
const (
	hostList    = "hosts"
	serviceList = "services"
	problemList = "problems"
)

// request is a request for one list, or for all lists.
type request struct {
	only  string // name of the requested list; "": all lists
	query string // text that rows must contain, in lower case
	page  int    // number of the page, from 1
}

// has reports whether the answer contains the list with a name.
func (r request) has(name string) bool { return r.only == "" || r.only == name }

// paginate returns the requested page of the rows that match the query, converted by show. It calls
// matches only if the request has a query.
func paginate[T, R any](r request, all []T, matches func(T) bool, show func(T) R) *list[R] {
	matching := all
	if r.query != "" {
		matching = nil
		for _, row := range all {
			if matches(row) {
				matching = append(matching, row)
			}
		}
	}
	size := rowsOfOne
	if r.only == "" {
		size = rowsOfAll
	}
	l := &list[R]{Rows: []R{}, Total: len(all), Matching: len(matching), Query: r.query,
		Pages: max(1, (len(matching)+size-1)/size)}
	l.Page = min(max(r.page, 1), l.Pages)
	for _, row := range matching[(l.Page-1)*size : min(l.Page*size, len(matching))] {
		l.Rows = append(l.Rows, show(row))
	}
	return l
}

func (r request) in(texts ...string) bool {
	return slices.ContainsFunc(texts, func(text string) bool {
		return strings.Contains(strings.ToLower(text), r.query)
	})
}

func same[T any](row T) T { return row }

// answer returns the answer to a request.
func (s *Server) answer(ctx context.Context, r request) (*answer, error) {
	now, err := s.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	a := &answer{Version: s.options.Version, AsOf: now.at.UTC(), Ready: true,
		Partial: now.partial, Counts: now.counts(), Conditions: []condition.Condition{}, Sources: s.options.Sources()}
	if err := s.options.Ready(); err != nil {
		a.Ready, a.Reason = false, err.Error()
	}
	for _, c := range s.options.Conditions() {
		if c.Code != discovery.ConditionMeshProblems { // the answer contains these problems as a list
			a.Conditions = append(a.Conditions, c)
		}
	}
	if r.has(problemList) {
		a.Problems = paginate(r, now.problems, func(p discovery.Problem) bool {
			return r.in(p.String())
		}, same)
	}
	if r.has(hostList) {
		a.Hosts = paginate(r, now.hosts, func(h ConnectedHost) bool {
			return r.in(h.Node, h.Address, h.Identity, h.Agent, h.Envoy, h.State, h.Reason)
		}, same)
	}
	if r.has(serviceList) {
		a.Services = paginate(r, now.services, func(one *model.Service) bool {
			if r.in(one.Host, one.Namespace, one.OldestServiceEntry().Position()) {
				return true
			}
			for e := range one.EachEndpoint {
				if r.in(e.Address) {
					return true
				}
			}
			return false
		}, now.service)
	}
	return a, nil
}

func (s *snapshot) counts() counts {
	c := counts{Hosts: map[string]int{}, Services: len(s.services),
		Unhealthy: len(s.of.UnhealthyWorkloads),
		Problems:  map[string]int{}}
	for _, state := range states {
		c.Hosts[state] = 0
	}
	for i := range s.hosts {
		c.Hosts[s.hosts[i].State]++
	}
	for _, one := range s.services {
		c.Endpoints += one.EndpointCount()
	}
	for _, severity := range []condition.Severity{condition.Error, condition.Warning,
		condition.Info} {
		c.Problems[string(severity)] = 0
	}
	for _, p := range s.problems {
		c.Problems[string(p.Severity)]++
	}
	return c
}
