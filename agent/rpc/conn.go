// Package rpc is the protocol between the agent and its helpers: outrider-keeper, outrider-capture
// and outrider-resolved.
//
// A message is a frame on a Unix stream socket: its length (4 bytes, big endian, 1 to
// MaxMessageBytes) and that many bytes of JSON. The package that uses a Conn defines the meaning of
// messages and their versions. The client numbers its requests. The helper puts the number of a
// request into its answer, which may consist of several frames and may come in any order. It sends
// events without a number (Client).
//
// Neither peer can block the other: a peer must receive a message within PeerTimeout, and must
// complete a message within PeerTimeout after its beginning. An error ends the connection.
package rpc

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"syscall"
	"time"
)

// PeerTimeout bounds the time in which the peer must receive a message, and the time in which it
// must complete a message that it has begun to send.
const PeerTimeout = 5 * time.Second

// Conn sends and receives messages. Send may be called concurrently, Receive by one goroutine at a
// time.
type Conn struct {
	socket  net.Conn
	reader  *bufio.Reader
	sending chan struct{} // full while a message is sent
}

// NewConn returns a Conn that owns the socket.
func NewConn(socket net.Conn) *Conn {
	return &Conn{socket: socket, reader: bufio.NewReader(socket), sending: make(chan struct{}, 1)}
}

// Dial connects to a Unix socket.
func Dial(ctx context.Context, path string) (*Conn, error) {
	socket, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return NewConn(socket), nil
}

// SyscallConn implements syscall.Conn. The Conn must be a result of Dial.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	return c.socket.(syscall.Conn).SyscallConn()
}

// Close ends the connection and unblocks Send and Receive.
func (c *Conn) Close() error { return c.socket.Close() }

// Send sends a message before the deadline of ctx, and within PeerTimeout. After an error the
// caller must close the connection, because part of the message may have been sent.
func (c *Conn) Send(ctx context.Context, message any) error {
	frame, err := encode(message)
	if err != nil {
		return err
	}
	if err := c.reserve(ctx); err != nil {
		return err
	}
	return c.write(ctx, frame)
}

// reserve waits until no other message is being sent. If it returns nil, the caller must call
// write.
func (c *Conn) reserve(ctx context.Context) error {
	select {
	case c.sending <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Conn) write(ctx context.Context, frame []byte) error {
	defer func() { <-c.sending }()
	deadline := time.Now().Add(PeerTimeout)
	if earlier, ok := ctx.Deadline(); ok && earlier.Before(deadline) {
		deadline = earlier
	}
	err := c.socket.SetWriteDeadline(deadline)
	if err == nil {
		_, err = c.socket.Write(frame)
	}
	if err != nil {
		return fmt.Errorf("cannot send a message: %w", err)
	}
	return nil
}

// SendUnframed sends a message as a line of JSON, to a peer for which Receive returned ErrUnframed.
func (c *Conn) SendUnframed(message any) error {
	line, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("cannot encode a message: %w", err)
	}
	if err := c.reserve(context.Background()); err != nil {
		return err
	}
	return c.write(context.Background(), append(line, '\n'))
}

// Receive waits for the next message until the deadline, without limit if that is zero. The
// connection cannot be used after an error.
func (c *Conn) Receive(deadline time.Time, message any) error {
	if err := c.socket.SetReadDeadline(deadline); err != nil {
		return err
	}
	if _, err := c.reader.Peek(1); err != nil {
		return err
	}
	end := time.Now().Add(PeerTimeout)
	if !deadline.IsZero() && deadline.Before(end) {
		end = deadline
	}
	if err := c.socket.SetReadDeadline(end); err != nil {
		return err
	}
	return decode(c.reader, message)
}
