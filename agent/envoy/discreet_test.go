package envoy

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"outrider.org/outrider/scripts/parts"
)

// Whatever Envoy complains about, it is told without what Envoy quotes of the bootstrap, also where only the last lines are known.
func TestComplaintsOfARealEnvoyHoldNoCredentials(t *testing.T) {
	const credential = "s3cret-value"
	path := parts.Envoy(t)
	for name, test := range map[string]struct{ bootstrap, want string }{
		"no JSON":    {"{\"node\": {\"id\": %q},\n\"x\"", "Unable to parse JSON as proto (INVALID_ARGUMENT: unexpected EOF)"},
		"wrong type": {"{\"node\": {\"id\": %q},\n\"static_resources\": {\"clusters\": [{\"connect_timeout\": \"x\"}]}\n}", "static_resources.clusters[0].connect_timeout:"},
		"unknown":    {"{\"node\": {\"id\": %q},\n\"nonesuch\": 1\n}", "has unknown fields"},
		"constraint": {"{\"node\": {\"id\": %q},\n\"static_resources\": {\"clusters\": [{}]}\n}", "Proto constraint validation failed (BootstrapValidationError.StaticResources:"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "bootstrap.json")
			if err := os.WriteFile(file, fmt.Appendf(nil, test.bootstrap, credential), 0o600); err != nil {
				t.Fatal(err)
			}
			stdout, stderr, exit, err := Local{}.Run(t.Context(), path, []string{"--mode", "validate", "-c", file})
			if err != nil || exit == 0 {
				t.Fatalf("exit %d, %v", exit, err)
			}
			if _, started, _, err := (Local{}).Run(t.Context(), path, []string{"--disable-hot-restart", "-c", file}); err != nil ||
				strings.Contains(strings.Join(Discreet(strings.Split(string(started), "\n")), "\n"), credential) ||
				!strings.Contains(ExplainExit(1, "", false, Discreet(strings.Split(string(started), "\n"))), test.want) {
				t.Errorf("%v: %s", err, started)
			}
			got := Complaint(append(stdout, stderr...))
			if strings.Contains(got, credential) || !strings.Contains(got, test.want) {
				t.Errorf("%s", got)
			}
			lines := strings.Split(string(stderr), "\n")
			for first := range lines {
				last := strings.Join(Discreet(lines[first:]), "\n")
				if quoted := strings.Contains(strings.Join(lines[first:], "\n"), credential); quoted && strings.Contains(last, credential) {
					t.Errorf("from line %d on: %s", first, last)
				}
				if said := ExplainExit(1, "", false, Discreet(lines)); !strings.Contains(said, test.want) {
					t.Errorf("%s", said)
				}
			}
		})
	}
}

func TestDiscreet(t *testing.T) {
	const prefix = "[Envoy (Epoch 1)] [2026-11-21 15:41:49.385][1][critical][main] "
	for name, test := range map[string]struct{ lines, want []string }{
		"nothing":        {nil, []string{}},
		"nothing quoted": {[]string{"a", prefix + "b", "c", ": d"}, []string{"a", prefix + "b", "c", ": d"}},
		"debug":          {[]string{"a", prefix + "b: goo.gle/debugstr  ", "c {", "  d: 1", "}", ": e", prefix + "f"}, []string{"a", prefix + "b: e", prefix + "f"}},
		"cannot start": {[]string{prefix + "error `x` initializing config 'goo.gle/debugproto  ", "  b.json'", "x"},
			[]string{prefix + "error `x` initializing config '", "  b.json'", "x"}},
		"cannot start, debug": {[]string{prefix + "error `goo.gle/debugstr  ", "c {", "}", ": e` initializing config 'goo.gle/debugproto  ", "  b.json'", "goo.gle/debugstr", "c {", "}", ": e"},
			[]string{prefix + "error ` e` initializing config '", "  b.json'", " e"}},
		"debug, on a line": {[]string{prefix + "b: goo.gle/debugproto c { d: 1 }", "e", prefix + "f"}, []string{prefix + "b:", prefix + "f"}},
		"debug, its end":   {[]string{"  d: 1", "}", "g: 1", ": e (f)", "h"}, []string{"e (f)", "h"}},
		"JSON": {[]string{prefix + "Unable to parse JSON as proto (x (y)): {", "  1", "}", "", prefix + "f"},
			[]string{prefix + "Unable to parse JSON as proto (x (y))", prefix + "f"}},
		"JSON, its end": {[]string{"  1", "}", "", prefix + "f", "}"}, []string{"", prefix + "f", "}"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, Discreet(test.lines)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
