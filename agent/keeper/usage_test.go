package keeper

import (
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
)

// A client's connection is told from one to an upstream by its port, also when the listener has closed.
func TestDownstream(t *testing.T) {
	measure := func(listened map[uint16]bool) connections {
		t.Helper()
		counts, err := usage{proc: "/proc"}.connections([]int{os.Getpid()}, listened)
		if err != nil {
			t.Fatal(err)
		}
		return counts[os.Getpid()]
	}
	none := measure(map[uint16]bool{})
	for name, test := range map[string]struct {
		address   string
		forgotten uint64 // how many are clients' if nobody remembers the listener
	}{
		"a port outside of the kernel's range": {fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t)), 1},
		"one within":                           {"127.0.0.1:0", 0},
		"one within, IPv6":                     {"[::1]:0", 0},
	} {
		listener, err := sharedListener(test.address)
		if err != nil {
			t.Fatal(err)
		}
		client, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		accepted, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		check := func(when string, listened map[uint16]bool, downstream uint64) {
			t.Helper()
			if now := measure(listened); now.all-none.all != 2 || now.downstream-none.downstream != downstream {
				t.Errorf("%s, %s: %+v, before %+v", name, when, now, none)
			}
		}
		listened := map[uint16]bool{}
		check("while it listens", listened, 1)
		_ = listener.Close()
		check("when it has closed", listened, 1)
		check("when it is forgotten", map[uint16]bool{}, test.forgotten)
		hangUp(client)
		_ = accepted.Close()
	}
}

// The keeper knows its Envoys' ports from when they are steered apart, whatever it becomes.
func TestDownstreamOfOneThatClosedItsListeners(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	reserved, err := sharedListener("127.0.0.1:0") // a port within the kernel's range
	if err != nil {
		t.Fatal(err)
	}
	address := reserved.Addr().String()
	serve := func(steps ...string) Process {
		t.Helper()
		p := l.startFake(l.ids, false, append(append([]string{"sockets=1", "listen=" + address, "handle=listening"}, steps...), "wait")...)
		l.says(p.ID, "listening")
		return p
	}
	old := serve("wait", "close", "say=closed") // without a name it holds what it accepts
	_ = reserved.Close()
	client, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer hangUp(client)
	fresh := serve()
	if err := l.client.Steer(l.context(), old.ID, fresh.ID, 0); err != nil {
		t.Fatal(err)
	}
	for _, p := range []Process{old, fresh} { // the fresh one ends: nobody listens any more
		if err := l.client.Signal(l.context(), p.ID, unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	l.says(old.ID, "closed")
	l.exitOf(fresh.ID)
	if err := unix.Kill(l.client.Info().PID, unix.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	<-l.client.Done()
	l.client.Close()
	l.dial()
	downstream := func() uint64 {
		t.Helper()
		processes, err := l.client.Measure(l.context())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range processes {
			if p.ID == old.ID {
				return *p.Downstream
			}
		}
		t.Fatal("it is not there")
		return 0
	}
	if count := downstream(); count != 1 {
		t.Errorf("%d clients are connected", count)
	}
	if _, err := client.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	_ = client.(*net.TCPConn).CloseWrite()
	_, _ = io.Copy(io.Discard, client)
	l.eventually("no client is connected", func() bool { return downstream() == 0 })
}
