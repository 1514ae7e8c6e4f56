package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// notifySocket is where systemd-nspawn tells how far it is (sd_notify(3)).
type notifySocket struct {
	path string
	conn *net.UnixConn
}

func listenNotify(path string) (*notifySocket, error) {
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	return &notifySocket{path: path, conn: conn}, nil
}

func (s *notifySocket) close() {
	_ = s.conn.Close() // nobody writes to it any more
	_ = os.Remove(s.path)
}

// ready waits until the machine's systemd is up.
func (s *notifySocket) ready(ctx context.Context, exited <-chan struct{}) error {
	read, watched := make(chan struct{}), make(chan struct{})
	defer func() {
		close(read)
		<-watched
		_ = s.conn.SetReadDeadline(time.Time{})
	}()
	go func() {
		defer close(watched)
		select {
		case <-ctx.Done():
		case <-exited:
		case <-read:
			return
		}
		_ = s.conn.SetReadDeadline(time.Now()) // ends the wait
	}()
	message := make([]byte, 4096)
	for {
		n, err := s.conn.Read(message)
		if err != nil {
			select {
			case <-exited:
				return errors.New("it ended before it was up")
			default:
				return fmt.Errorf("waiting for it to be up: %w", errors.Join(ctx.Err(), err))
			}
		}
		for line := range strings.Lines(string(message[:n])) {
			if strings.TrimSpace(line) == "READY=1" {
				return nil
			}
		}
	}
}
