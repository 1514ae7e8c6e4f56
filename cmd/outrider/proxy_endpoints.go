package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/resource"
)

// statuses is the response to /clusters?format=json (envoy.admin.v3.Clusters).
type statuses struct {
	Clusters []struct {
		Name  string       `json:"name"`
		Hosts []hostStatus `json:"host_statuses"`
	} `json:"cluster_statuses"`
}

type hostStatus struct {
	Address socketAddress `json:"address"`
	Stats   []struct {
		Name  string      `json:"name"`
		Value json.Number `json:"value"` // a number or a string; absent for 0
	} `json:"stats"`
	Weight int `json:"weight"`
	Health struct {
		EDS         string `json:"eds_health_status"`
		FailedCheck bool   `json:"failed_active_health_check"`
		Outlier     bool   `json:"failed_outlier_check"`
		Degraded    bool   `json:"failed_active_degraded_check"`
		Excluded    bool   `json:"excluded_via_immediate_hc_fail"`
		Timeout     bool   `json:"active_hc_timeout"`
	} `json:"health_status"`
	failing string // reason why its last requests failed, from the agent; "": they have not failed
}

func (h hostStatus) healthy() bool { return h.text() == "healthy" }

// text returns "healthy", or the reasons why the endpoint is not.
func (h hostStatus) text() string {
	var why []string
	if h.Health.FailedCheck {
		why = append(why, "failed health check")
	}
	if h.Health.Timeout {
		why = append(why, "health check timed out")
	}
	if h.Health.Outlier {
		why = append(why, "ejected as outlier")
	}
	if h.Health.Excluded {
		why = append(why, "excluded")
	}
	if h.Health.Degraded {
		why = append(why, "degraded")
	}
	if eds := h.Health.EDS; eds != "" && eds != "HEALTHY" && eds != "UNKNOWN" {
		why = append(why, strings.ToLower(eds)+" by discovery")
	}
	if h.failing != "" {
		why = append(why, "fails: "+h.failing)
	}
	if len(why) == 0 {
		return "healthy"
	}
	return strings.Join(why, ", ")
}

func (h hostStatus) stat(name string) string {
	for _, s := range h.Stats {
		if s.Name == name && s.Value != "" {
			return s.Value.String()
		}
	}
	return "0"
}

// clusterStatuses returns the statuses of Envoy's clusters. It adds the failures of endpoints that
// the agent has observed.
func clusterStatuses(ctx context.Context, client *api.Client) (statuses, error) {
	var all statuses
	if err := adminJSON(ctx, client, "clusters", url.Values{"format": {"json"}}, &all); err != nil {
		return all, err
	}
	return all, all.markFailing(ctx, client)
}

func (s statuses) markFailing(ctx context.Context, client *api.Client) error {
	status, err := client.Status(ctx)
	if err != nil {
		return err
	}
	for _, failing := range status.FailingBackends {
		for _, c := range s.Clusters {
			for i, h := range c.Hosts {
				if c.Name == failing.Cluster && h.Address.String() == failing.Address {
					c.Hosts[i].failing = failing.Cause
				}
			}
		}
	}
	return nil
}

func (a *app) showEndpoints(ctx context.Context, client *api.Client, named []string) error {
	var raw json.RawMessage
	query := url.Values{"format": {"json"}}
	if err := adminJSON(ctx, client, "clusters", query, &raw); err != nil {
		return err
	}
	from, err := originsOf(ctx, client, resource.EndpointType, resource.ClusterType)
	if err != nil {
		return err
	}
	if a.json {
		return a.printWith(raw, from)
	}
	var all statuses
	if err := json.Unmarshal(raw, &all); err != nil {
		return fmt.Errorf("read Envoy's clusters: %w", err)
	}
	if err := all.markFailing(ctx, client); err != nil {
		return err
	}
	t := &table{
		head: []string{"ENDPOINT", "CLUSTER", "HEALTH", "WEIGHT", "CONNECTIONS", "REQUESTS",
			"ERRORS",
			"FROM"},
		wide: []string{"WEIGHT", "CONNECTIONS", "FROM"},
	}
	for _, c := range all.Clusters {
		if len(named) > 0 && !slices.Contains(named, c.Name) {
			continue
		}
		origin := from.cell(resource.EndpointType, c.Name)
		if origin.text == "-" {
			// the cluster resource contains its endpoints
			origin = from.cell(resource.ClusterType, c.Name)
		}
		for _, h := range c.Hosts {
			colour := green
			if !h.healthy() {
				colour = red
			}
			t.add(h.Address, c.Name, cell{h.text(), colour}, max(1, h.Weight), h.stat("cx_active"),
				h.stat("rq_total"), h.stat("rq_error"), origin)
		}
	}
	t.sortBy(1, 0)
	a.write(t, "no endpoint")
	return nil
}
