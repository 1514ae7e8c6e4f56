package backend

import (
	"cmp"
	"context"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/capture"
)

// Capture returns the state of the interception.
func (b *Backend) Capture(ctx context.Context) (api.Capture, error) {
	status, err := b.Interception.Call(ctx, (*capture.Client).Status)
	if err != nil { // the rules are shown without outrider-capture, too
		status = b.Interception.State()
		status.Reason = err.Error()
	}
	return b.captureForAPI(status), nil
}

func (b *Backend) captureForAPI(s capture.Status) api.Capture {
	shown := api.Capture{State: string(s.State), Reason: cmp.Or(s.Reason, s.Partial()),
		Until: s.Until}
	for _, table := range b.Interception.Tables() {
		shown.Rules += table.String()
	}
	if s.DNS.State == capture.On || s.DNS.State == capture.Withdrawn {
		shown.DNS = &api.CaptureDNS{State: string(s.DNS.State), Reason: s.DNS.Reason,
			Resolvers: s.DNS.Resolvers}
	}
	for _, c := range s.Counters {
		shown.Counters = append(shown.Counters, api.CaptureCounter(c))
	}
	return shown
}

// CaptureExplain evaluates the rules of the configuration for a connection.
func (b *Backend) CaptureExplain(
	_ context.Context, r api.CaptureRequest,
) (api.CaptureExplanation, error) {
	to, err := netip.ParseAddrPort(r.To)
	if err != nil {
		return api.CaptureExplanation{}, api.Refuse("write ADDRESS:PORT: " + err.Error())
	}
	tables, group, protocol := b.Interception.Tables(), "", "tcp"
	if r.Unit != "" {
		tables, group = b.Interception.TablesWith(r.Unit)
	}
	if r.UDP {
		protocol = "udp"
	}
	if len(tables) == 0 {
		return api.CaptureExplanation{Verdict: string(capture.Direct), Key: "capture.mode",
			State: string(capture.Off)}, nil
	}
	local, loopback, err := capture.Route(to.Addr(), r.UID)
	if err != nil {
		return api.CaptureExplanation{}, err
	}
	found := capture.Explain(capture.Connection{Inbound: r.Inbound, Protocol: protocol,
		Destination: to, Local: local, Loopback: loopback, UID: r.UID, CGroup: group}, tables...)
	now := b.Interception.State()
	explained := api.CaptureExplanation{Verdict: string(found.Verdict), Key: found.Key,
		Rule: found.Rule, Chain: found.Chain, State: string(now.State)}
	if found.Verdict == capture.DNS {
		explained.State = string(cmp.Or(now.DNS.State, capture.Off))
	}
	return explained, nil
}

// CaptureTry puts the rules in force for a time.
func (b *Backend) CaptureTry(ctx context.Context, trial api.CaptureTrial) (api.Capture, error) {
	return b.changeCapture(ctx, func(c *capture.Client, ctx context.Context) (capture.Status, error) {
		return c.Try(ctx, trial.For)
	})
}

// CaptureConfirm ends a trial: the rules stay in force.
func (b *Backend) CaptureConfirm(ctx context.Context) (api.Capture, error) {
	return b.changeCapture(ctx, (*capture.Client).Confirm)
}

func (b *Backend) changeCapture(
	ctx context.Context, call func(*capture.Client, context.Context) (capture.Status, error),
) (api.Capture, error) {
	status, err := b.Interception.Call(ctx, call)
	if err != nil {
		return api.Capture{}, api.Refuse(err.Error())
	}
	return b.captureForAPI(status), nil
}

// captureMetrics collects the state and the counters of the interception.
type captureMetrics struct{ follower *capture.Follower }

var (
	captureOn = prometheus.NewDesc("outrider_capture_on",
		"1 while connections are captured.", nil, nil)
	captureDNSOn = prometheus.NewDesc("outrider_capture_dns_on",
		"1 while queries are redirected to the DNS proxy.", nil, nil)
	capturePackets = prometheus.NewDesc("outrider_capture_packets_total",
		"First packets of connections that matched a rule.", []string{"rule"}, nil)
	captureBytes = prometheus.NewDesc("outrider_capture_bytes_total",
		"Bytes of these packets.", []string{"rule"}, nil)
)

// Describe implements prometheus.Collector.
func (m captureMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- captureOn
	out <- captureDNSOn
	out <- capturePackets
	out <- captureBytes
}

// Collect implements prometheus.Collector.
func (m captureMetrics) Collect(out chan<- prometheus.Metric) {
	status, err := m.follower.Call(context.Background(), (*capture.Client).Status)
	if err != nil {
		status = m.follower.State()
	}
	gauge := func(description *prometheus.Desc, state capture.State) {
		value := 0.0
		if state.InForce() {
			value = 1
		}
		out <- prometheus.MustNewConstMetric(description, prometheus.GaugeValue, value)
	}
	gauge(captureOn, status.State)
	gauge(captureDNSOn, status.DNS.State)
	for _, c := range status.Counters {
		out <- prometheus.MustNewConstMetric(capturePackets, prometheus.CounterValue,
			float64(c.Packets), c.Rule)
		out <- prometheus.MustNewConstMetric(captureBytes, prometheus.CounterValue,
			float64(c.Bytes), c.Rule)
	}
}
