package watch

import (
	"context"
	"os"
	"slices"
	"sync"
	"time"
)

// AwaitFiles waits until all paths exist, or for at most wait. It calls missing, unless nil, with
// the missing paths, without duplicates: once at the beginning if there are any, and then whenever
// their number changes. It returns the paths that are still missing at the end, and ctx's error.
func AwaitFiles(
	ctx context.Context, paths []string, wait time.Duration, missing func([]string),
) ([]string, error) {
	timeout := time.After(wait)
	watcher := New(Options{ReportWithoutReading: true})
	if err := watcher.SetPaths(paths); err != nil {
		return nil, err
	}
	watching, stop := context.WithCancel(ctx)
	var ended sync.WaitGroup
	defer ended.Wait()
	defer stop()
	// if Run fails, the files are returned as missing
	ended.Go(func() { _ = watcher.Run(watching) })
	before := -1
	for over := wait <= 0; ; {
		absent := notThere(paths)
		if missing != nil && len(absent) > 0 && len(absent) != before {
			missing(slices.Clone(absent))
		}
		if len(absent) == 0 || over {
			return absent, nil
		}
		before = len(absent)
		select {
		case <-ctx.Done():
			return absent, ctx.Err()
		case <-timeout:
			over = true
		case <-watcher.Changes():
		}
	}
}

// notThere returns the paths that do not exist, in the given order, without duplicates.
func notThere(paths []string) []string {
	var absent []string
	for _, path := range paths {
		if _, err := os.Stat(path); err != nil && !slices.Contains(absent, path) {
			absent = append(absent, path)
		}
	}
	return absent
}
