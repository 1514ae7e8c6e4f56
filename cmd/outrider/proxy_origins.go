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

// origins maps resources of the embedded discovery server to the objects that they were translated
// from.
type origins struct {
	all  []api.MeshOrigin
	from map[originKey][]resource.Origin
	// routes has the origins of the routes of virtual hosts, in order.
	routes map[originKey][]resource.Origin
}

type originKey struct{ typeURL, name, virtualHost string }

// originsOf requests the origins of the resources of some types. An older agent reports none.
func originsOf(ctx context.Context, client *api.Client, types ...string) (origins, error) {
	found := origins{all: []api.MeshOrigin{}, from: map[originKey][]resource.Origin{},
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
				found.from[key], found.routes[key] = o.Origins, o.Routes
			}
		}
	}
	return found, nil
}

// maxOrigins is the number of origins in a table; --json prints all.
const maxOrigins = 3

// originsCell returns the files and lines of objects, the main one first; "-" if there is none.
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

// route returns the origin of the route with index at of all routes of a virtual host. If an
// EnvoyFilter has added or removed routes, it returns that of the virtual host.
func (o origins) route(routes, name string, at, all int) cell {
	if found := o.routes[originKey{resource.RouteType, routes, name}]; len(found) == all {
		return originsCell(found[at : at+1])
	}
	return o.host(routes, name)
}

// host returns the origin of a virtual host: its own objects, or else the EnvoyFilters of its route
// configuration. That of an inbound virtual host is the object of the application's cluster.
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

// printWith adds the origins to a JSON object of Envoy and prints it.
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
