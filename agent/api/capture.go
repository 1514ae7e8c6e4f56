package api

import (
	"context"
	"net/http"
	"net/netip"
	"time"
)

// Capture is the state of the interception.
type Capture struct {
	State  string    `json:"state"` // off, on, withdrawn, closed, trial
	Reason string    `json:"reason,omitempty"`
	Until  time.Time `json:"until,omitzero"` // end of the trial; zero: no trial
	// Rules are the rules of the configuration as nft text; "" if nothing is captured.
	Rules    string           `json:"rules,omitempty"`
	Counters []CaptureCounter `json:"counters,omitempty"` // of the rules in force
	DNS      *CaptureDNS      `json:"dns,omitempty"`      // nil: capture.dns is false
}

// CaptureDNS is the state of the redirection of DNS.
type CaptureDNS struct {
	State     string       `json:"state"` // on, withdrawn
	Reason    string       `json:"reason,omitempty"`
	Resolvers []netip.Addr `json:"resolvers,omitempty"` // queries to these addresses are redirected
}

// CaptureCounter counts connections, by their first packets, that matched the rules of one
// configuration key.
type CaptureCounter struct {
	Rule    string `json:"rule"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// CaptureExplainRequest describes a connection to explain.
type CaptureExplainRequest struct {
	To      string `json:"to"`             // address:port
	UID     uint32 `json:"uid,omitempty"`  // user of the calling process on this host
	UDP     bool   `json:"udp,omitempty"`  // false: TCP
	Inbound bool   `json:"inbound"`        // the connection comes from another host
	Unit    string `json:"unit,omitempty"` // systemd unit of the calling process
}

// CaptureExplanation says whether a connection is captured, by which rule and from which key.
type CaptureExplanation struct {
	Verdict   string `json:"verdict"` // direct, outbound, inbound, dns, refused
	ConfigKey string `json:"key"`
	Rule      string `json:"rule,omitempty"`
	Chain     string `json:"chain,omitempty"`
	State     string `json:"state"` // state of the rules: off, on, withdrawn, closed or trial
}

// CaptureTrialRequest requests a trial, which ends after Duration unless it is confirmed.
type CaptureTrialRequest struct {
	Duration time.Duration `json:"for"` // nanoseconds
}

// Capture returns the state of the interception.
func (c *Client) Capture(ctx context.Context) (Capture, error) {
	return get[Capture](ctx, c, "/capture")
}

// ExplainCapture explains a connection.
func (c *Client) ExplainCapture(
	ctx context.Context, request CaptureExplainRequest,
) (CaptureExplanation, error) {
	return call[CaptureExplanation](ctx, c, http.MethodPost, "/capture/explain", request)
}

// StartCaptureTrial starts a trial.
func (c *Client) StartCaptureTrial(ctx context.Context, trial CaptureTrialRequest) (Capture,
	error) {
	return call[Capture](ctx, c, http.MethodPost, "/capture/try", trial)
}

// ConfirmCaptureTrial ends a trial: the rules stay in force.
func (c *Client) ConfirmCaptureTrial(ctx context.Context) (Capture, error) {
	return call[Capture](ctx, c, http.MethodPost, "/capture/confirm", struct{}{})
}
