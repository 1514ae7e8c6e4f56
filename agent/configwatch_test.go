package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/scripts/parts"
)

// withTemplate returns a reloader whose watched configuration names a template and a certificate.
func withTemplate(t *testing.T) (r *reloads, template, certificate string) {
	t.Helper()
	r = newReloads(t)
	template, certificate = filepath.Join(t.TempDir(), "new.tmpl"),
		filepath.Join(t.TempDir(), "new.pem")
	put(t, template, "first")
	put(t, certificate, "first")
	r.build = func(_ context.Context, loaded *config.Loaded, to listener) (*wanted, error) {
		path := loaded.Config.Envoy.TemplateFile
		if path == "" {
			return &wanted{spec: &epoch.Spec{Digest: "built"}}, nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if string(text) == "broken" {
			return nil, errors.New("broken")
		}
		to.files([]string{certificate})
		more, err := os.ReadFile(certificate)
		if err != nil {
			return nil, err
		}
		return &wanted{spec: &epoch.Spec{Digest: string(text) + " " + string(more)},
			files: []string{certificate}}, nil
	}
	w := newConfigWatch(r.InForce().Config.Reload, slog.New(slog.DiscardHandler))
	r.enact = func(won *prepared, _ func(string)) { w.configure(won.loaded, won.wanted.files) }
	r.expect, r.release = w.expect, w.over
	w.configure(r.InForce(), nil)
	r.run(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	reloads := &fileReloads{w, r.reloader}
	go func() { ended <- reloads.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	r.ask(t, reload{reason: "start", first: true, ifChanged: true})
	return r, template, certificate
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// wished waits until an epoch is requested whose spec has the hash.
func (r *reloads) wished(t *testing.T, hash string) {
	t.Helper()
	parts.Eventually(t, time.Minute, "an epoch of "+hash+" is requested", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.wishes[len(r.wishes)-1] == hash
	})
}

func TestNewlyNamedFileIsWatchedWhileItsEpochWaits(t *testing.T) {
	r, template, certificate := withTemplate(t)
	release := r.holdEpochs()
	defer release()
	r.write(t, "[envoy]\ntemplate_file = \""+template+"\"\n") // the template is watched too
	r.wished(t, "first first")
	put(t, template, "second")
	r.wished(t, "second first")
	put(t, certificate, "second")
	r.wished(t, "second second")
}

func TestFileOfARefusedReloadIsWatchedForItsCure(t *testing.T) {
	r, template, _ := withTemplate(t)
	put(t, template, "broken")
	r.write(t, "[envoy]\ntemplate_file = \""+template+"\"\n")
	// The refusal shows that the new configuration, which names the broken template, was read.
	parts.Eventually(t, time.Minute, "the change is refused", func() bool {
		last, _, busy := r.Summary()
		return !busy && last.Outcome == api.OutcomeRefused
	})
	put(t, template, "cured")
	r.wished(t, "cured first")
}

func TestNothingMoreIsWatchedThanWhatIsNamed(t *testing.T) {
	r, template, _ := withTemplate(t)
	w := newConfigWatch(r.InForce().Config.Reload, slog.New(slog.DiscardHandler))
	named := &config.Loaded{Config: &config.Config{Envoy: config.Envoy{TemplateFile: template}}}
	w.expect(t.Context(), 1, named, nil)
	w.over(1, true)
	w.expect(t.Context(), 2, named, nil)
	w.expect(t.Context(), 3, named, nil)
	w.over(2, true)
	w.over(3, false)
	if len(w.expected) != 0 {
		t.Errorf("still watched: %v", w.expected)
	}
}
