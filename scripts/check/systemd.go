package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"
)

const (
	// newerDebian is a Debian release with systemd 257. Other tests use the systemd of this
	// machine, which is 252 in continuous integration.
	newerDebian = "trixie"
	rootTime    = 10 * time.Minute // time limit for creating the root directory of newerDebian

	// onNewer matches the tests that depend on the version of systemd: those of unit files and of
	// the agent's life cycle.
	onNewer = "^(TestLife|TestUnitsAreValidAndSafe|TestStopUnderLoad|" +
		"TestStart_PermanentErrorsAreNotRetried|TestPhasesThatLast)$"
)

// newerSystemd runs the system tests that match onNewer on a newer Debian.
func newerSystemd(ctx context.Context, _ options) result {
	limited, cancel := context.WithTimeout(ctx, rootTime)
	defer cancel()
	var said bytes.Buffer
	c := command(limited, "scripts/machine/root", newerDebian)
	c.Stderr = &said
	root, err := c.Output()
	if err != nil {
		fmt.Printf("the system tests were NOT run on %s: its root directory is not available here: %v\n%s",
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
