package api

import (
	"context"
	"net/http"

	"outrider.org/outrider/agent/resource"
)

// Mesher tells of the embedded discovery server.
type Mesher interface {
	MeshProblems(ctx context.Context) ([]MeshProblem, error)
	// MeshExplain says what the live epoch would do with a request; it sends none.
	MeshExplain(ctx context.Context, request MeshRequest) (MeshExplanation, error)
	// MeshOrigins are the objects that each resource of the live epoch came from.
	MeshOrigins(ctx context.Context) ([]MeshOrigin, error)
}

// MeshProblem is what is wrong in the embedded discovery server's files.
type MeshProblem struct {
	File     string `json:"file"`
	Line     int    `json:"line,omitempty"`
	Object   string `json:"object,omitempty"` // Kind namespace/name
	Field    string `json:"field,omitempty"`
	Severity string `json:"severity"` // error, warning, info
	Message  string `json:"message"`
}

// MeshRequest is a request that is asked about.
type MeshRequest struct {
	Method  string       `json:"method,omitempty"` // "" is GET
	Host    string       `json:"host"`             // without a port
	Port    uint32       `json:"port"`
	Path    string       `json:"path,omitempty"` // with the query; "" is /
	Headers []MeshHeader `json:"headers,omitempty"`
	TLS     bool         `json:"tls,omitempty"`
	Address string       `json:"address,omitempty"` // IP that is connected to; "": not known
}

// MeshHeader is a header of a request.
type MeshHeader struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// MeshExplanation is what becomes of a request, and why.
type MeshExplanation struct {
	Outcome  string        `json:"outcome"`            // forwarded, redirect, answered, refused, closed
	Status   int           `json:"status,omitempty"`   // of an answer of the proxy's own
	Location string        `json:"location,omitempty"` // of a redirect
	Body     string        `json:"body,omitempty"`     // of a direct response
	Clusters []MeshTarget  `json:"clusters,omitempty"`
	Mirrors  []MeshTarget  `json:"mirrors,omitempty"`
	Steps    []MeshStep    `json:"steps"`
	Reason   string        `json:"reason,omitempty"`  // why nothing takes it
	Cure     string        `json:"cure,omitempty"`    //
	Unknown  []string      `json:"unknown,omitempty"` // what the request alone does not tell
	Problems []MeshProblem `json:"problems,omitempty"`
}

// MeshTarget is a cluster and its part of the requests.
type MeshTarget struct {
	Cluster string  `json:"cluster"`
	Percent float64 `json:"percent"`
}

// MeshStep is one decision.
type MeshStep struct {
	What    string            `json:"what"` // listener, filter chain, routes, virtual host, route, fault, CORS, action, cluster, endpoints
	Name    string            `json:"name,omitempty"`
	Facts   []string          `json:"facts,omitempty"`
	Origins []resource.Origin `json:"origins,omitempty"` // the deciding one first
}

// MeshOrigin is what a resource came from.
type MeshOrigin struct {
	Type        string            `json:"type"` // type URL
	Name        string            `json:"name"`
	VirtualHost string            `json:"virtual_host,omitempty"` // of a route configuration, that this is about; "": all of it
	Origins     []resource.Origin `json:"origins"`                // the deciding one first
}

// MeshExplain asks what becomes of a request.
func (c *Client) MeshExplain(ctx context.Context, request MeshRequest) (MeshExplanation, error) {
	return call[MeshExplanation](ctx, c, http.MethodPost, "/mesh/explain", request)
}

// MeshOrigins asks where resources come from.
func (c *Client) MeshOrigins(ctx context.Context) ([]MeshOrigin, error) {
	return get[[]MeshOrigin](ctx, c, "/mesh/origins")
}

// explain reads only, but what is asked about does not fit into a URL.
func (s *Server) explain(w http.ResponseWriter, r *http.Request) {
	var request MeshRequest
	if err := decode(w, r, &request); err != nil {
		fail(w, err)
		return
	}
	answer, err := s.options.Backend.MeshExplain(r.Context(), request)
	if err != nil {
		fail(w, err)
		return
	}
	send(w, http.StatusOK, answer)
}
