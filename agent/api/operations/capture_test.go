package operations

import (
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/capture"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/parts"
)

type liveEnvoy struct{}

func (liveEnvoy) Serves() (live bool, half time.Time) { return true, time.Time{} }
func (liveEnvoy) Changed() <-chan struct{}            { return nil }

// With fail = "closed" a connection that would be captured is reset while the rules are withdrawn.
func TestCaptureExplain_ClosedRefuses(t *testing.T) {
	for closed, want := range map[bool]api.CaptureExplanation{
		true:  {Verdict: "refused", ConfigKey: "capture.fail", State: "withdrawn"},
		false: {Verdict: "outbound", ConfigKey: "capture.outbound_cidrs", State: "withdrawn"},
	} {
		follower := capture.NewController(capture.ControllerOptions{
			Socket: filepath.Join(t.TempDir(), "none.sock"), Envoy: liveEnvoy{},
			Settings: &capture.Settings{FailOutboundClosed: closed,
				Outbound: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}},
			Users: capture.Users{Envoy: 2001, Agent: 2002}, Conditions: condition.NewRegistry(),
			Logger: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- follower.Run(ctx) }()
		parts.Eventually(t, time.Minute, "the helper is missed", func() bool {
			return follower.State().State == capture.StateWithdrawn
		})
		o := CaptureOperations{Client: follower}
		got, err := o.ExplainCapture(ctx, api.CaptureExplainRequest{To: "192.0.2.1:80"})
		got.Rule, got.Chain = "", ""
		if err != nil || got != want {
			t.Errorf("closed %t: %+v, %v; want %+v", closed, got, err, want)
		}
		cancel()
		<-done
	}
}
