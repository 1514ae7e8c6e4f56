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

// afterCrash reports whether systemd runs the command as ExecStopPost= of a unit (systemd.exec(5)).
func afterCrash() bool { return os.Getenv("SERVICE_RESULT") != "" }

// reportClosed prints, after a failure, how to remove the rules of capture.fail = "closed" and
// capture.fail_inbound = "closed": systemd runs no command when a failed unit is stopped.
func (c *cleaner) reportClosed() {
	if os.Getenv("SERVICE_RESULT") != "success" && capture.RejectsConnections(c.instance) {
		c.report("new connections are refused while Envoy does not serve (capture.fail, " +
			`capture.fail_inbound); "outrider cleanup --stop" ends this`)
	}
}

// endCapture stops outrider-capture if its folder has a state file, and removes its nftables
// tables.
func (c *cleaner) endCapture(ctx context.Context, agents *folder) error {
	folder, failed := openFolder(c.capture)
	// Only outrider-capture's user can cause this error, so the cleanup continues.
	if failed != nil {
		c.report("%v", failed)
		failed = nil
	}
	defer folder.close()
	// Connecting starts outrider-capture if it does not run. The second attempt succeeds if it hung
	// during the first one, and systemd has killed and restarted it.
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
		failed = nil // outrider-capture does not run
	} else if failed != nil {
		failed = fmt.Errorf("cannot stop outrider-capture: %w", failed)
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

// stopCapture stops outrider-capture through its socket in the given folder. It does not follow a
// symbolic link, by which the folder's owner may have replaced the socket.
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
