package agent

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/config"
)

// responds fails the test if the goroutine of the reloader's Run is blocked.
func (r *reloads) responds(t *testing.T, when string) {
	t.Helper()
	pinged := make(chan error, 1)
	go func() { pinged <- r.Ping(t.Context()) }()
	synctest.Wait()
	select {
	case err := <-pinged:
		if err != nil {
			t.Errorf("%s: %v", when, err)
		}
	default:
		t.Errorf("%s: the watchdog is not fed", when)
	}
	if _, _, busy := r.Summary(); !busy {
		t.Errorf("%s: the status shows no reload", when)
	}
}

// If a component hangs while it applies settings, only the reload that waits for it and later ones
// are delayed, and their progress names the component.
func TestReload_HangingSettingsDoNotBlockTheOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReloads(t)
		r.run(t)
		r.ask(t, reload{reason: "start", first: true, ifChanged: true})
		hang := make(chan struct{})
		var enacted []string
		r.enact = func(won *prepared, step func(string)) {
			step("mesh configuration")
			<-hang
			enacted = append(enacted, won.loaded.Config.Log.Level)
		}
		r.write(t, "[log]\nlevel = \"debug\"\n")
		first := r.begin(t, "first")
		synctest.Wait()
		r.responds(t, "while settings hang")
		if got, want := r.Phase(),
			"reloading (first): applying settings: mesh configuration"; got != want {
			t.Errorf("phase %q, want %q", got, want)
		}
		if got := r.InForce().Config.Log.Level; got != "debug" {
			t.Errorf("log.level %q is in force", got)
		}

		r.write(t, "[log]\nlevel = \"warn\"\n")
		var told []string
		request := &reload{reason: "second", progress: func(p api.Progress) {
			told = append(told, p.Phase)
		}, ifChanged: true}
		second := r.beginOf(t, request)
		synctest.Wait()
		r.responds(t, "while a second reload waits")
		const why = "waiting until earlier settings take effect: mesh configuration"
		if len(told) == 0 || told[len(told)-1] != why {
			t.Errorf("the second reload is told %q, want %q last", told, why)
		}
		r.write(t, "[log]\nlevel = 1\n")
		if got := r.ask(t, reload{reason: "broken"}); got.Outcome != api.OutcomeRefused {
			t.Errorf("a broken configuration meanwhile: %+v", got)
		}
		close(hang)
		if got := <-first; got.Outcome != api.OutcomeApplied {
			t.Errorf("first: %+v", got)
		}
		if got := <-second; got.Outcome != api.OutcomeApplied {
			t.Errorf("second: %+v", got)
		}
		if got := strings.Join(enacted, " "); got != "debug warn" {
			t.Errorf("applied in the order %q", got)
		}
	})
}

// A reload is refused after prepareTime if one of its files is on a mount that hangs.
func TestReload_HangingFileIsRefused(t *testing.T) {
	for name, hangs := range map[string]func(r *reloads, hang chan struct{}){
		"configuration": func(r *reloads, hang chan struct{}) {
			r.load = func() (*config.Loaded, error) { <-hang; return r.read() }
		},
		"keeper or file of Envoy": func(r *reloads, hang chan struct{}) {
			build := r.build
			r.build = func(
				ctx context.Context, loaded *config.Loaded, to listener,
			) (*wanted, error) {
				to.phase("asking Envoy what it is")
				<-hang
				return build(ctx, loaded, to)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReloads(t)
				r.run(t)
				r.ask(t, reload{reason: "start", first: true, ifChanged: true})
				hang := make(chan struct{})
				defer close(hang)
				hangs(r, hang)
				outcome := r.begin(t, "hangs")
				synctest.Wait()
				r.responds(t, "while a file hangs")
				got := <-outcome
				if got.Outcome != api.OutcomeRefused ||
					!strings.Contains(got.Reasons[0], "file system") {
					t.Errorf("%+v", got)
				}
			})
		})
	}
}

// A preparation that exceeded prepareTime because a mount hung watches no files once the mount
// responds again.
func TestReload_HangingFileIsNotWatchedAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReloads(t)
		w := newConfigWatch(r.InForce().Config.Reload, slog.New(slog.DiscardHandler))
		r.expect, r.release = w.expect, w.over
		r.run(t)
		r.ask(t, reload{reason: "start", first: true, ifChanged: true})
		hang := make(chan struct{})
		r.load = func() (*config.Loaded, error) { <-hang; return r.read() }
		if got := <-r.begin(t, "hangs"); got.Outcome != api.OutcomeRefused {
			t.Errorf("%+v", got)
		}
		close(hang)
		synctest.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.expected) != 0 {
			t.Errorf("still watched: %v", w.expected)
		}
	})
}

// A reloader ends with its context even if a helper goroutine hangs.
func TestReload_EndsDespiteHangingHelper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReloads(t)
		hang := make(chan struct{})
		defer close(hang)
		r.load = func() (*config.Loaded, error) { <-hang; return r.read() }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		outcome := r.begin(t, "hangs")
		synctest.Wait()
		cancel()
		synctest.Wait()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Fatal("Run waits for a helper that hangs")
		}
		if got := <-outcome; got.Outcome != api.OutcomeRefused {
			t.Errorf("%+v", got)
		}
	})
}
