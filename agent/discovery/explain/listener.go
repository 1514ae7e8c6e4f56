package explain

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"outrider.org/outrider/agent/resource"
)

// listener is a decoded TCP listener that has an IP address.
type listener struct {
	*listenerv3.Listener
	resource *resource.Resource
	address  netip.Addr
	port     uint32
}

// connect determines the listener that accepts the connection.
func (e *explanation) connect() {
	listeners, err := e.listeners()
	if err != nil {
		e.end(OutcomeConnectionRefused, 0, err.Error(), "")
		return
	}
	var d *listener
	switch {
	case e.proxy.Captured:
		d = e.captured(listeners)
	default:
		d = e.bound(listeners)
	}
	if d != nil {
		e.listen(d)
	}
}

func (e *explanation) listen(d *listener) {
	facts := []string{fmt.Sprintf("listens on %s", netip.AddrPortFrom(d.address, uint16(d.port)))}
	if d.BindToPort != nil && !d.BindToPort.Value {
		facts = []string{fmt.Sprintf("takes captured connections to %s",
			netip.AddrPortFrom(d.address, uint16(d.port)))}
	}
	e.step("listener", d.Name, d.resource.Origins,
		append(facts, e.refusal(resource.Key{Type: d.resource.Type, Name: d.resource.Name})...)...)
	for _, f := range d.ListenerFilters {
		if !disabled(f.FilterDisabled, e.request.Port) {
			e.patched("listener filter", f.Name, d)
		}
	}
	e.chain(d)
}

// patched adds a step to the explanation for a filter, if an EnvoyFilter added or changed the
// filter, or if there are facts about the filter.
func (e *explanation) patched(what, name string, d *listener, facts ...string) {
	var origins []resource.Origin
	if e.proxy.FilterOrigins != nil {
		origins = e.proxy.FilterOrigins(d.Name, name)
	}
	if len(origins)+len(facts) > 0 {
		e.step(what, name, origins, facts...)
	}
}

// listeners returns all TCP listeners with an IP address, sorted by name.
func (e *explanation) listeners() ([]*listener, error) {
	set := e.proxy.Resources.ByType(resource.ListenerType)
	var listeners []*listener
	for _, name := range slices.Sorted(maps.Keys(set)) {
		l, err := decode(set[name], &listenerv3.Listener{})
		if err != nil {
			return nil, err
		}
		socket := l.GetAddress().GetSocketAddress()
		address, err := netip.ParseAddr(socket.GetAddress())
		if err != nil || socket.Protocol == corev3.SocketAddress_UDP {
			continue // listens on a Unix socket, internally, or for HTTP/3
		}
		listeners = append(listeners, &listener{Listener: l, resource: set[name], address: address,
			port: socket.GetPortValue()})
	}
	return listeners, nil
}

// bound returns the listener that is bound to the request's port. If the request states no address,
// bound prefers outbound listeners, which applications use, or, if the request states its client,
// inbound listeners.
func (e *explanation) bound(listeners []*listener) *listener {
	var matching, elsewhere []*listener
	for _, d := range listeners {
		switch {
		case d.BindToPort != nil && !d.BindToPort.Value || d.port != e.request.Port:
		case e.request.DestinationAddress.IsValid() && d.address != e.request.DestinationAddress &&
			!d.address.IsUnspecified():
			elsewhere = append(elsewhere, d)
		default:
			matching = append(matching, d)
		}
	}
	// A specific address has precedence over the wildcard address.
	slices.SortStableFunc(matching, func(a, b *listener) int { return e.rank(a) - e.rank(b) })
	if len(matching) > 1 {
		e.unknown("%d listeners have port %d: this is about the one on %s", len(matching),
			e.request.Port, matching[0].address)
	}
	if len(matching) > 0 {
		return matching[0]
	}
	if len(elsewhere) > 0 {
		e.end(OutcomeConnectionRefused, 0,
			fmt.Sprintf("nothing listens on %s port %d: the listener of that port is on %s",
				e.request.DestinationAddress, e.request.Port, elsewhere[0].address),
			fmt.Sprintf("connect to %s", elsewhere[0].address))
		return nil
	}
	reason := fmt.Sprintf("nothing listens on port %d%s", e.request.Port, listening(listeners))
	fix := fmt.Sprintf(
		"add port %d to a ServiceEntry for %s (without interception applications connect to 127.0.0.1)",
		e.request.Port, e.request.Host)
	if e.proxy.NonSelectingGateway != "" {
		reason, fix = reason+"; "+e.proxy.NonSelectingGateway, e.proxy.NonSelectingGatewayFix
	} else if e.proxy.IsGateway {
		fix = fmt.Sprintf("add a server with port %d to a Gateway that selects this proxy",
			e.request.Port)
	}
	e.end(OutcomeConnectionRefused, 0, reason, fix)
	return nil
}

// mostListening bounds the number of addresses that are listed if a connection is refused.
const mostListening = 10

// listening lists the addresses on which Envoy listens.
func listening(listeners []*listener) string {
	var all []string
	for _, d := range listeners {
		if d.BindToPort == nil || d.BindToPort.Value {
			all = append(all, netip.AddrPortFrom(d.address, uint16(d.port)).String())
		}
	}
	if len(all) == 0 {
		return ", and on no other"
	}
	if more := len(all) - mostListening; more > 0 {
		all = append(all[:mostListening], fmt.Sprintf("%d more", more))
	}
	return "; listeners: " + list(all)
}

// rank returns the preference of a listener among those on the same port. The lowest rank wins.
func (e *explanation) rank(d *listener) int {
	rank := 0
	if d.address.IsUnspecified() {
		rank = 2
	} else if !d.address.IsLoopback() && !e.request.DestinationAddress.IsValid() {
		rank = 1
	}
	inbound := d.TrafficDirection == corev3.TrafficDirection_INBOUND
	if inbound != e.request.Inbound() && !e.request.DestinationAddress.IsValid() {
		rank += 4
	}
	return rank
}

// captured returns the listener that handles a captured connection: virtualInbound for inbound
// connections, else the listener of the address and port, else that of the port, else the one that
// receives all captured connections (use_original_dst).
func (e *explanation) captured(listeners []*listener) *listener {
	for _, d := range listeners {
		if (d.BindToPort == nil || d.BindToPort.Value) && !d.UseOriginalDst.GetValue() &&
			e.request.DestinationAddress.IsValid() && d.address == e.request.DestinationAddress &&
			d.port == e.request.Port {
			return d // the connection is to the listener itself, and not captured
		}
	}
	destination := e.request.DestinationAddress
	inbound := destination.IsValid() && slices.Contains(e.proxy.OwnAddresses, destination) ||
		!destination.IsValid() && e.request.Inbound()
	var arrival, byPort, exact *listener
	for _, d := range listeners {
		switch out := d.TrafficDirection != corev3.TrafficDirection_INBOUND; {
		case inbound && !out && d.Name == "virtualInbound":
			return d
		case inbound || !out:
		case d.UseOriginalDst.GetValue():
			arrival = d
		case d.port != e.request.Port:
		case d.address.IsUnspecified():
			byPort = d
		case d.address == e.request.DestinationAddress:
			exact = d
		}
	}
	if !e.request.DestinationAddress.IsValid() {
		e.unknown("which address is connected to: this is about one that no service has for itself")
	}
	for _, d := range []*listener{exact, byPort, arrival} {
		if d != nil {
			return d
		}
	}
	e.end(OutcomeConnectionRefused, 0, "no listener takes captured connections", "look at outrider proxy status")
	return nil
}
