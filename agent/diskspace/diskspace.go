// Package diskspace reports full file systems, and log lines that Envoy could not write. It checks
// once a minute and after a reload, which suffices because file systems fill slowly. The conditions
// end by themselves once there is space.
package diskspace

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/lifecycle"
)

// Codes of conditions.
const (
	// conditionFull is active while a file system that the agent or Envoy writes is full.
	conditionFull = "disk-full"
	// ConditionLinesLost is active while Envoy fails to write lines to its log files.
	ConditionLinesLost = "log-lines-lost"
)

const period = time.Minute

// A file system counts as full if its free space is less than reserve bytes and less than 1/share
// of its size. For comparison, the state that the agent stores for its next start takes some
// megabytes in a large mesh.
const (
	reserve = 1 << 20
	share   = 64
)

// Folder is a path that the agent or Envoy writes.
type Folder struct {
	Path   string
	IfFull string // consequence of a full file system, a sentence without a full stop
}

// LogWriteFailures is the number of an epoch's failed writes to log files, as counted by Envoy.
type LogWriteFailures struct {
	Epoch int
	Count uint64
}

// Options configures a Checker.
type Options struct {
	Folders func() []Folder
	// LogWriteFailures reads the current number of failed writes to log files. It returns nil, nil
	// if Envoy writes no log file, and an error if the number is unknown.
	LogWriteFailures func(ctx context.Context) (*LogWriteFailures, error)
	Conditions       *condition.Registry
	Logger           *slog.Logger
}

// Checker checks the folders.
type Checker struct {
	lifecycle.Readiness
	options Options
	wake    chan struct{}
	before  *LogWriteFailures // owned by Run
}

// New returns a Checker.
func New(o Options) *Checker { return &Checker{options: o, wake: make(chan struct{}, 1)} }

// Name returns the name of this component.
func (c *Checker) Name() string { return "disk space" }

// Wake triggers a check. It never blocks.
func (c *Checker) Wake() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Run checks until ctx ends.
func (c *Checker) Run(ctx context.Context) error {
	c.MarkReady()
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		found := make(chan []string, 1)
		go func() { found <- full(c.options.Folders()) }() // a remote file system may hang
		select {
		case sentences := <-found:
			c.report(conditionFull, strings.Join(sentences, "; "))
		case <-ctx.Done():
			return nil
		}
		c.checkLogs(ctx)
		select {
		case <-ticker.C:
		case <-c.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

func (c *Checker) report(code, sentence string) {
	if sentence == "" {
		c.options.Conditions.Clear(code)
		return
	}
	c.options.Conditions.Raise(code, condition.Error, sentence)
}

// checkLogs compares the number of failed writes with that of the last check. The condition does
// not change while the number is unknown, or at the first check of a new epoch, which has nothing
// to compare with.
func (c *Checker) checkLogs(ctx context.Context) {
	now, err := c.options.LogWriteFailures(ctx)
	if err != nil {
		c.options.Logger.Debug("cannot read number of failed writes from Envoy", "error", err)
		return
	}
	before := c.before
	c.before = now
	switch {
	case now == nil:
		c.report(ConditionLinesLost, "")
	case before == nil || before.Epoch != now.Epoch:
	case now.Count > before.Count:
		c.report(ConditionLinesLost, "Envoy cannot write to a log file, and the lines are lost; see "+
			"whether the file system of [telemetry] access_log_file or [envoy] outlier_log_path "+
			"is full or read-only")
	default:
		c.report(ConditionLinesLost, "")
	}
}

// full returns a sentence for each folder whose file system is full. The sentence omits the exact
// free space, because each change of a condition is a line in the journal.
func full(folders []Folder) []string {
	var sentences []string
	for _, folder := range folders {
		var s unix.Statfs_t
		if err := unix.Statfs(folder.Path, &s); err != nil {
			continue // the folder does not exist yet, or is not accessible
		}
		free, size := s.Bavail*uint64(s.Bsize), s.Blocks*uint64(s.Bsize)
		var left string
		switch {
		case size > 0 && free < min(reserve, size/share):
			left = fmt.Sprintf("less than %d KiB left", min(reserve, size/share)>>10)
		case s.Files > 0 && s.Ffree == 0:
			left = "no inode left"
		default:
			continue
		}
		sentences = append(sentences, fmt.Sprintf("the file system of %s is full (%s): %s; free "+
			"space on it, which \"df %s\" names", folder.Path, left, folder.IfFull, folder.Path))
	}
	return sentences
}
