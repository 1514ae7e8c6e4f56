package main_test

import (
	"io"
	"net"
	"sync"
	"testing"
)

// gate is a TCP proxy. In the state closed it closes connections at once; in the state hanging it
// forwards nothing.
type gate struct {
	address string // host:port
	target  string

	mu     sync.Mutex
	state  string // open, closed, hanging
	hung   int    // number of connections accepted in the state hanging
	opened []net.Conn
}

// newGate returns an open gate to the address target. It ends with the test.
func newGate(t *testing.T, target string) *gate {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{address: "localhost:" + port, target: target, state: "open"}
	t.Cleanup(func() {
		_ = listener.Close()
		g.set("closed")
	})
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			g.accept(c)
		}
	}()
	return g
}

// set changes the state and ends all connections.
func (g *gate) set(state string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.state, g.hung = state, 0
	for _, c := range g.opened {
		_ = c.Close()
	}
	g.opened = nil
}

// forward opens the gate to another target, and ends all connections.
func (g *gate) forward(target string) {
	g.mu.Lock()
	g.target = target
	g.mu.Unlock()
	g.set("open")
}

// hangs reports whether the gate has accepted a connection in the state hanging.
func (g *gate) hangs() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hung > 0
}

func (g *gate) accept(c net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch g.state {
	case "closed":
		_ = c.Close()
		return
	case "hanging":
		g.hung++
		g.opened = append(g.opened, c)
		return
	}
	to, err := net.Dial("tcp", g.target)
	if err != nil {
		_ = c.Close()
		return
	}
	g.opened = append(g.opened, c, to)
	for from, into := range map[net.Conn]net.Conn{c: to, to: c} {
		go func() {
			_, _ = io.Copy(into, from)
			_ = into.Close()
		}()
	}
}
