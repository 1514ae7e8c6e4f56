package apitest

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/condition"
)

// Serve serves the backend on a socket in dir until the test ends and returns the socket's path.
func Serve(t testing.TB, dir string, backend *Backend, board *condition.Registry) string {
	t.Helper()
	return ServeWith(t, api.Options{
		Socket:     filepath.Join(dir, api.SocketName),
		Rule:       api.AccessRule{UID: uint32(os.Getuid())},
		Backend:    backend,
		Conditions: board,
		Logger:     slog.New(slog.DiscardHandler),
	})
}

// ServeWith is like Serve with explicit options.
func ServeWith(t testing.TB, options api.Options) string {
	t.Helper()
	server := api.NewServer(options)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the private socket's server ended with: %v", err)
		}
	})
	select {
	case <-server.Ready():
	case err := <-ended:
		ended <- nil
		t.Fatalf("serve the private socket: %v", err)
	}
	return options.Socket
}
