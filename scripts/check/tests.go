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

// event is a line of `go test -json` (go doc cmd/test2json), which may also concern a build.
type event struct {
	Action     string
	Package    string
	ImportPath string // package in a line about a build
	Test       string
	Output     string
	Elapsed    float64 // in seconds
}

// failure is a top-level test that failed, with its sub-tests, or a package that failed as a whole.
type failure struct {
	pack string
	// test is "" if the whole package must run again, because it failed outside of its tests or
	// panicked.
	test  string
	count int    // number of failed tests and sub-tests in result.failed
	why   string // the first lines of each failure
	run   testRun
}

// testRun contains the settings of a test run. A failed test is run again with the same settings.
type testRun struct {
	newerSystemd string // root directory for OUTRIDER_TEST_ROOT; "": the systemd of this machine
	pattern      string // pattern for go test -run; "": all tests
	oneByOne     bool   // test one package at a time
}

// slowPackages are packages whose tests take a minute or more, the slowest first.
var slowPackages = []string{"./scripts/machine/systemtest", "./cmd/outriderd", "./packaging",
	"./agent/discovery", "./agent/capture", "./cmd/outrider-discoveryd/internal/kubernetes",
	"./agent/relay", "./agent/keeper", "./agent/identity"}

// packagingPackages contain the tests of deb and rpm packages, which spend most of the time waiting
// for machines.
const packagingPackages = "./packaging/..."

// tests runs all tests, except those that step packaging runs. Slow packages start first, because
// otherwise one of them might run alone at the end.
func tests(ctx context.Context, options options) result {
	packages := options.packages
	if slices.Equal(packages, everything) {
		listed, err := command(ctx, "go", "list", "./...").Output()
		if err != nil {
			fmt.Printf("go list: %v\n", err)
			return result{failed: 1}
		}
		// go test runs packages that are listed twice only once
		packages = slices.Concat(slowPackages, strings.Fields(string(listed)))
	}
	if options.packagingBeside {
		packages = slices.DeleteFunc(packages, func(name string) bool {
			return name == "./packaging" ||
				strings.HasPrefix(name, "outrider.org/outrider/packaging")
		})
	}
	return goTest(ctx, testRun{}, packages...)
}

// packaging runs the tests of deb and rpm packages.
func packaging(ctx context.Context, options options) result {
	if !options.packagingBeside {
		return result{}
	}
	return goTest(ctx, testRun{oneByOne: true}, packagingPackages)
}

// goTest runs tests with the race detector. It tests three packages at a time: tests often wait for
// real servers, and two packages leave a quarter of two processors unused. It disables the sleep of
// the race detector at the exit of a test program: that sleep serves to find races of remaining
// goroutines, and goleak reports remaining goroutines.
func goTest(ctx context.Context, run testRun, packages ...string) result {
	arguments := []string{"test", "-json", "-race", "-count=1", "-vet=off", "-p=3", "-timeout=30m"}
	if run.oneByOne {
		arguments = append(arguments, "-p=1") // overrides -p=3
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

// collect reads the events of go test, prints failures, and counts tests and sub-tests. If a
// package fails although no test has failed (a build error, a leaked goroutine, a timeout), that
// counts as one failure.
func collect(events io.Reader, out io.Writer) result {
	var r result
	printed := map[string][]byte{} // output of running tests, by package and test
	panicked := map[string]bool{}  // packages that panicked, so that some tests may not have run
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			// the line is output of the go command and no event
			fmt.Fprintf(out, "%s\n", lines.Text())
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

// measure records the duration of a package or a top-level test.
func (r *result) measure(e event) {
	if e.Action != "skip" && !strings.Contains(e.Test, "/") {
		r.durations = append(r.durations,
			duration{Package: e.Package, Test: e.Test, Seconds: e.Elapsed})
	}
}

// test processes the event at the end of a test.
func (r *result) test(e event, text string, out io.Writer) {
	if e.Action == "pass" {
		r.passed++
		return
	}
	head := fmt.Sprintf("--- %s %s %s (%.1f s)\n", strings.ToUpper(e.Action), e.Package, e.Test,
		e.Elapsed)
	// A single write, because other steps print at the same time.
	fmt.Fprint(out, head+text)
	if e.Action == "fail" {
		top, _, _ := strings.Cut(e.Test, "/")
		r.fail(e.Package, top, head+said(text))
	}
}

// fail records the failure of a test or sub-test under its top-level test, or that of a package
// (test is "").
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
	mostSaid    = 10  // number of a failed test's lines that are repeated at the end
	longestSaid = 400 // maximum length of such a line in bytes
)

// message matches the beginning of a line that t.Error, t.Fatal or t.Log has printed.
var message = regexp.MustCompile(`^ +[A-Za-z0-9_]+\.go:[0-9]+: `)

// said returns the first line of each of a test's messages. It omits further lines of a message:
// hundreds of quoted lines would hide the reason of the failure.
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

// pack processes the event at the end of a package.
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

// failWhole replaces all failures in a package by one for the package, so that all its tests run
// again.
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
