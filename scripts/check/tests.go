package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// event is a line of `go test -json` (go doc cmd/test2json), and of the build's output in it.
type event struct {
	Action     string
	Package    string
	ImportPath string // of what is built
	Test       string
	Output     string
	Elapsed    float64 // seconds
}

// tests runs all tests.
func tests(ctx context.Context, options options) result {
	return goTest(ctx, os.Environ(), options.packages...)
}

// goTest runs tests with the race detector: at most two packages at a time, since many run real servers.
func goTest(ctx context.Context, environment []string, arguments ...string) result {
	c := command(ctx, "go", append([]string{"test", "-json", "-race", "-count=1", "-p=2", "-timeout=30m"}, arguments...)...)
	c.Env, c.Stderr = environment, os.Stderr
	stdout, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		fmt.Printf("go test: %v\n", err)
		return result{failed: 1}
	}
	r := follow(stdout, os.Stdout)
	if err := c.Wait(); err != nil && r.failed == 0 {
		fmt.Printf("go test: %v\n", err)
		r.failed++
	}
	return r
}

// follow reads the events of a run, tells what people need to know, and counts tests and their sub-tests. A package that
// fails without a test that failed (it does not build, a goroutine leaked, it timed out) counts as one.
func follow(events io.Reader, out io.Writer) result {
	var r result
	printed := map[string]*strings.Builder{} // by package and test, as long as it runs
	failed := map[string]int{}               // by package
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintf(out, "%s\n", lines.Text()) // not of a test: the go command's own words
			continue
		}
		key := e.Package + " " + e.Test
		switch e.Action {
		case "build-output":
			fmt.Fprint(out, e.Output)
		case "output":
			if printed[key] == nil {
				printed[key] = &strings.Builder{}
			}
			printed[key].WriteString(e.Output)
		case "pass", "fail", "skip":
			text := printed[key]
			delete(printed, key)
			if e.Test != "" {
				r.test(e, text, failed, out)
			} else {
				r.pack(e, text, failed, out)
			}
		}
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintf(out, "reading the events of go test: %v\n", err)
		r.failed++
	}
	return r
}

// test counts the end of a test.
func (r *result) test(e event, text *strings.Builder, failed map[string]int, out io.Writer) {
	switch e.Action {
	case "pass":
		r.passed++
		return
	case "fail":
		r.failed++
		failed[e.Package]++
	}
	head := fmt.Sprintf("--- %s %s %s (%.1f s)\n", strings.ToUpper(e.Action), e.Package, e.Test, e.Elapsed)
	fmt.Fprint(out, head)
	if text != nil {
		fmt.Fprint(out, text)
	}
	if e.Action == "fail" {
		r.why += head + said(text)
	}
}

const (
	mostSaid    = 10  // lines of a failed test that are told again at the end
	longestSaid = 400 // bytes of such a line
)

// message begins what a test says with t.Error, t.Fatal or t.Log.
var message = regexp.MustCompile(`^ +[A-Za-z0-9_]+\.go:[0-9]+: `)

// said are the first lines of what a test says, without what it quotes: a journal of hundreds of lines hides why it failed.
func said(text *strings.Builder) string {
	if text == nil {
		return ""
	}
	var lines strings.Builder
	count := 0
	for line := range strings.Lines(text.String()) {
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
func (r *result) pack(e event, text *strings.Builder, failed map[string]int, out io.Writer) {
	switch e.Action {
	case "pass":
		fmt.Fprintf(out, "ok   %s (%.1f s)\n", e.Package, e.Elapsed)
	case "fail":
		end := fmt.Sprintf("FAIL %s (%.1f s)\n", e.Package, e.Elapsed)
		if failed[e.Package] == 0 {
			r.failed++
			if text != nil {
				r.why += lastLines(text.String(), mostSaid)
			}
			r.why += end
		}
		if text != nil {
			fmt.Fprint(out, text)
		}
		fmt.Fprint(out, end)
	}
}
