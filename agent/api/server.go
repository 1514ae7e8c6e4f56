package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/lifecycle"
)

// Time limits of one request.
const (
	bodyTime = 5 * time.Second // limit of receiving the body
	// answerTime limits sending a response that is not a stream.
	answerTime  = 30 * time.Second
	lineTime    = 10 * time.Second // limit of sending one line of a stream
	adminTime   = 2 * time.Minute  // limit of sending a response of Envoy's admin interface
	maximumBody = 64 << 10
	// maximumFiles limits the body of a request with files, which are in base64.
	maximumFiles = MaxMeshFilesBytes*4/3 + 1<<20
)

// Options configure a Server.
type Options struct {
	Socket     string // path, in an existing directory
	Rule       AccessRule
	Backend    Backend
	Conditions *condition.Registry // source of the events that clients read
	Logger     *slog.Logger
	// Readiness becomes ready once the socket accepts connections; nil: the server creates one.
	Readiness *lifecycle.Readiness
}

// Server serves the private socket. It is ready once the socket accepts connections, possibly
// before it answers requests.
type Server struct {
	*lifecycle.Readiness
	options Options
	handler http.Handler
	gate    *gate
	ending  chan struct{} // closed when Run ends, to end streams
	files   chan struct{} // semaphore: full while a request with files is in progress
}

// NewServer returns a server. Call Run to serve.
func NewServer(options Options) *Server {
	s := &Server{Readiness: cmp.Or(options.Readiness, &lifecycle.Readiness{}), options: options,
		gate: newGate(options.Rule), ending: make(chan struct{}), files: make(chan struct{}, 1)}
	s.handler = s.routes()
	return s
}

// Name returns the component's name.
func (s *Server) Name() string { return "api" }

// ConnectionStats returns the admission counters of all connections.
func (s *Server) ConnectionStats() admission.Stats {
	return admission.SumStats(s.gate.privileged, s.gate.everyone)
}

// Run serves until ctx ends, then lets active responses finish for up to two seconds and removes
// the socket. It must be called only once.
func (s *Server) Run(ctx context.Context) error {
	listener, err := listen(s.options.Socket)
	if err != nil {
		return err
	}
	server := admission.NewServer(s.handler, s.options.Logger)
	server.RegisterOnShutdown(func() { close(s.ending) })
	s.MarkReady() // connections now queue in the backlog and will be served
	if err := admission.Serve(ctx, server, s.gate.listen(listener)); err != nil {
		return fmt.Errorf("serve the private socket: %w", err)
	}
	return nil
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	backend := s.options.Backend
	mux.Handle("GET "+PathPrefix+"/status", read(backend.Status))
	mux.Handle("GET "+PathPrefix+"/config", s.entitled(shows, read(backend.Config)))
	mux.Handle("GET "+PathPrefix+"/config/diff", s.entitled(shows, read(backend.ConfigDiff)))
	mux.Handle("GET "+PathPrefix+"/log-level", read(backend.LogLevels))
	mux.Handle("GET "+PathPrefix+"/resource-types", read(backend.ResourceTypes))
	mux.Handle("POST "+PathPrefix+"/upstream-debug",
		s.entitled(shows, handle(backend.UpstreamDebug)))
	mux.Handle("GET "+PathPrefix+"/mesh-problems", read(backend.MeshProblems))
	mux.Handle("GET "+PathPrefix+"/mesh/origins", read(backend.MeshOrigins))
	// POST, because the request to explain may be too long for a URL
	mux.HandleFunc("POST "+PathPrefix+"/mesh/explain", handle(backend.MeshExplain))
	mux.Handle("POST "+PathPrefix+"/mesh/compare", s.entitled(shows,
		s.one(handleUpTo(maximumFiles, backend.MeshCompare))))
	mux.Handle("GET "+PathPrefix+"/report", read(backend.Report))
	mux.HandleFunc("GET "+PathPrefix+"/admin/{path...}", s.admin)
	mux.HandleFunc("GET "+PathPrefix+"/events", s.events)
	mux.HandleFunc("GET "+PathPrefix+"/wait", s.wait)
	mux.Handle("POST "+PathPrefix+"/reload", s.change(begin(s, backend.Reload)))
	mux.Handle("POST "+PathPrefix+"/drain", s.change(begin(s, backend.Drain)))
	mux.Handle("POST "+PathPrefix+"/undrain", s.change(s.undrain))
	mux.Handle("POST "+PathPrefix+"/log-level", s.change(handle(backend.SetLogLevels)))
	mux.Handle("GET "+PathPrefix+"/capture", read(backend.Capture))
	mux.HandleFunc("POST "+PathPrefix+"/capture/explain", handle(backend.ExplainCapture))
	mux.Handle("POST "+PathPrefix+"/capture/try", s.change(handle(backend.StartCaptureTrial)))
	mux.Handle("POST "+PathPrefix+"/capture/confirm", s.change(handle(
		func(ctx context.Context, _ struct{}) (Capture, error) {
			return backend.ConfirmCaptureTrial(ctx)
		})))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, &Error{Status: http.StatusNotFound,
			Message: fmt.Sprintf("this agent knows no %s %s; it may be older than the command",
				r.Method, r.URL.Path)})
	})
	return mux
}

// change authorises requests that change the proxy, and logs them.
func (s *Server) change(next http.HandlerFunc) http.Handler {
	return s.entitled(changes, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer, _ := peerOfRequest(r)
		level := slog.LevelInfo
		if strings.HasSuffix(r.URL.Path, "/reload") {
			level = slog.LevelDebug // the reload's own log entry names its requester
		}
		s.options.Logger.Log(r.Context(), level, "request over the private socket", "path",
			r.URL.Path, "uid", peer.UID, "pid", peer.PID)
		next(w, r)
	}))
}

// entitled forwards requests that the rule permits and rejects others.
func (s *Server) entitled(does string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer, ok := peerOfRequest(r)
		if !ok {
			fail(w, &Error{Status: http.StatusForbidden,
				Message: "not authorised: the caller is unknown"})
			return
		}
		if refused := s.options.Rule.refuse(peer, does); refused != nil {
			s.options.Logger.Warn("refused a request over the private socket: not authorised",
				"path", r.URL.Path, "uid", peer.UID, "pid", peer.PID)
			fail(w, refused)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// one handles one request with files at a time, because each can need tens of MB.
func (s *Server) one(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case s.files <- struct{}{}:
			defer func() { <-s.files }()
			next.ServeHTTP(w, r)
		case <-r.Context().Done():
		}
	})
}

// read returns a handler that calls a method of the backend and encodes its result.
func read[T any](method func(context.Context) (T, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), answerTime)
		defer cancel()
		answer, err := method(ctx)
		if err != nil {
			fail(w, err)
			return
		}
		send(w, http.StatusOK, answer)
	})
}

func send(w http.ResponseWriter, status int, answer any) {
	body, err := json.Marshal(answer)
	if err != nil {
		status = http.StatusInternalServerError
		body, _ = json.Marshal(&Error{Message: fmt.Sprintf("encode the answer: %v", err)})
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTime))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}

func fail(w http.ResponseWriter, err error) {
	answer := asError(err)
	send(w, answer.Status, answer)
}

// decode reads a request's JSON body, if any, within the limits of size and time.
func decode(w http.ResponseWriter, r *http.Request, limit int64, into any) error {
	if r.ContentLength == 0 {
		return nil
	}
	controller := http.NewResponseController(w)
	_ = controller.SetReadDeadline(time.Now().Add(bodyTime))
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, limit))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return &Error{Status: http.StatusBadRequest,
			Message: fmt.Sprintf("the request cannot be read: %v", err)}
	}
	_ = controller.SetReadDeadline(time.Time{})
	return nil
}
