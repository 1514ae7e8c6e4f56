package discovery

import (
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"

	"outrider.org/outrider/agent/discovery/view"
	"outrider.org/outrider/agent/resource"
)

// guilty returns the objects to blame for a refused resource, the likeliest first. For a route
// configuration, these are the objects of the virtual host that contains the text quoted by Envoy:
// a domain, a cluster, a regular expression. If an EnvoyFilter is the first origin, all origins of
// the resource are returned.
func guilty(v *view.View, r *resource.Resource, reason string) []resource.Origin {
	if r.Type != resource.RouteType || len(r.Origins) > 0 && r.Origins[0].Kind == "EnvoyFilter" {
		return r.Origins
	}
	routes := &routev3.RouteConfiguration{}
	if err := proto.Unmarshal(r.Value(), routes); err != nil {
		return r.Origins
	}
	if host := quotedHost(routes.VirtualHosts, reason); host != nil && len(host.Domains) > 0 {
		if origins := v.HostOrigins(r.Name, host.Domains[0]); len(origins) > 0 {
			return origins
		}
	}
	return r.Origins
}

// quotedHost returns the virtual host with the longest string that a reason quotes, or nil. Strings
// that all of several virtual hosts contain do not count.
func quotedHost(hosts []*routev3.VirtualHost, reason string) *routev3.VirtualHost {
	first, count, last := map[string]*routev3.VirtualHost{}, map[string]int{},
		map[string]*routev3.VirtualHost{}
	for _, host := range hosts {
		note := func(values protopath.Values) error {
			text, ok := values.Index(-1).Value.Interface().(string)
			if !ok || last[text] == host || !mentions(reason, text) {
				return nil
			}
			if last[text] = host; first[text] == nil {
				first[text] = host
			}
			count[text]++
			return nil
		}
		if err := protorange.Range(host.ProtoReflect(), note); err != nil {
			return nil
		}
	}
	longest := ""
	for text := range first {
		if (count[text] < len(hosts) || len(hosts) == 1) && (len(text) > len(longest) ||
			len(text) == len(longest) && text < longest) {
			longest = text
		}
	}
	return first[longest]
}
