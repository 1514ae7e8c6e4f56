package api

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

func (s *Server) reload(w http.ResponseWriter, r *http.Request) {
	var request ReloadRequest
	if err := decode(w, r, &request); err != nil {
		fail(w, err)
		return
	}
	s.stream(w, r, func(line *lines) (any, error) {
		return s.options.Backend.Reload(line.context, request, line.progress)
	})
}

func (s *Server) drain(w http.ResponseWriter, r *http.Request) {
	var request DrainRequest
	if err := decode(w, r, &request); err != nil {
		fail(w, err)
		return
	}
	s.stream(w, r, func(line *lines) (any, error) {
		return s.options.Backend.Drain(line.context, request, line.progress)
	})
}

func (s *Server) undrain(w http.ResponseWriter, r *http.Request) {
	s.stream(w, r, func(line *lines) (any, error) {
		return s.options.Backend.Undrain(line.context, line.progress)
	})
}

func (s *Server) setLogLevels(w http.ResponseWriter, r *http.Request) {
	var request LogLevels
	if err := decode(w, r, &request); err != nil {
		fail(w, err)
		return
	}
	levels, err := s.options.Backend.SetLogLevels(r.Context(), request)
	if err != nil {
		fail(w, err)
		return
	}
	send(w, http.StatusOK, levels)
}

// wait responds once the proxy is ready or the client disconnects.
func (s *Server) wait(w http.ResponseWriter, r *http.Request) {
	s.stream(w, r, func(line *lines) (any, error) {
		if err := s.options.Backend.WaitReady(line.context, line.progress); err != nil {
			return WaitResult{Reason: err.Error()}, nil //nolint:nilerr // it is the answer
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
	coming, cancel := s.options.Events.Watch(buffer)
	defer cancel()
	out := newLineWriter(w)
	for _, event := range s.options.Events.Events(after) {
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

// admin forwards a GET to the live epoch.
func (s *Server) admin(w http.ResponseWriter, r *http.Request) {
	path := r.PathValue("path")
	if !slices.Contains(AdminPaths, path) {
		fail(w, &Error{Status: http.StatusNotFound,
			Message: fmt.Sprintf("%q of Envoy's admin cannot be read here; these can: %s", path,
				strings.Join(AdminPaths, ", "))})
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

// EpochHeader is the header of an admin response that names its epoch.
const EpochHeader = "X-Outrider-Epoch"
