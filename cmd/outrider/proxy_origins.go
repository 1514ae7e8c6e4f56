package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/resource"
)

// origins are the objects that resources of the embedded discovery server came from.
type origins struct {
	all  []api.MeshOrigin
	from map[originKey][]resource.Origin
}

type originKey struct{ typeURL, name, virtualHost string }

// originsOf asks where the resources of types come from. An agent that is older than the command
// does not know.
func originsOf(ctx context.Context, client *api.Client, types ...string) (origins, error) {
	found := origins{all: []api.MeshOrigin{}, from: map[originKey][]resource.Origin{}}
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
				found.from[originKey{o.Type, o.Name, o.VirtualHost}] = o.Origins
			}
		}
	}
	return found, nil
}

// mostPlaces are shown in a table; with --json all are.
const mostPlaces = 3

// placesOf are where objects are written, the deciding one first; "-" where no object decides.
func placesOf(from []resource.Origin) cell {
	var shown []string
	for _, o := range from[:min(len(from), mostPlaces)] {
		shown = append(shown, fmt.Sprintf("%s:%d", o.File, o.Line))
	}
	words := strings.Join(shown, ", ")
	if more := len(from) - len(shown); more > 0 {
		words += fmt.Sprintf(" +%d", more)
	}
	return text("%s", orDash(words))
}

func (o origins) cell(typeURL, name string) cell {
	return placesOf(o.from[originKey{typeURL, name, ""}])
}

// host is where a virtual host comes from: objects of its own, else of one that an EnvoyFilter
// added that filter, and of what comes in the object that the application's cluster is from.
func (o origins) host(routes, name string) cell {
	if from := o.from[originKey{resource.RouteType, routes, name}]; from != nil {
		return placesOf(from)
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
	return placesOf(filters)
}

// printWith prints an object of Envoy's with the origins beside its own fields.
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
