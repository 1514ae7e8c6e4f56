package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/sockdiag"
	"outrider.org/outrider/scripts/parts"
)

// sharedListener listens on an address that others may listen on too.
func sharedListener(address string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		controlled := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		})
		return errors.Join(controlled, err)
	}}
	config.SetMultipathTCP(false) // Envoy's listeners use plain TCP
	return config.Listen(context.Background(), "tcp", address)
}

// answer accepts connections until the listener is closed, and answers each with a name.
func answer(listener net.Listener, name string) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(connection, name)
		_ = connection.Close()
	}
}

// listens starts a fake Envoy that listens on an address with some sockets and answers with its ID.
func (l *lab) listens(name, address string, sockets int) Process {
	l.Helper()
	p := l.startFake(l.ids, false, "name="+name, fmt.Sprintf("sockets=%d", sockets),
		"listen="+address, "handle=listening", "wait", "close", "exit=0")
	l.says(p.ID, "listening")
	return p
}

// hangUp closes a connection with a reset, so that its port is free at once.
func hangUp(connection net.Conn) {
	_ = connection.(*net.TCPConn).SetLinger(0)
	_ = connection.Close()
}

// who returns the name of the listener that answers at an address; "" and an error if none answers.
func who(address string) (string, error) {
	connection, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return "", err
	}
	defer hangUp(connection)
	_ = connection.SetDeadline(time.Now().Add(5 * time.Second))
	name, err := io.ReadAll(connection)
	return string(name), err
}

// answers counts the answers of each listener to a number of connections.
func (l *lab) answers(address string, connections int) map[string]int {
	l.Helper()
	counts := map[string]int{}
	for range connections {
		name, err := who(address)
		if err != nil {
			l.Errorf("connect to %s: %v", address, err)
		}
		counts[name]++
	}
	return counts
}

// unplugged counts the listening sockets of an address that are bound to noInterface.
func (l *lab) unplugged(address string) (count int) {
	l.Helper()
	listeners, err := sockdiag.ListeningSockets()
	if err != nil {
		l.Fatal(err)
	}
	for _, s := range listeners {
		if s.Address == netip.MustParseAddrPort(address) && s.Device == noInterface {
			count++
		}
	}
	return count
}

// crowd opens connections continuously until stop is called. stop returns the number of connections
// and the errors of those that were lost.
func crowd(address string) (stop func() (made int64, lost []error)) {
	var made atomic.Int64
	var mu sync.Mutex
	var lost []error
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				made.Add(1)
				if name, err := who(address); err != nil || name == "" {
					mu.Lock()
					lost = append(lost, fmt.Errorf("%q: %w", name, err))
					mu.Unlock()
				}
			}
		})
	}
	return func() (int64, []error) {
		cancel()
		all.Wait()
		return made.Load(), lost
	}
}

// After SteerNewConnections, no connection is reset when the old Envoy closes its listeners,
// whatever the number of sockets of the two Envoys. Afterwards all sockets of the new Envoy get
// connections.
func TestSteer(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		host       string
		old, fresh int
	}{{"127.0.0.1", 1, 1}, {"127.0.0.1", 2, 2}, {"0.0.0.0", 2, 4}, {"[::1]", 2, 2},
		{"[::]", 3, 3}} {
		t.Run(fmt.Sprintf("%s from %d to %d", test.host, test.old, test.fresh), func(t *testing.T) {
			l := newLab(t)
			address := fmt.Sprintf("%s:%d", test.host, parts.FreePort(t))
			old := l.listens("old", address, test.old)
			fresh := l.listens("fresh", address, test.fresh)
			if counts := l.answers(address, 100); counts["old"] == 0 || counts["fresh"] == 0 {
				t.Errorf("before, the kernel deals out: %v", counts)
			}
			stop := crowd(address)
			// Steer long before the listeners close, when they close, and once more.
			for _, closes := range []time.Duration{time.Hour, 0, 0} {
				if err := l.client.SteerNewConnections(l.context(), old.ID, fresh.ID,
					closes); err != nil {
					t.Fatal(err)
				}
				if counts := l.answers(address, 100); counts["fresh"] != 100 {
					t.Errorf("steered, closes in %v: %v", closes, counts)
				}
			}
			if unplugged, isIPv6 := l.unplugged(address), test.host[0] == '['; isIPv6 &&
				unplugged != test.old || !isIPv6 && unplugged != 0 {
				t.Errorf("%d sockets are unplugged before they close", unplugged)
			}
			if err := l.client.Signal(l.context(), old.ID, unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
			l.exitOf(old.ID)
			made, lost := stop()
			if len(lost) > 0 {
				t.Errorf("%d of %d lost, the first: %v", len(lost), made, lost[0])
			}
			// A socket that is opened later receives connections as well, because the program is
			// detached.
			l.listens("later", address, test.old)
			l.eventually("all take part", func() bool {
				counts := l.answers(address, 100)
				return counts["later"] > 0 && counts["fresh"] > 0
			})
		})
	}
}

// When the Envoy to which connections are steered dies, the other Envoy receives them again.
func TestSteer_FallsBackWhenTargetDies(t *testing.T) {
	t.Parallel()
	for _, sockets := range []struct{ old, fresh int }{{2, 2}, {1, 3}, {3, 1}} {
		l := newLab(t)
		address := fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t))
		old := l.listens("old", address, sockets.old)
		fresh := l.listens("fresh", address, sockets.fresh)
		if err := l.client.SteerNewConnections(l.context(), old.ID, fresh.ID,
			time.Hour); err != nil {
			t.Fatal(err)
		}
		if counts := l.answers(address, 50); counts["fresh"] != 50 {
			t.Errorf("%+v: steered: %v", sockets, counts)
		}
		if err := l.client.Signal(l.context(), fresh.ID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		l.exitOf(fresh.ID)
		if counts := l.answers(address, 50); counts["old"] != 50 {
			t.Errorf("%+v: after its end: %v", sockets, counts)
		}
	}
}

// SteerNewConnections changes nothing if the sockets of the target are not the last ones of a
// group, or if another process listens on the same port.
func TestSteer_RefusesUnexpectedSockets(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	address := fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t))
	first := l.listens("first", address, 2)
	second := l.listens("second", address, 2)
	for _, test := range []struct{ from, to, says string }{
		{second.ID, first.ID, "opened a listener on the same address"},
		{first.ID, "none", "not two living Envoys"},
		{first.ID, first.ID, "not two living Envoys"},
	} {
		if err := l.client.SteerNewConnections(l.context(), test.from, test.to,
			time.Hour); err == nil ||
			!strings.Contains(err.Error(), test.says) {
			t.Errorf("from %s to %s: %v", test.from, test.to, err)
		}
	}
	foreign, err := sharedListener(address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = foreign.Close() }()
	go answer(foreign, "foreign")
	if err := l.client.SteerNewConnections(l.context(), first.ID, second.ID,
		time.Hour); err == nil ||
		!strings.Contains(err.Error(), "other than the Envoys") {
		t.Errorf("with a process that is not the keeper's: %v", err)
	}
	if counts := l.answers(address, 300); counts["first"] == 0 || counts["second"] == 0 ||
		counts["foreign"] == 0 {
		t.Errorf("the kernel deals out: %v", counts)
	}
}

// attach needs no privilege.
func TestAttach_NeedsNoPrivilege(t *testing.T) {
	listener, err := sharedListener("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	err = withoutPrivilege(func() error {
		return errors.Join(attach(int(file.Fd()), program(1, 1, false)), detach(int(file.Fd())))
	})
	if err != nil {
		t.Fatal(err)
	}
}
