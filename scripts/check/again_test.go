package main

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestRunAgain runs real tests of a temporary package: one that always fails, and one that fails
// only the first time.
func TestRunAgain(t *testing.T) {
	folder := t.TempDir()
	write(t, folder+"/go.mod", "module flaky.test/flaky\n\ngo 1.24\n")
	write(t, folder+"/flaky_test.go", `package flaky

import (
	"os"
	"testing"
)

func TestPasses(t *testing.T) {}

func TestBroken(t *testing.T) { t.Error("always") }

func TestOnce(t *testing.T) {
	t.Run("sub", func(t *testing.T) {
		if os.Mkdir("ran", 0o755) == nil {
			t.Error("the first time")
		}
	})
}
`)
	t.Chdir(folder)
	t.Setenv("GOFLAGS", "-mod=mod")

	total := goTest(t.Context(), testRun{}, "./...")
	if total.passed != 1 || total.failed != 3 || len(total.failures) != 2 {
		t.Fatalf("first run: %+v", total)
	}
	var out strings.Builder
	again := total
	names := runAgain(t.Context(), &total, nil, goTest, &out)
	if total.passed != 3 || total.failed != 1 {
		t.Errorf("after the second attempt: %+v", total)
	}
	flaky, failed, found := strings.Cut(out.String(), "=== failed\n")
	if !found || !strings.Contains(failed, "TestBroken") || strings.Contains(failed, "TestOnce") {
		t.Errorf("failed tests are not listed as such:\n%s", out.String())
	}
	if !strings.Contains(flaky, "=== flaky") || !strings.Contains(flaky, "the first time") {
		t.Errorf("the flaky test is not listed with its first output:\n%s", out.String())
	}

	record := t.TempDir() + "/outrider/flaky-tests"
	if err := writeFlaky(record, names); err != nil {
		t.Fatal(err)
	}
	before, err := readFlaky(record)
	if err != nil || len(before) != 1 {
		t.Fatalf("recorded %q, error %v; want TestOnce", before, err)
	}
	out.Reset()
	names = runAgain(t.Context(), &again, before, goTest, &out)
	if again.passed != 1 || again.failed != 3 {
		t.Errorf("flaky in two runs in a row: %+v, want a failure", again)
	}
	if !slices.Equal(names, before) {
		t.Errorf("flaky in the second run: %q, want %q", names, before)
	}
	if !strings.Contains(out.String(), "was flaky in the previous run too") {
		t.Errorf("no reason for the failure:\n%s", out.String())
	}
}

func TestReadFlaky_NoRecordYet(t *testing.T) {
	if names, err := readFlaky(t.TempDir() + "/flaky-tests"); err != nil || len(names) > 0 {
		t.Errorf("%q, error %v; want none", names, err)
	}
}

func TestRunAgain_NotIfTooManyFailed(t *testing.T) {
	total := result{failed: mostFlaky + 1, failures: make([]failure, mostFlaky+1)}
	runAgain(t.Context(), &total, nil, func(context.Context, testRun, ...string) result {
		t.Error("a test ran again")
		return result{passed: 1}
	}, &strings.Builder{})
	if total.failed != mostFlaky+1 {
		t.Errorf("%d failed, want %d", total.failed, mostFlaky+1)
	}
}

func TestPassesAlone_NeedsATestThatRan(t *testing.T) {
	f := failure{pack: "p", test: "TestGone", run: testRun{newerSystemd: "/root",
		pattern: "^TestA|TestGone$"}}
	none := func(_ context.Context, run testRun, _ ...string) result {
		if want := (testRun{newerSystemd: "/root", pattern: "^TestGone$"}); run != want {
			t.Errorf("ran %+v, want %+v", run, want)
		}
		return result{}
	}
	if passedAlone(t.Context(), f, none, &strings.Builder{}) {
		t.Error("no test ran, and that counts as a pass")
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
