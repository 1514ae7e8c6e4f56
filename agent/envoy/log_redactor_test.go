package envoy

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"outrider.org/outrider/scripts/parts"
)

// When a running Envoy refuses a resource, its reason remains in the log and its quotes of the
// resource are removed. Other messages are unchanged.
func TestRefusalsOfARealEnvoyHoldNoCredentials(t *testing.T) {
	const credential, cluster = "s3cret-value",
		`{"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "a", "connect_timeout": "1s", ` +
			`"typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {"@type": "type.googleapis.com/%s}}}`
	path := parts.EnvoyPath(t)
	for name, test := range map[string]struct{ resource, want string }{
		"another type": {fmt.Sprintf(cluster,
			`envoy.config.core.v3.HeaderValue", "key": "x", "value": "s3cret-value"`),
			"cluster 'a' config rejected: Unable to unpack as envoy.ext"},
		"constraint": {fmt.Sprintf(cluster,
			`envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "upstream_http_protocol_options": {"override_auto_sni_header": "s3cret-value"}`),
			`Proto constraint validation failed (field: "upstream_protocol_options", reason: is required)`},
		"no JSON": {"\n\"s3cret-value\"\n", "Unable to parse JSON as proto (INVALID_ARGUMENT: "},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range map[string]string{
				"clusters.json":  `{"resources": [` + test.resource + `]}`,
				"bootstrap.json": `{"node": {"id": "n", "cluster": "c"}, "dynamic_resources": {"cds_config": {"path_config_source": {"path": "` + dir + `/clusters.json"}}}}`,
			} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			command := exec.CommandContext(ctx, path, "--disable-hot-restart", "-c",
				filepath.Join(dir, "bootstrap.json"))
			said, err := command.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			const last = "starting main dispatch loop"
			var redactor logRedactor
			var raw, retained []string
			for lines := bufio.NewScanner(said); lines.Scan() &&
				!strings.Contains(lines.Text(), last); {
				raw = append(raw, lines.Text())
				retained = append(retained, redactor.redact([]string{lines.Text()})...)
			}
			cancel()
			_ = command.Wait()
			text := strings.Join(retained, "\n")
			if !strings.Contains(strings.Join(raw, "\n"), credential) || strings.Contains(text,
				credential) || !strings.Contains(text, test.want) ||
				!strings.Contains(text, "all dependencies initialized") {
				t.Errorf("%s\nof\n%s", text, strings.Join(raw, "\n"))
			}
		})
	}
}

// The result does not depend on how lines are split into batches, even if the first lines of a
// message were lost.
func TestLogRedactor_KeepsStateBetweenBatches(t *testing.T) {
	const prefix = "[Envoy (Epoch 1)] [2026-11-21 15:41:49.385][1][critical][main] "
	const hidden = "s3cret"
	lines := []string{prefix + "a: goo.gle/debugonly  ", "node {", `  id: "s3cret"`, "}",
		`password: "s3cret"`, ": why", prefix + "Unable to parse JSON as proto (e): {",
		` "s3cret",`, `"id": "s3cret"`, "}", "",
		prefix + "b: goo.gle/debugstr  ", "[s3cret] {", "}", "", "GET /",
		`[2026-11-21T15:41:49.385Z] "GET /"`, `{"method": "GET"}`}
	for first := range lines {
		for size := 1; size <= len(lines); size++ {
			var redactor logRedactor
			redactor.redact([]string{prefix + "x: goo.gle/debugstr", "y {"})
			redactor.markGap()
			var retained []string
			for batch := range slices.Chunk(lines[first:], size) {
				retained = append(retained, redactor.redact(batch)...)
			}
			text := strings.Join(retained, "\n")
			if strings.Contains(text, hidden) || first <= 5 && !strings.Contains(text, "why") ||
				!strings.HasSuffix(text, strings.Join(lines[max(first, len(lines)-3):], "\n")) {
				t.Errorf("from line %d on, %d at a time: %s", first, size, text)
			}
		}
	}
}

// After the beginning of a quotation of the configuration, lines that may belong to the quotation
// are removed, but only for a bounded time, because they may be other output of Envoy. The number
// of removed lines is reported.
func TestAQuoteIsBounded(t *testing.T) {
	const prefix = "[Envoy (Epoch 1)] [2026-11-21 15:41:49.385][1][critical][main] "
	access := []string{`"GET / HTTP/1.1" 200`, "word: GET", " GET"}
	for name, begin := range map[string][]string{
		"JSON":          {prefix + "Unable to parse JSON as proto (e): {"},
		"a message":     {prefix + "a: goo.gle/debugonly  ", "c {"},
		"not known yet": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var redactor logRedactor
				redactor.redact(begin)
				quoted := len(begin[min(len(begin), 1):]) + len(access)
				if retained := redactor.redact(access); len(retained) > 0 || redactor.removedLines(false) != 0 {
					t.Errorf("kept of what may be quoted: %q", retained)
				}
				time.Sleep(quoteTime + 1)
				if diff := cmp.Diff(access, redactor.redact(access)); diff != "" {
					t.Error(diff)
				}
				if number := redactor.removedLines(false); number != quoted || redactor.removedLines(true) != 0 {
					t.Errorf("%d lines are reported as left out, want %d", number, quoted)
				}
				redactor.redact([]string{prefix + "Unable to parse JSON as proto (e): {", "}"})
				if number := redactor.removedLines(true); number != 1 {
					t.Errorf("%d lines are reported at the end", number)
				}
			})
		})
	}
}

// FuzzLogRedactor checks that a message without a quote remains, whatever lines precede it.
func FuzzLogRedactor(f *testing.F) {
	f.Add("[Envoy (Epoch 1)] [2026-11-21 15:41:49.385][1][critical][main] a: goo.gle/debugonly  \n"+
		"node {\n  id: 1\n}\n: why\nrest", 3)
	f.Add("x\n: y\n, z\n\nUnable to parse JSON as proto (e): {\n}\n"+
		"[Envoy (Epoch 1)] [2026-11-21 15:41:49.385][1][critical][main] b", 1)
	f.Fuzz(func(t *testing.T, text string, size int) {
		lines := strings.Split(text, "\n")
		var redactor logRedactor
		var retained []string
		for batch := range slices.Chunk(lines, min(max(size, 1), len(lines))) {
			retained = append(retained, redactor.redact(batch)...)
		}
		if got := strings.Join(retained, "\n"); len(got) > len(text) {
			t.Errorf("%q became %q", text, got)
		}
		for _, line := range lines {
			if _, begins := parseLogLine(line); begins && !strings.Contains(line, messageMark) &&
				!quotedJSON.MatchString(line) && !slices.Contains(retained, line) {
				t.Errorf("of %q is missing: %q", text, line)
			}
		}
	})
}

func TestRedactMessage(t *testing.T) {
	const message = "Error adding/updating listener(s) a: goo.gle/debugstr  \nc {\n  d: \"s3cret\"\n" +
		"}\n: why\nb: Unable to unpack as X: goo.gle/debugproto \n[Y] {\n  d: \"s3cret\"\n}\n\n" +
		"c: cannot bind\n"
	const want = "Error adding/updating listener(s) a: why\nb: Unable to unpack as X: (not shown)\n" +
		"c: cannot bind\n"
	if diff := cmp.Diff(want, RedactMessage(message)); diff != "" {
		t.Error(diff)
	}
	for _, plain := range []string{"", "a: cannot bind", "  x\n"} {
		if got := RedactMessage(plain); got != plain {
			t.Errorf("%q became %q", plain, got)
		}
	}
}

// Every validation error of Envoy is reported without its quotes of the bootstrap, even if only the
// last lines are known.
func TestComplaintsOfARealEnvoyHoldNoCredentials(t *testing.T) {
	const credential = "s3cret-value"
	path := parts.EnvoyPath(t)
	for name, test := range map[string]struct{ bootstrap, want string }{
		"no JSON": {"{\"node\": {\"id\": %q},\n\"x\"",
			"Unable to parse JSON as proto (INVALID_ARGUMENT: unexpected EOF)"},
		"wrong type": {"{\"node\": {\"id\": %q},\n\"static_resources\": {\"clusters\": " +
			"[{\"connect_timeout\": \"x\"}]}\n}", "static_resources.clusters[0].connect_timeout:"},
		"unknown": {"{\"node\": {\"id\": %q},\n\"nonesuch\": 1\n}", "has unknown fields"},
		"constraint": {"{\"node\": {\"id\": %q},\n\"static_resources\": {\"clusters\": [{}]}\n}",
			"Proto constraint validation failed (BootstrapValidationError.StaticResources:"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "bootstrap.json")
			if err := os.WriteFile(file, fmt.Appendf(nil, test.bootstrap, credential),
				0o600); err != nil {
				t.Fatal(err)
			}
			stdout, stderr, exit, err := LocalRunner{}.Run(t.Context(), path,
				[]string{"--mode", "validate", "-c", file})
			if err != nil || exit == 0 {
				t.Fatalf("exit %d, %v", exit, err)
			}
			if _, started, _, err := (LocalRunner{}).Run(t.Context(), path,
				[]string{"--disable-hot-restart", "-c", file}); err != nil ||
				strings.Contains(strings.Join(RedactLines(strings.Split(string(started), "\n")),
					"\n"), credential) ||
				!strings.Contains(ExplainExit(1, "", false,
					RedactLines(strings.Split(string(started), "\n"))), test.want) {
				t.Errorf("%v: %s", err, started)
			}
			got := ValidationError(append(stdout, stderr...))
			if strings.Contains(got, credential) || !strings.Contains(got, test.want) {
				t.Errorf("%s", got)
			}
			lines := strings.Split(string(stderr), "\n")
			for first := range lines {
				last := strings.Join(RedactLines(lines[first:]), "\n")
				if quoted := strings.Contains(strings.Join(lines[first:], "\n"),
					credential); quoted && strings.Contains(last, credential) {
					t.Errorf("from line %d on: %s", first, last)
				}
				if said := ExplainExit(1, "", false, RedactLines(lines)); !strings.Contains(said,
					test.want) {
					t.Errorf("%s", said)
				}
			}
		})
	}
}

func TestRedactLines(t *testing.T) {
	const prefix = "[Envoy (Epoch 1)] [2026-11-21 15:41:49.385][1][critical][main] "
	for name, test := range map[string]struct{ lines, want []string }{
		"nothing": {nil, []string{}},
		"nothing quoted": {[]string{"a", prefix + "b", "c", ": d"},
			[]string{"a", prefix + "b", "c", ": d"}},
		"debug": {[]string{"a", prefix + "b: goo.gle/debugstr  ", "c {", "  d: 1", "}",
			": e", prefix + "f"}, []string{"a", prefix + "b: e", prefix + "f"}},
		"cannot start": {[]string{prefix + "error `x` initializing config 'goo.gle/debugproto  ",
			"  b.json'", "x"},
			[]string{prefix + "error `x` initializing config '", "  b.json'", "x"}},
		"cannot start, debug": {[]string{prefix + "error `goo.gle/debugstr  ", "c {", "}",
			": e` initializing config 'goo.gle/debugproto  ", "  b.json'", "goo.gle/debugstr", "c {", "}", ": e"},
			[]string{prefix + "error ` e` initializing config '", "  b.json'", "e"}},
		"debug, on a line": {[]string{prefix + "b: goo.gle/debugproto c { d: 1 }", "e",
			prefix + "f"}, []string{prefix + "b: (not shown)", "e", prefix + "f"}},
		"debug, its end": {[]string{"  d: 1", "}", "g: 1", ": e (f)", "h"}, []string{"e (f)", "h"}},
		"two resources": {[]string{prefix + "x a: goo.gle/debugstr  ", "c {", "}",
			": e, b: goo.gle/debugproto ", "[d] {", "}", "", "c: why", prefix + "f"},
			[]string{prefix + "x a: e, b: (not shown)", "c: why", prefix + "f"}},
		"two resources, the first without a reason": {[]string{prefix + "x a: goo.gle/debugproto  ",
			"c {", "}", ", b: why", "c: 1"}, []string{prefix + "x a:, b: why", "c: 1"}},
		"JSON": {[]string{prefix + "Unable to parse JSON as proto (x (y)): {", "  1", "}", "",
			prefix + "f"},
			[]string{prefix + "Unable to parse JSON as proto (x (y))", prefix + "f"}},
		"its end is quoted": {[]string{prefix + "a: goo.gle/debugonly  ", "c {", "}", prefix + "f"},
			[]string{prefix + "a: (not shown)", prefix + "f"}},
		"no more is known": {[]string{"x", prefix + "a: goo.gle/debugonly  ", "c {"},
			[]string{"x", prefix + "a: (not shown)"}},
		"JSON, its end": {[]string{"  1", "}", "", prefix + "f", "}"},
			[]string{"", prefix + "f", "}"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, RedactLines(test.lines)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
