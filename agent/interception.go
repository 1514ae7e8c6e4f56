package agent

import (
	"context"
	"os/user"
	"path/filepath"
	"strconv"
	"time"

	"outrider.org/outrider/agent/capture"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch"
)

// captureState is the directory below /run with the state files of outrider-capture, one per
// instance. The file of an instance exists while outrider-capture has settings for that instance.
const captureState = "outrider-capture"

// newCapture returns the component that makes outrider-capture redirect connections.
func newCapture(
	b *base, c *config.Config, supervisor *epoch.Supervisor,
) *capture.Controller {
	users := capture.Users{Agent: userID("outrider"), Envoy: userID(c.Envoy.User)}
	settings := capture.NewSettings(c, b.options.Config.Instance)
	if err := keepClosed(filepath.Join(c.Paths.StateDir, closedName), settings); err != nil {
		b.logOf("capture").Warn("cannot persist settings for outrider-capture-early.service",
			"error", err)
	}
	return capture.NewController(capture.ControllerOptions{
		Socket:    captureSocket(c.Paths.RuntimeDir),
		StateFile: filepath.Join("/run", captureState, b.options.Config.Instance, "state.json"),
		Settings:  settings, Users: users,
		Envoy: serving{supervisor}, Conditions: b.board, Logger: b.logOf("capture")})
}

// userID returns the UID of a user. If the user does not exist, it returns the largest number,
// which is no valid UID.
func userID(name string) uint32 {
	const nobody = ^uint32(0)
	found, err := user.Lookup(name)
	if err != nil {
		return nobody
	}
	id, err := strconv.ParseUint(found.Uid, 10, 32)
	if err != nil {
		return nobody
	}
	return uint32(id)
}

// serving implements capture.Envoy.
type serving struct{ *epoch.Supervisor }

func (s serving) Serves() (live bool, half time.Time) {
	e, ok := liveEpoch(s.Supervisor)
	return ok, e.HalfDrainedAt(time.Now())
}

// captured is Envoy as seen by the health checker: ready only once connections are captured.
type captured struct {
	*epoch.Proxy
	capture *capture.Controller
}

// interceptionTime bounds how long the workload is reported as not healthy because the rules for
// inbound connections are not in force.
const interceptionTime = 10 * time.Second

// WaitReady implements health.Proxy. It also waits for the capture of inbound connections: without
// it, mesh connections would reach the application directly, which cannot terminate their TLS.
func (c captured) WaitReady(ctx context.Context, progress func(reason string)) string {
	reason := c.Proxy.WaitReady(ctx, progress)
	if reason == "" {
		c.capture.AwaitInboundRules(ctx, interceptionTime)
	}
	return reason
}

func captureSocket(runtimeDir string) string {
	return filepath.Join(runtimeDir, "capture.sock")
}
