package api

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// streamLine is one JSON line of the response to a long operation: any number of {"progress": …},
// then one {"result": …} or {"error": …}.
type streamLine[T any] struct {
	Progress *Progress `json:"progress,omitempty"`
	Result   *T        `json:"result,omitempty"`
	Error    *Error    `json:"error,omitempty"`
}

// lineWriter writes JSON lines, each with a deadline of lineTime.
type lineWriter struct {
	w          http.ResponseWriter
	controller *http.ResponseController
}

func newLineWriter(w http.ResponseWriter) *lineWriter {
	w.Header().Set("Content-Type", "application/x-ndjson")
	return &lineWriter{w: w, controller: http.NewResponseController(w)}
}

func (l *lineWriter) write(value any) error {
	line, err := json.Marshal(value)
	if err != nil {
		return err
	}
	_ = l.controller.SetWriteDeadline(time.Now().Add(lineTime))
	if _, err := l.w.Write(append(line, '\n')); err != nil {
		return err
	}
	return l.controller.Flush()
}

func (l *lineWriter) flush() error {
	_ = l.controller.SetWriteDeadline(time.Now().Add(lineTime))
	return l.controller.Flush()
}

// lines passes progress from an operation to the response. Only the newest progress is retained, so
// the operation never waits for the client.
type lines struct {
	context context.Context

	mu     sync.Mutex
	newest *Progress
	woken  chan struct{} // holds one token if newest is set
}

func (l *lines) progress(p Progress) {
	l.mu.Lock()
	l.newest = &p
	l.mu.Unlock()
	select {
	case l.woken <- struct{}{}:
	default:
	}
}

func (l *lines) take() *Progress {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.newest
	l.newest = nil
	return p
}

// stream runs an operation and writes its progress and result. The operation's context ends when
// the client disconnects or the server ends.
func (s *Server) stream(w http.ResponseWriter, r *http.Request,
	operation func(*lines) (any, error)) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() {
		select {
		case <-s.ending:
			cancel()
		case <-ctx.Done():
		}
	}()
	told := &lines{context: ctx, woken: make(chan struct{}, 1)}
	type end struct {
		result any
		err    error
	}
	ended := make(chan end, 1)
	go func() {
		result, err := operation(told)
		ended <- end{result, err}
	}()
	out := newLineWriter(w)
	_ = out.flush() // the header confirms that the request was accepted
	for {
		select {
		case <-told.woken:
			if p := told.take(); p != nil {
				if out.write(streamLine[any]{Progress: p}) != nil {
					cancel()
				}
			}
		case end := <-ended:
			if p := told.take(); p != nil {
				_ = out.write(streamLine[any]{Progress: p})
			}
			if end.err != nil {
				_ = out.write(streamLine[any]{Error: asError(end.err)})
				return
			}
			_ = out.write(streamLine[any]{Result: &end.result})
			return
		}
	}
}
