package capture

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
)

// newHosts adds servers to newHostsWithoutEnvoy: DNS servers on both hosts, and on this host
// servers of Envoy's user and of the agent's user, which answer with their port.
func newHosts(t *testing.T) *parts.OtherHost {
	t.Helper()
	other := newHostsWithoutEnvoy(t)
	var inbound *net.TCPListener
	parts.RunAs(t, envoyUser, func() {
		serve(t, OutboundPort, fmt.Sprint(OutboundPort))
		inbound = serve(t, InboundPort, fmt.Sprint(InboundPort))
	})
	acceptAnyAddress(t, inbound)
	other.RunOn(t, func() {
		serve(t, 53, "far 53")
		serveDatagrams(t, 53, "far 53", append(far[:], otherServer[:]...)...)
	})
	serveDatagrams(t, 53, "here 53", here[:]...)
	parts.RunAs(t, agentUser, func() {
		serve(t, dnsPort, fmt.Sprint(dnsPort))
		serveDatagrams(t, dnsPort, fmt.Sprint(dnsPort), loopbackAddress[:]...)
	})
	return other
}

// newHostsWithoutEnvoy makes another host, and servers on both hosts that answer with their
// location and port.
func newHostsWithoutEnvoy(t *testing.T) *parts.OtherHost {
	t.Helper()
	other := parts.NewOtherHost(t)
	link := ""
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		if strings.HasPrefix(i.Name, "ot") {
			link = i.Name
		}
	}
	for _, arguments := range []string{"address add " + here[0] + "/32 dev lo",
		"address add " + here[1] + "/128 dev lo nodad", "address add ::6/128 dev lo nodad",
		"address add 2001:db8:2::1/64 dev " + link + " nodad",
		"route add default via " + other.Address,
		"route add default via 2001:db8:2::2 dev " + link} {
		ip(t, arguments)
	}
	other.RunOn(t, func() {
		for _, arguments := range []string{"link set lo up",
			"address add 2001:db8:2::2/64 dev eth0 nodad", "route add default via " + other.Peer,
			"route add default via 2001:db8:2::1 dev eth0",
			"route add local 10.0.0.0/8 dev lo", "route add local fd00::/8 dev lo",
			"address add " + far[1] + "/128 dev lo nodad",
			"address add " + otherServer[1] + "/128 dev lo nodad"} {
			ip(t, arguments)
		}
		for _, port := range otherPorts {
			serve(t, port, fmt.Sprintf("far %d", port))
		}
		serveDatagrams(t, 80, "far 80", far[:]...)
	})
	for _, port := range herePorts {
		serve(t, port, fmt.Sprintf("here %d", port))
	}
	serveDatagrams(t, 80, "here 80", append(here[:], loopbackAddress[:]...)...)
	return other
}

// serve serves TCP on all addresses until the test ends.
func serve(t *testing.T, port int, answer string) *net.TCPListener {
	t.Helper()
	return listen(t, port, func(c net.Conn) { _, _ = c.Write([]byte(answer)) })
}

// echo serves on a port until the test ends and returns to clients what they send.
func echo(t *testing.T, port int) {
	t.Helper()
	listen(t, port, func(c net.Conn) { _, _ = io.Copy(c, c) })
}

func listen(t *testing.T, port int, answer func(net.Conn)) *net.TCPListener {
	t.Helper()
	streams, err := net.Listen("tcp", fmt.Sprintf("[::]:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = streams.Close() })
	go func() {
		for {
			c, err := streams.Accept()
			if err != nil {
				return
			}
			go func() {
				answer(c)
				_ = c.Close()
			}()
		}
	}()
	return streams.(*net.TCPListener)
}

// acceptAnyAddress lets a listener accept connections to foreign addresses, as TPROXY requires.
func acceptAnyAddress(t *testing.T, listener *net.TCPListener) {
	t.Helper()
	raw, err := listener.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1),
			unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1))
	}); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// serveDatagrams serves UDP on a port of the addresses until the test ends.
func serveDatagrams(t *testing.T, port int, answer string, addresses ...string) {
	t.Helper()
	for _, address := range addresses {
		datagrams, err := net.ListenPacket("udp", net.JoinHostPort(address, strconv.Itoa(port)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = datagrams.Close() })
		go func() {
			buffer := make([]byte, 64)
			for {
				_, from, err := datagrams.ReadFrom(buffer)
				if err != nil {
					return
				}
				_, _ = datagrams.WriteTo([]byte(answer), from)
			}
		}()
	}
}
