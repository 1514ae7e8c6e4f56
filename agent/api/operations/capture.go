package operations

import (
	"cmp"
	"context"
	"net/netip"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/capture"
)

// CaptureOperations performs the operations on the rules of [capture].
type CaptureOperations struct{ Client *capture.Controller }

// Capture returns the state of the interception.
func (o CaptureOperations) Capture(ctx context.Context) (api.Capture, error) {
	status, err := o.Client.CallHelper(ctx, (*capture.Client).Status)
	if err != nil { // outrider-capture is not needed to show the rules
		status = o.Client.State()
		status.Reason = err.Error()
	}
	return o.captureForAPI(status), nil
}

func (o CaptureOperations) captureForAPI(s capture.Status) api.Capture {
	shown := api.Capture{State: string(s.State), Reason: cmp.Or(s.Reason, s.UncapturedFamily()),
		Until: s.Until}
	for _, table := range o.Client.Tables() {
		shown.Rules += table.String()
	}
	if s.DNS.State == capture.StateOn || s.DNS.State == capture.StateWithdrawn {
		shown.DNS = &api.CaptureDNS{State: string(s.DNS.State), Reason: s.DNS.Reason,
			Resolvers: s.DNS.Resolvers}
	}
	for _, c := range s.Counters {
		shown.Counters = append(shown.Counters, api.CaptureCounter(c))
	}
	return shown
}

// ExplainCapture evaluates the rules of the configuration for a connection.
func (o CaptureOperations) ExplainCapture(
	_ context.Context, r api.CaptureExplainRequest,
) (api.CaptureExplanation, error) {
	to, err := netip.ParseAddrPort(r.To)
	if err != nil {
		return api.CaptureExplanation{}, api.NewRefusal("write ADDRESS:PORT: " + err.Error())
	}
	tables, group, protocol := o.Client.Tables(), "", "tcp"
	if r.Unit != "" {
		tables, group = o.Client.TablesIfUnitRan(r.Unit)
	}
	if r.UDP {
		protocol = "udp"
	}
	if len(tables) == 0 {
		return api.CaptureExplanation{Verdict: string(capture.Direct), ConfigKey: "capture.mode",
			State: string(capture.StateOff)}, nil
	}
	local, loopback, err := capture.LookupRoute(to.Addr(), r.UID)
	if err != nil {
		return api.CaptureExplanation{}, err
	}
	found := capture.Explain(capture.Connection{Inbound: r.Inbound, Protocol: protocol,
		Destination: to, Local: local, ViaLoopback: loopback, UID: r.UID, CGroup: group}, tables...)
	now := o.Client.State()
	explained := api.CaptureExplanation{Verdict: string(found.Decision), ConfigKey: found.ConfigKey,
		Rule: found.Rule, Chain: found.Chain, State: string(now.State)}
	if found.Decision == capture.DNS {
		explained.State = string(cmp.Or(now.DNS.State, capture.StateOff))
	}
	return explained, nil
}

// StartCaptureTrial puts the rules in force for a limited time.
func (o CaptureOperations) StartCaptureTrial(ctx context.Context,
	trial api.CaptureTrialRequest) (api.Capture,
	error) {
	return o.changeCapture(ctx, func(c *capture.Client, ctx context.Context) (capture.Status, error) {
		return c.StartTrial(ctx, trial.Duration)
	})
}

// ConfirmCaptureTrial ends a trial: the rules stay in force.
func (o CaptureOperations) ConfirmCaptureTrial(ctx context.Context) (api.Capture, error) {
	return o.changeCapture(ctx, (*capture.Client).ConfirmTrial)
}

func (o CaptureOperations) changeCapture(
	ctx context.Context, call func(*capture.Client, context.Context) (capture.Status, error),
) (api.Capture, error) {
	status, err := o.Client.CallHelper(ctx, call)
	if err != nil {
		return api.Capture{}, api.NewRefusal(err.Error())
	}
	return o.captureForAPI(status), nil
}
