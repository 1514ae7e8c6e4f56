package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

const (
	slowestTests = 20
	// leastPackage is the duration, in seconds, from which a package is printed. The JSON file
	// contains all packages.
	leastPackage = 1.0
)

// duration is the running time of a package or of a top-level test. It excludes the time for which
// a parallel test was paused.
type duration struct {
	Package string  `json:"package"`
	Test    string  `json:"test,omitempty"` // "": the package as a whole
	Seconds float64 `json:"seconds"`
	Systemd string  `json:"systemd,omitempty"` // Debian release whose systemd the step systemd used
}

// durations are the durations of one run, longest first.
type durations struct {
	Time     time.Time  `json:"time"`
	Packages []duration `json:"packages"`
	Tests    []duration `json:"tests"`
}

// slowest returns the durations of all packages and of the slowest tests, longest first.
func slowest(all []duration) durations {
	d := durations{Time: time.Now().UTC().Truncate(time.Second)}
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b duration) int { return cmp.Compare(b.Seconds, a.Seconds) })
	for _, one := range sorted {
		switch {
		case one.Test == "":
			d.Packages = append(d.Packages, one)
		case len(d.Tests) < slowestTests:
			d.Tests = append(d.Tests, one)
		}
	}
	return d
}

// print lists the packages that took leastPackage or longer, and the slowest tests.
func (d durations) print(out io.Writer) {
	fmt.Fprintf(out, "=== packages of %.0f s or more\n", leastPackage)
	for _, one := range d.Packages {
		if one.Seconds >= leastPackage {
			one.print(out)
		}
	}
	fmt.Fprintf(out, "=== %d slowest tests\n", slowestTests)
	for _, one := range d.Tests {
		one.print(out)
	}
}

func (d duration) print(out io.Writer) {
	name := strings.TrimSpace(d.Package + " " + d.Test)
	if d.Systemd != "" {
		name += " on " + d.Systemd
	}
	fmt.Fprintf(out, "%7.1f s  %s\n", d.Seconds, name)
}

// store writes d as JSON to a file.
func (d durations) store(path string) error {
	text, err := json.MarshalIndent(d, "", "  ")
	if err == nil {
		err = os.WriteFile(path, append(text, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("cannot store the durations of tests: %w", err)
	}
	return nil
}
