// Command check runs the checks and tests of the project. Its last line is "N passed, N failed".
// The exit status is 1 if any failed, or if no test ran. Everything is built with the tags in
// scripts/tags, like the released programs.
//
//	go run ./scripts/check [-only step,…] [-fuzztime 60s] [-durations file.json] [packages]
//
// Before the last line it prints the durations of packages and of the slowest tests. The step fuzz
// runs only if -only names it. Without that step, tests run every fuzz target with its seed corpus.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// result contains the numbers of passed and failed tests. Each check that is no test, such as
// gofmt, counts as one test.
type result struct {
	passed, failed int
	failures       []failure // failed tests; other checks print their failures
	// durations of packages and top-level tests, in the order of their ends
	durations []duration
}

func (r *result) count(ok bool) {
	if ok {
		r.passed++
	} else {
		r.failed++
	}
}

func (r *result) add(more result) {
	r.passed += more.passed
	r.failed += more.failed
	r.failures = append(r.failures, more.failures...)
	r.durations = append(r.durations, more.durations...)
}

// step is a step of the run: the tests, or another check.
type step struct {
	name string
	run  func(ctx context.Context, options options) result
}

type options struct {
	packages []string
	fuzzTime time.Duration // fuzzing time of each target
	// durations is the JSON file for the durations of the tests; "": none.
	durations string
	// packagingBeside reports whether step packaging runs the tests of deb and rpm packages in
	// parallel with the other tests.
	packagingBeside bool
}

// everything is the pattern for all packages of the module.
var everything = []string{"./..."}

// otherSteps run one after the other, in parallel with testStep.
var (
	testStep   = step{"test", tests}
	otherSteps = []step{
		{"gofmt", gofmt},
		{"golangci-lint", lint},
		{"govulncheck", vulnerabilities},
		{"systemd", newerSystemd},
		{"packaging", packaging},
		{"fuzz", fuzz},
	}
)

func main() {
	names := []string{testStep.name}
	for _, step := range otherSteps {
		names = append(names, step.name)
	}
	only := flag.String("only", "", "run these `steps` alone: "+strings.Join(names, ","))
	fuzzTime := flag.Duration("fuzztime", 10*time.Second, "how long to run each fuzz target")
	durations := flag.String("durations", "", "write the durations of the tests to this `file`")
	flag.Parse()
	options := options{packages: flag.Args(), fuzzTime: *fuzzTime, durations: *durations}
	if len(options.packages) == 0 {
		options.packages = everything
	}
	chosen := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "fuzz" })
	complete := *only == "" && slices.Equal(options.packages, everything)
	if *only != "" {
		chosen = strings.Split(*only, ",")
	}
	for _, name := range chosen {
		if !slices.Contains(names, name) {
			fmt.Fprintf(os.Stderr, "check: no step %q: there are %s\n", name,
				strings.Join(names, ", "))
			os.Exit(2)
		}
	}
	options.packagingBeside = slices.Contains(chosen, "packaging") &&
		slices.Equal(options.packages, everything)
	if err := setTags(); err != nil {
		fmt.Fprintf(os.Stderr, "check: %v\n", err)
		os.Exit(1)
	}
	if complete {
		if err := buildPrograms(); err != nil {
			fmt.Fprintf(os.Stderr, "check: %v\n", err)
			os.Exit(1)
		}
	}
	if !run(chosen, options, complete) {
		os.Exit(1)
	}
}

// setTags makes the go command, and all programs that run it, use the build tags of the released
// programs.
func setTags() error {
	tags, err := os.ReadFile("scripts/tags")
	if err != nil {
		return fmt.Errorf("read build tags (run the command in the root of the repository): %w",
			err)
	}
	return os.Setenv("GOFLAGS", withTags(os.Getenv("GOFLAGS"), strings.TrimSpace(string(tags))))
}

// buildPrograms builds all programs at once, so that the tests of each package need not check again
// whether each program is up to date.
func buildPrograms() error {
	sources, err := filepath.Glob("cmd/*/main.go")
	if err != nil {
		return fmt.Errorf("list programs: %w", err)
	}
	packages := make([]string, len(sources))
	for i, source := range sources {
		packages[i] = "./" + filepath.Dir(source)
	}
	folder, err := parts.RunBuildScript(nil, "programs", packages...)
	if err != nil {
		return fmt.Errorf("build programs for tests: %w", err)
	}
	for _, name := range packages {
		if err := parts.UseBuiltProgram(filepath.Join(folder, filepath.Base(name))); err != nil {
			return err //nolint:wrapcheck // setenv
		}
	}
	return nil
}

// withTags adds build tags to flags of the go command. It appends them, because the last -tags is
// used.
func withTags(flags, tags string) string {
	all := strings.Fields(flags)
	if flag := "-tags=" + tags; len(all) == 0 || all[len(all)-1] != flag {
		all = append(all, flag)
	}
	return strings.Join(all, " ")
}

// run runs the chosen steps and reports whether all passed. complete reports whether these are all
// steps of `make test`. The tests run in parallel with the other steps, because most of the time
// they wait.
func run(chosen []string, options options, complete bool) bool {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	var total, tested result
	var beside sync.WaitGroup
	ran := true
	if slices.Contains(chosen, testStep.name) {
		beside.Go(func() {
			tested = testStep.timed(ctx, options)
			if ran = tested.passed+tested.failed > 0; !ran {
				fmt.Println("no test ran")
			}
		})
	}
	for _, step := range otherSteps {
		if slices.Contains(chosen, step.name) {
			total.add(step.timed(ctx, options))
		}
	}
	beside.Wait()
	total.add(tested)
	if err := rerun(ctx, &total, complete); err != nil {
		fmt.Println(err)
		total.failed++
	}
	if err := report(total.durations, options.durations); err != nil {
		fmt.Println(err)
		total.failed++
	}
	fmt.Printf("%d passed, %d failed\n", total.passed, total.failed)
	return total.failed == 0 && ran && ctx.Err() == nil
}

// timed runs the step and prints when it begins and ends.
func (s step) timed(ctx context.Context, options options) result {
	start := time.Now()
	fmt.Printf("=== %s\n", s.name)
	got := s.run(ctx, options)
	fmt.Printf("=== %s: %d passed, %d failed in %v\n", s.name, got.passed, got.failed,
		time.Since(start).Round(100*time.Millisecond))
	return got
}

// report prints the durations and writes them to file, unless file is "".
func report(all []duration, file string) error {
	if len(all) == 0 {
		return nil
	}
	d := slowest(all)
	d.print(os.Stdout)
	if file == "" {
		return nil
	}
	return d.store(file)
}

// rerun runs failed tests again. After a complete run, it records the flaky tests for the next run.
func rerun(ctx context.Context, total *result, complete bool) error {
	record, err := flakyRecord()
	if err != nil {
		return err
	}
	before, err := readFlaky(record)
	if err != nil {
		return err
	}
	flaky := runAgain(ctx, total, before, goTest, os.Stdout)
	if !complete {
		return nil
	}
	return writeFlaky(record, flaky)
}

// command returns a command that receives SIGTERM when ctx ends, and is killed ten seconds later.
func command(ctx context.Context, name string, arguments ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, name, arguments...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = 10 * time.Second
	return c
}

// output runs a program and returns its combined standard output and standard error.
func output(ctx context.Context, name string, arguments ...string) (string, error) {
	out, err := command(ctx, name, arguments...).CombinedOutput()
	return string(bytes.TrimRight(out, "\n")), err
}

// silent runs a program as a check that passes if the program succeeds. It prints the program's
// output only if the program fails.
func silent(ctx context.Context, name string, arguments ...string) result {
	var r result
	out, err := output(ctx, name, arguments...)
	r.count(err == nil)
	if err != nil {
		fmt.Printf("%s\n%s: %v\n", out, name, err)
	}
	return r
}

func gofmt(ctx context.Context, _ options) result {
	var r result
	out, err := output(ctx, "gofmt", "-l", ".")
	r.count(err == nil && out == "")
	if err != nil || out != "" {
		fmt.Printf("these files are not as gofmt writes them (gofmt -w FILE):\n%s\n", out)
	}
	return r
}

// tool returns the path of one of the project's development tools, and builds the tool if
// necessary.
func tool(ctx context.Context, name string) (string, error) {
	c := command(ctx, "scripts/tool", name)
	c.Stderr = os.Stderr
	out, err := c.Output()
	return strings.TrimSpace(string(out)), err
}

func lint(ctx context.Context, options options) result {
	path, err := tool(ctx, "golangci-lint")
	if err != nil {
		fmt.Printf("golangci-lint is not available: %v\n", err)
		return result{failed: 1}
	}
	// Without the flag, the linter fails if another one runs on this machine.
	return silent(ctx, path, append([]string{"run", "--allow-parallel-runners"},
		options.packages...)...)
}

func vulnerabilities(ctx context.Context, options options) result {
	path, err := tool(ctx, "govulncheck")
	if err != nil {
		fmt.Printf("govulncheck is not available: %v\n", err)
		return result{failed: 1}
	}
	out, err := output(ctx, path, options.packages...)
	if err != nil && strings.Contains(out, "fetching vulnerabilities") {
		fmt.Printf("govulncheck was NOT run: its database is not available here (%s)\n", out)
		return result{}
	}
	var r result
	r.count(err == nil)
	fmt.Println(out)
	return r
}
