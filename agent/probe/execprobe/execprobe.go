// Package execprobe runs the commands of [health] exec.
//
// Under systemd, outrider-probe@.service runs one command per connection, as a user without
// privileges:
//
//	agent (Runner) --- /run/outrider/probe.sock --- outrider-probe (Serve) --- command
//
// When the agent closes its end of the connection, outrider-probe exits, and systemd kills the
// remaining processes in the service's control group. In the foreground, the agent runs commands
// itself (Exec).
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

// request is the message that the agent sends.
type request struct {
	Arguments []string
}

// response is the message that outrider-probe sends when the command has ended.
type response struct {
	Error string // "" = the command succeeded
}

// Runner runs commands through outrider-probe, one at a time.
type Runner struct {
	socket  string
	running chan struct{} // has one element while a service runs
}

// NewRunner returns a Runner that connects to outrider-probe's socket.
func NewRunner(socket string) *Runner {
	return &Runner{socket: socket, running: make(chan struct{}, 1)}
}

// Run runs a command, and kills it at the end of ctx. A command that waits for a file system cannot
// be killed. Until it ends, Run starts no other command, which would occupy another instance of the
// service: systemd limits their number.
func (r *Runner) Run(ctx context.Context, arguments []string) error {
	select {
	case r.running <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("the previous probe command is still running: %w", ctx.Err())
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
		_, _ = io.Copy(io.Discard, connection) // returns when the service has ended
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

// Serve runs the command of a connection. The peer must be root or the agent's user, and only root
// may be able to replace the program. Serve returns when the command ends or the agent closes its
// end of the connection.
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
		return fmt.Errorf("read the request to run a probe: %w", err)
	}
	if len(received.Arguments) == 0 {
		return errors.New("the request to run a probe has no command")
	}
	if err := connection.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, connection) // returns when the agent closes its end
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
