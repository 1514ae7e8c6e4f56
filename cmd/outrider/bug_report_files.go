package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/config"
)

// Bounds on the files in a report. Their folders may belong to another user, who chooses the files
// and their names.
const (
	fileTime     = 5 * time.Second // for each file, in case its file system does not respond
	filesTime    = 30 * time.Second
	reportFiles  = 1000
	reportAtMost = 256 << 20 // bytes of all files together
)

// collectFiles adds the configuration files and bootstraps on disk, which the agent may not have
// read in their current state.
func (a *app) collectFiles(ctx context.Context, r *report, status api.Status) {
	ctx, cancel := context.WithTimeoutCause(ctx, filesTime,
		fmt.Errorf("reading the files takes longer than %s", filesTime))
	defer cancel()
	paths, err := within(ctx, func() ([]string, error) { return a.reportedFiles(status), nil })
	if err != nil {
		r.missing("files", err)
	}
	if more := len(paths) - reportFiles; more > 0 {
		r.missing(fmt.Sprintf("%d files", more),
			fmt.Errorf("a report contains at most %d files", reportFiles))
		paths = paths[:reportFiles]
	}
	for left := reportAtMost; len(paths) > 0; paths = paths[1:] {
		path := paths[0]
		content, err := within(ctx, func() (string, error) { return a.readReported(path) })
		if left -= len(content); left < 0 || ctx.Err() != nil {
			r.missing(count(len(paths), "file", "files"), cmp.Or(context.Cause(ctx),
				fmt.Errorf("the files have more than %d bytes", reportAtMost)))
			return
		}
		if err == nil && strings.HasSuffix(path, ".toml") {
			content, err = config.RedactText(content)
		}
		r.addOr("files"+path, content, err)
	}
}

// reportedFiles returns the paths of the configuration files and bootstraps of the agent instance,
// and those in the agent's status.
func (a *app) reportedFiles(status api.Status) []string {
	base, prefix := cmp.Or(a.instance, "outrider")+".toml", ""
	if a.instance != "" {
		prefix = a.instance + "."
	}
	paths := slices.Clone(status.ConfigFiles)
	if len(paths) == 0 {
		paths = []string{filepath.Join(a.paths.configuration, base)}
	}
	for _, epoch := range status.Epochs {
		// The agent removes the bootstrap of an epoch that has exited.
		if epoch.BootstrapPath != "" && epoch.State != api.EpochExited {
			paths = append(paths, epoch.BootstrapPath)
		}
	}
	for _, in := range []struct{ directory, folder, pattern string }{
		{a.paths.configuration, prefix + "conf.d", "*.toml"},
		{a.paths.configuration, prefix + "mesh.d", "*.yaml"},
		{a.paths.configuration, prefix + "mesh.d", "*.yml"},
		{a.runtimeDir(), "envoy", "envoy-rev*.json"},
	} {
		for _, name := range namesIn(in.directory, in.folder, in.pattern) {
			paths = append(paths, filepath.Join(in.directory, in.folder, name))
		}
	}
	for i, path := range paths {
		paths[i] = filepath.Clean(path) // so that different spellings of a path count as one file
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// namesIn returns the names in directory/folder that match a pattern; none if the folder cannot be
// read.
func namesIn(directory, folder, pattern string) []string {
	above, err := openFolder(directory)
	if err != nil {
		return nil
	}
	defer above.close()
	in, err := above.sub(folder)
	if err != nil {
		return nil
	}
	defer in.close()
	names, _ := in.names(pattern)
	return names
}

// readReported reads a configuration file below the configuration folder, or a bootstrap below the
// runtime folder. Another user may have chosen the path and the file: it does not follow links out
// of these folders, reads only regular files, and does not block on a FIFO.
func (a *app) readReported(path string) (string, error) {
	directory, suffixes := a.paths.configuration, []string{".toml", ".yaml", ".yml"}
	relative, found := below(directory, path)
	if !found {
		directory, suffixes = a.runtimeDir(), []string{".json"}
		relative, found = below(directory, path)
	}
	if !found || !slices.Contains(suffixes, filepath.Ext(path)) {
		return "", fmt.Errorf("the file is neither configuration below %s nor a bootstrap below %s",
			a.paths.configuration, a.runtimeDir())
	}
	above, err := openFolder(directory)
	if err != nil {
		return "", err
	}
	defer above.close()
	in, err := above.sub(filepath.Dir(relative))
	if err != nil {
		return "", err
	}
	if in == nil {
		return "", os.ErrNotExist
	}
	defer in.close()
	file, err := in.openRegular(filepath.Base(relative))
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	if err := in.planted(file); err != nil {
		return "", err
	}
	return readAtMost(file)
}

// below returns a path relative to a folder, and whether the path is below the folder, judged by
// the names alone.
func below(folder, path string) (string, bool) {
	relative, err := filepath.Rel(folder, path)
	return relative, err == nil && relative != "." && filepath.IsLocal(relative)
}

// within returns the result of read, or an error once ctx ends or read takes longer than fileTime.
func within[T any](ctx context.Context, read func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, fileTime,
		errors.New("the file system does not answer"))
	defer cancel()
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := read()
		done <- result{value, err}
	}()
	select {
	case got := <-done:
		return got.value, got.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

func readFile(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	return readAtMost(file)
}
