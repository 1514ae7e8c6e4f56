package render

import (
	"errors"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	echov3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/echo/v3"

	"outrider.org/outrider/scripts/parts"
)

// Envoy closes connections beyond the limit on each captured listener, and on no other.
func TestBuild_CapturedListenersHaveALimit(t *testing.T) {
	dir := parts.ShortDir(t)
	in := live(t, dir, "admin.sock")
	discovery(t, in.Discovery.Socket)
	in.MaxCapturedConnections = 2
	built, err := buildBootstrap(in)
	if err != nil {
		t.Fatal(err)
	}
	addresses := map[string]string{}
	for _, name := range append(capturedListeners(), "other") {
		port := parts.FreePort(t)
		addresses[name] = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		address, err := ipAddress(addresses[name], corev3.SocketAddress_TCP)
		if err != nil {
			t.Fatal(err)
		}
		b := &builder{}
		built.StaticResources.Listeners = append(built.StaticResources.Listeners,
			&listenerv3.Listener{Name: name, Address: address,
				FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{Name: "echo",
					ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: b.pack(&echov3.Echo{})}}}}}})
	}
	rendered, err := encodeJSON(built)
	if err != nil {
		t.Fatal(err)
	}
	run(t, dir, in.AdminSocket, rendered)
	for name, address := range addresses {
		want := uint64(3)
		if name != "other" {
			want = in.MaxCapturedConnections
		}
		served := uint64(0)
		for range 3 {
			if echoes(t, address) {
				served++
			}
		}
		if served != want {
			t.Errorf("%s: %d of 3 connections are served, want %d", name, served, want)
		}
	}
}

// echoes opens a connection until the test ends, and reports whether Envoy serves it.
func echoes(t *testing.T, address string) bool {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Write([]byte("x")); err != nil {
		return false
	}
	_, err = c.Read(make([]byte, 1))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return err == nil
}
