package patch

import (
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// Names of the listeners for captured connections. They have filter chains for many ports, so a
// patch's port is compared with that of each filter chain.
const (
	virtualInbound  = "virtualInbound"
	virtualOutbound = "virtualOutbound"
)

// listener patches a listener and its filter chains. It returns false if a patch removes the
// listener.
func (a *application) listener(l *listenerv3.Listener) bool {
	meets := func(p *patch) bool { return meetsListener(p, l) }
	if !a.apply(a.of(networking.EnvoyFilter_LISTENER), meets,
		func(p *patch) { a.mergeInto(p, l) }) {
		return false
	}
	a.listenerFilters(l)
	a.filterChains(l)
	return true
}

func meetsListener(p *patch, l *listenerv3.Listener) bool {
	match := listenerMatch(p)
	switch {
	case match == nil:
		return true
	case match.Name != "" && match.Name != l.Name:
		return false
	case p.applyTo != networking.EnvoyFilter_LISTENER && isVirtual(l):
		// The listener has chains for many ports: meetsChain compares the port of each.
		return true
	}
	return match.PortNumber == 0 ||
		l.GetAddress().GetSocketAddress().GetPortValue() == match.PortNumber
}

func isVirtual(l *listenerv3.Listener) bool {
	return l.Name == virtualInbound || l.Name == virtualOutbound
}

func (a *application) listenerFilters(l *listenerv3.Listener) {
	for _, p := range a.of(networking.EnvoyFilter_LISTENER_FILTER) {
		if !meetsListener(p, l) {
			continue
		}
		wanted := listenerMatch(p).GetListenerFilter()
		meets := func(f *listenerv3.ListenerFilter) bool { return f.Name == wanted }
		if _, ok := p.merges(); ok {
			for _, f := range l.ListenerFilters {
				if meets(f) {
					name, config := a.mergeConfig(p, f, p.value.(*listenerv3.ListenerFilter))
					f.Name, f.ConfigType = name, &listenerv3.ListenerFilter_TypedConfig{
						TypedConfig: config}
				}
			}
			continue
		}
		var done bool
		if l.ListenerFilters, done = insertByPosition(p, l.ListenerFilters, wanted != "", meets); done {
			a.use(p)
		}
	}
}

func (a *application) filterChains(l *listenerv3.Listener) {
	l.FilterChains = slices.DeleteFunc(l.FilterChains, func(c *listenerv3.FilterChain) bool {
		return !a.filterChain(l, c)
	})
	if l.DefaultFilterChain != nil && !a.filterChain(l, l.DefaultFilterChain) {
		l.DefaultFilterChain = nil
	}
	for _, p := range a.of(networking.EnvoyFilter_FILTER_CHAIN) {
		if p.operation == networking.EnvoyFilter_Patch_ADD && meetsListener(p, l) {
			l.FilterChains = append(l.FilterChains, proto.Clone(p.value).(*listenerv3.FilterChain))
			a.use(p)
		}
	}
}

// filterChain patches a filter chain and its filters. It returns false if a patch removes the
// filter chain.
func (a *application) filterChain(l *listenerv3.Listener, c *listenerv3.FilterChain) bool {
	meets := func(p *patch) bool { return meetsListener(p, l) && meetsChain(p, l, c) }
	if !a.apply(a.of(networking.EnvoyFilter_FILTER_CHAIN), meets, func(p *patch) {
		if replace, ok := p.merges(); ok {
			value := proto.Clone(p.value).(*listenerv3.FilterChain)
			c.TransportSocket, value.TransportSocket = a.transportSocket(p, c.TransportSocket,
				value.TransportSocket), nil
			merge(c.ProtoReflect(), value.ProtoReflect(), replace)
			a.use(p)
		}
	}) {
		return false
	}
	a.networkFilters(l, c)
	return true
}

// transportSocket merges a patch into a transport socket of the same name, and replaces a socket
// whose name differs.
func (a *application) transportSocket(p *patch, socket,
	by *corev3.TransportSocket) *corev3.TransportSocket {
	switch {
	case by == nil:
		return socket
	case socket.GetTypedConfig() == nil || by.GetTypedConfig() == nil || socket.Name != by.Name:
		return by
	}
	name, config := a.mergeConfig(p, socket, by)
	return &corev3.TransportSocket{Name: name, ConfigType: &corev3.TransportSocket_TypedConfig{
		TypedConfig: config}}
}

func meetsChain(p *patch, l *listenerv3.Listener, c *listenerv3.FilterChain) bool {
	port := listenerMatch(p).GetPortNumber()
	if isVirtual(l) && port != 0 &&
		c.GetFilterChainMatch().GetDestinationPort().GetValue() != port {
		return false
	}
	match, has := listenerMatch(p).GetFilterChain(), c.GetFilterChainMatch()
	switch {
	case match == nil:
		return true
	case match.Name != "" && match.Name != c.Name,
		match.Sni != "" && !slices.Contains(has.GetServerNames(), match.Sni),
		match.TransportProtocol != "" && match.TransportProtocol != has.GetTransportProtocol(),
		match.DestinationPort != 0 && match.DestinationPort != has.GetDestinationPort().GetValue():
		return false
	case match.ApplicationProtocols != "":
		for protocol := range strings.SplitSeq(match.ApplicationProtocols, ",") {
			if !slices.Contains(has.GetApplicationProtocols(), strings.TrimSpace(protocol)) {
				return false
			}
		}
	}
	return true
}
