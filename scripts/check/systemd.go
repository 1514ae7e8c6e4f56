package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"
)

const (
	// newerDebian has systemd 257; the tests run on this machine's own besides, 252 in continuous
	// integration.
	newerDebian = "trixie"
	rootTime    = 10 * time.Minute // to make its root

	// onNewer are the tests that a newer systemd could fail: what it says of the units, and an
	// agent's life under it.
	onNewer = "^(TestLife|TestUnitsAreValidAndSafe|TestStopUnderLoad|" +
		"TestStart_PermanentErrorsAreNotRetried|TestPhasesThatLast)$"
)

// newerSystemd runs system tests on the systemd of a newer Debian.
func newerSystemd(ctx context.Context, _ options) result {
	limited, cancel := context.WithTimeout(ctx, rootTime)
	defer cancel()
	var said bytes.Buffer
	c := command(limited, "scripts/machine/root", newerDebian)
	c.Stderr = &said
	root, err := c.Output()
	if err != nil {
		fmt.Printf("the system tests were NOT run on %s: its root cannot be had here: %v\n%s",
			newerDebian, err, lastLines(said.String(), 10))
		return result{}
	}
	run := testRun{newerSystemd: strings.TrimSpace(string(root)), pattern: onNewer}
	return goTest(ctx, run, "./scripts/machine/systemtest")
}

func lastLines(text string, most int) string {
	lines := strings.SplitAfter(text, "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "")
}
