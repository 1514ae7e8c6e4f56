package api

import (
	"context"
	"net/http"

	"outrider.org/outrider/agent/resource"
)

// Mesher queries the embedded discovery server.
type Mesher interface {
	MeshProblems(ctx context.Context) ([]MeshProblem, error)
	// MeshExplain predicts how the live epoch would handle a request, without sending it.
	MeshExplain(ctx context.Context, request MeshRequest) (MeshExplanation, error)
	// MeshOrigins returns the source objects of each resource of the live epoch.
	MeshOrigins(ctx context.Context) ([]MeshOrigin, error)
}

// MeshProblem is a problem in the files of the embedded discovery server.
type MeshProblem struct {
	File     string `json:"file"`
	Line     int    `json:"line,omitempty"`
	Object   string `json:"object,omitempty"` // Kind namespace/name
	Field    string `json:"field,omitempty"`
	Severity string `json:"severity"` // error, warning, info
	Message  string `json:"message"`
}

// MeshRequest describes an HTTP request to explain.
type MeshRequest struct {
	Method  string       `json:"method,omitempty"` // "" = GET
	Host    string       `json:"host"`             // without a port
	Port    uint32       `json:"port"`
	Path    string       `json:"path,omitempty"` // with the query; "" = /
	Headers []MeshHeader `json:"headers,omitempty"`
	TLS     bool         `json:"tls,omitempty"`
	Address string       `json:"address,omitempty"` // destination IP; "" = unknown
}

// MeshHeader is a request header.
type MeshHeader struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// MeshExplanation describes how Envoy would handle a request, and why.
type MeshExplanation struct {
	// Outcome is forwarded, redirect, answered, refused or closed.
	Outcome  string       `json:"outcome"`
	Status   int          `json:"status,omitempty"`   // of a response that the proxy generates
	Location string       `json:"location,omitempty"` // of a redirect
	Body     string       `json:"body,omitempty"`     // of a direct response
	Clusters []MeshTarget `json:"clusters,omitempty"`
	Mirrors  []MeshTarget `json:"mirrors,omitempty"`
	Steps    []MeshStep   `json:"steps"`
	Reason   string       `json:"reason,omitempty"` // why no route matches
	Cure     string       `json:"cure,omitempty"`
	// Unknown lists properties that the request does not determine.
	Unknown  []string      `json:"unknown,omitempty"`
	Problems []MeshProblem `json:"problems,omitempty"`
}

// MeshTarget is a cluster and its share of the requests.
type MeshTarget struct {
	Cluster string  `json:"cluster"`
	Percent float64 `json:"percent"`
}

// MeshStep is one routing decision.
type MeshStep struct {
	// What is listener, filter chain, routes, virtual host, route, fault, CORS, action, cluster or
	// endpoints.
	What    string            `json:"what"`
	Name    string            `json:"name,omitempty"`
	Facts   []string          `json:"facts,omitempty"`
	Origins []resource.Origin `json:"origins,omitempty"` // the deciding one first
}

// MeshOrigin lists the source objects of a resource.
type MeshOrigin struct {
	Type string `json:"type"` // type URL
	Name string `json:"name"`
	// VirtualHost limits the origins to one virtual host of a route configuration; "" = all.
	VirtualHost string            `json:"virtual_host,omitempty"`
	Origins     []resource.Origin `json:"origins"` // the deciding one first
}

// MeshExplain predicts how the live epoch would handle a request.
func (c *Client) MeshExplain(ctx context.Context, request MeshRequest) (MeshExplanation, error) {
	return call[MeshExplanation](ctx, c, http.MethodPost, "/mesh/explain", request)
}

// MeshOrigins returns the source objects of resources.
func (c *Client) MeshOrigins(ctx context.Context) ([]MeshOrigin, error) {
	return get[[]MeshOrigin](ctx, c, "/mesh/origins")
}
