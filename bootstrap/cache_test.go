package bootstrap_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/bootstrap"
)

// counted is a program that renders as the real one does, and counts its runs.
type counted struct {
	t    *testing.T
	path string
	log  string
}

func newCounted(t *testing.T) counted {
	t.Helper()
	folder := t.TempDir()
	c := counted{t, filepath.Join(folder, "outrider-bootstrap"), filepath.Join(folder, "asked")}
	c.install("first")
	return c
}

// install installs a build of the program by rename, as a package does.
func (c counted) install(build string) {
	c.t.Helper()
	text := fmt.Sprintf("#!/bin/sh\n# %s\necho >>%s\nexec %s\n", build, c.log, program)
	if err := os.WriteFile(c.path+".new", []byte(text), 0o700); err != nil { //nolint:gosec // a program
		c.t.Fatal(err)
	}
	if err := os.Rename(c.path+".new", c.path); err != nil {
		c.t.Fatal(err)
	}
}

func (c counted) asked() int {
	text, err := os.ReadFile(c.log)
	if err != nil && !os.IsNotExist(err) {
		c.t.Fatal(err)
	}
	return bytes.Count(text, []byte("\n"))
}

// start renders as a new agent does: it has no state but the cache file.
func (c counted) start(cache, version string, request bootstrap.Request) *bootstrap.Rendered {
	c.t.Helper()
	rendered, err := (&bootstrap.RenderProgram{Path: c.path, CachePath: cache,
		ExpectedVersion: version}).Render(c.t.Context(), request)
	if err != nil {
		c.t.Fatal(err)
	}
	return rendered
}

func TestCache_NextStartNeedsNoProgram(t *testing.T) {
	c, cache := newCounted(t), filepath.Join(t.TempDir(), "bootstrap.json")
	request := bootstrap.Request{Input: everything(),
		Override: file("o.yaml", "node: {cluster: another}")}
	first := c.start(cache, "1", request)
	second := c.start(cache, "1", request)
	if diff := cmp.Diff(first, second); diff != "" || c.asked() != 1 {
		t.Errorf("the program was asked %d times and not once; -as rendered +as remembered:\n%s",
			c.asked(), diff)
	}
	info, err := os.Stat(cache)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("who may read it: %v, %v", info.Mode(), err)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(cache), "*")); err != nil ||
		len(left) != 1 {
		t.Errorf("left beside it: %v, %v", left, err)
	}
}

func TestCache_OmitsSecrets(t *testing.T) {
	c, cache := newCounted(t), filepath.Join(t.TempDir(), "bootstrap.json")
	request := bootstrap.Request{Input: everything(), ResultIsSecret: true}
	c.start(cache, "1", request)
	if _, err := os.Stat(cache); !os.IsNotExist(err) {
		t.Errorf("a bootstrap with a secret is remembered (%v)", err)
	}
	if c.start(cache, "1", request); c.asked() != 2 {
		t.Errorf("the program was asked %d times, want 2", c.asked())
	}
}

// A change of any input, of the program or of the version causes a new rendering.
func TestCache_AnswersOneQuestion(t *testing.T) {
	const admin = `"admin": {"address": {"pipe": {"path": "/admin"}}}`
	with := func(change func(*bootstrap.Request)) bootstrap.Request {
		request := bootstrap.Request{Input: everything(),
			Template: file("t", `{"node": {"id": {{toJSON .nodeID}}}, `+admin+`}`),
			Override: file("o", "{}")}
		change(&request)
		return request
	}
	same := func(*bootstrap.Request) {}
	for name, test := range map[string]struct {
		change  func(*bootstrap.Request)
		build   string
		version string
	}{
		"input": {change: func(r *bootstrap.Request) { r.Input.Node.ID = "vm2.default" }},
		"template": {change: func(r *bootstrap.Request) {
			r.Template = file("t",
				`{"node": {"id": "mine"}, `+admin+`}`)
		}},
		"override": {change: func(r *bootstrap.Request) {
			r.Override = file("o",
				"node: {cluster: mine}")
		}},
		"no file": {change: func(r *bootstrap.Request) { r.Override = nil }},
		"custom": {change: func(r *bootstrap.Request) {
			r.Template, r.Custom = nil,
				file("c.json", `{`+admin+`}`)
		}},
		"program": {change: same, build: "2"},
		"version": {change: same, version: "2"},
	} {
		t.Run(name, func(t *testing.T) {
			c, cache := newCounted(t), filepath.Join(t.TempDir(), "bootstrap.json")
			c.start(cache, "", with(same))
			if test.build != "" {
				c.install(test.build)
			}
			c.start(cache, test.version, with(test.change))
			if c.asked() != 2 {
				t.Errorf("the program was asked %d times and not twice", c.asked())
			}
			if c.start(cache, test.version, with(test.change)); c.asked() != 2 {
				t.Errorf("what changed is not remembered: it was asked %d times", c.asked())
			}
		})
	}
}

// An unusable cache file causes a run of the program and is replaced.
func TestCache_IgnoresBrokenFile(t *testing.T) {
	request := bootstrap.Request{Input: everything()}
	for name, spoil := range map[string]func(text []byte) []byte{
		"empty":    func([]byte) []byte { return nil },
		"cut":      func(text []byte) []byte { return text[:len(text)/2] },
		"nonsense": func([]byte) []byte { return []byte("nonsense") },
		"null":     func([]byte) []byte { return []byte("null") },
		"changed": func(text []byte) []byte {
			return bytes.Replace(text, []byte(`"Text":"`), []byte(`"Text":"AAAA`), 1)
		},
		"oversized": func(text []byte) []byte {
			return append(text, bytes.Repeat([]byte(" "), 9<<20)...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, cache := newCounted(t), filepath.Join(t.TempDir(), "bootstrap.json")
			want := c.start(cache, "", request)
			text, err := os.ReadFile(cache)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(cache, spoil(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, c.start(cache, "", request)); diff != "" || c.asked() != 2 {
				t.Errorf("the program was asked %d times and not twice\n%s", c.asked(), diff)
			}
			if c.start(cache, "", request); c.asked() != 2 {
				t.Errorf("it was not replaced: %d times", c.asked())
			}
		})
	}
}

// Errors are not cached. A bootstrap that cannot be cached is returned nevertheless.
func TestCache_OmitsFailures(t *testing.T) {
	c, cache := newCounted(t), filepath.Join(t.TempDir(), "bootstrap.json")
	p := &bootstrap.RenderProgram{Path: c.path, CachePath: cache}
	if _, err := p.Render(t.Context(),
		bootstrap.Request{Template: file("t", "{{ if }}")}); err == nil {
		t.Error("a broken template is rendered")
	}
	if _, err := os.Stat(cache); !os.IsNotExist(err) {
		t.Errorf("a failure is remembered: %v", err)
	}
	c.start(filepath.Join(t.TempDir(), "nowhere", "bootstrap.json"), "",
		bootstrap.Request{Input: everything()})
	large := everything()
	large.Node.Metadata = map[string]any{"large": strings.Repeat("x", 9<<20)}
	c.start(cache, "", bootstrap.Request{Input: large})
	if _, err := os.Stat(cache); !os.IsNotExist(err) {
		t.Errorf("what is too large is remembered: %v", err)
	}
}
