package agent

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/diskspace"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/epoch"
)

// newDiskSpace returns the checker of full file systems and lost log lines.
func newDiskSpace(
	b *base, state *reloadState, supervisor *epoch.Supervisor,
) *diskspace.Checker {
	return diskspace.New(diskspace.Options{
		Folders: func() []diskspace.Folder { return diskFolders(state.InForce().Config) },
		LogWriteFailures: func(ctx context.Context) (*diskspace.LogWriteFailures, error) {
			return failedWrites(ctx, state.InForce().Config, supervisor)
		},
		Conditions: b.board, Logger: b.logOf("agent"),
	})
}

// diskFolders returns the paths in which the agent and Envoy write files.
func diskFolders(c *config.Config) []diskspace.Folder {
	all := []diskspace.Folder{
		{Path: c.Paths.StateDir, IfFull: "the last accepted configuration and the caches of the next " +
			"start cannot be written"},
		{Path: c.Paths.RuntimeDir, IfFull: "no new epoch can start"},
		{Path: keeperFolder(c.Paths.RuntimeDir), IfFull: "no new epoch can start"},
	}
	for _, file := range logFiles(c) {
		all = append(all, diskspace.Folder{Path: filepath.Dir(file),
			IfFull: "lines of " + file + " are lost"})
	}
	return all
}

// logFiles returns the log files that Envoy writes.
func logFiles(c *config.Config) []string {
	var files []string
	for _, file := range []string{c.Telemetry.AccessLogFile, c.Envoy.OutlierLogPath} {
		if file != "" && !strings.HasPrefix(file, "/dev/") {
			files = append(files, file)
		}
	}
	return files
}

// failedWrites returns how many writes of the live epoch to log files failed, or nil if it has no
// log files.
func failedWrites(
	ctx context.Context, c *config.Config, supervisor *epoch.Supervisor,
) (*diskspace.LogWriteFailures, error) {
	if len(logFiles(c)) == 0 {
		return nil, nil
	}
	live, ok := liveEpoch(supervisor)
	if !ok || live.AdminLost {
		return nil, errors.New("no Envoy answers on its admin interface")
	}
	ctx, cancel := context.WithTimeout(ctx, adminTime)
	defer cancel()
	const counter = "filesystem.write_failed"
	stats, err := envoy.NewAdmin(live.AdminAddress).Stats(ctx, "^"+counter+"$")
	if err != nil {
		return nil, err
	}
	return &diskspace.LogWriteFailures{Epoch: live.Number, Count: stats[counter]}, nil
}
