package parts

import (
	"io"
	"net"
	"sync"
	"testing"
)

// ForwardConnections forwards the connections of a listener to an address. When stop is called or
// the test ends, it closes the listener and all connections.
func ForwardConnections(t testing.TB, listener net.Listener, address string) (stop func()) {
	t.Helper()
	var opened []net.Conn
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			opened = append(opened, from)
			to, err := net.Dial("tcp", address)
			if err != nil {
				_ = from.Close()
				continue
			}
			opened = append(opened, to)
			for source, target := range map[net.Conn]net.Conn{from: to, to: from} {
				go func() {
					_, _ = io.Copy(target, source) // returns when either side closes its connection
					_ = target.Close()
				}()
			}
		}
	}()
	stop = sync.OnceFunc(func() {
		_ = listener.Close()
		<-done
		for _, c := range opened {
			_ = c.Close()
		}
	})
	t.Cleanup(stop)
	return stop
}
