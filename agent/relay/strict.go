package relay

import (
	"maps"
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	from "outrider.org/outrider/agent/resource"
)

// virtualInbound is the name of istiod's listener for captured inbound connections.
const virtualInbound = "virtualInbound"

// strictPorts records on which ports an accepted virtualInbound listener demands mutual TLS.
type strictPorts struct {
	// for each port with filter chains of its own: all of them demand a client certificate
	ports map[uint16]bool
	// all filter chains for other ports demand a client certificate
	rest bool
}

// StrictMTLSPorts returns a function that reports for a port: whether all inbound filter chains
// that an Envoy accepted last demand a client certificate (strict), and whether the port has filter
// chains of its own (ownPort). policy is always zero, because the upstream server does not send the
// policy. StrictMTLSPorts returns nil if no port demands client certificates.
func (s *Server) StrictMTLSPorts() func(port uint16) (policy from.Origin, strict, ownPort bool) {
	p := s.strict.Load()
	if p == nil || !p.rest && !slices.Contains(slices.Collect(maps.Values(p.ports)), true) {
		return nil
	}
	return func(port uint16) (by from.Origin, strict, own bool) {
		if strict, own = p.ports[port]; !own {
			strict = p.rest
		}
		return by, strict, own
	}
}

// updateStrict records which ports demand client certificates in the listeners that an Envoy
// accepted.
func (s *session) updateStrict(w *watch) {
	if w.typeURL != from.ListenerType || !w.all || s.share != s.server.envoys {
		return
	}
	held, known := w.held[virtualInbound]
	if known && held.body == nil {
		return // Envoy accepted the listener on an earlier stream, so its content is unknown
	}
	s.server.strict.Store(strictOf(held.body))
	if s.server.options.OnListeners != nil {
		s.server.options.OnListeners()
	}
}

// strictOf decodes a virtualInbound listener from an encoded Any. The result for an invalid or
// missing listener is that no port demands client certificates.
func strictOf(body []byte) *strictPorts {
	p := &strictPorts{ports: map[uint16]bool{}}
	var wrapped anypb.Any
	var listener listenerv3.Listener
	if proto.Unmarshal(body, &wrapped) != nil || proto.Unmarshal(wrapped.Value, &listener) != nil {
		return p
	}
	rest := 0
	p.rest = true
	for _, chain := range listener.FilterChains {
		demands := demandsCertificate(chain)
		port := chain.GetFilterChainMatch().GetDestinationPort()
		if port == nil {
			rest++
			p.rest = p.rest && demands
			continue
		}
		before, known := p.ports[uint16(port.Value)]
		p.ports[uint16(port.Value)] = demands && (before || !known)
	}
	p.rest = p.rest && rest > 0
	return p
}

// demandsCertificate reports whether a filter chain terminates TLS and demands a client
// certificate.
func demandsCertificate(chain *listenerv3.FilterChain) bool {
	var tls tlsv3.DownstreamTlsContext
	config := chain.GetTransportSocket().GetTypedConfig()
	return config.MessageIs(&tls) && proto.Unmarshal(config.Value, &tls) == nil &&
		tls.GetRequireClientCertificate().GetValue()
}
