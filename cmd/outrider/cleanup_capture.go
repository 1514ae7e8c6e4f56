package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/capture"
)

// afterCrash reports whether the command is ExecStopPost= of a unit (systemd.exec(5)).
func afterCrash() bool { return os.Getenv("SERVICE_RESULT") != "" }

// reportClosed prints how to undo fail and fail_inbound = "closed" after a failure: systemd
// executes no command when a failed unit is stopped.
func (c *cleaner) reportClosed() {
	if os.Getenv("SERVICE_RESULT") != "success" && capture.RejectsConnections(c.instance) {
		c.report("new connections are refused while Envoy does not serve (capture.fail, " +
			`capture.fail_inbound); "outrider cleanup --stop" ends this`)
	}
}

// endCapture ends outrider-capture, if it has settings, and removes its rules.
func (c *cleaner) endCapture(ctx context.Context, agents *folder) error {
	folder, failed := openFolder(c.capture)
	if failed != nil { // the capture user caused it: continue with the rest
		c.report("%v", failed)
		failed = nil
	}
	defer folder.close()
	// Connecting starts the helper if it is not running. The second attempt is for a helper that
	// hung during the first one and was killed.
	for range 2 {
		if !folder.has(capture.StateFileName) {
			break
		}
		failed = stopCapture(ctx, agents)
		if !folder.has(capture.StateFileName) {
			c.report("ended the interception")
		}
	}
	if errors.Is(failed, fs.ErrNotExist) || errors.Is(failed, unix.ECONNREFUSED) {
		failed = nil // no helper runs
	} else if failed != nil {
		failed = fmt.Errorf("outrider-capture does not end: %w", failed)
	}
	var state *os.Root
	if folder != nil {
		state = folder.root
	}
	done, err := capture.Cleanup(c.instance, state)
	for _, name := range done {
		c.report("removed the nftables table inet %s", name)
	}
	return errors.Join(failed, err)
}

// stopCapture stops outrider-capture through its socket in a folder of another user, who may have
// replaced the socket by a link.
func stopCapture(ctx context.Context, in *folder) error {
	if in == nil {
		return fs.ErrNotExist
	}
	socket, err := in.pin("capture.sock")
	if err != nil {
		return err
	}
	defer func() { _ = socket.Close() }()
	return capture.StopHelper(ctx, fmt.Sprintf("/proc/self/fd/%d", socket.Fd()))
}
