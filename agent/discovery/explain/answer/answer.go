// Package answer has the types that explain how Envoy handles a request. Package explain, the
// agent's private socket and the command line share them.
package answer

import (
	"net/netip"

	"outrider.org/outrider/agent/resource"
)

// Request is the request to explain. Its JSON is that of the agent's private socket.
type Request struct {
	Method string `json:"method,omitempty"` // "" is GET
	Host   string `json:"host"`             // as in a URL, without a port
	Port   uint32 `json:"port"`             // destination port of the connection
	Path   string `json:"path,omitempty"`   // with the query; "" is /
	// Headers are those that other fields do not determine.
	Headers []Header `json:"headers,omitempty"`
	TLS     bool     `json:"tls,omitempty"` // the client speaks TLS, with Host as server name (SNI)
	// Address is the destination address of the connection; the zero value if unknown.
	Address netip.Addr `json:"address,omitzero"`
	// Source is the client's address; the zero value if unknown.
	Source netip.Addr `json:"source,omitzero"`
	// Identity is the SPIFFE ID in the client's certificate, as a workload of the mesh presents it.
	// It requires TLS. "": the client has no certificate.
	Identity string `json:"identity,omitempty"`
	// ServerName is the server name (SNI) of a client with TLS; "": Host.
	ServerName string `json:"serverName,omitempty"`
	// Literal is the value of :authority. "": the header host, or else the host, with its port
	// unless that is the scheme's default.
	Literal string `json:"-"`
}

// Inbound reports whether the request names its client: it then comes from elsewhere to this host.
func (r Request) Inbound() bool { return r.Source.IsValid() || r.Identity != "" }

// Header is one header. Its name is case-insensitive.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Outcome is the result of a request.
type Outcome string

// Outcomes of a request.
const (
	Forwarded Outcome = "forwarded" // sent to one of the clusters
	Redirect  Outcome = "redirect"
	Answered  Outcome = "answered" // by the proxy itself
	Refused   Outcome = "refused"  // nothing listens: the connection is refused
	Closed    Outcome = "closed"   // the connection is accepted and closed
)

// Answer is the result of a request and its explanation. Its JSON is that of the private socket.
type Answer struct {
	Outcome Outcome `json:"outcome"`
	// Status is that of the proxy's own response; 0 if the backend determines it.
	Status   int    `json:"status,omitempty"`
	Location string `json:"location,omitempty"` // of a redirect
	Body     string `json:"body,omitempty"`     // of a direct response
	// Clusters may get the request, in the order of the configuration.
	Clusters []Target `json:"clusters,omitempty"`
	Mirrors  []Target `json:"mirrors,omitempty"` // that get a copy
	Steps    []Step   `json:"steps"`             // the decisions, in order
	Reason   string   `json:"reason,omitempty"`  // why the request fails; "" if it does not
	Fix      string   `json:"cure,omitempty"`
	// Unknown lists facts that the answer depends on and that the request does not determine.
	Unknown []string `json:"unknown,omitempty"`
}

// Target is a cluster and its share of the requests.
type Target struct {
	Cluster string  `json:"cluster"`
	Percent float64 `json:"percent"`
}

// Step is one decision.
type Step struct {
	// What is listener, filter chain, listener filter, network filter, filter, token, policy, routes,
	// virtual host, route, fault, CORS, action, cluster or endpoints.
	What    string            `json:"what"`
	Name    string            `json:"name,omitempty"`    // of the resource or the part of it
	Facts   []string          `json:"facts,omitempty"`   // human-readable
	Origins []resource.Origin `json:"origins,omitempty"` // the deciding one first
}
