package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

// event is a line of `go test -json` (go doc cmd/test2json), including those about builds.
type event struct {
	Action     string
	Package    string
	ImportPath string // of the built package
	Test       string
	Output     string
	Elapsed    float64 // seconds
}

// failure is a top-level test that failed, with its sub-tests, or a package that failed as a whole.
type failure struct {
	pack string
	// test is "" if the whole package must be run again, because it failed outside of its tests or
	// panicked.
	test  string
	count int    // failed tests and sub-tests, as result counts them
	why   string // the first lines of each failure
	run   testRun
}

// testRun has the settings of a test run. A failed test is run again with the same settings.
type testRun struct {
	newerSystemd string // OUTRIDER_TEST_ROOT, "" for the systemd of this machine
	pattern      string // of go test -run, "" for all
	oneByOne     bool   // one package at a time
}

// slowPackages take a minute or more each, the slowest first.
var slowPackages = []string{"./scripts/machine/systemtest", "./cmd/outriderd", "./packaging",
	"./agent/discovery", "./agent/capture", "./cmd/outrider-discoveryd/internal/kubernetes",
	"./agent/relay", "./agent/keeper", "./agent/identity"}

// packagingPackages contain the tests of deb and rpm, which mostly wait for machines.
const packagingPackages = "./packaging/..."

// tests runs all tests, except those of step packaging if that is also chosen. Slow packages start
// first, so that none of them runs alone at the end.
func tests(ctx context.Context, options options) result {
	packages := options.packages
	if slices.Equal(packages, everything) {
		listed, err := command(ctx, "go", "list", "./...").Output()
		if err != nil {
			fmt.Printf("go list: %v\n", err)
			return result{failed: 1}
		}
		packages = slices.Concat(slowPackages, strings.Fields(string(listed))) // duplicates run once
	}
	if options.packagingBeside {
		packages = slices.DeleteFunc(packages, func(name string) bool {
			return name == "./packaging" ||
				strings.HasPrefix(name, "outrider.org/outrider/packaging")
		})
	}
	return goTest(ctx, testRun{}, packages...)
}

// packaging runs the tests of deb and rpm.
func packaging(ctx context.Context, options options) result {
	if !options.packagingBeside {
		return result{}
	}
	return goTest(ctx, testRun{oneByOne: true}, packagingPackages)
}

// goTest runs tests with the race detector: at most two packages at a time, since many run real
// servers, but most tests mostly wait. The race detector does not wait at the exit of a process for
// races of remaining goroutines, which goleak finds.
func goTest(ctx context.Context, run testRun, packages ...string) result {
	arguments := []string{"test", "-json", "-race", "-count=1", "-p=2", "-timeout=30m"}
	if run.oneByOne {
		arguments = append(arguments, "-p=1") // overrides the -p before
	}
	if run.pattern != "" {
		arguments = append(arguments, "-run", run.pattern)
	}
	c := command(ctx, "go", append(arguments, packages...)...)
	c.Env, c.Stderr = append(os.Environ(), "GORACE=atexit_sleep_ms=0"), os.Stderr
	if run.newerSystemd != "" {
		c.Env = append(c.Env, "OUTRIDER_TEST_ROOT="+run.newerSystemd)
	}
	stdout, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		fmt.Printf("go test: %v\n", err)
		return result{failed: 1}
	}
	r := collect(stdout, os.Stdout)
	if err := c.Wait(); err != nil && r.failed == 0 {
		fmt.Printf("go test: %v\n", err)
		r.failed++
	}
	for i := range r.failures {
		r.failures[i].run = run
	}
	if run.newerSystemd != "" {
		for i := range r.durations {
			r.durations[i].Systemd = newerDebian
		}
	}
	return r
}

// collect reads the events of a run, prints failures, and counts tests and their sub-tests. A
// package that fails without a failed test (it does not build, a goroutine leaked, it timed out)
// counts as one failure.
func collect(events io.Reader, out io.Writer) result {
	var r result
	printed := map[string][]byte{} // output by package and test, while the test runs
	panicked := map[string]bool{}  // packages in which tests may not have run
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintf(out, "%s\n", lines.Text()) // a message of the go command, not of a test
			continue
		}
		key := e.Package + " " + e.Test
		switch e.Action {
		case "build-output":
			fmt.Fprint(out, e.Output)
		case "output":
			printed[key] = append(printed[key], e.Output...)
			if strings.HasPrefix(e.Output, "panic: ") {
				panicked[e.Package] = true
			}
		case "pass", "fail", "skip":
			r.measure(e)
			text := string(printed[key])
			delete(printed, key)
			if e.Test != "" {
				r.test(e, text, out)
			} else {
				r.pack(e, text, panicked[e.Package], out)
			}
		}
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintf(out, "reading the events of go test: %v\n", err)
		r.failed++
	}
	return r
}

// measure records how long a package or a top-level test ran.
func (r *result) measure(e event) {
	if e.Action != "skip" && !strings.Contains(e.Test, "/") {
		r.durations = append(r.durations,
			duration{Package: e.Package, Test: e.Test, Seconds: e.Elapsed})
	}
}

// test counts the end of a test.
func (r *result) test(e event, text string, out io.Writer) {
	if e.Action == "pass" {
		r.passed++
		return
	}
	head := fmt.Sprintf("--- %s %s %s (%.1f s)\n", strings.ToUpper(e.Action), e.Package, e.Test,
		e.Elapsed)
	fmt.Fprint(out, head+text) // in one write: other steps print, too
	if e.Action == "fail" {
		top, _, _ := strings.Cut(e.Test, "/")
		r.fail(e.Package, top, head+said(text))
	}
}

// fail counts a failure, as one of its top-level test.
func (r *result) fail(pack, test, why string) {
	r.failed++
	for i := range r.failures {
		if f := &r.failures[i]; f.pack == pack && f.test == test {
			f.count++
			f.why += why
			return
		}
	}
	r.failures = append(r.failures, failure{pack: pack, test: test, count: 1, why: why})
}

const (
	mostSaid    = 10  // lines of a failed test that are repeated at the end
	longestSaid = 400 // bytes of such a line
)

// message begins a message of t.Error, t.Fatal or t.Log.
var message = regexp.MustCompile(`^ +[A-Za-z0-9_]+\.go:[0-9]+: `)

// said returns the first lines of a test's own messages, without the text that they quote: hundreds
// of quoted lines would hide the reason of the failure.
func said(text string) string {
	var lines strings.Builder
	count := 0
	for line := range strings.Lines(text) {
		if !message.MatchString(line) {
			continue
		}
		if count++; count > mostSaid {
			lines.WriteString("    …\n")
			break
		}
		line = strings.TrimRight(line, "\n")
		if len(line) > longestSaid {
			line = strings.ToValidUTF8(line[:longestSaid], "") + "…"
		}
		lines.WriteString(line + "\n")
	}
	return lines.String()
}

// pack counts the end of a package.
func (r *result) pack(e event, text string, panicked bool, out io.Writer) {
	switch e.Action {
	case "pass":
		fmt.Fprintf(out, "ok   %s (%.1f s)\n", e.Package, e.Elapsed)
	case "fail":
		end := fmt.Sprintf("FAIL %s (%.1f s)\n", e.Package, e.Elapsed)
		failed := slices.ContainsFunc(r.failures, func(f failure) bool {
			return f.pack == e.Package
		})
		if !failed {
			r.fail(e.Package, "", lastLines(text, mostSaid)+end)
		}
		if panicked {
			r.failWhole(e.Package)
		}
		fmt.Fprint(out, text+end)
	}
}

// failWhole merges all failures of a package into one, so that all its tests run again.
func (r *result) failWhole(pack string) {
	whole := failure{pack: pack}
	r.failures = slices.DeleteFunc(r.failures, func(f failure) bool {
		if f.pack != pack {
			return false
		}
		whole.count += f.count
		whole.why += f.why
		return true
	})
	r.failures = append(r.failures, whole)
}
