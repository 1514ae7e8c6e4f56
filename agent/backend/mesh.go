package backend

import (
	"context"
	"fmt"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/explain"
	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/sockdiag"
)

// rescanTime bounds how long the embedded discovery server may take to reread its files.
const rescanTime = 30 * time.Second

// MeshProblems rereads the mesh configuration and returns its problems, including what Envoy
// refused.
func (b *Backend) MeshProblems(ctx context.Context) ([]api.MeshProblem, error) {
	ctx, cancel := context.WithTimeout(ctx, rescanTime)
	defer cancel()
	if err := b.Discovery.Rescan(ctx); err != nil {
		return nil, api.Refuse(fmt.Sprintf("the mesh configuration could not be read within %v",
			rescanTime))
	}
	b.Exposure.Check()
	return problemsForAPI(b.problems(ctx, true)), nil
}

func problemsForAPI(found []discovery.Problem) []api.MeshProblem {
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
func (b *Backend) meshNode() (*corev3.Node, error) {
	if node := b.Ports.LastNode(); node != nil {
		return node, nil
	}
	return nil, api.Refuse(
		"no Envoy has taken listeners of the embedded discovery server yet; see outrider proxy status")
}

// MeshCompare returns what files would change for the Envoy that last accepted listeners.
func (b *Backend) MeshCompare(ctx context.Context,
	files api.MeshFiles) (api.MeshComparison, error) {
	ctx, cancel := context.WithTimeout(ctx, rescanTime)
	defer cancel()
	node, err := b.meshNode()
	if err != nil {
		return api.MeshComparison{}, err
	}
	texts := make([]discovery.Text, len(files.Files))
	for i, file := range files.Files {
		texts[i] = discovery.Text(file)
	}
	found, err := b.Discovery.Compare(ctx, node, texts, files.Folders,
		sockdiag.ListeningAddresses())
	if err != nil {
		return api.MeshComparison{}, api.Refuse(err.Error())
	}
	comparison := api.MeshComparison{Changes: []api.MeshChange{},
		Problems: problemsForAPI(found.Problems)}
	for _, c := range found.Changes {
		change := api.MeshChange{Change: c.Change, Name: c.Name,
			Type: resource.TypeName(c.Type), File: c.By.File, Line: c.By.Line}
		if c.By.Kind != "" {
			change.Object = c.By.Object()
		}
		comparison.Changes = append(comparison.Changes, change)
	}
	return comparison, nil
}

// MeshExplain returns how the Envoy that last accepted listeners would route a request.
func (b *Backend) MeshExplain(
	ctx context.Context, request api.MeshRequest,
) (api.MeshExplanation, error) {
	node, err := b.meshNode()
	if err != nil {
		return api.MeshExplanation{}, err
	}
	state := explain.State{Live: b.counted(ctx)}
	for _, s := range b.identities() {
		if s.Name == identity.Default {
			state.Identity = s.SPIFFEID
		}
	}
	found, err := b.Discovery.Explain(node, request, state)
	if err != nil {
		return api.MeshExplanation{}, err
	}
	return api.MeshExplanation{MeshAnswer: found.Answer,
		Problems: problemsForAPI(found.Problems)}, nil
}

// MeshOrigins returns the files behind the resources of the Envoy that last accepted listeners.
// Without such an Envoy the result is empty.
func (b *Backend) MeshOrigins(context.Context) ([]api.MeshOrigin, error) {
	out := []api.MeshOrigin{}
	node := b.Ports.LastNode()
	if node == nil {
		return out, nil
	}
	origins, err := b.Discovery.Origins(node)
	if err != nil {
		return nil, err
	}
	for _, o := range origins {
		out = append(out, api.MeshOrigin(o))
	}
	return out, nil
}
