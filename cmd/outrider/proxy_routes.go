package main

import (
	"context"
	"fmt"
	"strings"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/resource"
)

// routeConfig has the printed fields of envoy.config.route.v3.RouteConfiguration.
type routeConfig struct {
	Name         string `json:"name"`
	VirtualHosts []struct {
		Name    string   `json:"name"`
		Domains []string `json:"domains"`
		Routes  []route  `json:"routes"`
	} `json:"virtual_hosts"`
}

type route struct {
	Name  string `json:"name"`
	Match struct {
		Prefix     string `json:"prefix"`
		Path       string `json:"path"`
		PathPrefix string `json:"path_separated_prefix"`
		Regex      struct {
			Regex string `json:"regex"`
		} `json:"safe_regex"`
		Headers []struct {
			Name string `json:"name"`
		} `json:"headers"`
		Parameters []struct {
			Name string `json:"name"`
		} `json:"query_parameters"`
	} `json:"match"`
	Route *struct {
		Cluster       string `json:"cluster"`
		ClusterHeader string `json:"cluster_header"`
		Weighted      struct {
			Clusters []struct {
				Name   string `json:"name"`
				Weight int    `json:"weight"`
			} `json:"clusters"`
		} `json:"weighted_clusters"`
	} `json:"route"`
	Redirect *struct {
		Host string `json:"host_redirect"`
		Path string `json:"path_redirect"`
	} `json:"redirect"`
	Direct *struct {
		Status int `json:"status"`
	} `json:"direct_response"`
}

type routesDump struct {
	Static []struct {
		Config routeConfig `json:"route_config"`
	} `json:"static_route_configs"`
	Dynamic []struct {
		Version string      `json:"version_info"`
		Config  routeConfig `json:"route_config"`
	} `json:"dynamic_route_configs"`
}

func (a *app) showRoutes(ctx context.Context, client *api.Client, _ []string) error {
	var dumped routesDump
	from, printed, err := a.decodeDump(ctx, client, "RoutesConfigDump", &dumped,
		resource.RouteType, resource.ClusterType)
	if printed || err != nil {
		return err
	}
	t := &table{
		head: []string{"ROUTES", "SOURCE", "VIRTUAL HOST", "DOMAINS", "MATCH", "TARGET", "FROM"},
		wide: []string{"SOURCE", "VIRTUAL HOST"},
	}
	add := func(config routeConfig, source string) {
		for _, host := range config.VirtualHosts {
			for i, r := range host.Routes {
				t.add(config.Name, source, host.Name, fewOf(host.Domains), r.matchText(),
					r.targetText(), from.route(config.Name, host.Name, i, len(host.Routes)))
			}
		}
	}
	for _, c := range dumped.Static {
		add(c.Config, "static")
	}
	for _, c := range dumped.Dynamic {
		add(c.Config, "xds")
	}
	t.sortBy(0) // keep the order of the routes in a virtual host, which matters
	a.write(t, "no route")
	return nil
}

// fewOf returns the first elements of a list as text.
func fewOf(all []string) string {
	const few = 3
	if len(all) <= few {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:few], ", "), len(all)-few)
}

func (r route) matchText() string {
	m := r.Match
	match := m.Path
	switch {
	case m.Path != "":
	case m.PathPrefix != "":
		match = m.PathPrefix + "[/*]"
	case m.Regex.Regex != "":
		match = "~" + m.Regex.Regex
	default:
		match = m.Prefix + "*"
	}
	for _, h := range m.Headers {
		match += " " + h.Name
	}
	for _, p := range m.Parameters {
		match += " ?" + p.Name
	}
	return match
}

func (r route) targetText() string {
	switch {
	case r.Direct != nil:
		return fmt.Sprintf("answer %d", r.Direct.Status)
	case r.Redirect != nil:
		return "redirect " + r.Redirect.Host + r.Redirect.Path
	case r.Route == nil:
		return "-"
	case r.Route.Cluster != "":
		return r.Route.Cluster
	case r.Route.ClusterHeader != "":
		return "by header " + r.Route.ClusterHeader
	}
	var parts []string
	for _, c := range r.Route.Weighted.Clusters {
		parts = append(parts, fmt.Sprintf("%s %d", c.Name, c.Weight))
	}
	return strings.Join(parts, ", ")
}
