package operations

import (
	"context"
	"fmt"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/explain"
	"outrider.org/outrider/agent/endpoints"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/exposure"
	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/ports"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/sockdiag"
)

// MeshOperations performs the operations on the mesh configuration.
type MeshOperations struct {
	Discovery *discovery.Server
	Ports     *ports.PortTracker
	Unbound   *ports.UnboundListeners
	Exposure  *exposure.Checker
	Endpoints *endpoints.Tracker
	Identity  *identity.Manager
	Proxy     *epoch.Proxy

	live liveProblems
}

// rescanTime bounds how long the embedded discovery server may take to reread its files.
const rescanTime = 30 * time.Second

// MeshProblems rereads the mesh configuration and returns its problems, including what Envoy
// refused.
func (o *MeshOperations) MeshProblems(ctx context.Context) ([]api.MeshProblem, error) {
	ctx, cancel := context.WithTimeout(ctx, rescanTime)
	defer cancel()
	if err := o.Discovery.Rescan(ctx); err != nil {
		return nil, api.NewRefusal(fmt.Sprintf("the mesh configuration could not be read within %v",
			rescanTime))
	}
	o.Exposure.FindExposedPorts()
	return MeshProblems(o.ProblemReport(ctx, true).Problems), nil
}

// MeshProblems converts problems to the type of the private socket.
func MeshProblems(found []discovery.Problem) []api.MeshProblem {
	problems := []api.MeshProblem{}
	for _, p := range found {
		message := p.Message
		if p.Fix != "" {
			message += "; " + p.Fix
		}
		problems = append(problems, api.MeshProblem{File: p.File, Line: p.Line, Object: p.Object,
			Field: p.Field, Severity: string(p.Severity), Message: message})
	}
	return problems
}

// meshNode returns the node of the Envoy that last accepted listeners.
func (o *MeshOperations) meshNode() (*corev3.Node, error) {
	if node := o.Ports.LastAcceptingNode(); node != nil {
		return node, nil
	}
	return nil, api.NewRefusal(
		"no Envoy has taken listeners of the embedded discovery server yet; see outrider proxy status")
}

// MeshCompare returns the changes that files would cause for the Envoy that last accepted
// listeners.
func (o *MeshOperations) MeshCompare(ctx context.Context,
	files api.MeshFiles) (api.MeshComparison, error) {
	ctx, cancel := context.WithTimeout(ctx, rescanTime)
	defer cancel()
	node, err := o.meshNode()
	if err != nil {
		return api.MeshComparison{}, err
	}
	texts := make([]discovery.FileText, len(files.Files))
	for i, file := range files.Files {
		texts[i] = discovery.FileText(file)
	}
	found, err := o.Discovery.Compare(ctx, node, texts, files.CompleteFolders,
		sockdiag.ListeningAddresses())
	if err != nil {
		return api.MeshComparison{}, api.NewRefusal(err.Error())
	}
	comparison := api.MeshComparison{Changes: []api.MeshChange{},
		Problems: MeshProblems(found.Problems)}
	for _, c := range found.Changes {
		change := api.MeshChange{Change: c.Action, Name: c.Name,
			Type: resource.TypeName(c.Type), File: c.Cause.File, Line: c.Cause.Line}
		if c.Cause.Kind != "" {
			change.Object = c.Cause.Object()
		}
		comparison.Changes = append(comparison.Changes, change)
	}
	return comparison, nil
}

// MeshExplain returns how the Envoy that last accepted listeners would route a request.
func (o *MeshOperations) MeshExplain(
	ctx context.Context, request api.MeshExplainRequest,
) (api.MeshExplanation, error) {
	node, err := o.meshNode()
	if err != nil {
		return api.MeshExplanation{}, err
	}
	state := explain.EnvoyState{ClusterStats: o.counted(ctx)}
	for _, s := range o.Identity.Secrets() {
		if s.Name == identity.DefaultSecret {
			state.SPIFFEID = s.SpiffeID
		}
	}
	found, err := o.Discovery.Explain(node, request, state)
	if err != nil {
		return api.MeshExplanation{}, err
	}
	return api.MeshExplanation{MeshExplainAnswer: found.Answer,
		Problems: MeshProblems(found.Problems)}, nil
}

// MeshOrigins returns the source objects of the resources of the Envoy that last accepted
// listeners. Without such an Envoy the result is empty.
func (o *MeshOperations) MeshOrigins(context.Context) ([]api.MeshResourceOrigins, error) {
	out := []api.MeshResourceOrigins{}
	node := o.Ports.LastAcceptingNode()
	if node == nil {
		return out, nil
	}
	origins, err := o.Discovery.Origins(node)
	if err != nil {
		return nil, err
	}
	for _, o := range origins {
		out = append(out, api.MeshResourceOrigins(o))
	}
	return out, nil
}
