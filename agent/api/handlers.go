package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// handle decodes a request, calls the backend and sends the answer.
func handle[In, Out any](call func(context.Context, In) (Out, error)) http.HandlerFunc {
	return handleUpTo(maximumBody, call)
}

// handleUpTo is handle with a limit of the request's body, in bytes.
func handleUpTo[In, Out any](limit int64,
	call func(context.Context, In) (Out, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var request In
		if err := decode(w, r, limit, &request); err != nil {
			fail(w, err)
			return
		}
		answer, err := call(r.Context(), request)
		if err != nil {
			fail(w, err)
			return
		}
		send(w, http.StatusOK, answer)
	}
}

// begin decodes the request of a long operation and streams its progress and result.
func begin[In, Out any](
	s *Server, operation func(context.Context, In, func(Progress)) (Out, error),
) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var request In
		if err := decode(w, r, maximumBody, &request); err != nil {
			fail(w, err)
			return
		}
		s.stream(w, r, func(ctx context.Context, progress func(Progress)) (any, error) {
			return operation(ctx, request, progress)
		})
	}
}

// undrain streams the progress and result of an undrain.
func (s *Server) undrain(w http.ResponseWriter, r *http.Request) {
	s.stream(w, r, func(ctx context.Context, progress func(Progress)) (any, error) {
		return s.options.Backend.Undrain(ctx, progress)
	})
}

// wait responds once the proxy is ready or the client disconnects.
func (s *Server) wait(w http.ResponseWriter, r *http.Request) {
	s.stream(w, r, func(ctx context.Context, progress func(Progress)) (any, error) {
		if err := s.options.Backend.WaitReady(ctx, progress); err != nil {
			return WaitResult{Reason: err.Error()}, nil //nolint:nilerr // the error is the answer
		}
		return WaitResult{Ready: true}, nil
	})
}

// events sends the retained events after ?after=N (default: all), then with ?follow=true new ones
// as they occur.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	var after uint64
	if text := r.URL.Query().Get("after"); text != "" {
		var err error
		if after, err = strconv.ParseUint(text, 10, 64); err != nil {
			fail(w, &Error{Status: http.StatusBadRequest,
				Message: fmt.Sprintf("after=%q is not a number", text)})
			return
		}
	}
	// buffer is the number of buffered events. A client that falls further behind sees a gap in the
	// sequence numbers.
	const buffer = 256
	coming, cancel := s.options.Conditions.Watch(buffer)
	defer cancel()
	out := newLineWriter(w)
	for _, event := range s.options.Conditions.Events(after) {
		if out.write(event) != nil {
			return
		}
		after = event.Sequence
	}
	if r.URL.Query().Get("follow") != "true" || out.flush() != nil {
		return
	}
	for {
		select {
		case event := <-coming:
			if event.Sequence <= after {
				continue // already sent with the retained events
			}
			if out.write(event) != nil {
				return
			}
		case <-r.Context().Done():
			return
		case <-s.ending:
			return
		}
	}
}

// admin forwards a GET request to the admin interface of the live epoch.
func (s *Server) admin(w http.ResponseWriter, r *http.Request) {
	path := r.PathValue("path")
	if !slices.Contains(AllowedAdminPaths, path) {
		fail(w, &Error{Status: http.StatusNotFound,
			Message: fmt.Sprintf("%q of Envoy's admin cannot be read here; these can: %s", path,
				strings.Join(AllowedAdminPaths, ", "))})
		return
	}
	answer, err := s.options.Backend.Admin(r.Context(), path, r.URL.RawQuery)
	if err != nil {
		fail(w, err)
		return
	}
	defer answer.Body.Close()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(adminTime))
	w.Header().Set("Content-Type", answer.ContentType)
	w.Header().Set(EpochHeader, strconv.Itoa(answer.Epoch))
	w.WriteHeader(answer.Status)
	if _, err := io.Copy(w, answer.Body); err != nil {
		panic(http.ErrAbortHandler) // a truncated response must not look complete
	}
}

// EpochHeader is the header of an admin response with the number of the epoch that answered.
const EpochHeader = "X-Outrider-Epoch"
