package relay

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/miekg/dns"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/load"
	"outrider.org/outrider/scripts/parts"
)

// startDiscovery starts outrider-discoveryd for a folder, and waits until it has read the files and
// listens.
func startDiscovery(t *testing.T, folder, address string) *parts.Process {
	t.Helper()
	process := parts.StartProcess(t,
		parts.Discoveryd{MeshFolder: folder, Plaintext: address}.Command(t))
	parts.Eventually(t, time.Minute, "the discovery server listens", func() bool {
		connection, err := net.Dial("tcp", address)
		if err == nil {
			_ = connection.Close()
		}
		return err == nil
	})
	return process
}

// metered counts the bytes that are sent on the connections of a listener.
type metered struct {
	net.Listener
	bytes *atomic.Int64
}

func (l metered) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	return meteredConn{accepted, l.bytes}, err
}

type meteredConn struct {
	net.Conn
	bytes *atomic.Int64
}

func (c meteredConn) Write(text []byte) (int, error) {
	c.bytes.Add(int64(len(text)))
	return c.Conn.Write(text)
}

// moves returns the addresses of the servers to which the relay moved, according to events. It
// fails the test if an event raises a condition.
func moves(t *testing.T, events <-chan condition.Event) (to []string) {
	t.Helper()
	for len(events) > 0 {
		switch event := <-events; event.Kind {
		case condition.KindDiscoveryMoved:
			to = append(to, event.Fields["address"])
		case condition.KindConditionRaised:
			t.Errorf("condition: %s", event.Sentence)
		}
	}
	return to
}

// TestMove_KilledServer kills a discovery server while Envoy receives requests. No request fails,
// and the agent moves to the other server, which does not send resources again that Envoy already
// has.
func TestMove_KilledServer(t *testing.T) {
	const services = 300
	folder := t.TempDir()
	files := &istiod{t: t, folder: folder} // used only to write YAML files into the folder
	port, first, second := parts.FreePort(t), startBackend(t, "first"), startBackend(t, "second")
	files.service("a", port, first)
	for i := range services {
		files.service("s"+strconv.Itoa(i), port, first)
	}
	addresses := []string{fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t)),
		fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t))}
	killed := startDiscovery(t, folder, addresses[0])
	r := startRelay(t, serverAt(addresses...), filepath.Join(t.TempDir(), "cache"))
	startEnvoy(t, r.socket, true)
	answers(t, 20*time.Second, port, "a.test", "first answers")
	if got := r.Status(); got.Address != addresses[0] || len(got.UnusedAddresses) != 1 {
		t.Errorf("status %+v", got)
	}

	behind := fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t))
	startDiscovery(t, folder, behind)
	listener, err := net.Listen("tcp", addresses[1])
	if err != nil {
		t.Fatal(err)
	}
	var sent atomic.Int64
	parts.ForwardConnections(t, metered{listener, &sent}, behind)
	run, err := load.Start(context.Background(), load.Config{
		HTTPAddress: "127.0.0.1:" + strconv.Itoa(port), Host: "a.test", Rate: 0.2})
	if err != nil {
		t.Fatal(err)
	}
	events, end := r.board.Watch(100)
	defer end()
	begun := time.Now()
	killed.Kill()
	parts.Eventually(t, time.Minute, "the other server is used", func() bool {
		return r.Status().Address == addresses[1]
	})
	t.Logf("moved after %v", time.Since(begun).Round(time.Millisecond))
	if got := moves(t, events); len(got) != 1 || got[0] != addresses[1] {
		t.Errorf("moved to %v", got)
	}
	if got := r.Status(); got.State != Connected ||
		got.UnusedAddresses[0].Address != addresses[0] ||
		!strings.Contains(got.UnusedAddresses[0].Error, "EOF") &&
			!strings.Contains(got.UnusedAddresses[0].Error, "reset") {
		t.Errorf("status %+v", got)
	}
	// The new server sends only what changes after the move.
	files.service("a", port, second)
	answers(t, 20*time.Second, port, "a.test", "second answers")
	t.Logf("the other server sent %d bytes", sent.Load())
	if n := sent.Load(); n > 4<<10 {
		t.Errorf("the other server sent %d bytes", n)
	}
	if report := run.Stop(); report.Lost > 0 {
		t.Errorf("%+v", report)
	}
}

// TestMove_ServerThatStopsGracefully checks that the relay immediately leaves a server that
// announces the end of its connections (GOAWAY), and raises no condition. Envoy's stream continues
// with the resources that Envoy has.
func TestMove_ServerThatStopsGracefully(t *testing.T) {
	servers := map[string]*fakeUpstream{}
	var addresses []string
	for range 2 {
		up := startUpstream(t, "127.0.0.1:0")
		servers[up.address] = up
		addresses = append(addresses, up.address)
	}
	r := startRelay(t, serverAt(addresses...), "")
	events, end := r.board.Watch(100)
	defer end()
	envoy := r.connect(t, true, false)
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{Node: testNode(t), TypeUrl: clusterType})
	accept := func() (*fakeUpstream, *testStream) {
		t.Helper()
		select {
		case s := <-servers[addresses[0]].accepted:
			return servers[addresses[0]], s
		case s := <-servers[addresses[1]].accepted:
			return servers[addresses[1]], s
		case <-time.After(30 * time.Second):
			t.Fatal("the relay opens no stream")
		}
		return nil, nil
	}
	first, above := accept()
	above.next()
	above.send(deltaResponse("1", "a"))
	envoy.next()
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResponseNonce: "1"})
	above.next()
	stopped := make(chan bool)
	go func() { first.server.GracefulStop(); close(stopped) }()
	second, above := accept()
	if second == first {
		t.Error("connected to a server that stops")
	}
	request := decode(above, &discoveryv3.DeltaDiscoveryRequest{})
	if request.InitialResourceVersions["a"] != "v-a" || len(request.InitialResourceVersions) != 1 {
		t.Errorf("the first request is %v", request)
	}
	above.send(deltaResponse("2"))
	envoy.next()
	<-stopped
	parts.Eventually(t, time.Minute, "the other server is in use",
		func() bool { return r.Status().Address == second.address })
	if got := moves(t, events); len(got) != 1 {
		t.Errorf("moved to %v", got)
	}
	if got := r.Status().UnusedAddresses; len(got) != 1 ||
		got[0].Error != "the upstream server "+first.address+" closes the connection" &&
			!strings.Contains(got[0].Error, "connection refused") {
		t.Errorf("unused %+v", got)
	}
	if r.LostStreams() > 0 {
		t.Errorf("%d streams were lost", r.LostStreams())
	}
}

// TestMove_NameWithSeveralAddresses checks that the relay uses every address of a host name.
func TestMove_NameWithSeveralAddresses(t *testing.T) {
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: packets, Handler: dns.HandlerFunc(
		func(w dns.ResponseWriter, question *dns.Msg) {
			answer := new(dns.Msg).SetReply(question)
			if question.Question[0].Qtype == dns.TypeA {
				for _, ip := range []string{"127.0.0.1", "127.0.0.2"} {
					answer.Answer = append(answer.Answer, &dns.A{Hdr: dns.RR_Header{
						Name: question.Question[0].Name, Rrtype: dns.TypeA,
						Class: dns.ClassINET}, A: net.ParseIP(ip)})
				}
			}
			_ = w.WriteMsg(answer)
		})}
	go func() { _ = server.ActivateAndServe() }()
	system := net.DefaultResolver
	t.Cleanup(func() { // runs after the cleanup that ends the relay
		net.DefaultResolver = system
		_ = server.Shutdown()
	})
	net.DefaultResolver = &net.Resolver{PreferGo: true,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			// not net.DefaultResolver, which is reset at the end while a lookup may still be
			// running
			dialer := net.Dialer{Resolver: system}
			return dialer.DialContext(ctx, "udp", packets.LocalAddr().String())
		}}

	one := startUpstream(t, "127.0.0.1:0")
	_, port, err := net.SplitHostPort(one.address)
	if err != nil {
		t.Fatal(err)
	}
	other := startUpstream(t, "127.0.0.2:"+port)
	name := "discovery.test:" + port
	r := startRelay(t, serverAt(name), "")
	envoy := r.connect(t, true, false)
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{Node: testNode(t), TypeUrl: clusterType})
	serve := func(servers ...*fakeUpstream) *fakeUpstream {
		t.Helper()
		for {
			for _, up := range servers {
				select {
				case above := <-up.accepted:
					above.next()
					above.send(deltaResponse("1"))
					envoy.next()
					go above.end(status.Error(codes.Unavailable, "stops"))
					return up
				default:
				}
			}
			parts.Eventually(t, time.Minute, "a stream", func() bool {
				return len(one.accepted)+len(other.accepted) > 0
			})
		}
	}
	if first, second := serve(one, other), serve(one, other); first == second {
		t.Error("the address that ended the stream is used again")
	}
	if got := r.Status(); got.Address != name || len(got.UnusedAddresses) > 0 {
		t.Errorf("status %+v", got)
	}
}

// TestMove_NoServer checks that, while no server is reachable, the condition lists each address
// once, with its error.
func TestMove_NoServer(t *testing.T) {
	addresses := []string{"127.0.0.1:1", "127.0.0.1:2"}
	r := startRelay(t, serverAt(addresses...), "")
	envoy := r.connect(t, true, false)
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{Node: testNode(t), TypeUrl: clusterType})
	parts.Eventually(t, time.Minute, "both are named", func() bool {
		said := r.condition(conditionAway)
		return strings.Contains(said, addresses[0]) && strings.Contains(said, addresses[1]) &&
			strings.Count(said, "connection refused") == 2
	})
	if got := r.Status(); got.Address != strings.Join(addresses, ", ") || got.State != Connecting {
		t.Errorf("status %+v", got)
	}
}
