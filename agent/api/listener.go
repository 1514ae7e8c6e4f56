package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"
)

// listener takes connections with their peers, within the limits.
type listener struct {
	*net.UnixListener
	rule   Rule
	path   string
	file   os.FileInfo // the socket as it was made
	places *places
}

// listen makes the socket, in place of one that nobody answers on, mode 0666: the rule decides, not the file.
func listen(path string, rule Rule) (*listener, error) {
	if probe, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = probe.Close()
		return nil, fmt.Errorf("listen on %s: another agent answers there", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of a former agent: %w", err)
	}
	var config net.ListenConfig
	made, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on the private socket: %w", err)
	}
	unixListener := made.(*net.UnixListener)
	unixListener.SetUnlinkOnClose(false) // by then the path may be another agent's
	if err := os.Chmod(path, 0o666); err != nil {
		_ = made.Close()
		return nil, fmt.Errorf("open the private socket to all users: %w", err)
	}
	file, err := os.Lstat(path)
	if err != nil {
		_ = made.Close()
		return nil, fmt.Errorf("look at the private socket: %w", err)
	}
	return &listener{UnixListener: unixListener, rule: rule, path: path, file: file, places: newPlaces()}, nil
}

// Close ends listening and removes the socket if it is still this listener's.
func (l *listener) Close() error {
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.file) {
		_ = os.Remove(l.path)
	}
	return l.UnixListener.Close()
}

// tooMany is what a connection beyond the limits is told. It fits into any fresh socket's buffer, so the write cannot
// block.
var tooMany = func() []byte {
	body := `{"error":"the agent has too many connections of this user; try again later"}` + "\n"
	return fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"+
		"Connection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}()

// Accept returns the next connection that is within the limits.
func (l *listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.AcceptUnix()
		if errors.Is(err, syscall.ECONNABORTED) {
			continue
		}
		if err != nil {
			return nil, err
		}
		peer, err := peerOf(accepted)
		if err != nil {
			_ = accepted.Close()
			continue
		}
		admitted, ok := l.places.admit(accepted, peer, l.rule.privileged(peer))
		if !ok {
			_ = accepted.SetWriteDeadline(time.Now().Add(time.Second))
			_, _ = accepted.Write(tooMany)
			_ = accepted.Close()
			continue
		}
		return admitted, nil
	}
}

type connectionKey struct{}

// withConnection is http.Server's ConnContext.
func withConnection(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, c)
}

// peerOfRequest is who asks. A request without one (not from this listener) is nobody's, with no right to change.
func peerOfRequest(r *http.Request) (Peer, bool) {
	if c, ok := r.Context().Value(connectionKey{}).(*connection); ok {
		return c.peer, true
	}
	return Peer{}, false
}

// stillConnected lets a request go no further whose connection was closed for another one while it was being read: its
// caller would not hear how it ended.
func stillConnected(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connectionKey{}).(*connection); ok && !c.places.holds(c) {
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	})
}
