// Command check runs the checks and tests of the project and ends with one line: "N passed, N
// failed". The exit status is 1 if any failed, or if no test ran. Everything is built with the tags
// of scripts/tags, as programs are.
//
//	go run ./scripts/check [-only step,…] [-fuzztime 60s] [-durations file.json] [packages]
//
// Before that line it prints the durations of packages and of the slowest tests. The step fuzz runs
// only if -only names it. Tests run every fuzz target with its seed corpus.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// result has the numbers of passed and failed tests; each other check counts as one test.
type result struct {
	passed, failed int
	failures       []failure  // of tests; other checks print their failures
	durations      []duration // of packages and top-level tests, in the order in which they ended
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

// step is a check.
type step struct {
	name string
	run  func(ctx context.Context, options options) result
}

type options struct {
	packages []string
	fuzzTime time.Duration // of one target
	// durations is the JSON file to write the durations of the tests to; "" for none.
	durations string
	// packagingBeside reports whether step packaging runs the tests of deb and rpm in parallel with
	// the others.
	packagingBeside bool
}

// everything names all packages.
var everything = []string{"./..."}

// The steps: testStep, and others that run one after the other in parallel with it.
var (
	testStep   = step{"test", tests}
	otherSteps = []step{
		{"gofmt", gofmt},
		{"vet", vet},
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
	if !run(chosen, options, complete) {
		os.Exit(1)
	}
}

// setTags makes the go command, and all programs that call it, build with the same tags as the
// programs.
func setTags() error {
	tags, err := os.ReadFile("scripts/tags")
	if err != nil {
		return fmt.Errorf("build tags (run it in the root of the repository): %w", err)
	}
	return os.Setenv("GOFLAGS", withTags(os.Getenv("GOFLAGS"), strings.TrimSpace(string(tags))))
}

// withTags adds build tags to flags of the go command. They are added last, as the go command uses
// the last -tags.
func withTags(flags, tags string) string {
	all := strings.Fields(flags)
	if flag := "-tags=" + tags; len(all) == 0 || all[len(all)-1] != flag {
		all = append(all, flag)
	}
	return strings.Join(all, " ")
}

// run runs the chosen steps and reports whether all passed. complete means that these are all steps
// of `make test`. The other steps run in parallel with the tests, which mostly wait.
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

// report prints the durations of the tests that ran and stores them in the file, if it has a name.
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

// rerun runs failed tests again and, after a complete run, records the flaky ones for the next run.
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

// command prepares a program whose process group is killed when ctx ends.
func command(ctx context.Context, name string, arguments ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, name, arguments...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = 10 * time.Second
	return c
}

// output runs a program and returns its standard output and error.
func output(ctx context.Context, name string, arguments ...string) (string, error) {
	out, err := command(ctx, name, arguments...).CombinedOutput()
	return string(bytes.TrimRight(out, "\n")), err
}

// silent runs a program as a check, which passes if the program succeeds. The output is shown only
// if it fails.
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

func vet(ctx context.Context, options options) result {
	return silent(ctx, "go", append([]string{"vet"}, options.packages...)...)
}

// tool returns the path of one of the project's tools, which it builds if necessary.
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
	// Another clone's linter on the same machine must not make this one fail.
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
