package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
)

// notifySocket receives the notifications of systemd-nspawn (sd_notify(3)). It must always be read,
// because otherwise senders, such as the machine's PID 1, would block.
type notifySocket struct {
	path  string
	conn  *net.UnixConn
	up    chan struct{} // buffered; receives a value when systemd reports READY=1
	ended chan struct{}
}

func listenNotify(path string) (*notifySocket, error) {
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	s := &notifySocket{path: path, conn: conn, up: make(chan struct{}, 1),
		ended: make(chan struct{})}
	go s.read()
	return s, nil
}

func (s *notifySocket) close() {
	_ = s.conn.Close() // the machine has ended, so nothing sends to the socket
	<-s.ended
	_ = os.Remove(s.path)
}

// read receives notifications until the socket is closed.
func (s *notifySocket) read() {
	defer close(s.ended)
	message := make([]byte, 4096)
	for {
		n, err := s.conn.Read(message)
		if err != nil {
			return
		}
		for line := range strings.Lines(string(message[:n])) {
			if strings.TrimSpace(line) == "READY=1" {
				select {
				case s.up <- struct{}{}:
				default:
				}
			}
		}
	}
}

// ready waits until the machine's systemd reports READY=1.
func (s *notifySocket) ready(ctx context.Context, exited <-chan struct{}) error {
	select {
	case <-s.up:
	case <-exited:
		return errors.New("the machine exited before its systemd was up")
	case <-ctx.Done():
	}
	// select may have chosen up although ctx has ended as well.
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("waiting for the systemd of the machine: %w", err)
	}
	return nil
}
