package identity

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"outrider.org/outrider/agent/identity/pki"
)

// Files are read again this often even if nothing is reported, for file systems without
// notification; after a failure sooner, with the pause doubling.
const (
	recheck      = time.Minute
	firstReread  = 100 * time.Millisecond
	maxFileBytes = 4 << 20
)

// report passes a new version to the Manager, or why there is none.
type report func(*material, error)

// source is what a worker reads.
type source struct {
	files  Files
	usage  pki.Usage
	denied func(path string) string // why Envoy must not have a file; nil: it may have all
}

// follow reads the files of a secret whenever they change, until ctx ends. A read may hang: nothing
// waits for this goroutine.
func (m *Manager) follow(ctx context.Context, from source, tell report) {
	changes := m.watch(ctx, from.files.paths())
	pause := firstReread
	for {
		version, err := from.read(m.options.Now())
		if ctx.Err() != nil {
			return
		}
		tell(version, err)
		wait := recheck
		if err != nil {
			wait, pause = pause, min(2*pause, recheck)
		} else {
			pause = firstReread
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-changes:
			timer.Stop()
			pause = firstReread
		case <-timer.C:
		}
	}
}

// watch starts a watcher of its own for a secret, because a watcher reads files too and may hang.
func (m *Manager) watch(ctx context.Context, paths []string) <-chan []string {
	watcher := m.options.Watch()
	if err := watcher.Set(paths); err != nil {
		m.options.Logger.Warn("cannot watch files, reading them every minute", "error", err)
	}
	go func() {
		if err := watcher.Run(ctx); err != nil {
			m.options.Logger.Warn("cannot watch files, reading them every minute", "error", err)
		}
	}()
	return watcher.Changes()
}

// paths returns the files of a pair or of roots.
func (f Files) paths() []string {
	if f.Cert != "" {
		return []string{f.Cert, f.Key}
	}
	return []string{f.Root}
}

// read reads and checks a pair or roots.
func (s source) read(now time.Time) (*material, error) {
	files, version := s.files, &material{obtained: now, source: FromFiles}
	if s.denied != nil {
		for _, path := range files.paths() {
			if why := s.denied(path); why != "" {
				return nil, errors.New(why)
			}
		}
	}
	if files.Root != "" {
		in, err := readFile(files.Root)
		if err != nil {
			return nil, err
		}
		version.roots, err = pki.ParseRoots(in, now)
		return version, err
	}
	cert, err := readFile(files.Cert)
	if err != nil {
		return nil, err
	}
	key, err := readFile(files.Key)
	if err != nil {
		return nil, err
	}
	if version.pair, err = pki.ParsePair(cert, key, s.usage); err != nil {
		return nil, err
	}
	return version, version.pair.CheckTime(now)
}

func readFile(path string) (pki.Input, error) {
	file, err := os.Open(path)
	if err != nil {
		return pki.Input{}, fmt.Errorf("cannot read certificates: %w", err)
	}
	defer func() { _ = file.Close() }() // only read
	text, err := io.ReadAll(io.LimitReader(file, maxFileBytes))
	if err != nil {
		return pki.Input{}, fmt.Errorf("cannot read certificates: %w", err)
	}
	return pki.Input{File: path, PEM: text}, nil
}
