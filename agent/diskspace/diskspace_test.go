package diskspace

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/parts"
)

func start(t *testing.T, o Options) (*Checker, func() string) {
	t.Helper()
	o.Conditions, o.Logger = condition.NewRegistry(), slog.New(slog.DiscardHandler)
	c := New(o)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return c, func() string {
		var all []string
		for _, found := range o.Conditions.Conditions() {
			all = append(all, found.Code+": "+found.Sentence)
		}
		return strings.Join(all, "\n")
	}
}

func noFailures(context.Context) (*LogWriteFailures, error) { return nil, nil }

func TestChecker_FullFileSystem(t *testing.T) {
	for name, fault := range map[string]struct {
		options, says string
		fill          func(folder string) error
	}{
		"no space": {"size=1m", " is full (less than 16 KiB left): nothing is kept; free space on it, ",
			func(folder string) error {
				err := os.WriteFile(filepath.Join(folder, "fill"), make([]byte, 2<<20), 0o600)
				if err == nil {
					return fs.ErrExist
				}
				return nil
			}},
		"no inode": {"nr_inodes=2", " is full (no inode left): nothing is kept; ",
			func(folder string) error {
				return os.WriteFile(filepath.Join(folder, "fill"), nil, 0o600)
			}},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			if err := unix.Mount("tmpfs", folder, "tmpfs", 0, fault.options); err != nil {
				t.Fatal("this test must run as root: ", err)
			}
			t.Cleanup(func() { _ = unix.Unmount(folder, unix.MNT_DETACH) })
			c, conditions := start(t, Options{LogWriteFailures: noFailures,
				Folders: func() []Folder {
					return []Folder{{folder, "nothing is kept"}, {"/nonexistent", ""}}
				}})
			if err := fault.fill(folder); err != nil {
				t.Fatal(err)
			}
			c.Wake()
			parts.Eventually(t, time.Minute, "the condition stands", func() bool {
				return strings.HasPrefix(conditions(),
					conditionFull+": the file system of "+folder+fault.says)
			})
			if err := os.Remove(filepath.Join(folder, "fill")); err != nil {
				t.Fatal(err)
			}
			c.Wake()
			parts.Eventually(t, time.Minute, "the condition ends",
				func() bool { return conditions() == "" })
		})
	}
}

// A file system that hangs does not delay the agent's stop.
func TestChecker_HangingFileSystem(t *testing.T) {
	release := make(chan struct{})
	c := New(Options{LogWriteFailures: noFailures,
		Folders:    func() []Folder { <-release; return nil },
		Conditions: condition.NewRegistry(), Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := c.Run(ctx); err != nil {
		t.Error(err)
	}
	close(release)
}

func TestChecker_LinesLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts := make(chan func() (*LogWriteFailures, error), 10)
		_, conditions := start(t, Options{Folders: func() []Folder { return nil },
			LogWriteFailures: func(context.Context) (*LogWriteFailures, error) {
				if read, ok := <-counts; ok {
					return read()
				}
				return nil, nil
			}})
		said := ""
		for i, step := range []struct {
			now  *LogWriteFailures
			err  error
			lost bool
		}{
			{&LogWriteFailures{0, 5}, nil, false}, {&LogWriteFailures{0, 5}, nil, false},
			{&LogWriteFailures{0, 7}, nil, true},
			{&LogWriteFailures{0, 10}, nil, true}, {nil, errors.New("no Envoy answers on its " +
				"admin interface"), true},
			{&LogWriteFailures{0, 11}, nil, true}, {&LogWriteFailures{1, 0}, nil, true},
			{&LogWriteFailures{1, 1}, nil, true},
			{&LogWriteFailures{1, 1}, nil, false}, {&LogWriteFailures{2, 20}, nil, false},
			{&LogWriteFailures{2, 21}, nil, true},
			{nil, nil, false},
		} {
			counts <- func() (*LogWriteFailures, error) { return step.now, step.err }
			time.Sleep(period)
			synctest.Wait()
			now := conditions()
			if lost := strings.HasPrefix(now, ConditionLinesLost); lost != step.lost {
				t.Errorf("%d: %+v: %q", i, step.now, now)
			}
			if now != "" && said != "" && now != said {
				t.Errorf("%q changed to %q: a line in the journal", said, now)
			}
			said = cmp.Or(now, said)
		}
		close(counts)
	})
}
