package capture

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/dns"
	"outrider.org/outrider/scripts/parts"
)

// proxyEnv is the environment variable of a test process that acts as the agent's DNS proxy.
const proxyEnv = "OUTRIDER_TEST_DNS_PROXY"

func TestMain(m *testing.M) {
	if os.Getenv(proxyEnv) != "" {
		serveDNS()
		return
	}
	if arguments := os.Getenv(floodEnv); arguments != "" {
		floodApplication(arguments)
		return
	}
	os.Exit(m.Run())
}

const meshName = "mesh.test."

// meshAddress is the DNS proxy's answer to queries for meshName.
var meshAddress = netip.MustParseAddr("10.9.9.9")

// serveDNS runs a DNS proxy with one name until the process is killed.
func serveDNS() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	proxy := dns.New(dns.Options{Listen: fmt.Sprint("127.0.0.1:", dnsPort), Logger: log,
		Conditions: condition.NewRegistry(), Settings: config.DNS{Upstream: []string{"192.0.2.1"}}})
	proxy.SetNames([]dns.Name{{Host: "mesh.test", Addresses: []netip.Addr{meshAddress}}})
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	if err := proxy.Run(ctx); err != nil {
		log.Error("DNS proxy", "error", err)
		os.Exit(1)
	}
}

// startDNS starts the DNS proxy as the agent's user.
func (r *rig) startDNS() *exec.Cmd {
	r.t.Helper()
	proxy := exec.Command("/proc/self/exe")
	proxy.Env = append(os.Environ(), proxyEnv+"=1")
	proxy.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: agentUser,
		Gid: agentUser}}
	r.begin(proxy)
	return proxy
}

// resolvers replaces the host's resolv.conf.
func (r *rig) resolvers(text string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.folder, "resolv.conf"), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// ask sends a query for meshName to a resolver, as a user and from a new socket.
func ask(t *testing.T, uid int, network, resolver string) (answer string) {
	t.Helper()
	parts.RunAs(t, uid, func() {
		c, err := net.DialTimeout(network, net.JoinHostPort(resolver, "53"), time.Second/2)
		if err != nil {
			answer = err.Error()
			return
		}
		defer func() { _ = c.Close() }()
		answer = exchange(t, c)
	})
	return answer
}

// exchange sends a query for meshName and returns "proxy" if the DNS proxy answers, otherwise the
// bytes of the answer, without the identifier of a UDP message. It skips late answers to earlier
// queries.
func exchange(t *testing.T, c net.Conn) string {
	t.Helper()
	query, err := new(mdns.Msg).SetQuestion(meshName, mdns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	prefix := 0
	if c.RemoteAddr().Network() == "tcp" {
		prefix = 2
		query = append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...)
	}
	_ = c.SetDeadline(time.Now().Add(time.Second / 2))
	_, _ = c.Write(query)
	buffer := make([]byte, 512)
	n, err := c.Read(buffer)
	for err == nil && prefix == 0 && !bytes.HasPrefix(buffer[:n], query[:2]) {
		n, err = c.Read(buffer)
	}
	var reply mdns.Msg
	if n > prefix && reply.Unpack(buffer[prefix:n]) == nil && len(reply.Answer) == 1 {
		if a, ok := reply.Answer[0].(*mdns.A); ok && a.A.Equal(meshAddress.AsSlice()) {
			return "proxy"
		}
	}
	return string(buffer[min(n, 2-prefix):n])
}

func TestDNSProxy_AnswersRedirectedQueries(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	r.resolvers("nameserver " + far[0] + "\nnameserver " + far[1] + "\n")
	r.startDNS()
	r.apply(captureDNS)
	for _, resolver := range far {
		for _, network := range []string{"udp", "tcp"} {
			parts.Eventually(t, time.Minute, "the proxy answers a query over "+network+" to "+resolver,
				func() bool { return ask(t, appUser, network, resolver) == "proxy" })
		}
	}
}

// The limit of redirected TCP connections applies to each local user: when the clients of one user
// exceed it, the connections of other users stay open.
func TestDNSProxy_KnowsTheUserOfARedirectedConnection(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	r.resolvers("nameserver " + far[0] + "\nnameserver " + far[1] + "\n")
	r.startDNS()
	r.apply(captureDNS)
	for _, resolver := range far {
		parts.Eventually(t, time.Minute, "the proxy answers", func() bool {
			return ask(t, appUser, "tcp", resolver) == "proxy"
		})
		connect := func(uid int) (c net.Conn) {
			parts.RunAs(t, uid, func() {
				var err error
				if c, err = net.Dial("tcp", net.JoinHostPort(resolver, "53")); err != nil {
					t.Fatal(err)
				}
			})
			t.Cleanup(func() { _ = c.Close() })
			return c
		}
		first := connect(appUser)
		for i := range 200 { // the limit is 128 per user: the oldest connections are closed
			connect(otherUser)
			if i%20 == 0 {
				// use the connection: the proxy closes connections that are idle for some seconds
				exchange(t, first)
			}
		}
		parts.Eventually(t, time.Minute, "one more user is served", func() bool {
			return ask(t, 0, "tcp", resolver) == "proxy"
		})
		if got := exchange(t, first); got != "proxy" {
			t.Errorf("a connection that another user cannot close gets %q", got)
		}
	}
}
