// Package apitest provides a fake agent for tests of the private socket and of the command line.
package apitest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"outrider.org/outrider/agent/api"
)

// Backend is an api.Backend whose methods return its fields. If Err is set, every method returns
// that error.
type Backend struct {
	mu sync.Mutex

	StatusValue          api.Status
	ConfigValue          api.Config
	DiffValue            api.ConfigDiff
	Levels               api.LogLevels
	Types                []api.ResourceType
	Problems             []api.MeshProblem
	Comparison           api.MeshComparison
	Explanation          api.MeshExplanation
	Origins              []api.MeshResourceOrigins
	ReportFiles          []api.ReportFile
	ReloadValue          api.ReloadResult
	ReloadSteps          []api.Progress
	RemainingConnections []uint64 // connection counts reported during a drain
	UndrainValue         api.UndrainResult
	UncountedReason      string            // reason why connections cannot be counted
	AdminAnswers         map[string]string // path or path?query → body
	// AdminTransport, if set, replaces AdminAnswers with a real Envoy admin interface.
	AdminTransport     http.RoundTripper
	NotReadyReason     string        // reason why the proxy never becomes ready; "" = ready
	ReloadGate         chan struct{} // if set, Reload blocks until it is closed
	CaptureValue       api.Capture
	CaptureExplanation api.CaptureExplanation
	Err                error
	reloads            []api.ReloadRequest
	explained          []api.MeshExplainRequest
	compared           []api.MeshFiles
	connections        []api.CaptureExplainRequest
	drains             int
	undrains           int
	cancellations      int
}

// ReloadRequests returns the requests received so far.
func (b *Backend) ReloadRequests() []api.ReloadRequest {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]api.ReloadRequest(nil), b.reloads...)
}

// DrainCounts returns the calls of Drain and Undrain, and the number of waits that were cancelled.
func (b *Backend) DrainCounts() (drains, undrains, cancellations int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.drains, b.undrains, b.cancellations
}

func (b *Backend) canceled() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cancellations++
}

// Status implements api.Backend.
func (b *Backend) Status(context.Context) (api.Status, error) { return b.StatusValue, b.Err }

// WaitReady implements api.Backend.
func (b *Backend) WaitReady(ctx context.Context, progress func(api.Progress)) error {
	if b.Err != nil || b.NotReadyReason == "" {
		return b.Err
	}
	progress(api.Progress{Phase: b.NotReadyReason})
	<-ctx.Done()
	b.canceled()
	return &api.Error{Message: b.NotReadyReason}
}

// Reload implements api.Backend.
func (b *Backend) Reload(ctx context.Context, request api.ReloadRequest,
	progress func(api.Progress)) (api.ReloadResult, error) {
	b.mu.Lock()
	b.reloads = append(b.reloads, request)
	b.mu.Unlock()
	for _, step := range b.ReloadSteps {
		progress(step)
	}
	if b.ReloadGate != nil {
		select {
		case <-b.ReloadGate:
		case <-ctx.Done():
			b.canceled()
			return api.ReloadResult{}, ctx.Err()
		}
	}
	return b.ReloadValue, b.Err
}

// Drain implements api.Backend.
func (b *Backend) Drain(_ context.Context, request api.DrainRequest,
	progress func(api.Progress)) (api.DrainResult, error) {
	b.mu.Lock()
	b.drains++
	b.mu.Unlock()
	if b.Err != nil || !request.Wait || len(b.RemainingConnections) == 0 {
		var left uint64
		if len(b.RemainingConnections) > 0 {
			left = b.RemainingConnections[0]
		}
		return api.DrainResult{Connections: left, UncountedReason: b.UncountedReason}, b.Err
	}
	for _, left := range b.RemainingConnections {
		progress(api.Progress{Phase: "draining", Connections: &left})
	}
	return api.DrainResult{Connections: b.RemainingConnections[len(b.RemainingConnections)-1]}, nil
}

// Undrain implements api.Backend.
func (b *Backend) Undrain(context.Context, func(api.Progress)) (api.UndrainResult, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.undrains++
	return b.UndrainValue, b.Err
}

// Config implements api.Backend.
func (b *Backend) Config(context.Context) (api.Config, error) { return b.ConfigValue, b.Err }

// ConfigDiff implements api.Backend.
func (b *Backend) ConfigDiff(context.Context) (api.ConfigDiff, error) { return b.DiffValue, b.Err }

// LogLevels implements api.Backend.
func (b *Backend) LogLevels(context.Context) (api.LogLevels, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Levels, b.Err
}

// SetLogLevels implements api.Backend.
func (b *Backend) SetLogLevels(_ context.Context, levels api.LogLevels) (api.LogLevels, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if levels.Agent != "" {
		b.Levels.Agent = levels.Agent
	}
	if levels.Envoy != "" {
		b.Levels.Envoy = levels.Envoy
	}
	for component, level := range levels.Components {
		if b.Levels.Components == nil {
			b.Levels.Components = map[string]string{}
		}
		b.Levels.Components[component] = level
	}
	return b.Levels, b.Err
}

// Admin implements api.Backend.
func (b *Backend) Admin(ctx context.Context, path, query string) (api.AdminResponse, error) {
	if b.Err != nil {
		return api.AdminResponse{}, b.Err
	}
	if query != "" {
		path += "?" + query
	}
	if b.AdminTransport != nil {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://admin/"+path, nil)
		if err != nil {
			return api.AdminResponse{}, err
		}
		response, err := b.AdminTransport.RoundTrip(request) //nolint:bodyclose // the caller closes it
		if err != nil {
			return api.AdminResponse{}, err
		}
		return api.AdminResponse{Epoch: 3, Status: response.StatusCode,
			ContentType: response.Header.Get("Content-Type"),
			Body:        response.Body}, nil
	}
	body, ok := b.AdminAnswers[path]
	if !ok {
		return api.AdminResponse{}, &api.Error{Status: 503, Message: "no epoch is live"}
	}
	return api.AdminResponse{Epoch: 3, Status: 200, ContentType: "application/json",
		Body: io.NopCloser(strings.NewReader(body))}, nil
}

// ResourceTypes implements api.Backend.
func (b *Backend) ResourceTypes(context.Context) ([]api.ResourceType, error) {
	return b.Types, b.Err
}

// UpstreamDebug implements api.Backend.
func (b *Backend) UpstreamDebug(_ context.Context, name string) (json.RawMessage, error) {
	return json.RawMessage(fmt.Sprintf("{%q:{}}", name)), b.Err
}

// MeshProblems implements api.Backend.
func (b *Backend) MeshProblems(context.Context) ([]api.MeshProblem, error) {
	return b.Problems, b.Err
}

// CompareRequests returns the requests of MeshCompare.
func (b *Backend) CompareRequests() []api.MeshFiles {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]api.MeshFiles(nil), b.compared...)
}

// MeshCompare implements api.Backend.
func (b *Backend) MeshCompare(_ context.Context,
	files api.MeshFiles) (api.MeshComparison, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.compared = append(b.compared, files)
	return b.Comparison, b.Err
}

// MeshExplain implements api.Backend.
func (b *Backend) MeshExplain(_ context.Context,
	request api.MeshExplainRequest) (api.MeshExplanation, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.explained = append(b.explained, request)
	return b.Explanation, b.Err
}

// ExplainRequests returns the requests of MeshExplain received so far.
func (b *Backend) ExplainRequests() []api.MeshExplainRequest {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]api.MeshExplainRequest(nil), b.explained...)
}

// MeshOrigins implements api.Backend.
func (b *Backend) MeshOrigins(context.Context) ([]api.MeshResourceOrigins, error) {
	return b.Origins, b.Err
}

// Report implements api.Backend.
func (b *Backend) Report(context.Context) ([]api.ReportFile, error) { return b.ReportFiles, b.Err }
