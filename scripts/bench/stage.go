package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// stage implements testing.TB for a benchmark outside of a test.
type stage struct {
	testing.TB // nil: only the methods below are used
	name       string

	mu       sync.Mutex
	failed   bool
	cleanups []func()
}

// perform runs a benchmark until it returns or calls Fatal, cleans up, and reports whether it
// passed.
func perform(name string, bench func(*stage)) bool {
	s := &stage{name: name}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer s.cleanUp()
		bench(s)
	}()
	<-done
	return !s.Failed()
}

func (s *stage) cleanUp() {
	s.mu.Lock()
	cleanups := slices.Clone(s.cleanups)
	s.cleanups = nil
	s.mu.Unlock()
	for _, clean := range slices.Backward(cleanups) {
		clean()
	}
}

// Name returns the benchmark's name.
func (s *stage) Name() string { return s.name }

// Helper does nothing.
func (s *stage) Helper() {}

// Cleanup registers a function to run at the end, last one first.
func (s *stage) Cleanup(clean func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, clean)
}

// Failed reports whether anything failed so far.
func (s *stage) Failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

func (s *stage) fail(text string) {
	s.mu.Lock()
	s.failed = true
	s.mu.Unlock()
	fmt.Fprintf(os.Stderr, "FAIL %s: %s\n", s.name, text)
}

// Errorf fails the benchmark, which continues.
func (s *stage) Errorf(format string,
	arguments ...any) {
	s.fail(fmt.Sprintf(format, arguments...))
}

// Error is Errorf without a format.
func (s *stage) Error(arguments ...any) { s.fail(fmt.Sprint(arguments...)) }

// Fatalf fails the benchmark and ends it.
func (s *stage) Fatalf(format string, arguments ...any) {
	s.Errorf(format, arguments...)
	runtime.Goexit()
}

// Fatal is Fatalf without a format.
func (s *stage) Fatal(arguments ...any) {
	s.Error(arguments...)
	runtime.Goexit()
}

// Logf prints a line.
func (s *stage) Logf(format string, arguments ...any) {
	fmt.Fprintf(os.Stderr, "%s: %s\n", s.name, fmt.Sprintf(format, arguments...))
}

// target reports a missed target, except in a quick run.
func (s *stage) target(settings settings, reached bool, format string, arguments ...any) {
	if reached {
		return
	}
	text := "target missed: " + fmt.Sprintf(format, arguments...)
	if settings.failOnMiss {
		s.fail(text)
		return
	}
	fmt.Println(text)
}

// median sorts times and returns the median.
func median(times []time.Duration) time.Duration {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return (times[(len(times)-1)/2] + times[len(times)/2]) / 2
}

func millis(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}
