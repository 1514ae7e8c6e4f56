package render

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/typedconfig"
	"outrider.org/outrider/bootstrap"
)

// cpuCheckInterval is the interval of checking the CPU time.
const cpuCheckInterval = 20 * time.Millisecond

// Checker returns the findings for each of some typed_configs.
type Checker func([]typedconfig.Config) [][]typedconfig.Finding

// Main runs outrider-bootstrap: it reads a bootstrap.RenderProgramInput, writes a
// bootstrap.RenderProgramOutput and returns the exit code. It bounds the CPU time and the memory of
// a user's template, and of check. Only outriderd and outrider call the program.
func Main(arguments []string, version string, in io.Reader, out, stderr io.Writer,
	check Checker) int {
	fail := func(err error) int {
		_, _ = fmt.Fprintln(stderr, "outrider-bootstrap:", err)
		return 1
	}
	if len(arguments) == 1 && arguments[0] == "--version" {
		_, _ = fmt.Fprintln(out, "outrider-bootstrap", version)
		return 0
	}
	if len(arguments) > 0 {
		return fail(fmt.Errorf("unexpected argument %q: outriderd runs this program and sends "+
			"the request over standard input", arguments[0]))
	}
	var question bootstrap.RenderProgramInput
	decoder := json.NewDecoder(in)
	decoder.UseNumber() // keep all digits in the node's metadata
	if err := decoder.Decode(&question); err != nil {
		return fail(fmt.Errorf("decode the request on standard input: %w", err))
	}
	if err := limitMemory(question.Memory); err != nil {
		return fail(err)
	}
	if err := json.NewEncoder(out).Encode(answerInTime(question, check)); err != nil {
		return fail(fmt.Errorf("write the answer to standard output: %w", err))
	}
	return 0
}

// limitMemory limits the memory of this process, unless its limit (LimitDATA=) is lower already.
func limitMemory(bytes uint64) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_DATA, &limit); err != nil {
		return fmt.Errorf("get the memory limit: %w", err)
	}
	limit.Max = min(limit.Max, bytes)
	limit.Cur = limit.Max
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &limit); err != nil {
		return fmt.Errorf("limit the memory to %d bytes: %w", limit.Max, err)
	}
	//nolint:gosec // three quarters of any uint64 are less than 2^63, or no limit
	debug.SetMemoryLimit(int64(limit.Max / 4 * 3))
	return nil
}

// answerInTime answers a question within its time. After a time-out the work continues until the
// process exits.
func answerInTime(question bootstrap.RenderProgramInput,
	check Checker) bootstrap.RenderProgramOutput {
	if question.Protocol != bootstrap.RenderProgramProtocol {
		return bootstrap.RenderProgramOutput{Unable: fmt.Sprintf("outrider-bootstrap speaks "+
			"version %d of its "+
			"protocol and outriderd version %d: restart outriderd",
			bootstrap.RenderProgramProtocol, question.Protocol)}
	}
	answers := make(chan bootstrap.RenderProgramOutput, 1)
	go func() {
		if question.Typed != nil {
			answers <- bootstrap.RenderProgramOutput{Findings: check(question.Typed)}
		} else {
			answers <- answerOf(FromRequest(question.Request))
		}
	}()
	deadline := time.After(question.MaxDuration())
	tick := time.NewTicker(cpuCheckInterval)
	defer tick.Stop()
	for {
		select {
		case found := <-answers:
			return found
		case <-deadline:
			return bootstrap.RenderProgramOutput{Unable: fmt.Sprintf("outrider-bootstrap is not "+
				"done after %v "+
				"with %v of CPU time", question.MaxDuration(), cpuTime().Round(time.Millisecond))}
		case <-tick.C:
			if cpuTime() > question.Time && question.Typed != nil {
				return bootstrap.RenderProgramOutput{Unable: fmt.Sprintf("checking typed_configs "+
					"takes more "+
					"than %v", question.Time)}
			} else if cpuTime() > question.Time {
				return answerOf(nil, question.Request.LimitError(
					"rendering it takes more than %v", question.Time))
			}
		}
	}
}

// cpuTime returns the CPU time of this process.
func cpuTime() time.Duration {
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &usage) != nil {
		return 0 // Getrusage cannot fail with these arguments
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// answerOf returns the answer with the result of rendering.
func answerOf(rendered *bootstrap.Rendered, err error) bootstrap.RenderProgramOutput {
	if fault, ok := errors.AsType[*bootstrap.Error](err); ok {
		return bootstrap.RenderProgramOutput{Fault: fault}
	}
	if _, ok := errors.AsType[*bootstrap.RenderProgramError](err); ok {
		return bootstrap.RenderProgramOutput{Unable: err.Error()}
	}
	if err != nil {
		return bootstrap.RenderProgramOutput{Failure: err.Error()}
	}
	return bootstrap.RenderProgramOutput{Rendered: rendered}
}
