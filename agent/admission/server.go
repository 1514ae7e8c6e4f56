package admission

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Limits of the servers of NewServer.
const (
	headerTime    = 5 * time.Second
	bodyTime      = 5 * time.Second // see LimitBody
	idleTime      = time.Minute
	maximumHeader = 32 << 10
	shutdownTime  = 2 * time.Second // for responses in progress
	bindInterval  = time.Second
)

// NewServer returns a server for connections of a Listener. It has no ReadTimeout: when that
// expires, net/http cancels the context of running handlers.
func NewServer(handler http.Handler, logger *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           abortEvicted(handler),
		ConnState:         ConnState,
		ConnContext:       ConnContext,
		ReadHeaderTimeout: headerTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maximumHeader,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}

// LimitBody wraps a handler and limits the time to read a request's body. A handler may ignore the
// body, but net/http drains it afterwards, so a slow client would hold its connection. Do not wrap
// a handler that runs for long after reading the body: the request's context is cancelled at the
// limit.
func LimitBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime))
		}
		next.ServeHTTP(w, r)
	})
}

// Bind listens on a TCP address. While that fails, it calls failed and retries every second, until
// ctx ends.
func Bind(ctx context.Context, address string, failed func(error)) (net.Listener, error) {
	var config net.ListenConfig
	for {
		listener, err := config.Listen(ctx, "tcp", address)
		if err == nil || ctx.Err() != nil {
			return listener, err
		}
		failed(err)
		select {
		case <-time.After(bindInterval):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Serve serves until ctx ends, and then shuts the server down.
func Serve(ctx context.Context, server *http.Server, listener net.Listener) error {
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		Shutdown(ctx, server)
		return err
	case <-ctx.Done():
	}
	Shutdown(ctx, server)
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Shutdown closes a server. Responses in progress have two seconds to complete.
func Shutdown(ctx context.Context, server *http.Server) {
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	if server.Shutdown(grace) != nil {
		_ = server.Close()
	}
}
