package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/capture"
)

// afterCrash reports whether the command is ExecStopPost= of a unit (systemd.exec(5)).
func afterCrash() bool { return os.Getenv("SERVICE_RESULT") != "" }

// tellClosed says how to lift fail = "closed" after a failure: systemd runs nothing when a failed
// unit is stopped.
func (c *cleaner) tellClosed() {
	if os.Getenv("SERVICE_RESULT") != "success" && capture.Closed(c.instance) {
		c.tell(`new connections are refused while Envoy does not serve (capture.fail = "closed"); ` +
			`"outrider cleanup --stop" ends this`)
	}
}

// endCapture ends outrider-capture, if it has settings, and removes its rules.
func (c *cleaner) endCapture(ctx context.Context) error {
	state := filepath.Join(c.capture, "state.json")
	var failed error
	// The socket starts a helper that is gone, also one that hung and was killed meanwhile.
	for range 2 {
		_, err := os.Stat(state)
		if errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			return err
		}
		failed = capture.Stop(ctx, filepath.Join(c.runtime, "capture.sock"))
		if _, err := os.Stat(state); errors.Is(err, fs.ErrNotExist) {
			c.tell("ended the interception")
		}
	}
	if errors.Is(failed, fs.ErrNotExist) || errors.Is(failed, unix.ECONNREFUSED) {
		failed = nil // nobody is there
	} else if failed != nil {
		failed = fmt.Errorf("outrider-capture does not end: %w", failed)
	}
	done, err := capture.Cleanup(c.instance, state)
	for _, name := range done {
		c.tell("removed the nftables table inet %s", name)
	}
	return errors.Join(failed, err)
}
