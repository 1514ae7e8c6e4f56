package capture

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// signature holds TCP options that no server expects: an MD5 signature and the end of options.
var signature = append([]byte{19, 18}, make([]byte, 18)...)

// stray sends a TCP segment that belongs to no connection, from a port of the calling thread's
// network namespace. The receiving kernel answers a segment without options with a reset.
func stray(t *testing.T, port uint16, from netip.Addr, to netip.AddrPort, options ...byte) {
	t.Helper()
	domain := unix.AF_INET
	if from.Is6() {
		domain = unix.AF_INET6
	}
	segment := append(make([]byte, 20), options...)
	binary.BigEndian.PutUint16(segment, port)
	binary.BigEndian.PutUint16(segment[2:], to.Port())
	binary.BigEndian.PutUint32(segment[4:], 1)
	segment[12], segment[13] = byte(len(segment)/4<<4), 0x10 // ACK
	binary.BigEndian.PutUint16(segment[14:], 1024)
	sum := uint32(unix.IPPROTO_TCP + len(segment))
	for _, part := range [][]byte{from.AsSlice(), to.Addr().AsSlice(), segment} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(segment[16:], ^uint16(sum))
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	var address unix.Sockaddr = &unix.SockaddrInet6{Addr: to.Addr().As16()}
	if to.Addr().Is4() {
		address = &unix.SockaddrInet4{Addr: to.Addr().As4()}
	}
	if err := unix.Sendto(fd, segment, 0, address); err != nil {
		t.Fatal(err)
	}
}

// A client can send a segment that the kernel drops without an answer, but records in conntrack as
// an untranslated connection. A later connection from the same port must not reach the application
// directly, even with fail_inbound open.
func TestInbound_ASegmentBeforeTheSYNIsNoWayPastEnvoy(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	r.startEnvoy()
	port := uint16(43000)
	for _, settings := range []Settings{captureAll, closedInbound(captureAll)} {
		r.apply(settings)
		r.inboundIs("15006")
		r.other.RunOn(t, func() {
			for i, from := range []string{r.other.Address, "2001:db8:2::2"} {
				to := netip.AddrPortFrom(netip.MustParseAddr(here[i]), 80)
				port++
				stray(t, port, netip.MustParseAddr(from), to, signature...)
				if got := dialPort(t, port, to, 2*time.Second); !strings.Contains(got, "timeout") {
					t.Errorf("%v: %q; Envoy cannot have it, and nobody else may", to, got)
				}
				if got := dialPort(t, port+100, to, 2*time.Second); got != "15006" {
					t.Errorf("%v: another port: %q", to, got)
				}
			}
		})
	}
}

// dialPort connects from a port of the calling thread's network namespace and returns the answer of
// the server, or the error as text.
func dialPort(t *testing.T, port uint16, to netip.AddrPort, limit time.Duration) string {
	t.Helper()
	dialer := net.Dialer{Timeout: limit, LocalAddr: &net.TCPAddr{Port: int(port)},
		Control: reuseAddress}
	c, err := dialer.Dial("tcp", to.String())
	if err != nil {
		return err.Error()
	}
	defer func() { _ = c.Close() }()
	return readAnswer(c, limit)
}
