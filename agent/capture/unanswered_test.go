package capture

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
)

// virtual are addresses that no host has; packets to them get no answer.
var virtual = both{"203.0.113.7", "2001:db8:7::7"}

// dialFrom connects, as a user, from a port of this host to port 80 of an address, and returns the
// answer or the error as text. The kernel sends SYNs after 0, 1 and 3 seconds.
func dialFrom(t *testing.T, user int, port uint16, to string, limit time.Duration) (answer string) {
	t.Helper()
	parts.RunAs(t, user, func() {
		dialer := net.Dialer{Timeout: limit, LocalAddr: &net.TCPAddr{Port: int(port)},
			Control: reuseAddress}
		c, err := dialer.DialContext(t.Context(), "tcp", net.JoinHostPort(to, "80"))
		if err != nil {
			answer = err.Error()
			return
		}
		defer func() { _ = c.Close() }()
		answer = readAnswer(c, limit)
	})
	return answer
}

func readAnswer(c net.Conn, limit time.Duration) string {
	_ = c.SetDeadline(time.Now().Add(limit))
	buffer := make([]byte, 64)
	n, err := c.Read(buffer)
	if n == 0 {
		return err.Error()
	}
	return string(buffer[:n])
}

func reuseAddress(_, _ string, raw syscall.RawConn) (err error) {
	return errors.Join(raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}), err)
}

// A SYN sent while the rules are missing must not make later SYNs of its connection, or other
// connections of its port, go direct. Established connections keep their path.
func TestUnanswered_RulesThatReturnApplyToSYNsSentAgain(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	trackAll(t)
	r := newRig(t)
	r.startEnvoy()
	r.apply(captureAll)
	r.captures(StateOn)
	for i, away := range []struct {
		name          string
		begin, finish func()
	}{
		{"withdrawn", func() {
			if _, err := r.client.Withdraw(t.Context()); err != nil {
				t.Fatal(err)
			}
		}, func() { r.apply(captureAll) }},
		{"helper killed", func() { r.kill(r.helper) }, r.start},
		{"Envoy killed", func() {
			r.kill(r.envoy)
			r.captures(StateWithdrawn)
		}, r.startEnvoy},
	} {
		away.begin()
		held, err := net.Dial("tcp", net.JoinHostPort(far[0], "8080"))
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range virtual {
			dialFrom(t, appUser, 40000+uint16(i), to, 100*time.Millisecond)
		}
		again := make(chan string)
		go func() { again <- dialFrom(t, appUser, 41000+uint16(i), virtual[0], 8*time.Second) }()
		parts.Eventually(t, time.Minute, "a SYN is sent", func() bool {
			return strings.Contains(run(t, "", "cat", "/proc/net/tcp"), fmt.Sprintf(":%04X", 41000+i))
		})
		away.finish()
		r.captures(StateOn)
		if got := <-again; got != "15001" {
			t.Errorf("%s: SYNs sent again: %q", away.name, got)
		}
		for _, to := range virtual {
			if got := dialFrom(t, appUser, 40000+uint16(i), to, time.Second/2); got != "15001" {
				t.Errorf("%s: a later connection of the port to %s: %q", away.name, to, got)
			}
		}
		if got := readAnswer(held, time.Second); got != "far 8080" {
			t.Errorf("%s: an established connection: %q", away.name, got)
		}
		_ = held.Close()
	}
}

// Connections of Envoy itself, such as to an address without a listener, must not make later
// connections of the application go direct.
func TestUnanswered_PassthroughOfEnvoyIsInNobodysWay(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	r.startEnvoy()
	r.apply(captureAll)
	r.captures(StateOn)
	closed := captureAll
	closed.FailOutboundClosed = true
	r.apply(closed) // adds the rejecting table: chains of a newer table see packets first
	for i, to := range virtual {
		for _, user := range []int{envoyUser, agentUser} {
			port := uint16(42000 + 10*i + user%10)
			dialFrom(t, user, port, to, 100*time.Millisecond)
			began := time.Now()
			if got := dialFrom(t, appUser, port, to, 3*time.Second); got != "15001" {
				t.Errorf("after a call of user %d to %s: %q", user, to, got)
			}
			t.Logf("redirected after %v", time.Since(began))
		}
	}
}
