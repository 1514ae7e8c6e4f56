package kubernetes

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts/cluster"
)

// proxy forwards TCP connections to the API server, and can delay or cut off its responses.
type proxy struct {
	listener net.Listener
	// number of response bytes after which a connection is closed; 0: no limit
	cutAfter atomic.Int64
	delay    atomic.Int64 // nanoseconds before each write of response data
	cuts     atomic.Int64

	mu    sync.Mutex
	conns []net.Conn
}

func newProxy(t *testing.T, c *cluster.Cluster) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", c.APIServerAddress())
			if err != nil {
				_ = client.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, client, server)
			p.mu.Unlock()
			serving.Go(func() { _, _ = io.Copy(server, client); _ = server.Close() })
			serving.Go(func() { p.answer(client, server); _ = client.Close() })
		}
	})
	t.Cleanup(func() { _ = listener.Close(); p.drop(); serving.Wait() })
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

// drop closes all connections.
func (p *proxy) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

func (p *proxy) answer(client, server net.Conn) {
	buffer := make([]byte, 4096)
	var sent int64
	for {
		n, err := server.Read(buffer)
		if err != nil {
			return
		}
		timer := time.NewTimer(time.Duration(p.delay.Load()))
		<-timer.C
		if sent += int64(n); p.cutAfter.Load() > 0 && sent > p.cutAfter.Load() {
			p.cuts.Add(1)
			_ = server.Close()
			return
		}
		if _, err := client.Write(buffer[:n]); err != nil {
			return
		}
	}
}
