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
	"outrider.org/outrider/agent/unixpeer"
)

// listener accepts connections and reads the credentials of their peers.
type listener struct {
	*net.UnixListener
	path string
	file os.FileInfo // identity of the created socket file
}

// listen creates the socket with mode 0666 and replaces a stale one. Any user may connect; the
// AccessRule authorises each request.
func listen(path string) (*listener, error) {
	if probe, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = probe.Close()
		return nil, fmt.Errorf("listen on %s: another agent already uses this socket", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier agent: %w", err)
	}
	var config net.ListenConfig
	made, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on the private socket: %w", err)
	}
	unixListener := made.(*net.UnixListener)
	unixListener.SetUnlinkOnClose(false) // at close the path may belong to another agent
	if err := os.Chmod(path, 0o666); err != nil {
		_ = made.Close()
		return nil, fmt.Errorf("make the private socket accessible to all users: %w", err)
	}
	file, err := os.Lstat(path)
	if err != nil {
		_ = made.Close()
		return nil, fmt.Errorf("stat the private socket: %w", err)
	}
	return &listener{UnixListener: unixListener, path: path, file: file}, nil
}

// Close stops listening and removes the socket file unless another process has replaced it.
func (l *listener) Close() error {
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.file) {
		_ = os.Remove(l.path)
	}
	return l.UnixListener.Close()
}

// tooMany is the response to a connection beyond the limits.
var tooMany = func() []byte {
	body := `{"error":"the agent has too many connections of this user; try again later"}` + "\n"
	return fmt.Appendf(nil,
		"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"+
			"Connection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}()

// connection is a net.Conn with the credentials of its peer process.
type connection struct {
	*net.UnixConn
	peer unixpeer.Peer
}

// Accept returns the next connection, of type *connection. It skips connections whose peer cannot
// be identified.
func (l *listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if peer, err := unixpeer.OfConn(accepted); err == nil {
			return &connection{accepted, peer}, nil
		}
		_ = accepted.Close()
	}
}

// Connection limits. Every local user may connect: one user's connections must not displace those
// of others, nor an unprivileged user's those of root.
var (
	privilegedLimits = admission.Limits{Total: 64, PerKey: 64} // root and the agent's own user
	everyoneLimits   = admission.Limits{Total: 128, PerKey: 16}
)

// gate limits connections per user.
type gate struct {
	rule                 AccessRule
	privileged, everyone *admission.Pool
}

func newGate(rule AccessRule) *gate {
	return &gate{rule, admission.NewPool(privilegedLimits), admission.NewPool(everyoneLimits)}
}

func (g *gate) listen(inner net.Listener) net.Listener {
	return admission.NewListener(inner, admission.Options{RefusalResponse: tooMany,
		Admit: func(c net.Conn) (*admission.Pool, admission.ClientKey) {
			peer := c.(*connection).peer
			if g.rule.privileged(peer) {
				return g.privileged, admission.KeyOfUser(peer.UID)
			}
			return g.everyone, admission.KeyOfUser(peer.UID)
		}})
}

// peerOfRequest returns the peer that sent a request. It reports false for a request that did not
// arrive through the private socket; such a request has no privileges.
func peerOfRequest(r *http.Request) (unixpeer.Peer, bool) {
	if admitted := admission.ConnFromContext(r.Context()); admitted != nil {
		if c, ok := admitted.Conn.(*connection); ok {
			return c.peer, true
		}
	}
	return unixpeer.Peer{}, false
}
