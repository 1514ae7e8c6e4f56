package relay

import (
	"context"
	"net"
	"time"
)

const dialInterval = time.Second

// keepAlive probes the peer while nothing is sent. gRPC sets TCP_USER_TIMEOUT to keepaliveTimeout:
// a connection whose peer does not answer for ten seconds is lost.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: time.Second,
	Count: 10}

// dial connects. It starts another attempt each second: the kernel's own pauses between SYN packets
// double, so that it would notice the return of a host that did not answer late. An attempt that is
// refused ends all.
func dial(ctx context.Context, address string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the other attempts
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
