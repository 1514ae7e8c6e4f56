package view

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// server is one server of a Gateway.
type server struct {
	object *object.Object
	spec   *networking.Server
	index  int
	bind   string // address of the listener, as written by its oldest server
}

func serversOf(o *object.Object) []server {
	var all []server
	for i, spec := range o.Spec.(*networking.Gateway).Servers {
		all = append(all, server{object: o, spec: spec, index: i, bind: spec.Bind})
	}
	return all
}

func (s server) origin() resource.Origin { return s.object.Origin() }

// gateway returns the name by which VirtualServices refer to the server's Gateway.
func (s server) gateway() string { return s.object.Namespace + "/" + s.object.Name }

func (s server) problem(field, message, fix string) object.Problem {
	return s.object.Warning(fmt.Sprintf("servers[%d].%s", s.index, field), message, fix)
}

// class returns the protocol class. Servers of one class can share a port: any number with plain
// HTTP, or with TLS and different SNI, or a single TCP server.
func (s server) class() model.Protocol {
	protocol, _ := model.ParseProtocol(s.spec.Port.Protocol, s.spec.Port.Name)
	if protocol.IsHTTP() {
		return model.HTTP
	}
	return protocol
}

// isPassthrough reports whether the server forwards TLS without terminating it.
func (s server) isPassthrough() bool {
	return s.class() == model.TLS && translate.IsTLSPassthrough(s.spec.Tls)
}

// isAuto reports whether the server forwards TLS to the service that the SNI names
// (AUTO_PASSTHROUGH).
func (s server) isAuto() bool {
	return s.isPassthrough() && s.spec.Tls.Mode == networking.ServerTLSSettings_AUTO_PASSTHROUGH
}

// routesRequests reports whether the server routes HTTP requests.
func (s server) routesRequests() bool {
	return s.class() == model.HTTP || s.class() == model.TLS &&
		strings.EqualFold(s.spec.Port.Protocol, "HTTPS") && !s.isPassthrough()
}

// routeName returns the name of the server's route configuration.
func (s server) routeName() string {
	if s.class() == model.TLS {
		return translate.HTTPSRouteName(s.spec.Port.Number, s.spec.Port.Name, s.object.Name,
			s.object.Namespace, s.spec.Bind)
	}
	return translate.HTTPRouteName(s.spec.Port.Number, s.bind)
}

// listenerName returns the name of the server's listener. It does not depend on the spelling of the
// address.
func (s server) listenerName() string {
	address := anyAddress
	if parsed, err := netip.ParseAddr(s.spec.Bind); err == nil {
		address = parsed.String()
	}
	return translate.ListenerName(address, s.spec.Port.Number)
}

// hostNames returns the server's hosts without their namespaces and without duplicates.
func (s server) hostNames() []string {
	var names []string
	for _, host := range s.spec.Hosts {
		if _, name, _ := model.SplitHost(strings.ToLower(host)); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// meet returns the hosts common to a server and a VirtualService; of two patterns, the narrower
// one.
func (s server) meet(routing *model.MergedVirtualService) []string {
	var hosts []string
	for _, written := range s.spec.Hosts {
		namespace, own, _ := model.SplitHost(strings.ToLower(written))
		if namespace == "." {
			namespace = s.object.Namespace
		}
		if namespace != "*" && namespace != routing.Object.Namespace {
			continue
		}
		for _, host := range routing.Hosts {
			switch {
			case model.HostCovers(own, host):
				hosts = append(hosts, host)
			case model.HostCovers(host, own):
				hosts = append(hosts, own)
			}
		}
	}
	return hosts
}
