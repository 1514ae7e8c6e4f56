package view

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// inbound manages the inbound traffic of a sidecar: to the ports of its Sidecar's ingress
// listeners, else to the ports of services that have an endpoint on this host.
type inbound struct {
	// ports of services with an endpoint on this machine, by the service's host
	served map[string][]EndpointPort
	own    map[uint32]inboundPort // ports that have a listener of their own
}

// inboundPort is a port that accepts inbound connections.
type inboundPort struct {
	translate.InboundListener
	object *object.Object
	field  string
	// host of the service; "" if metrics do not need it, or the Sidecar defines the port
	host string
	peer model.MutualTLSSetting
}

func newInbound() inbound {
	return inbound{served: map[string][]EndpointPort{}, own: map[uint32]inboundPort{}}
}

// update determines the served ports of changed services, and publishes the resources that differ.
func (in inbound) update(v *ProxyView, scope *model.SidecarScope, touched model.ChangeSummary) {
	dirty := touched.SidecarsChanged || touched.PeerAuthenticationsChanged || v.guards.changed ||
		v.ownChanged
	v.ownChanged = false
	for host := range touched.ChangedHosts {
		before := in.served[host]
		now := servedBy(v.world, v.node, host)
		if len(now) == 0 {
			delete(in.served, host)
		} else {
			in.served[host] = now
		}
		dirty = dirty || len(before)+len(now) > 0
	}
	if dirty {
		in.make(v, scope)
	}
}

// ports returns the inbound ports, sorted by number.
func (in inbound) ports(v *ProxyView, scope *model.SidecarScope) ([]inboundPort, []object.Problem) {
	switch {
	case len(scope.Spec.GetIngress()) > 0:
		return ingressPorts(v, scope)
	case v.own != nil:
		return v.own.ports, nil
	}
	var all []EndpointPort
	for _, services := range in.served {
		all = append(all, services...)
	}
	return servicePorts(v.world, v.node, scope, all)
}

// ingressPorts returns the ports of a Sidecar's ingress listeners.
func ingressPorts(v *ProxyView, scope *model.SidecarScope) ([]inboundPort, []object.Problem) {
	var ports []inboundPort
	var problems []object.Problem
	warn := func(i int, field, message, fix string) {
		problems = append(problems, scope.Object.Warning(fmt.Sprintf("ingress[%d].%s", i, field),
			message, fix))
	}
	for i, l := range scope.Spec.Ingress {
		protocol, _ := model.ParseProtocol(l.Port.Protocol, l.Port.Name)
		d := inboundPort{object: scope.Object, field: fmt.Sprintf("ingress[%d]", i),
			InboundListener: translate.InboundListener{Port: l.Port.Number, Name: l.Port.Name,
				Protocol: protocol, TLS: l.Tls, ConnectionPool: l.ConnectionPool,
				SpanName: translate.SpanName(scope.Object.Name+"."+scope.Object.Namespace, l.Port.Number),
				Endpoint: ownEndpoint(l.DefaultEndpoint, v.node)}}
		if d.ConnectionPool == nil {
			d.ConnectionPool = scope.Spec.InboundConnectionPool
		}
		bound := !v.node.IsIntercepted()
		switch l.CaptureMode {
		case networking.CaptureMode_IPTABLES:
			if bound {
				warn(i, "captureMode",
					"IPTABLES needs interception, which this proxy does without: nothing listens "+
						"on the port", "write NONE")
				continue
			}
		case networking.CaptureMode_NONE:
			bound = true
		}
		if bound {
			d.Bind = cmp.Or(l.Bind, first(v.node.Addresses), anyAddress)
			if d.Endpoint == "" {
				d.Endpoint = net.JoinHostPort(loopback, fmt.Sprint(d.Port))
			}
			if loops(d.Bind, d.Endpoint, d.Port) {
				warn(i, "defaultEndpoint",
					fmt.Sprintf("the proxy listens on %s:%d itself and would connect to itself: "+
						"nothing listens on the port", d.Bind, d.Port),
					"write a bind and a defaultEndpoint that differ")
				continue
			}
		}
		ports = append(ports, d)
	}
	return ports, problems
}

const (
	loopback   = "127.0.0.1"
	anyAddress = "0.0.0.0"
)

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// ownEndpoint returns the address of the application for a Sidecar's defaultEndpoint: an
// unspecified address stands for the host's first address, a missing one for the loopback.
func ownEndpoint(text string, node model.Node) string {
	host, port, err := net.SplitHostPort(text)
	if text == "" || strings.HasPrefix(text, "unix://") || err != nil {
		return text
	}
	switch host {
	case "":
		host = loopback
	case anyAddress, "::":
		if host = first(node.Addresses); host == "" {
			host = loopback
		}
	}
	return net.JoinHostPort(host, port)
}

// loops reports whether connections to an endpoint would return to the listener that forwards them.
func loops(bind, endpoint string, port uint32) bool {
	host, number, err := net.SplitHostPort(endpoint)
	return err == nil && number == fmt.Sprint(port) && (host == bind || bind == anyAddress ||
		bind == "::")
}

// make publishes the inbound listeners and clusters of a sidecar.
func (in inbound) make(v *ProxyView, scope *model.SidecarScope) {
	const unit = "inbound"
	clear(in.own)
	v.closed = map[resource.Key]bool{}
	var resources []*resource.Resource
	// As in Istio, without interception the application itself listens on its ports.
	if !v.node.IsIntercepted() && len(scope.Spec.GetIngress()) == 0 {
		v.put(unit)
		v.report(unit, v.guards.withoutInbound())
		v.secrets.need(unit, nil)
		return
	}
	ports, problems := in.ports(v, scope)
	peers := v.world.EffectivePeerAuthentication(v.node)
	problems = append(problems, shadowedPeers(peers)...)
	metrics := v.metrics(model.ServerMode)
	var captured []translate.InboundListener
	var origins []resource.Origin
	wanted := map[translate.ConfiguredSecret][]resource.Origin{}
	publish := func(d inboundPort, r *resource.Resource, err error) bool {
		if err != nil {
			problems = append(problems,
				d.object.NewProblem(object.Finding{Field: d.field, Severity: condition.Error,
					Message: "Envoy would refuse the result: " + err.Error(),
					Fix:     "correct the value it names"}))
			return false
		}
		resources = append(resources, r)
		return true
	}
	for _, d := range ports {
		if problem := d.reserved(v); problem != nil {
			problems = append(problems, *problem)
			continue
		}
		origin := d.object.Origin()
		mode, found := d.authenticate(peers, v.node)
		d.SecurityFilters, d.Metrics, d.Service = v.guards.SecurityFilters, metrics, d.host
		d.Telemetry = v.telemetry.server
		problems = append(problems, found...)
		if d.RefusesAllConnections() && d.Bind != "" {
			v.closed[resource.Key{Type: resource.ListenerType,
				Name: translate.ListenerName(d.Bind, d.Port)}] = true
			continue // the port has no listener
		}
		r, err := d.Cluster(v.world.MeshConfig(), v.node, origin)
		if err == nil {
			err = d.CheckListener(v.world.MeshConfig())
		}
		if !publish(d, r, err) {
			continue
		}
		if d.TLS != nil {
			for _, secret := range translate.ServerSecrets(d.TLS, v.world.MeshConfig()) {
				wanted[secret] = append(wanted[secret], origin)
			}
		}
		if d.Bind == "" {
			captured = append(captured, d.InboundListener)
			origins = append(origins, origin)
			continue
		}
		r, err = d.Listener(v.world.MeshConfig(), slices.Concat([]resource.Origin{origin},
			mode.Origins(),
			d.SecurityFilters.AllOrigins())...)
		if publish(d, r, err) {
			in.own[d.Port] = d
		}
	}
	if v.node.IsIntercepted() {
		r, err := translate.VirtualInbound(v.world.MeshConfig(), v.node, captured, peers,
			v.guards.SecurityFilters, metrics, &v.telemetry.server,
			slices.Concat(origins, peers.Origins(), v.guards.AllOrigins())...)
		if err == nil {
			resources = append(resources, r)
		} else {
			problems = append(problems, object.Problem{Severity: condition.Error,
				Message: "cannot build the listener of captured connections: " + err.Error()})
		}
	}
	v.secrets.need(unit, wanted)
	v.put(unit, resources...)
	v.report(unit, dedupe(problems))
}
