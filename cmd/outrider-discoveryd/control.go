package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/lifecycle"
)

// control serves a Unix socket over which `outrider-discoveryd reload` requests a reload and waits
// for its end. Only the program's user can enter the socket's directory.
type control struct {
	lifecycle.Readiness
	path string // path of the socket; "": no socket
	// reloads the configuration, and returns why it was refused
	reload   func(ctx context.Context) error
	logger   *slog.Logger
	requests *admission.Pool
}

// controlLimits bound the connections to the socket, in total and per user.
var controlLimits = admission.Limits{Total: 16, PerKey: 16}

// maxRefusal is the maximum length in bytes of the reason that the command prints for a refused
// reload.
const maxRefusal = 1 << 20

func newControl(path string, reload func(context.Context) error, logger *slog.Logger) *control {
	return &control{path: path, reload: reload, logger: logger,
		requests: admission.NewPool(controlLimits)}
}

// controlSocket returns the path of the socket in the first directory of $RUNTIME_DIRECTORY, or in
// otherwise if the variable is not set. It returns "" if otherwise is also "".
func controlSocket(environment func(string) string, otherwise string) string {
	directory, _, _ := strings.Cut(environment("RUNTIME_DIRECTORY"), ":")
	if directory = cmp.Or(directory, otherwise); directory == "" {
		return ""
	}
	return filepath.Join(directory, "control.sock")
}

// Name returns the name of the component.
func (c *control) Name() string { return "control socket" }

// Run serves the socket until ctx ends.
func (c *control) Run(ctx context.Context) error {
	if c.path == "" {
		c.MarkReady()
		<-ctx.Done()
		return nil
	}
	if err := os.Remove(c.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the control socket of an earlier process: %w", err)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "unix", c.path)
	if err != nil {
		return fmt.Errorf("listen on the control socket: %w", err)
	}
	c.MarkReady()
	server := admission.NewServer(http.HandlerFunc(c.serve), c.logger)
	return admission.Serve(ctx, server, admission.NewListener(listener, admission.Options{
		Admit: func(net.Conn) (*admission.Pool, admission.ClientKey) {
			return c.requests, admission.ClientKey{}
		}}))
}

func (c *control) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost || r.URL.Path != "/reload" {
		http.NotFound(w, r)
		return
	}
	if err := c.reload(r.Context()); err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// requestReload makes the running program reload, and returns when the reload is done. The error
// says why the reload was refused or impossible.
func requestReload(ctx context.Context, socket string) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://control/reload", nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("cannot request a reload of the running outrider-discoveryd: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxRefusal))
	if err != nil {
		return fmt.Errorf("cannot read the result of the reload: %w", err)
	}
	if response.StatusCode != http.StatusNoContent {
		return fmt.Errorf("reload refused; the previous configuration remains in force:\n%s",
			bytes.TrimSpace(text))
	}
	return nil
}
