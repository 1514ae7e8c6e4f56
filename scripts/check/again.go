package main

import (
	"context"
	"fmt"
	"io"
)

// mostFlaky is how many failed tests may pass when they run again, alone, without failing the run.
const mostFlaky = 3

// runAgain runs each failed test once more, alone, and prints what failed. A test that passes now
// is flaky: it is listed with its first output and counts as passed. With more than mostFlaky
// failures the run has failed whatever a second attempt shows, so there is none.
func runAgain(
	ctx context.Context,
	total *result,
	run func(context.Context, testRun, ...string) result,
	out io.Writer,
) {
	var failed, flaky []failure
	for _, f := range total.failures {
		if len(total.failures) > mostFlaky || !passesAlone(ctx, f, run, out) {
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
}

// passesAlone reports whether a failed test passes when it runs again and nothing runs beside it.
func passesAlone(
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
