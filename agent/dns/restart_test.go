package dns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/miekg/dns"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/fdstore/fdstoretest"
	"outrider.org/outrider/agent/rpc"
	"outrider.org/outrider/scripts/parts"
)

// instance is one of the successive servers of a restarting agent.
type instance struct {
	*Server
	t    *testing.T
	end  context.CancelFunc
	done chan error
}

func startInstance(t *testing.T, manager *fdstoretest.Manager, options Options) *instance {
	t.Helper()
	options.Store = manager.StartService()
	options.Conditions, options.Logger = condition.NewRegistry(), slog.New(slog.DiscardHandler)
	options.ResolvConf = []string{filepath.Join(t.TempDir(), "resolv.conf")}
	manager.Count("") // processes the messages that the store has sent
	i := &instance{Server: New(options), t: t, done: make(chan error, 1)}
	var ctx context.Context
	ctx, i.end = context.WithCancel(t.Context())
	t.Cleanup(i.end)
	go func() { i.done <- i.Run(ctx) }()
	<-i.Ready()
	return i
}

func (i *instance) stop() {
	i.t.Helper()
	i.end()
	if err := <-i.done; err != nil {
		i.t.Error(err)
	}
}

// Queries that arrive during a restart, over UDP or TCP, wait until the next agent knows the names
// of the mesh. A query that is at an upstream when the agent ends is answered.
func TestRestart_LosesNoQuery(t *testing.T) {
	manager := fdstoretest.New(t)
	upstream := startResolver(t)
	entered, proceed := make(chan struct{}), make(chan struct{})
	respond := upstream.respond
	upstream.use(func(m, query *dns.Msg) {
		if upstream.queries.Load() == 1 {
			close(entered)
			<-proceed
		}
		respond(m, query)
	})
	options := Options{Listen: fmt.Sprint("127.0.0.1:", parts.FreePort(t)),
		Settings: config.DNS{Upstream: []string{upstream.address}}}
	type answer struct {
		text string
		err  error
	}
	query := func(network, name string) <-chan answer {
		answers := make(chan answer, 1)
		client := dns.Client{Net: network, Timeout: 5 * time.Second}
		go func() {
			reply, _, err := client.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), options.Listen)
			a := answer{err: err}
			if err == nil {
				a.text = summary(reply)
			}
			answers <- a
		}()
		return answers
	}
	expect := func(what string, answers <-chan answer, want string) {
		t.Helper()
		if got := <-answers; got.err != nil || got.text != want {
			t.Errorf("%s: %q, %v; want %q", what, got.text, got.err, want)
		}
	}
	const mesh = "NOERROR aa; a.test. A 240.240.0.1"
	names := []Name{{Host: "a.test", Addresses: addresses("240.240.0.1")}}

	first := startInstance(t, manager, options)
	first.SetNames(names)
	expect("before", query("udp", "a.test."), mesh)
	forwarded := query("udp", "a.example.org.")
	<-entered
	first.end()
	close(proceed)
	first.stop()
	expect("in progress at the end", forwarded, "NOERROR; a.example.org. A 198.51.100.1")

	overUDP, overTCP := query("udp", "a.test."), query("tcp", "a.test.")
	connection, err := net.Dial("tcp", options.Listen)
	if err != nil {
		t.Errorf("a connection during the restart: %v", err)
	} else {
		_ = connection.Close()
	}
	second := startInstance(t, manager, options)
	during := query("udp", "a.test.")
	second.SetNames(names)
	for what, answers := range map[string]<-chan answer{"over UDP": overUDP, "over TCP": overTCP,
		"before the names are known": during} {
		expect(what, answers, mesh)
	}
	second.stop()

	options.Listen = fmt.Sprint("127.0.0.1:", parts.FreePort(t)) // another address
	third := startInstance(t, manager, options)
	third.SetNames(names)
	expect("another address", query("udp", "a.test."), mesh)
	third.stop()
	third.CloseStoredSockets()
	if n := manager.Count(storedSockets); n != 0 {
		t.Errorf("%d sockets are left", n)
	}
	if c, err := net.Dial("tcp", options.Listen); err == nil {
		_ = c.Close()
		t.Error("connected after the end")
	}
}

// While the agent restarts, systemd-resolved continues to route the mesh's domains as the previous
// agent requested, until the next agent replaces the route.
func TestRestart_KeepsTheRoute(t *testing.T) {
	manager := fdstoretest.New(t)
	socket := filepath.Join(t.TempDir(), "resolved.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	options := Options{Listen: fmt.Sprint("127.0.0.1:", parts.FreePort(t)),
		ResolvedHelperSocket: socket}
	// helper acts as outrider-resolved: it accepts a connection and confirms the first domains. The
	// channel is closed when the connection ends.
	helper := func(i *instance) <-chan struct{} {
		t.Helper()
		accepted, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = accepted.Close() })
		i.SetNames([]Name{{Host: "a.test"}})
		connection, ended := rpc.NewConn(accepted), make(chan struct{})
		var got struct{ Number uint64 }
		if err := connection.Receive(time.Now().Add(5*time.Second), &got); err != nil {
			t.Fatal(err)
		}
		if err := connection.Send(t.Context(), map[string]any{"Number": got.Number}); err != nil {
			t.Fatal(err)
		}
		go func() {
			defer close(ended)
			_ = connection.Receive(time.Time{}, &got)
		}()
		return ended
	}
	lasts := func(route <-chan struct{}) {
		t.Helper()
		select {
		case <-route:
			t.Fatal("the route has ended")
		default:
		}
	}
	first := startInstance(t, manager, options)
	route := helper(first)
	parts.Eventually(t, time.Minute, "the connection is stored", func() bool {
		return manager.Count(storedRoute) == 1
	})
	first.stop()
	lasts(route)
	second := startInstance(t, manager, options)
	lasts(route)
	next := helper(second)
	parts.Eventually(t, time.Minute, "the first route ends", func() bool {
		manager.Count(storedRoute)
		select {
		case <-route:
			return true
		default:
			return false
		}
	})
	second.stop()
	lasts(next)
	second.CloseStoredSockets()
	manager.Count(storedRoute)
	<-next
}

// If the next agent is configured without systemd-resolved, the stored connection to
// outrider-resolved is closed, which ends the routing of the mesh's domains.
func TestRestart_EndsTheRouteThatIsNotConfigured(t *testing.T) {
	near, far, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = near.Close() }()
	manager := fdstoretest.New(t)
	if err := manager.StartService().Add(storedRoute, far); err != nil {
		t.Fatal(err)
	}
	_ = far.Close()
	if n := manager.Count(storedRoute); n != 1 {
		t.Fatalf("%d descriptors are stored", n)
	}
	store := manager.StartService()
	_ = New(Options{Listen: "127.0.0.1:15053", Store: store, Conditions: condition.NewRegistry(),
		Logger: slog.New(slog.DiscardHandler)})
	// as the agent does after it has created all its components
	if err := store.CloseRemaining(); err != nil {
		t.Fatal(err)
	}
	if n := manager.Count(storedRoute); n != 0 {
		t.Errorf("%d connections to outrider-resolved are stored", n)
	}
	_ = near.SetReadDeadline(time.Now().Add(time.Second))
	if _, err := near.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection lasts: %v", err)
	}
}

// Queries to an agent that crashes before it knows the mesh's names fail at once: if it kept
// crashing, they would wait in vain.
func TestRestart_CrashBeforeTheNamesEndsTheSockets(t *testing.T) {
	manager := fdstoretest.New(t)
	options := Options{Listen: fmt.Sprint("127.0.0.1:", parts.FreePort(t))}
	first := startInstance(t, manager, options)
	if n := manager.Count(storedSockets); n != 0 {
		t.Errorf("%d sockets are stored before there are names", n)
	}
	stored := func(i *instance) {
		t.Helper()
		i.SetNames(nil)
		parts.Eventually(t, time.Minute, "the sockets are stored", func() bool {
			return manager.Count(storedSockets) >= 2 // UDP and TCP
		})
	}
	stored(first)
	first.stop()
	second := startInstance(t, manager, options)
	if n := manager.Count(storedSockets); n != 0 {
		t.Errorf("%d sockets of the agent before are stored", n)
	}
	second.stop() // the same as a crash: the server has no names yet
	if c, err := net.Dial("tcp", options.Listen); err == nil {
		_ = c.Close()
		t.Error("connected after the crash")
	}
	third := startInstance(t, manager, options)
	stored(third)
	third.stop()
	options.Listen = "0.0.0.0" + options.Listen[len("127.0.0.1"):]
	fourth := startInstance(t, manager, options)
	if !fourth.listening.Load() {
		t.Error("the address collides with that of before")
	}
	fourth.stop()
}

// Retained sockets are found in any notation of their address.
func TestTake_AnyNotation(t *testing.T) {
	for listen, local := range map[string]string{"0.0.0.0:53": "0.0.0.0:53", ":53": "[::]:53",
		"[0:0:0:0:0:0:0:1]:53": "[::1]:53", "127.0.0.1:53": "127.0.0.1:53"} {
		r := retained{"udp " + local: io.NopCloser(nil)}
		if r.take("udp", listen) == nil || len(r) > 0 {
			t.Errorf("%s does not find %s", listen, local)
		}
	}
}

// TestRestart_RightAfterNames checks an agent that ends right after it received the first names: it
// stores its sockets before it closes them.
func TestRestart_RightAfterNames(t *testing.T) {
	for range 20 {
		manager := fdstoretest.New(t)
		i := startInstance(t, manager, Options{Listen: fmt.Sprint("127.0.0.1:", parts.FreePort(t))})
		i.SetNames([]Name{{Host: "a.test", Addresses: addresses("240.240.0.1")}})
		i.end()
		i.stop()
		if n := manager.Count(storedSockets); n < 2 { // UDP and TCP
			t.Fatalf("%d sockets are stored", n)
		}
	}
}
