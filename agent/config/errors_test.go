package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"outrider.org/outrider/scripts/parts"
)

// buildAt builds a configuration from files as if they were in /etc/outrider.
func buildAt(files []txtar.File, options Options) (*Loaded, Errors) {
	if options.Environment == nil {
		options.Environment = func(string) string { return "" }
	}
	layout, p := options.layout()
	if p != nil {
		return nil, Errors{p}
	}
	var sources []source
	for _, f := range files {
		sources = append(sources,
			source{filepath.Join(filepath.Dir(layout.main), f.Name), string(f.Data)})
	}
	loaded, errs := build(sources, true, layout, options)
	errs.sort(loaded.Files)
	return loaded, errs
}

// Each file in testdata/errors contains a configuration and the exact messages about it.
func TestErrors(t *testing.T) {
	paths, err := filepath.Glob("testdata/errors/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var files []txtar.File
			for _, f := range archive.Files {
				if strings.HasSuffix(f.Name, ".toml") {
					files = append(files, f)
				}
			}
			loaded, errs := buildAt(files, Options{})
			for _, e := range append(errs, loaded.Warnings...) {
				if e.File == "" || e.Line < 1 || e.Column < 1 || e.Message == "" {
					t.Errorf("has no position: %v", e)
				}
			}
			said := []txtar.File{{Name: "errors", Data: lines(errs)}}
			if len(loaded.Warnings) > 0 {
				said = append(said, txtar.File{Name: "warnings", Data: lines(loaded.Warnings)})
			}
			got := &txtar.Archive{Comment: archive.Comment, Files: append(files, said...)}
			parts.Golden(t, path, string(txtar.Format(got)), *update)
		})
	}
}

func lines(errs Errors) []byte {
	if len(errs) == 0 {
		return nil
	}
	return []byte(strings.ReplaceAll(errs.Error(), "/etc/outrider/", "") + "\n")
}

// Every flag of Envoy 1.40 is either rejected with a reason or accepted.
func TestExtraArguments(t *testing.T) {
	help, err := os.ReadFile("testdata/envoy-1.40-flags.txt")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for flag := range strings.FieldsSeq(string(help)) {
		verdict := "accepted"
		if p := extraArguments([]string{"--cpuset-threads", flag}); p != nil {
			verdict = p.message + "; " + p.fix
		}
		b.WriteString(flag + ": " + verdict + "\n")
	}
	for _, attached := range []string{"-ldebug", "-c/etc/envoy.yaml", "--log-level=debug",
		"-linfo=1", "plain", ""} {
		verdict := "accepted"
		if p := extraArguments([]string{attached}); p != nil {
			verdict = p.message + "; " + p.fix
		}
		b.WriteString(quote(attached) + ": " + verdict + "\n")
	}
	parts.Golden(t, "testdata/extra_args.golden", b.String(), *update)
}
