package parts

import (
	"fmt"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFreePort_HasOneHolder(t *testing.T) {
	port := FreePort(t)
	if lease, err := leasePort(port); err != nil || lease >= 0 {
		t.Errorf("a port that is a test's: %d, %v; none was to be had", lease, err)
	}
	var ended int
	t.Run("a test", func(t *testing.T) { ended = FreePort(t) })
	lease, err := leasePort(ended)
	if err != nil || lease < 0 {
		t.Fatalf("after its test: %d, %v", lease, err)
	}
	if err := unix.Close(lease); err != nil {
		t.Error(err)
	}
	listener, err := net.Listen("tcp", fmt.Sprintf("0.0.0.0:%d", port))
	if err != nil {
		t.Fatalf("the holder listens: %v", err)
	}
	_ = listener.Close()
}
