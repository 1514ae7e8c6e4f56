// Package execprobe runs the commands of [health] exec.
//
// Under systemd, outrider-probe@.service runs one command per connection, as a user without rights:
//
//	agent (Runner) --- /run/outrider/probe.sock --- outrider-probe (Serve) --- command
//
// The end of the agent's part of the connection ends outrider-probe, and systemd then kills what is
// left in the control group of the service. In the foreground, the agent runs commands itself
// (Exec).
package execprobe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"syscall"
	"time"

	"outrider.org/outrider/agent/unixpeer"
)

const (
	maxRequest  = 1 << 20
	maxResponse = 64 << 10
	requestTime = 5 * time.Second
)

// request is the request of a connection.
type request struct {
	Arguments []string
}

// response ends a connection.
type response struct {
	Error string // "" = the command succeeded
}

// Runner has outrider-probe run commands, one at a time.
type Runner struct {
	socket  string
	running chan struct{} // holds one while a service runs
}

// NewRunner returns a Runner that connects to a socket.
func NewRunner(socket string) *Runner {
	return &Runner{socket: socket, running: make(chan struct{}, 1)}
}

// Run runs a command. At the end of ctx the command is killed. While one cannot be killed, because
// it waits for a file system, no other starts: the services that a host can run are limited.
func (r *Runner) Run(ctx context.Context, arguments []string) error {
	select {
	case r.running <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("the command before has not ended: %w", ctx.Err())
	}
	address := &net.UnixAddr{Name: r.socket, Net: "unix"}
	connection, err := net.DialUnix("unix", nil, address)
	if err != nil {
		<-r.running
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return errors.New("outrider-probe.socket is not active; " +
			"systemctl start outrider-probe.socket")
	}
	if err != nil {
		return err
	}
	answer := make(chan error, 1)
	go func() {
		defer func() { <-r.running }()
		defer func() { _ = connection.Close() }()
		answer <- call(connection, arguments)
		_ = connection.CloseWrite()
		_, _ = io.Copy(io.Discard, connection) // until the service has ended
	}()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		_ = connection.CloseWrite()
		return ctx.Err()
	}
}

// call sends a request and returns the result of the command.
func call(connection *net.UnixConn, arguments []string) error {
	var got response
	err := json.NewEncoder(connection).Encode(request{arguments})
	if err == nil {
		err = json.NewDecoder(io.LimitReader(connection, maxResponse)).Decode(&got)
	}
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return errors.New("outrider-probe@.service has ended, or too many probes run; " +
			"journalctl -u 'outrider-probe*'")
	case err != nil:
		return err
	case got.Error != "":
		return errors.New(got.Error)
	}
	return nil
}

// Serve runs the command of a connection, if its peer is root or the agent's user and root alone
// can replace its program. It returns when the command or the connection ends.
func Serve(connection *net.UnixConn, agent int) error {
	switch peer, err := unixpeer.OfConn(connection); {
	case err != nil:
		return err
	case peer.UID != 0 && int(peer.UID) != agent:
		return fmt.Errorf("user %d may not run probes", peer.UID)
	}
	if err := connection.SetReadDeadline(time.Now().Add(requestTime)); err != nil {
		return err
	}
	var received request
	requests := io.LimitReader(connection, maxRequest)
	if err := json.NewDecoder(requests).Decode(&received); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	if len(received.Arguments) == 0 {
		return errors.New("the request has no command")
	}
	if err := connection.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, connection) // until the agent closes it
	}()
	var done response
	if path, err := Find(received.Arguments[0], 0); err != nil {
		done.Error = err.Error()
	} else if err := Exec(ctx, path, received.Arguments); err != nil {
		done.Error = err.Error() +
			"; it runs without rights and network: use http, tcp or unit if it needs them"
	}
	if ctx.Err() != nil {
		return nil
	}
	return json.NewEncoder(connection).Encode(done)
}
