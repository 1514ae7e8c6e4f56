package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

const (
	fuzzBuildTime = 5 * time.Minute // time limit for building one fuzz target

	// fuzzMinimize is the maximum number of executions for minimizing one input. Go's default, a
	// minute for each new input, would use nine tenths of the time.
	fuzzMinimize = "100x"
)

// target is a fuzz test.
type target struct{ pack, name string }

var fuzzFunction = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(\w+ \*testing\.F\)`)

// fuzz runs every fuzz target for options.fuzzTime.
func fuzz(ctx context.Context, options options) result {
	targets, err := findTargets(ctx, options.packages)
	if err != nil {
		fmt.Println(err)
		return result{failed: 1}
	}
	if len(targets) == 0 {
		return result{}
	}
	var r result
	for _, target := range targets {
		start := time.Now()
		out, ok := fuzzOne(ctx, target, options.fuzzTime)
		r.count(ok)
		word := "ok  "
		if !ok {
			word = "FAIL"
			fmt.Println(out)
		}
		fmt.Printf("%s %s %s (%v)\n", word, target.pack, target.name,
			time.Since(start).Round(100*time.Millisecond))
	}
	return r
}

func fuzzOne(ctx context.Context, target target, fuzzTime time.Duration) (out string, ok bool) {
	limited, cancel := context.WithTimeout(ctx, fuzzTime+fuzzBuildTime)
	defer cancel()
	out, err := output(limited, "go", "test", "-run=^$", "-fuzz=^"+target.name+"$",
		"-fuzztime="+fuzzTime.String(), "-fuzzminimizetime="+fuzzMinimize, target.pack)
	if err == nil {
		return out, true
	}
	// Some versions of Go report a failure if the fuzzing time ends while an input is executed. The
	// output of a real failure contains the input, a hang or a panic.
	over := strings.Contains(out, "context deadline exceeded") && limited.Err() == nil
	found := strings.Contains(out, "Failing input") ||
		strings.Contains(out, "hung or terminated") || strings.Contains(out, "panic:")
	return out, over && !found
}

// findTargets finds the fuzz targets by parsing the names of functions in test files, which is much
// faster than building all tests to list them.
func findTargets(ctx context.Context, packages []string) ([]target, error) {
	c := command(ctx, "go",
		append([]string{"list", "-json=Dir,ImportPath,TestGoFiles,XTestGoFiles"}, packages...)...)
	c.Stderr = os.Stderr
	listed, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var targets []target
	decoder := json.NewDecoder(strings.NewReader(string(listed)))
	for {
		var pack struct {
			Dir, ImportPath           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := decoder.Decode(&pack); errors.Is(err, io.EOF) {
			return targets, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		for _, file := range append(pack.TestGoFiles, pack.XTestGoFiles...) {
			source, err := os.ReadFile(filepath.Join(pack.Dir, file))
			if err != nil {
				return nil, err
			}
			for _, match := range fuzzFunction.FindAllSubmatch(source, -1) {
				targets = append(targets, target{pack.ImportPath, string(match[1])})
			}
		}
	}
}
