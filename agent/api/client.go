package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"syscall"
	"time"

	"outrider.org/outrider/agent/condition"
)

// Client is a client of the private socket. ExitCode maps its errors to exit codes.
type Client struct {
	socket string
	http   *http.Client
}

// NewClient returns a client of the agent at a socket. It does not connect yet.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		connection, err := dialSocket(ctx, socket)
		switch {
		case err == nil:
			return connection, nil
		case errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM):
			return nil, &Error{Status: http.StatusForbidden,
				Message: fmt.Sprintf("not authorised to connect to %s", socket)}
		case ctx.Err() != nil:
			return nil, err
		}
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			return nil, &NotRunningError{Socket: socket, Err: errno}
		}
		return nil, &NotRunningError{Socket: socket, Err: err}
	}
	return &Client{socket: socket,
		http: &http.Client{Transport: &http.Transport{DialContext: dial, DisableCompression: true}}}
}

// queuePause is the interval between attempts to connect while the socket's backlog is full.
const queuePause = 5 * time.Millisecond

// dialSocket connects to a Unix socket. While the backlog is full (EAGAIN, see unix(7)) it retries
// until ctx ends.
func dialSocket(ctx context.Context, socket string) (net.Conn, error) {
	var dialer net.Dialer
	for {
		connection, err := dialer.DialContext(ctx, "unix", socket)
		if !errors.Is(err, syscall.EAGAIN) {
			return connection, err
		}
		select {
		case <-time.After(queuePause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Socket returns the path of the socket.
func (c *Client) Socket() string { return c.socket }

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status returns the status of the agent.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return get[Status](ctx, c, "/status")
}

// Config returns the active configuration.
func (c *Client) Config(ctx context.Context) (Config, error) {
	return get[Config](ctx, c, "/config")
}

// ConfigDiff returns the differences between the files and the active configuration.
func (c *Client) ConfigDiff(ctx context.Context) (ConfigDiff, error) {
	return get[ConfigDiff](ctx, c, "/config/diff")
}

// LogLevels returns the active log levels.
func (c *Client) LogLevels(ctx context.Context) (LogLevels, error) {
	return get[LogLevels](ctx, c, "/log-level")
}

// SetLogLevels sets the non-empty levels and returns all.
func (c *Client) SetLogLevels(ctx context.Context, levels LogLevels) (LogLevels, error) {
	return call[LogLevels](ctx, c, http.MethodPost, "/log-level", levels)
}

// ResourceTypes returns the state of each xDS type of each epoch.
func (c *Client) ResourceTypes(ctx context.Context) ([]ResourceType, error) {
	return get[[]ResourceType](ctx, c, "/resource-types")
}

// UpstreamDebug returns istiod's response to GET /debug/NAME; name may have a query.
func (c *Client) UpstreamDebug(ctx context.Context, name string) (json.RawMessage, error) {
	return call[json.RawMessage](ctx, c, http.MethodPost, "/upstream-debug", name)
}

// MeshProblems returns the problems in the files of the embedded discovery server.
func (c *Client) MeshProblems(ctx context.Context) ([]MeshProblem, error) {
	return get[[]MeshProblem](ctx, c, "/mesh-problems")
}

// Report returns the files of a bug report that only the agent can provide.
func (c *Client) Report(ctx context.Context) ([]ReportFile, error) {
	return get[[]ReportFile](ctx, c, "/report")
}

// Undrain restores service after a drain. progress may be nil.
func (c *Client) Undrain(ctx context.Context, progress func(Progress)) (UndrainResult, error) {
	return stream[UndrainResult](ctx, c, http.MethodPost, "/undrain", nil, progress)
}

// Reload reloads the configuration. progress may be nil.
func (c *Client) Reload(ctx context.Context, request ReloadRequest,
	progress func(Progress)) (ReloadResult, error) {
	return stream[ReloadResult](ctx, c, http.MethodPost, "/reload", request, progress)
}

// Drain drains the proxy. progress may be nil.
func (c *Client) Drain(ctx context.Context, request DrainRequest,
	progress func(Progress)) (DrainResult, error) {
	return stream[DrainResult](ctx, c, http.MethodPost, "/drain", request, progress)
}

// WaitReady returns once the proxy is ready or ctx ends. progress may be nil.
func (c *Client) WaitReady(ctx context.Context, progress func(Progress)) (WaitResult, error) {
	return stream[WaitResult](ctx, c, http.MethodGet, "/wait", nil, progress)
}

// Admin sends a GET to Envoy's admin interface. The caller closes the body. A status other than 200
// is an error.
func (c *Client) Admin(ctx context.Context, path string, query url.Values) (AdminResponse, error) {
	target := "/admin/" + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	response, err := c.do(ctx, http.MethodGet, target, nil) //nolint:bodyclose // caller closes
	if err != nil {
		return AdminResponse{}, err
	}
	epoch, _ := strconv.Atoi(response.Header.Get(EpochHeader))
	return AdminResponse{Epoch: epoch, Status: response.StatusCode,
		ContentType: response.Header.Get("Content-Type"),
		Body:        response.Body}, nil
}

// Events calls each for every event after a sequence number, oldest first. With stream it continues
// with new events until ctx ends, the agent exits, or each returns an error.
func (c *Client) Events(ctx context.Context, after uint64, stream bool,
	each func(condition.Event) error) error {
	response, err := c.do(ctx, http.MethodGet,
		fmt.Sprintf("/events?after=%d&follow=%t", after, stream), nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	decoder := json.NewDecoder(response.Body)
	for {
		var event condition.Event
		if err := decoder.Decode(&event); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return c.lost(ctx, err)
		}
		if err := each(event); err != nil {
			return err
		}
	}
}

// lost returns the error of a truncated response.
func (c *Client) lost(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("the connection to the agent was lost before its answer was complete: %w",
		err)
}

// do sends a request. It returns an error for any status other than 200.
func (c *Client) do(ctx context.Context, method, target string, body any) (*http.Response, error) {
	var content io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode the request: %w", err)
		}
		content = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method,
		"http://outrider"+PathPrefix+target, content)
	if err != nil {
		return nil, fmt.Errorf("send the request to the agent: %w", err)
	}
	response, err := c.http.Do(request)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err // the text of url.Error names an internal URL
		}
		if _, ok := errors.AsType[*NotRunningError](err); ok || ctx.Err() != nil {
			return nil, err
		}
		return nil, fmt.Errorf("send the request to the agent: %w", err)
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return nil, c.lost(ctx, err)
	}
	refused := Error{Status: response.StatusCode}
	if json.Unmarshal(text, &refused) != nil || refused.Message == "" {
		refused.Message = fmt.Sprintf("the agent answered %s: %s", response.Status,
			bytes.TrimSpace(text))
	}
	return nil, &refused
}

func get[T any](ctx context.Context, c *Client, target string) (T, error) {
	return call[T](ctx, c, http.MethodGet, target, nil)
}

// maxAnswer bounds a response in bytes, because a foreign program may listen on the socket.
const maxAnswer = 256 << 20

func call[T any](ctx context.Context, c *Client, method, target string, body any) (T, error) {
	var answer T
	response, err := c.do(ctx, method, target, body)
	if err != nil {
		return answer, err
	}
	defer response.Body.Close()
	limited := io.LimitReader(response.Body, maxAnswer)
	if err := json.NewDecoder(limited).Decode(&answer); err != nil {
		return answer, c.lost(ctx, err)
	}
	return answer, nil
}

// stream sends a request for a long operation and reads its progress and result.
func stream[T any](ctx context.Context, c *Client, method, target string, body any,
	progress func(Progress)) (T, error) {
	var none T
	response, err := c.do(ctx, method, target, body)
	if err != nil {
		return none, err
	}
	defer response.Body.Close()
	decoder := json.NewDecoder(response.Body)
	for {
		var line streamLine[T]
		if err := decoder.Decode(&line); err != nil {
			return none, c.lost(ctx, err)
		}
		switch {
		case line.Error != nil:
			line.Error.Status = http.StatusConflict
			return none, line.Error
		case line.Result != nil:
			return *line.Result, nil
		case line.Progress != nil && progress != nil:
			progress(*line.Progress)
		}
	}
}
