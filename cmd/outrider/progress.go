package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"outrider.org/outrider/agent/api"
)

// showAfter is the duration after which an operation shows its progress.
const showAfter = time.Second

// progress is a line on standard error with the phase of an operation and its duration or deadline.
// It prints nothing if standard error is no terminal.
type progress struct {
	out  io.Writer
	now  func() time.Time
	stop func()
	hint string // printed once, when a phase with a deadline begins

	mu    sync.Mutex
	last  api.Progress
	begun time.Time
	shown bool
}

// withProgress calls request, and shows its progress until it returns. If hint is not empty and the
// user interrupts the command, the error states that the agent continues.
func withProgress[T any](ctx context.Context, a *app, first, hint string,
	request func(ctx context.Context, progress func(api.Progress)) (T, error),
) (T, error) {
	shown := a.startProgress(first, hint)
	defer shown.end()
	result, err := request(ctx, shown.report)
	if err != nil && hint != "" && errors.Is(ctx.Err(), context.Canceled) {
		err = errors.New("interrupted; the agent continues, see \"outrider status\"")
	}
	return result, err
}

// startProgress shows the progress of an operation, beginning after showAfter, until end is called.
// hint is a line that tells the user what an interrupt does; "": none.
func (a *app) startProgress(first, hint string) *progress {
	p := &progress{out: a.err, now: a.now, begun: a.now(), last: api.Progress{Phase: first},
		hint: hint, stop: func() {}}
	if !a.terminal {
		p.out = io.Discard
		return p
	}
	done, ended := make(chan struct{}), make(chan struct{})
	p.stop = sync.OnceFunc(func() {
		close(done)
		<-ended
	})
	go func() {
		defer close(ended)
		tick := time.NewTicker(showAfter)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.show()
			case <-done:
				return
			}
		}
	}()
	return p
}

// report is a progress callback of api.Client.
func (p *progress) report(now api.Progress) {
	p.mu.Lock()
	p.last = now
	shown := p.shown
	p.mu.Unlock()
	if shown {
		p.show()
	}
}

func (p *progress) show() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shown = true
	if p.hint != "" && !p.last.Until.IsZero() {
		control(p.out, clearLine)
		fmt.Fprintln(p.out, p.hint)
		p.hint = ""
	}
	line := p.last.Phase
	if p.last.Connections != nil {
		line += fmt.Sprintf(", %s left", count(int(*p.last.Connections), "connection",
			"connections"))
	}
	if p.last.Until.IsZero() {
		line += fmt.Sprintf(" (for %s)", spokenDuration(p.now().Sub(p.begun)))
	} else {
		line += fmt.Sprintf(" (up to %s)", spokenDuration(p.last.Until.Sub(p.now())))
	}
	control(p.out, clearLine)
	fmt.Fprint(p.out, line)
}

// end ends the progress, and clears its line.
func (p *progress) end() {
	p.stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		p.shown = false
		control(p.out, clearLine)
	}
}

// spokenDuration formats a duration for a sentence, such as "23 s" or "3m12s".
func spokenDuration(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%d s", max(0, int(d.Seconds())))
	}
	return age(d)
}
