package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"
)

// Limits of connections at a time. Everybody may read, so everybody may try to use the agent up: one user's connections
// leave those of all others alone, and unprivileged ones never take the place of root's.
const (
	connectionsPerUser      = 16
	connectionsUnprivileged = 128
	connectionsPrivileged   = 64
)

// listener takes connections with their peers, within the limits.
type listener struct {
	*net.UnixListener
	rule Rule
	path string
	file os.FileInfo // the socket as it was made

	mu           sync.Mutex
	perUser      map[uint32]int
	unprivileged int
	privileged   int
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
	return &listener{UnixListener: unixListener, rule: rule, path: path, file: file, perUser: map[uint32]int{}}, nil
}

// Close ends listening and removes the socket if it is still this listener's.
func (l *listener) Close() error {
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.file) {
		_ = os.Remove(l.path)
	}
	return l.UnixListener.Close()
}

// connection is a connection with its peer.
type connection struct {
	*net.UnixConn
	peer    Peer
	release func()
}

// Close closes and gives the place back, once.
func (c *connection) Close() error {
	c.release()
	return c.UnixConn.Close()
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
		release, ok := l.admit(peer)
		if !ok {
			_ = accepted.SetWriteDeadline(time.Now().Add(time.Second))
			_, _ = accepted.Write(tooMany)
			_ = accepted.Close()
			continue
		}
		return &connection{UnixConn: accepted, peer: peer, release: release}, nil
	}
}

func (l *listener) admit(peer Peer) (release func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	privileged := l.rule.privileged(peer)
	if privileged {
		if l.privileged >= connectionsPrivileged {
			return nil, false
		}
		l.privileged++
	} else {
		if l.unprivileged >= connectionsUnprivileged || l.perUser[peer.UID] >= connectionsPerUser {
			return nil, false
		}
		l.unprivileged++
		l.perUser[peer.UID]++
	}
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if privileged {
			l.privileged--
			return
		}
		l.unprivileged--
		if l.perUser[peer.UID]--; l.perUser[peer.UID] == 0 {
			delete(l.perUser, peer.UID)
		}
	}), true
}

type peerKey struct{}

// withPeer is http.Server's ConnContext.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	if c, ok := c.(*connection); ok {
		return context.WithValue(ctx, peerKey{}, c.peer)
	}
	return ctx
}

// peerOfRequest is who asks. A request without one (not from this listener) is nobody's, with no right to change.
func peerOfRequest(r *http.Request) (Peer, bool) {
	peer, ok := r.Context().Value(peerKey{}).(Peer)
	return peer, ok
}
