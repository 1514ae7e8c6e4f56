package api

import (
	"context"
	"encoding/json"
	"net/http"
	"sync/atomic"
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

// stream runs an operation and writes its progress and result. Only the newest progress is written,
// so that the operation never waits for the client. The operation's context ends when the client
// disconnects or the server ends.
func (s *Server) stream(w http.ResponseWriter, r *http.Request,
	operation func(ctx context.Context, progress func(Progress)) (any, error)) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	var newest atomic.Pointer[Progress]
	woken := make(chan struct{}, 1)
	type end struct {
		result any
		err    error
	}
	ended := make(chan end, 1)
	go func() {
		result, err := operation(ctx, func(p Progress) {
			newest.Store(&p)
			select {
			case woken <- struct{}{}:
			default:
			}
		})
		ended <- end{result, err}
	}()
	out := newLineWriter(w)
	write := func() {
		if p := newest.Swap(nil); p != nil && out.write(streamLine[any]{Progress: p}) != nil {
			cancel()
		}
	}
	_ = out.flush() // the response header confirms that the request was accepted
	ending := s.ending
	for {
		select {
		case <-woken:
			write()
		case <-ending:
			cancel()
			ending = nil
		case end := <-ended:
			write()
			if end.err != nil {
				_ = out.write(streamLine[any]{Error: asError(end.err)})
				return
			}
			_ = out.write(streamLine[any]{Result: &end.result})
			return
		}
	}
}
