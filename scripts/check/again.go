package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mostFlaky is the maximum number of failed tests that are run again. A test that then passes alone
// is flaky (see runAgain).
const mostFlaky = 3

// runAgain runs each failed test once more, alone, and prints the failures. It returns the names of
// the flaky tests, which passed in the second run. A flaky test counts as passed, unless it was
// also flaky in the previous run (before). If more than mostFlaky tests have failed, none is run
// again, because the whole run fails anyway.
func runAgain(
	ctx context.Context,
	total *result,
	before []string,
	run func(context.Context, testRun, ...string) result,
	out io.Writer,
) (names []string) {
	var failed, flaky []failure
	for _, f := range total.failures {
		if len(total.failures) > mostFlaky || !passedAlone(ctx, f, run, out) {
			failed = append(failed, f)
			continue
		}
		names = append(names, f.name())
		if slices.Contains(before, f.name()) {
			f.why += "passed alone, but was flaky in the previous run too\n"
			failed = append(failed, f)
			continue
		}
		flaky = append(flaky, f)
		total.failed -= f.count
		total.passed += f.count
	}
	list := func(title string, failures []failure) {
		if len(failures) > 0 {
			fmt.Fprintf(out, "=== %s\n", title)
		}
		for _, f := range failures {
			fmt.Fprint(out, f.why)
		}
	}
	list("flaky: failed at first, passed alone", flaky)
	list("failed", failed)
	return names
}

// name identifies the test in the record of flaky tests.
func (f failure) name() string { return strings.TrimSpace(f.pack + " " + f.test) }

// flakyRecord returns the path of the file that lists the flaky tests of the last complete run on
// this machine, one per line.
func flakyRecord() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the record of flaky tests: %w", err)
	}
	return filepath.Join(cache, "outrider", "flaky-tests"), nil
}

// readFlaky returns the names in the record of flaky tests, none if there is no record.
func readFlaky(path string) ([]string, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the record of flaky tests: %w", err)
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		names = append(names, strings.TrimSpace(line))
	}
	return names, nil
}

func writeFlaky(path string, names []string) error {
	var text strings.Builder
	for _, name := range names {
		fmt.Fprintln(&text, name)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write the record of flaky tests: %w", err)
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
		return fmt.Errorf("write the record of flaky tests: %w", err)
	}
	return nil
}

// passedAlone reports whether a failed test passes when it runs again without other tests.
func passedAlone(
	ctx context.Context,
	f failure,
	run func(context.Context, testRun, ...string) result,
	out io.Writer,
) bool {
	again := f.run
	if f.test != "" {
		again.pattern = "^" + f.test + "$"
	}
	fmt.Fprintf(out, "=== again, alone: %s %s\n", f.pack, f.test)
	r := run(ctx, again, f.pack)
	return r.failed == 0 && r.passed > 0
}
