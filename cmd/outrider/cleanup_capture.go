package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"outrider.org/outrider/agent/capture"
)

// afterCrash reports whether the command is ExecStopPost= of a unit (systemd.exec(5)).
func afterCrash() bool { return os.Getenv("SERVICE_RESULT") != "" }

// endCapture ends outrider-capture, if it has settings, and removes its rules.
func (c *cleaner) endCapture(ctx context.Context) error {
	state := filepath.Join(c.capture, "state.json")
	if _, err := os.Stat(state); err == nil {
		// The socket starts a helper that is gone. One that cannot be reached is dealt with below.
		if capture.Stop(ctx, filepath.Join(c.runtime, "capture.sock")) == nil {
			c.tell("ended the interception")
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	done, err := capture.Cleanup(c.instance, state)
	for _, name := range done {
		c.tell("removed the nftables table inet %s", name)
	}
	return err
}
