package relay

import (
	"context"
	"net"
	"time"
)

const dialInterval = time.Second

// keepAlive makes the kernel probe an idle peer. gRPC sets TCP_USER_TIMEOUT to keepaliveTimeout, so
// a connection is lost if its peer does not answer for ten seconds.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: time.Second,
	Count: 10}

// dial opens a TCP connection. It starts another attempt every second, because the kernel doubles
// the pauses between SYN packets, and would connect late to a host that is reachable again. If one
// attempt is refused, dial fails.
func dial(ctx context.Context, address string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the connection attempts that are still running when one has succeeded
	dialer := net.Dialer{KeepAliveConfig: keepAlive}
	connected, failed := make(chan net.Conn), make(chan error)
	attempt := func() {
		connection, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			select {
			case failed <- err:
			case <-ctx.Done():
			}
			return
		}
		select {
		case connected <- connection:
		case <-ctx.Done():
			_ = connection.Close()
		}
	}
	ticker := time.NewTicker(dialInterval)
	defer ticker.Stop()
	for {
		go attempt()
		select {
		case connection := <-connected:
			return connection, nil
		case err := <-failed:
			return nil, err
		case <-ticker.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
