package bootstrap_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/typedconfig"
	"outrider.org/outrider/bootstrap"
)

const rateLimit = "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit"

// TestCheckTyped_IsBounded checks that a typed_config that is expensive to check is checked or
// reported as too large, and does not prevent the check of another one in the same call.
func TestCheckTyped_IsBounded(t *testing.T) {
	nested := strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000)
	many := func(value string, n int) string {
		return `{"descriptors": [` + strings.Repeat(value+",", n-1) + value + "]}"
	}
	const either = "at the limit"
	for name, test := range map[string]struct{ value, finding, err string }{
		"nested": {`{"metadata": ` + nested + `}`, "LocalRateLimit has no field", ""},
		"nested where anything is allowed": {`{"filters": [{"typed_config": {"@type": ` +
			`"type.googleapis.com/envoy.config.core.v3.Metadata", "filter_metadata": {"a": ` + nested + `}}}]}`,
			"", ""},
		"large":        {`{"stat_prefix": "` + strings.Repeat("a", 3<<20) + `"}`, "", ""},
		"many":         {many("0", 1<<20), "", "too large"},
		"many empty":   {many("{}", 300_000), "", "too large"},
		"200 K":        {many("0", 100_000), "", either},
		"200 K, empty": {many("{}", 67_000), "", either},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &bootstrap.RenderProgram{Path: program, MemoryLimit: 128 << 20,
				CPULimit: 5 * time.Second}
			checker := typedconfig.Checker{RunProcess: p.CheckTypedConfigs}
			answers := checker.Check([]typedconfig.Config{
				{Type: rateLimit, Value: json.RawMessage(test.value)},
				{Type: rateLimit, Value: json.RawMessage(`{"stat_prefixes": "a"}`)}})
			hasError(t, answers[1], "LocalRateLimit has no field")
			switch err := answers[0].Err; {
			case test.err == either:
			case (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err):
				t.Errorf("%+v", answers[0])
			case test.finding != "":
				hasError(t, answers[0], test.finding)
			}
		})
	}
}

func hasError(t *testing.T, of typedconfig.CheckResult, message string) {
	t.Helper()
	if len(of.Findings) == 0 || of.Findings[0].Severity != condition.Error ||
		!strings.Contains(of.Findings[0].Message, message) {
		t.Errorf("no error %q: %+v", message, of)
	}
}

func TestCheckTyped_Faults(t *testing.T) {
	configs := []typedconfig.Config{{Type: rateLimit, Value: json.RawMessage("{}")}}
	script := func(text string) string {
		path := filepath.Join(t.TempDir(), "program")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
		return path
	}
	for name, path := range map[string]string{
		"missing":          filepath.Join(t.TempDir(), "none"),
		"failed":           script("echo broken >&2; exit 3"),
		"another question": script(`echo '{"Findings": []}'`),
		"an old program":   script(`echo '{"Rendered": {}}'`),
		"unable":           script(`echo '{"Unable": "restart outriderd"}'`),
		"no JSON":          script("echo yes"),
	} {
		checker := typedconfig.Checker{RunProcess: (&bootstrap.RenderProgram{Path: path}).CheckTypedConfigs}
		if answers := checker.Check(configs); answers[0].Err == nil || answers[0].Findings != nil {
			t.Errorf("%s: %+v", name, answers)
		}
	}
	large := json.RawMessage(`"` + strings.Repeat("a", 5<<20) + `"`)
	checker := typedconfig.Checker{RunProcess: (&bootstrap.RenderProgram{Path: program}).CheckTypedConfigs}
	answers := checker.Check(append([]typedconfig.Config{{Type: rateLimit, Value: large}}, configs...))
	if answers[0].Err == nil || answers[1].Err != nil {
		t.Errorf("%+v", answers)
	}
	if _, ok := errors.AsType[*bootstrap.RenderProgramError](answers[0].Err); ok {
		t.Errorf("the process got it: %v", answers[0].Err)
	}
}
