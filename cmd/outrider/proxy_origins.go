package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/resource"
)

// origins maps resources of the embedded discovery server to their origins, the objects from which
// they were translated.
type origins struct {
	all  []api.MeshResourceOrigins
	from map[originKey][]resource.Origin
	// for each virtual host, the origins of its routes in order
	routes map[originKey][]resource.Origin
}

type originKey struct{ typeURL, name, virtualHost string }

// originsOf requests the origins of all resources of some types. It returns none for an agent whose
// version does not report origins.
func originsOf(ctx context.Context, client *api.Client, types ...string) (origins, error) {
	found := origins{all: []api.MeshResourceOrigins{}, from: map[originKey][]resource.Origin{},
		routes: map[originKey][]resource.Origin{}}
	all, err := client.MeshOrigins(ctx)
	if refused, ok := errors.AsType[*api.Error](err); ok && refused.Status == http.StatusNotFound {
		return found, nil
	}
	if err != nil {
		return found, err
	}
	for _, o := range all {
		for _, typeURL := range types {
			if o.Type == typeURL {
				found.all = append(found.all, o)
				key := originKey{o.Type, o.Name, o.VirtualHost}
				found.from[key], found.routes[key] = o.Origins, o.RouteOrigins
			}
		}
	}
	return found, nil
}

// maxOrigins is the maximum number of origins in a table cell; --json prints all.
const maxOrigins = 3

// originsCell returns a cell with the positions (FILE:LINE) of origins, the most important one
// first; "-" if there are none.
func originsCell(from []resource.Origin) cell {
	var shown []string
	for _, o := range from[:min(len(from), maxOrigins)] {
		shown = append(shown, resource.Position(o.File, o.Line))
	}
	list := strings.Join(shown, ", ")
	if more := len(from) - len(shown); more > 0 {
		list += fmt.Sprintf(" +%d", more)
	}
	return text("%s", cmp.Or(list, "-"))
}

func (o origins) cell(typeURL, name string) cell {
	return originsCell(o.from[originKey{typeURL, name, ""}])
}

// route returns a cell with the origin of a route of a virtual host. at is the index of the route,
// and all the number of routes that the virtual host has in Envoy. If an EnvoyFilter has added or
// removed routes, the index is not valid, and route returns the origins of the virtual host.
func (o origins) route(routes, name string, at, all int) cell {
	if found := o.routes[originKey{resource.RouteType, routes, name}]; len(found) == all {
		return originsCell(found[at : at+1])
	}
	return o.host(routes, name)
}

// host returns a cell with the origins of a virtual host. If the virtual host has none, they are
// the EnvoyFilters of its route configuration or, for an inbound virtual host, the origins of the
// application's cluster.
func (o origins) host(routes, name string) cell {
	if from := o.from[originKey{resource.RouteType, routes, name}]; from != nil {
		return originsCell(from)
	}
	if strings.HasPrefix(routes, "inbound|") {
		return o.cell(resource.ClusterType, routes)
	}
	if name == "block_all" || name == "allow_any" || strings.HasPrefix(name, "blackhole:") {
		return text("-")
	}
	var filters []resource.Origin
	for _, from := range o.from[originKey{resource.RouteType, routes, ""}] {
		if from.Kind == "EnvoyFilter" {
			filters = append(filters, from)
		}
	}
	return originsCell(filters)
}

// printWith adds origins to a JSON object from Envoy, and prints it.
func (a *app) printWith(raw json.RawMessage, o origins) error {
	fields := map[string]any{}
	var own map[string]json.RawMessage
	if err := json.Unmarshal(raw, &own); err != nil {
		return fmt.Errorf("read Envoy's answer: %w", err)
	}
	for name, value := range own {
		fields[name] = value
	}
	fields["origins"] = o.all
	return a.printJSON(fields)
}
