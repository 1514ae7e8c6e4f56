package api

import (
	"context"
	"net/http"

	"outrider.org/outrider/agent/discovery/explain/answer"
	"outrider.org/outrider/agent/resource"
)

// MeshProblem is a problem in the files of the embedded discovery server.
type MeshProblem struct {
	File     string `json:"file"`
	Line     int    `json:"line,omitempty"`
	Object   string `json:"object,omitempty"` // Kind namespace/name
	Field    string `json:"field,omitempty"`
	Severity string `json:"severity"` // error, warning, info
	Message  string `json:"message"`
}

type (
	// MeshExplainRequest is the HTTP request or connection to explain.
	MeshExplainRequest = answer.Request
	// MeshExplainRequestHeader is a header of a MeshExplainRequest.
	MeshExplainRequestHeader = answer.Header
	// MeshExplainAnswer is Envoy's predicted handling of a MeshExplainRequest.
	MeshExplainAnswer = answer.Answer
	// MeshWeightedCluster is a possible destination of a MeshExplainRequest, with its weight.
	MeshWeightedCluster = answer.WeightedCluster
	// MeshExplainStep is one decision of Envoy about a MeshExplainRequest.
	MeshExplainStep = answer.Step
)

// MeshExplanation describes how Envoy would handle a request, and why.
type MeshExplanation struct {
	MeshExplainAnswer
	Problems []MeshProblem `json:"problems,omitempty"`
}

// MeshResourceOrigins lists the source objects of a resource.
type MeshResourceOrigins struct {
	Type string `json:"type"` // type URL
	Name string `json:"name"`
	// VirtualHost limits the origins to one virtual host of a route configuration; "" = all.
	VirtualHost string            `json:"virtual_host,omitempty"`
	Origins     []resource.Origin `json:"origins"` // the main one first
	// RouteOrigins are the source objects of the virtual host's routes, in order, before
	// EnvoyFilters add or remove routes; nil: all are from Origins.
	RouteOrigins []resource.Origin `json:"routes,omitempty"`
}

// MaxMeshFilesBytes is the largest size of all files of MeshFiles, in bytes.
const MaxMeshFilesBytes = 16 << 20

// MeshFiles are files to compare with the mesh configuration in force. Paths are absolute.
type MeshFiles struct {
	Files           []MeshFile `json:"files"`
	CompleteFolders []string   `json:"folders,omitempty"` // directories with all files in Files
}

// MeshFile is a file with its content, which the caller read, since the agent may not be permitted
// to read it.
type MeshFile struct {
	Path    string `json:"path"`
	Content []byte `json:"content"`
}

// MeshComparison lists the changes that MeshFiles would cause.
type MeshComparison struct {
	Changes []MeshChange `json:"changes"`
	// Problems are the problems of the files, and those that the files cause in other objects.
	Problems []MeshProblem `json:"problems"`
}

// MeshChange is a resource that Envoy would receive, lose or receive changed. File, Line and Object
// name the object that causes the change, if known.
type MeshChange struct {
	Change string `json:"change"` // added, changed, removed
	Type   string `json:"type"`   // Cluster, Listener, RouteConfiguration, …
	Name   string `json:"name"`
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Object string `json:"object,omitempty"` // Kind namespace/name
}

// MeshCompare returns the changes that files would cause. The caller must be allowed to read the
// configuration.
func (c *Client) MeshCompare(ctx context.Context, files MeshFiles) (MeshComparison, error) {
	return call[MeshComparison](ctx, c, http.MethodPost, "/mesh/compare", files)
}

// MeshExplain predicts how the live epoch would handle a request.
func (c *Client) MeshExplain(ctx context.Context, request MeshExplainRequest) (MeshExplanation,
	error) {
	return call[MeshExplanation](ctx, c, http.MethodPost, "/mesh/explain", request)
}

// MeshOrigins returns the source objects of resources.
func (c *Client) MeshOrigins(ctx context.Context) ([]MeshResourceOrigins, error) {
	return get[[]MeshResourceOrigins](ctx, c, "/mesh/origins")
}
