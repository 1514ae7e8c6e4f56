package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"time"

	"outrider.org/outrider/agent/admission"
)

// listener accepts connections with their peers.
type listener struct {
	*net.UnixListener
	path string
	file os.FileInfo // the socket as it was made
}

// listen makes the socket, in place of one that nobody answers on, mode 0666: the rule decides, not the file.
func listen(path string) (*listener, error) {
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
	return &listener{UnixListener: unixListener, path: path, file: file}, nil
}

// Close ends listening and removes the socket if it is still this listener's.
func (l *listener) Close() error {
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.file) {
		_ = os.Remove(l.path)
	}
	return l.UnixListener.Close()
}

// tooMany answers connections beyond the limits.
var tooMany = func() []byte {
	body := `{"error":"the agent has too many connections of this user; try again later"}` + "\n"
	return fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"+
		"Connection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}()

// connection is a connection with its peer.
type connection struct {
	*net.UnixConn
	peer Peer
}

// Accept returns the next connection whose peer is known. It is a *connection.
func (l *listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if peer, err := peerOf(accepted); err == nil {
			return &connection{accepted, peer}, nil
		}
		_ = accepted.Close()
	}
}

// Limits of connections. Everybody may read, so everybody may try to use the agent up: one user's connections leave those of
// all others alone, and unprivileged ones never take the place of root's.
var (
	privilegedLimits = admission.Limits{Total: 64, PerKey: 64} // of root and the agent's own user
	everyoneLimits   = admission.Limits{Total: 128, PerKey: 16}
)

// gate admits connections by user.
type gate struct {
	rule                 Rule
	privileged, everyone *admission.Pool
}

func newGate(rule Rule) *gate {
	return &gate{rule, admission.NewPool(privilegedLimits), admission.NewPool(everyoneLimits)}
}

func (g *gate) listen(inner net.Listener) net.Listener {
	return admission.Listen(inner, admission.Options{Refusal: tooMany, Admit: func(c net.Conn) (*admission.Pool, admission.Key) {
		peer := c.(*connection).peer
		if g.rule.privileged(peer) {
			return g.privileged, admission.User(peer.UID)
		}
		return g.everyone, admission.User(peer.UID)
	}})
}

// peerOfRequest returns who sent a request. One that did not come through the private socket is nobody's, with no right to
// change.
func peerOfRequest(r *http.Request) (Peer, bool) {
	if admitted := admission.FromContext(r.Context()); admitted != nil {
		if c, ok := admitted.Conn.(*connection); ok {
			return c.peer, true
		}
	}
	return Peer{}, false
}
