package watch

import (
	"context"
	"os"
	"slices"
	"time"
)

// awaitDebounce is short: only whether a file is there counts.
const awaitDebounce = 20 * time.Millisecond

// Await waits until all paths exist, each looked for once however often it is given, for at most wait. As often as what
// is still missing changes, and first of all if anything is, missing (if not nil) is told the paths. What has not come
// in time is returned; the error is ctx's, or that of watching.
func Await(ctx context.Context, paths []string, wait time.Duration, missing func(paths []string)) ([]string, error) {
	absent := notThere(paths)
	if len(absent) == 0 {
		return nil, nil
	}
	if missing != nil {
		missing(slices.Clone(absent))
	}
	if wait <= 0 {
		return absent, nil
	}
	watcher := New(Options{Debounce: func() time.Duration { return awaitDebounce }})
	if err := watcher.Set(absent); err != nil {
		return absent, err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- watcher.Run(running) }()
	finish := func(err error) ([]string, error) {
		stop()
		if failed := <-ended; err == nil {
			err = failed
		}
		return absent, err
	}
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for over := false; ; {
		// Looked at before the first change too: a file may have come before the watcher took note of what is there.
		if now := notThere(absent); len(now) != len(absent) {
			absent = now
			if missing != nil && len(absent) > 0 {
				missing(slices.Clone(absent))
			}
		}
		if len(absent) == 0 || over {
			return finish(nil)
		}
		select {
		case <-ctx.Done():
			return finish(ctx.Err())
		case err := <-ended:
			ended <- nil
			return finish(err)
		case <-timeout.C:
			over = true
		case <-watcher.Changes():
		}
	}
}

// notThere returns the paths that lead nowhere, in their order, each once.
func notThere(paths []string) []string {
	var absent []string
	for _, path := range paths {
		if slices.Contains(absent, path) {
			continue
		}
		if _, err := os.Stat(path); err != nil {
			absent = append(absent, path)
		}
	}
	return absent
}
