package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"outrider.org/outrider/agent/capture"
	"outrider.org/outrider/agent/config"
)

// closedName is the file in the state directory that stores the capture settings of the last start,
// if they rejected inbound connections that were not captured.
const closedName = "capture.json"

// keepClosed stores s if it rejects inbound connections that are not captured. Otherwise it removes
// the settings that were stored earlier.
func keepClosed(path string, s *capture.Settings) error {
	if s == nil || !s.RejectsInboundOnFailure() {
		if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return renameio.WriteFile(path, text, 0o600)
}

// lastClosed returns the settings stored by keepClosed, reduced to inbound connections; nil if
// there are none.
func lastClosed(path string) *capture.Settings {
	var s capture.Settings
	text, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(text, &s) != nil {
		return nil
	}
	s.InboundOnly = true
	return &s
}

// RejectConnectionsUntilEnvoyServes makes outrider-capture reject the connections that it would
// capture, until Envoy serves. It does nothing unless [capture] fail or fail_inbound is closed. If
// the configuration is invalid, it uses the settings that the last start stored, if any, for
// inbound connections.
func RejectConnectionsUntilEnvoyServes(ctx context.Context, options Options) error {
	options.Config.CheckOnly = true // systemd passes credentials to the agent's unit only
	options.Config.UnreadableReason = unreadable
	loaded, err := config.Load(options.Config)
	if err != nil {
		folder := options.environment()("STATE_DIRECTORY")
		last := lastClosed(filepath.Join(folder, closedName))
		if folder != "" && last != nil {
			early := refuseEarly(ctx, options, config.RuntimeDir(options.Config.Instance), *last)
			err = errors.Join(err, early)
		}
		return &ExitError{Code: ExitConfiguration, Err: err}
	}
	settings := capture.NewSettings(loaded.Config, options.Config.Instance)
	if settings == nil || !settings.FailOutboundClosed && !settings.RejectsInboundOnFailure() {
		_, err := fmt.Fprintln(options.Output, `nothing is refused: [capture] mode is "none", or `+
			`neither fail nor fail_inbound closes connections`)
		return err
	}
	return refuseEarly(ctx, options, loaded.Config.Paths.RuntimeDir, *settings)
}

func refuseEarly(
	ctx context.Context, options Options, runtimeDir string, settings capture.Settings,
) error {
	client, err := capture.Dial(ctx, captureSocket(runtimeDir))
	if err != nil {
		return err
	}
	defer client.Close()
	status, err := client.Apply(ctx, settings)
	what := "connections"
	switch {
	case err != nil:
		return err
	case !status.OutboundRejected && !status.InboundRejected:
		return fmt.Errorf("outrider-capture does not reject connections: %s", status.Reason)
	case !status.OutboundRejected:
		what = "inbound connections"
	case !status.InboundRejected:
		what = "outbound connections"
	}
	_, err = fmt.Fprintf(options.Output,
		"new %s are refused until Envoy serves; \"outrider cleanup --stop\" ends this\n", what)
	return err
}
