package model

import (
	"fmt"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// HTTPProxy is a listener of a sidecar for requests to all HTTP ports of the hosts in a scope.
type HTTPProxy struct {
	Port   uint32
	Routes string        // Istio's name of the route configuration
	Scope  *SidecarScope // scope of the hosts; its only egress listener is for all ports
	OfMesh bool          // MeshConfig or the node's metadata defines the proxy, not a Sidecar
	Index  int           // index in the Sidecar's egress list
}

// httpProxyPortKey is the metadata key of a node whose value overrides MeshConfig's proxyHttpPort.
const httpProxyPortKey = "HTTP_PROXY_PORT"

// IsHTTPProxy reports whether an egress listener is an HTTP proxy.
func IsHTTPProxy(l *networking.IstioEgressListener) bool {
	return strings.EqualFold(l.GetPort().GetProtocol(), "HTTP_PROXY")
}

// HTTPProxyPort returns the port of the HTTP proxy that every sidecar has; 0: there is none.
func (w *Mesh) HTTPProxyPort(node Node) uint32 {
	if port, err := strconv.ParseUint(node.Metadata[httpProxyPortKey], 10, 16); err == nil {
		return uint32(port)
	}
	return w.mesh.HTTPProxyPort
}

// HTTPProxies returns the HTTP proxies of a sidecar: one at HTTPProxyPort, if that is set, for the
// hosts that the egress listener without a port imports, and one for each egress listener of the
// Sidecar object that is an HTTP proxy.
func (s *SidecarScope) HTTPProxies(w *Mesh, node Node) []HTTPProxy {
	var all []HTTPProxy
	add := func(p HTTPProxy, from *EgressListener, spec *networking.IstioEgressListener) {
		e := *from
		e.Spec = spec
		p.Scope = &SidecarScope{Object: s.Object, Spec: s.Spec, egress: []*EgressListener{&e}}
		all = append(all, p)
	}
	if port := w.HTTPProxyPort(node); port != 0 {
		from := &EgressListener{reader: node.Namespace} // imports nothing
		if last := s.egress[len(s.egress)-1]; last.Spec.GetPort() == nil {
			from = last
		}
		add(HTTPProxy{Port: port, Routes: "http_proxy", OfMesh: true}, from,
			&networking.IstioEgressListener{CaptureMode: networking.CaptureMode_NONE})
	}
	for _, e := range s.egress {
		if IsHTTPProxy(e.Spec) {
			port := e.Spec.Port.Number
			add(HTTPProxy{Port: port, Routes: fmt.Sprint(port), Index: e.Index}, e,
				&networking.IstioEgressListener{Bind: e.Spec.Bind, CaptureMode: e.Spec.CaptureMode})
		}
	}
	return all
}
