package apitest

import (
	"context"

	"outrider.org/outrider/agent/api"
)

// Capture implements api.Backend.
func (b *Backend) Capture(context.Context) (api.Capture, error) { return b.CaptureValue, b.Err }

// ExplainCapture implements api.Backend.
func (b *Backend) ExplainCapture(
	_ context.Context, r api.CaptureExplainRequest,
) (api.CaptureExplanation, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.connections = append(b.connections, r)
	return b.CaptureExplanation, b.Err
}

// CaptureExplainRequests returns the requests of ExplainCapture received so far.
func (b *Backend) CaptureExplainRequests() []api.CaptureExplainRequest {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]api.CaptureExplainRequest(nil), b.connections...)
}

// StartCaptureTrial implements api.Backend.
func (b *Backend) StartCaptureTrial(context.Context, api.CaptureTrialRequest) (api.Capture, error) {
	return api.Capture{State: "trial"}, b.Err
}

// ConfirmCaptureTrial implements api.Backend.
func (b *Backend) ConfirmCaptureTrial(context.Context) (api.Capture, error) {
	return api.Capture{State: "on"}, b.Err
}
