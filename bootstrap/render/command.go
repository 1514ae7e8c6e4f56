package render

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/bootstrap"
)

// collectAt is the collector's percentage: the ordinary bootstrap is rendered without a collection.
const collectAt = 400

// Command is outrider-bootstrap: it reads a bootstrap.Question, writes a bootstrap.Answer, and returns the exit code: 0 where there
// is an answer. What a user's template does is bounded as the question says: its time by the clock, its memory by the kernel, which makes
// Go's runtime end the process. Nobody calls the program by hand.
func Command(arguments []string, version string, in io.Reader, out, complaints io.Writer) int {
	complain := func(err error) int {
		_, _ = fmt.Fprintln(complaints, "outrider-bootstrap:", err)
		return 1
	}
	if len(arguments) == 1 && arguments[0] == "--version" {
		_, _ = fmt.Fprintln(out, "outrider-bootstrap", version)
		return 0
	}
	if len(arguments) > 0 {
		return complain(fmt.Errorf("unexpected argument %q: outriderd calls it, with a question on the standard input", arguments[0]))
	}
	debug.SetGCPercent(collectAt)
	var question bootstrap.Question
	decoder := json.NewDecoder(in)
	decoder.UseNumber() // every digit of the node's metadata
	if err := decoder.Decode(&question); err != nil {
		return complain(fmt.Errorf("read the question: %w", err))
	}
	limit := unix.Rlimit{Cur: question.Memory, Max: question.Memory}
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &limit); err != nil {
		return complain(fmt.Errorf("limit its own memory to %d bytes: %w", question.Memory, err))
	}
	if err := json.NewEncoder(out).Encode(within(question)); err != nil {
		return complain(fmt.Errorf("write the answer: %w", err))
	}
	return 0
}

// within answers in the question's time. What takes longer goes on until the process ends, which is at once.
func within(question bootstrap.Question) bootstrap.Answer {
	if question.Protocol != bootstrap.Protocol {
		return bootstrap.Answer{Unable: fmt.Sprintf("outrider-bootstrap speaks version %d of its protocol and outriderd version %d: restart outriderd",
			bootstrap.Protocol, question.Protocol)}
	}
	answers := make(chan bootstrap.Answer, 1)
	go func() { answers <- answer(question.Request) }()
	select {
	case given := <-answers:
		return given
	case <-time.After(question.Time):
		late := fmt.Sprintf("rendering it takes more than %v", question.Time)
		for _, file := range []*bootstrap.File{question.Request.Template, question.Request.Custom, question.Request.Override} {
			if file != nil {
				return bootstrap.Answer{Fault: &bootstrap.Error{File: file.Path, Message: late}}
			}
		}
		return bootstrap.Answer{Unable: "bootstrap: " + late}
	}
}

func answer(request bootstrap.Request) bootstrap.Answer {
	rendered, err := Render(request)
	if fault, ok := errors.AsType[*bootstrap.Error](err); ok {
		return bootstrap.Answer{Fault: fault}
	}
	if err != nil {
		return bootstrap.Answer{Failure: err.Error()}
	}
	return bootstrap.Answer{Rendered: rendered}
}
