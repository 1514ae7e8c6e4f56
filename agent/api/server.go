package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"outrider.org/outrider/agent/admission"
)

// Limits of one request.
const (
	headerTime    = 5 * time.Second  // until the header has come
	bodyTime      = 5 * time.Second  // until the body has come
	answerTime    = 30 * time.Second // until an answer that is not a stream has been taken by the client
	lineTime      = 10 * time.Second // until one line of a stream has been taken
	adminTime     = 2 * time.Minute  // until a pass-through of Envoy's admin has been taken
	idleTime      = time.Minute      // between two requests
	maximumHeader = 16 << 10
	maximumBody   = 64 << 10
	shutdownTime  = 2 * time.Second // for answers under way when the server ends
)

// Options of a server.
type Options struct {
	Socket  string // path; its folder exists
	Rule    Rule
	Backend Backend
	Events  Events
	Logger  *slog.Logger
}

// Server serves the private socket.
type Server struct {
	options Options
	handler http.Handler
	gate    *gate
	ready   chan struct{}
	ending  chan struct{} // closed when Run ends: streams end with it
	told    atomic.Int64  // the second in which a refusal was logged last
}

// NewServer returns a server; Run serves.
func NewServer(options Options) *Server {
	s := &Server{options: options, gate: newGate(options.Rule), ready: make(chan struct{}), ending: make(chan struct{})}
	s.handler = s.routes()
	return s
}

// Name is the part's name.
func (s *Server) Name() string { return "api" }

// Ready is closed once the socket takes connections.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Connections returns what has been counted of connections.
func (s *Server) Connections() admission.Stats {
	stats, others := s.gate.privileged.Stats(), s.gate.everyone.Stats()
	return admission.Stats{Evicted: stats.Evicted + others.Evicted, Refused: stats.Refused + others.Refused}
}

// Run serves until ctx ends, then lets answers under way end for a moment and removes the socket. It runs once.
func (s *Server) Run(ctx context.Context) error {
	listener, err := listen(s.options.Socket)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           admission.Handler(s.handler),
		ConnContext:       admission.ConnContext,
		ConnState:         admission.ConnState,
		ReadHeaderTimeout: headerTime, // no ReadTimeout: it would end streams
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maximumHeader,
		ErrorLog:          slog.NewLogLogger(s.options.Logger.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	close(s.ready) // it takes connections; whoever gets an answer can rely on it
	go func() { served <- server.Serve(s.gate.listen(listener)) }()
	select {
	case err = <-served:
		close(s.ending)
		_ = server.Close()
		return fmt.Errorf("serve the private socket: %w", err)
	case <-ctx.Done():
	}
	close(s.ending)
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		_ = server.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the private socket: %w", err)
	}
	return nil
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	backend := s.options.Backend
	mux.Handle("GET "+Prefix+"/status", read(backend.Status))
	mux.Handle("GET "+Prefix+"/config", s.entitled(shows, read(backend.Config)))
	mux.Handle("GET "+Prefix+"/config/diff", s.entitled(shows, read(backend.ConfigDiff)))
	mux.Handle("GET "+Prefix+"/log-level", read(backend.LogLevels))
	mux.Handle("GET "+Prefix+"/resource-types", read(backend.ResourceTypes))
	mux.Handle("GET "+Prefix+"/mesh-problems", read(backend.MeshProblems))
	mux.Handle("GET "+Prefix+"/mesh/origins", read(backend.MeshOrigins))
	mux.HandleFunc("POST "+Prefix+"/mesh/explain", s.explain)
	mux.Handle("GET "+Prefix+"/report", read(backend.Report))
	mux.HandleFunc("GET "+Prefix+"/admin/{path...}", s.admin)
	mux.HandleFunc("GET "+Prefix+"/events", s.events)
	mux.HandleFunc("GET "+Prefix+"/wait", s.wait)
	mux.Handle("POST "+Prefix+"/reload", s.change(s.reload))
	mux.Handle("POST "+Prefix+"/drain", s.change(s.drain))
	mux.Handle("POST "+Prefix+"/undrain", s.change(s.undrain))
	mux.Handle("POST "+Prefix+"/log-level", s.change(s.setLogLevels))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, &Error{Status: http.StatusNotFound,
			Message: fmt.Sprintf("this agent knows no %s %s; it may be older than the command", r.Method, r.URL.Path)})
	})
	return mux
}

// change passes requests on from those who may change something, and logs them.
func (s *Server) change(next http.HandlerFunc) http.Handler {
	return s.entitled(changes, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer, _ := peerOfRequest(r)
		level := slog.LevelInfo
		if strings.HasSuffix(r.URL.Path, "/reload") {
			level = slog.LevelDebug // the reload is logged, with who asked for it
		}
		s.options.Logger.Log(r.Context(), level, "request over the private socket", "path", r.URL.Path, "uid", peer.UID, "pid", peer.PID)
		next(w, r)
	}))
}

// entitled passes requests on from those whom the rule allows what the request does.
func (s *Server) entitled(does string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer, ok := peerOfRequest(r)
		if !ok {
			fail(w, &Error{Status: http.StatusForbidden, Message: "not authorised: the caller is unknown"})
			return
		}
		if refused := s.options.Rule.refuse(peer, does); refused != nil {
			// One a second: everybody can be refused, and journald drops what else the agent says beyond a rate.
			if now := time.Now().Unix(); s.told.Swap(now) != now {
				s.options.Logger.Warn("refused a request over the private socket: not authorised",
					"path", r.URL.Path, "uid", peer.UID, "pid", peer.PID)
			}
			fail(w, refused)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// read answers with what a method of the backend returns.
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

// decode reads the request's body, if it has one, within the limits of size and time.
func decode(w http.ResponseWriter, r *http.Request, into any) error {
	if r.ContentLength == 0 {
		return nil
	}
	controller := http.NewResponseController(w)
	_ = controller.SetReadDeadline(time.Now().Add(bodyTime))
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maximumBody))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return &Error{Status: http.StatusBadRequest, Message: fmt.Sprintf("the request cannot be read: %v", err)}
	}
	_ = controller.SetReadDeadline(time.Time{})
	return nil
}
