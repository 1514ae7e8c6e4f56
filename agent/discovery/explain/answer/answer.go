// Package answer defines the types of an explanation of how Envoy handles a request. Package
// explain, the agent's private socket and the command line share them.
package answer

import (
	"net/netip"

	"outrider.org/outrider/agent/resource"
)

// Request is the request to be explained. The agent's private socket uses its JSON form.
type Request struct {
	Method string `json:"method,omitempty"` // method; "": GET
	Host   string `json:"host"`             // host as in a URL, without a port
	Port   uint32 `json:"port"`             // destination port of the connection
	Path   string `json:"path,omitempty"`   // path with the query; "": /
	// Headers are the request's headers, except those that other fields define.
	Headers []Header `json:"headers,omitempty"`
	TLS     bool     `json:"tls,omitempty"` // the client uses TLS, with Host as server name (SNI)
	// DestinationAddress is the destination address of the connection; zero if unknown.
	DestinationAddress netip.Addr `json:"address,omitzero"`
	// Source is the client's address; zero if unknown.
	Source netip.Addr `json:"source,omitzero"`
	// ClientSPIFFEID is the SPIFFE ID in the client's certificate; "": the client presents none. If
	// it is set, the client uses TLS, whatever TLS is.
	ClientSPIFFEID string `json:"identity,omitempty"`
	// ServerName is the server name (SNI) that a client with TLS sends; "": Host.
	ServerName string `json:"serverName,omitempty"`
	// Authority is the value of :authority. "": the header host, or else Host, with the port unless
	// that is the scheme's default.
	Authority string `json:"-"`
}

// Inbound reports whether the request comes from another host. It does if it has a source address
// or an identity.
func (r Request) Inbound() bool { return r.Source.IsValid() || r.ClientSPIFFEID != "" }

// Header is one header of a request. Its name is case-insensitive.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Outcome is what Envoy does with a request.
type Outcome string

// Possible outcomes of a request.
const (
	OutcomeForwarded         Outcome = "forwarded" // the request is sent to one of the clusters
	OutcomeRedirect          Outcome = "redirect"
	OutcomeLocalReply        Outcome = "answered" // the proxy itself sends the response
	OutcomeConnectionRefused Outcome = "refused"  // no listener accepts the connection
	OutcomeConnectionClosed  Outcome = "closed"   // the connection is accepted and then closed
)

// Answer describes what happens to a request, and why. The agent's private socket uses its JSON
// form.
type Answer struct {
	Outcome Outcome `json:"outcome"`
	// Status is the status of a response by the proxy itself; 0 if the backend determines it.
	Status   int    `json:"status,omitempty"`
	Location string `json:"location,omitempty"` // target URL of a redirect
	Body     string `json:"body,omitempty"`     // body of a direct response
	// Clusters are the clusters that may receive the request, in the order of the configuration.
	Clusters []WeightedCluster `json:"clusters,omitempty"`
	Mirrors  []WeightedCluster `json:"mirrors,omitempty"` // clusters that get a copy of the request
	// Steps are the decisions about the request, in the order in which Envoy makes them.
	Steps  []Step `json:"steps"`
	Reason string `json:"reason,omitempty"` // why the request fails; "" if it does not fail
	Fix    string `json:"cure,omitempty"`
	// UnknownFacts lists facts on which the answer depends and that the request does not state.
	UnknownFacts []string `json:"unknown,omitempty"`
}

// WeightedCluster is a cluster that gets requests, with its share.
type WeightedCluster struct {
	Cluster string  `json:"cluster"`
	Percent float64 `json:"percent"`
}

// Step is one decision in the handling of a request.
type Step struct {
	// Kind is the kind of decision: process, listener, filter chain, listener filter, network
	// filter, telemetry, filter, token, policy, routes, virtual host, route, fault, CORS, action,
	// cluster or endpoints.
	Kind  string   `json:"what"`
	Name  string   `json:"name,omitempty"`  // name of the resource or of a part of it
	Facts []string `json:"facts,omitempty"` // sentences for people
	// Origins are the source objects of the decision, the most important one first.
	Origins []resource.Origin `json:"origins,omitempty"`
}
