package agent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/watch"
)

// watchPaths returns all files and directories whose change may require a reload: those of the
// configuration, those from which the bootstrap is made, and read, the files that Envoy reads at
// its start.
func watchPaths(loaded *config.Loaded, read []string) []string {
	c := loaded.Config
	paths := slices.Concat(loaded.Files, loaded.Dirs, read,
		[]string{c.Envoy.CustomConfigFile, c.Envoy.TemplateFile, c.Envoy.BootstrapOverride,
			c.Tracing.AccessTokenFile})
	return blueprint.UniquePaths(paths)
}

// conditionFilesMissing is raised while the start waits for files, and if they are still missing
// after the wait.
const conditionFilesMissing = "files-missing"

// awaitFiles waits up to [identity] wait for the files that Envoy needs at its start. Files still
// missing then are logged and raised as a condition, and the start continues without them. The
// error is that of ctx.
func (s *starter) awaitFiles(ctx context.Context, c *config.Config, paths []string) error {
	if len(paths) == 0 {
		return nil
	}
	until := time.Now().Add(c.Identity.CertificateWait)
	missing, err := watch.AwaitFiles(ctx, paths, c.Identity.CertificateWait,
		func(missing []string) {
			if len(missing) == 0 {
				return
			}
			sentence := fmt.Sprintf("waiting until %s for %s", until.Format(time.TimeOnly),
				strings.Join(missing, ", "))
			s.proxy.SetFirstEpochWaitReason(sentence)
			s.board.Raise(conditionFilesMissing, condition.Warning, sentence)
			s.logOf("watch").Info("waiting for files that Envoy needs at its start", "until", until,
				"missing", missing)
		})
	s.proxy.SetFirstEpochWaitReason("")
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		sentence := fmt.Sprintf("not there within %v: %s; Envoy starts without",
			c.Identity.CertificateWait,
			strings.Join(missing, ", "))
		s.board.Raise(conditionFilesMissing, condition.Error, sentence)
		s.logOf("watch").Error("cannot find all files that Envoy needs: starting it without them",
			"waited", c.Identity.CertificateWait,
			"missing", missing)
		return nil
	}
	s.board.Clear(conditionFilesMissing)
	return nil
}

// maxFileReloads bounds the concurrent reloads caused by file changes. Several are needed: while
// one waits for an older epoch, a later invalid change is reported at once.
const maxFileReloads = 16

// configWatch watches the files of the configuration.
type configWatch struct {
	*watch.Watcher
	log *slog.Logger

	mu       sync.Mutex
	inForce  []string            // paths of the configuration in force
	expected map[uint64][]string // paths of reloads in progress, by reload ID
	refused  uint64              // ID of a refused reload still in expected; 0: none
}

func newConfigWatch(c config.Reload, log *slog.Logger) *configWatch {
	return &configWatch{log: log, expected: map[uint64][]string{},
		Watcher: watch.New(watch.Options{
			Delays:   watch.Delays{Debounce: c.Debounce, MaxDelay: c.MaxDelay},
			Suffixes: []string{".toml"},
			Logger:   log,
		})}
}

// configure watches the files of the configuration in force and those in read, which Envoy reads,
// and sets the configured delays.
func (w *configWatch) configure(loaded *config.Loaded, read []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inForce = watchPaths(loaded, read)
	w.SetDelays(watch.Delays{Debounce: loaded.Config.Reload.Debounce,
		MaxDelay: loaded.Config.Reload.MaxDelay})
	w.update()
}

// expect also watches the files that a reload is about to read, until over is called with the ID of
// the reload. It does nothing once ctx has ended: if a file system hangs, the goroutine that
// prepares the reload may call expect after the reload has failed and over was called.
func (w *configWatch) expect(
	ctx context.Context, id uint64, loaded *config.Loaded, read []string,
) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	if w.refused != 0 && w.refused < id {
		delete(w.expected, w.refused)
		w.refused = 0
	}
	w.expected[id] = watchPaths(loaded, read)
	w.update()
}

// over ends the watch that expect began for a reload. If the newest reload was refused, its files
// remain watched until the next reload, because a correction of one of them may make the
// configuration valid.
func (w *configWatch) over(id uint64, refused bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if refused && w.expected[id] != nil && id == slices.Max(slices.Collect(maps.Keys(w.expected))) {
		w.refused = id
	} else {
		delete(w.expected, id)
	}
	w.update()
}

// update passes all paths to the watcher. Callers hold mu.
func (w *configWatch) update() {
	paths := slices.Clone(w.inForce)
	for _, more := range w.expected {
		paths = append(paths, more...)
	}
	if err := w.SetPaths(blueprint.UniquePaths(paths)); err != nil {
		w.log.Warn("cannot watch all files of the configuration", "error", err)
	}
}

// fileReloads reloads when files change.
type fileReloads struct {
	*configWatch
	reloader *reloader
}

// Run requests a reload after each change until ctx ends.
func (w *fileReloads) Run(ctx context.Context) error {
	watching := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { watching <- w.Watcher.Run(ctx) }()
	slots := make(chan struct{}, maxFileReloads)
	var reloads sync.WaitGroup
	defer reloads.Wait()
	for {
		select {
		case changed := <-w.Changes():
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return <-watching
			}
			reloads.Go(func() {
				defer func() { <-slots }()
				// Ignore the result: the reloader logs the outcome, and raises a condition if it
				// refuses the configuration.
				_, _ = w.reloader.do(ctx, &reload{
					reason:    "changed: " + strings.Join(changed, ", "),
					ifChanged: true, files: changed})
			})
		case err := <-watching:
			return err
		}
	}
}
