package main_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/rig"
)

// TestReload_TenInARowWithoutClients reloads ten times, with old epochs that would run for a minute
// if they had clients. No reload waits for an old epoch.
func TestReload_TenInARowWithoutClients(t *testing.T) {
	t.Parallel()
	r := rig.New(t,
		rig.Options{TOML: "[envoy]\ndrain_duration = \"45s\"\nparent_shutdown_duration = " +
			"\"60s\"\n"})
	r.StartReady()
	probe := r.StartProbe() // sends each request on a new connection
	begun := time.Now()
	for i := range 10 {
		before := time.Now()
		if result := r.RunOutrider("reload"); result.ExitCode != 0 {
			t.Fatalf("reload %d: %s", i, result.Stderr)
		}
		took := time.Since(before)
		t.Logf("reload %d took %s", i, took.Round(time.Millisecond))
		if took > 30*time.Second { // half of parent_shutdown_duration
			t.Errorf("reload %d took %s: it waited for an epoch without clients", i, took)
		}
	}
	probe.Stop()
	if after, ok := probe.Recovered(begun); after != 0 || !ok {
		t.Errorf("requests were lost, the last one %s after the first reload began; served at "+
			"the end: %t", after, ok)
	}
	if e := r.LiveEpoch(); e.Number != 10 {
		t.Errorf("%+v", e)
	}
	// The last epoch's parent may still have a parent of its own, which it terminates after some
	// time.
	rig.Eventually(t, time.Minute, "two Envoys run at most", func() bool {
		return len(r.ProcessIDs("envoy")) <= 2
	})
}

// TestReload_WithFiftyKeepAliveClients reloads a real Envoy that has 50 clients with keep-alive
// connections. No request is lost, and no reload waits longer than announced. Active clients close
// their connections when Envoy requests that; silent ones keep them until the old epoch ends.
func TestReload_WithFiftyKeepAliveClients(t *testing.T) {
	t.Parallel()
	for name, silent := range map[string]bool{"they send": false, "they are silent": true} {
		t.Run(name, func(t *testing.T) {
			r := rig.New(t,
				rig.Options{TOML: "[envoy]\ndrain_duration = \"2s\"\nparent_shutdown_duration = " +
					"\"6s\"\n"})
			daemon := r.StartReady()
			var clients keepAliveClients
			clients.start(t, r, 50, silent)
			for i := range 3 {
				before := time.Now()
				took, until := reloadTelling(t, r)
				said := max(until.Sub(before), 0)
				t.Logf("reload %d took %s, said at most %s", i, took.Round(time.Millisecond),
					said.Round(time.Millisecond))
				// 20 s suffice for the start of an epoch on a busy machine
				if took > said+20*time.Second {
					t.Errorf("reload %d took %s, said at most %s", i, took, said)
				}
				if i > 0 && until.IsZero() {
					t.Errorf("reload %d waited for clients and did not say until when", i)
				}
				if silent {
					clients.again()
				}
			}
			sent, lost := clients.stop()
			t.Logf("%d requests", sent)
			if len(lost) > 0 || sent < 100 {
				t.Errorf("%d requests, lost %d: %v", sent, len(lost), lost)
			}
			if log := daemon.Output(); !strings.Contains(log,
				"waiting for an older epoch to finish draining") {
				t.Error("the log does not say what was waited for")
			}
		})
	}
}

// reloadTelling reloads. It returns the duration of the reload, and the time until which the reload
// announced to wait for clients.
func reloadTelling(t *testing.T, r *rig.Rig) (took time.Duration, until time.Time) {
	t.Helper()
	client := api.NewClient(filepath.Join(r.Dir, "run", "outrider.sock"))
	defer client.Close()
	before := time.Now()
	result, err := client.Reload(t.Context(), api.ReloadRequest{}, func(p api.Progress) {
		if strings.HasPrefix(p.Phase, "waiting for epoch") {
			until = p.Until
		}
	})
	if err != nil || result.Outcome != api.OutcomeRestarted {
		t.Fatalf("%+v, %v", result, err)
	}
	return time.Since(before), until
}

// keepAliveClients are HTTP clients with keep-alive connections. They close a connection only if
// Envoy has closed it, or requests that in a response.
type keepAliveClients struct {
	address string
	end     context.CancelFunc
	all     sync.WaitGroup
	ready   sync.WaitGroup
	sent    atomic.Int64
	wake    []chan struct{}

	mu   sync.Mutex
	lost []error
}

// start starts a number of clients, and returns when each has sent its first request. Clients that
// are not silent send the next request after 50 ms, silent ones only after a call of c.again.
func (c *keepAliveClients) start(t *testing.T, r *rig.Rig, number int, silent bool) {
	ctx, cancel := context.WithCancel(t.Context())
	c.address, c.end = fmt.Sprintf("127.0.0.1:%d", r.Ports.HTTP), cancel
	t.Cleanup(func() { cancel(); c.all.Wait() })
	for range number {
		wake := make(chan struct{}, 1)
		c.wake = append(c.wake, wake)
		c.ready.Add(1)
		c.all.Go(func() { c.run(ctx, wake, silent) })
	}
	c.ready.Wait()
}

// again makes every silent client send one request.
func (c *keepAliveClients) again() {
	c.ready.Add(len(c.wake))
	for _, wake := range c.wake {
		wake <- struct{}{}
	}
	c.ready.Wait()
}

func (c *keepAliveClients) stop() (sent int64, lost []error) {
	c.end()
	c.all.Wait()
	return c.sent.Load(), c.lost
}

func (c *keepAliveClients) run(ctx context.Context, wake chan struct{}, silent bool) {
	var connection net.Conn
	var reader *bufio.Reader
	hangUp := func() {
		if connection != nil {
			_ = connection.Close()
			connection = nil
		}
	}
	defer hangUp()
	for first := true; ; first = false {
		if silent && connection != nil && closedByPeer(connection) {
			hangUp() // a client with a connection pool also checks this before a request
		}
		if connection == nil {
			dialled, err := net.Dial("tcp", c.address)
			if err != nil {
				c.lose(err)
			} else {
				connection, reader = dialled, bufio.NewReader(dialled)
			}
		}
		if connection != nil {
			closes, err := exchange(connection, reader)
			c.sent.Add(1)
			if err != nil {
				c.lose(err)
			}
			if err != nil || closes {
				hangUp()
			}
		}
		if first || silent {
			c.ready.Done()
		}
		pause := time.NewTimer(50 * time.Millisecond)
		if silent {
			pause.Stop()
		}
		select {
		case <-pause.C:
		case <-wake:
		case <-ctx.Done():
			return
		}
	}
}

func (c *keepAliveClients) lose(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = append(c.lost, err)
}

// closedByPeer reports whether the peer has closed a connection without a pending response.
func closedByPeer(connection net.Conn) bool {
	raw, err := connection.(*net.TCPConn).SyscallConn()
	if err != nil {
		return true
	}
	closed := false
	err = raw.Control(func(fd uintptr) {
		_, _, peeked := syscall.Recvfrom(int(fd), make([]byte, 1),
			syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		closed = !errors.Is(peeked, syscall.EAGAIN)
	})
	return err != nil || closed
}

// exchange sends a request. It reports whether the response requests the end of the connection.
func exchange(connection net.Conn, reader *bufio.Reader) (closes bool, err error) {
	_ = connection.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := fmt.Fprint(connection,
		"GET /hello HTTP/1.1\r\nHost: web.test\r\n\r\n"); err != nil {
		return true, err
	}
	answer, err := http.ReadResponse(reader, nil)
	if err != nil {
		return true, err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return true, fmt.Errorf("status %d", answer.StatusCode)
	}
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return true, err
	}
	return answer.Close, nil
}
