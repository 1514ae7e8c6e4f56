package xds

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

// asked is a Source that records for which nodes a feed was requested.
type asked struct {
	mu    sync.Mutex
	nodes map[string]bool
}

// Feed implements Source.
func (a *asked) Feed(node *corev3.Node) (*resource.Feed, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.nodes[node.GetMetadata().GetFields()["APP"].GetStringValue()] = true
	return nil, status.Error(codes.FailedPrecondition, "asked")
}

func (a *asked) all() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []string
	for node := range a.nodes {
		all = append(all, node)
	}
	return all
}

// nodeFor returns a node with the given app in its metadata.
func nodeFor(app string) *corev3.Node {
	return &corev3.Node{Id: "sidecar~10.0.0.1~vm.shop~shop.svc.cluster.local",
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			"APP": structpb.NewStringValue(app)}}}
}

func isRoot(uid uint32) bool { return uid == 0 }

func newClients(source Source, board *condition.Registry) *ClientPolicy {
	return &ClientPolicy{Server: source, IsEnvoyOrAgentUser: isRoot, Conditions: board,
		EnvoyNodes: func() ([]*corev3.Node, bool) {
			return []*corev3.Node{nodeFor("old"), nodeFor("new")}, true
		},
		ApplicationNode: func() *corev3.Node { return nodeFor("grpc") },
		SameNode:        func(known, node *corev3.Node) bool { return proto.Equal(known, node) }}
}

// TestClients_InventedNodesCostNothing checks that a stream is refused if Envoy's user sends a node
// that no bootstrap contains, and that nodes sent by other users have no effect.
func TestClients_InventedNodesCostNothing(t *testing.T) {
	source, board := &asked{nodes: map[string]bool{}}, condition.NewRegistry()
	clients := newClients(source, board)
	server, err := NewServer(Options{Source: clients, Admit: clients.Admit,
		HasReservedStreams: clients.IsEnvoyOrAgent, MaxStreams: 8})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(publicDir(t), "xds.sock")
	bound, err := Listen(ListenOptions{Path: socket, Mode: 0o666})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, bound) }()
	t.Cleanup(func() { cancel(); <-ended })

	send := func(uid int, app string) codes.Code {
		t.Helper()
		client := clientAs(t, uid, socket)
		stream, err := client.DeltaAggregatedResources(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: nodeFor(app), TypeUrl: "t"})
		_, err = stream.Recv()
		return status.Code(err)
	}
	for i := range 20 {
		if got := send(0, fmt.Sprint("invented", i)); got != codes.PermissionDenied {
			t.Fatalf("Envoy's user, an invented node: %v", got)
		}
		if got := send(parts.NobodyUID,
			fmt.Sprint("invented", i)); got != codes.FailedPrecondition {
			t.Fatalf("another user: %v", got)
		}
	}
	for _, app := range []string{"old", "new", "grpc"} {
		if got := send(0, app); got != codes.FailedPrecondition {
			t.Errorf("Envoy's user, node %s: %v", app, got)
		}
	}
	if all := source.all(); len(all) != 3 {
		t.Errorf("the server was asked for %q", all)
	}
	if all := board.Conditions(); len(all) != 1 || all[0].Code != ConditionClientRefused {
		t.Errorf("conditions %v", all)
	}

	// Streams of other users may use only half of the limit of streams.
	for range 12 {
		stream, err := clientAs(t, parts.NobodyUID, socket).DeltaAggregatedResources(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = stream
	}
	parts.Eventually(t, time.Minute, "others are refused", func() bool {
		return server.Stats().RefusedStreams >= 8
	})
	if got := send(0, "new"); got != codes.FailedPrecondition {
		t.Errorf("Envoy beside many streams of others: %v", got)
	}
}

// clientAs connects to a socket as the user with the given UID.
func clientAs(t *testing.T, uid int, socket string) discoveryv3.AggregatedDiscoveryServiceClient {
	t.Helper()
	connection, err := grpc.NewClient("passthrough:x",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (c net.Conn, err error) {
			parts.RunAs(t, uid, func() { c, err = net.Dial("unix", socket) })
			return c, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return discoveryv3.NewAggregatedDiscoveryServiceClient(connection)
}

// TestClients_RefusalsAreOneCondition checks that thousands of refusals cause one condition with
// the reason of the first one, and that the condition ends when no client was refused for a while.
func TestClients_RefusalsAreOneCondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		board := condition.NewRegistry()
		events, end := board.Watch(100)
		defer end()
		clients := newClients(failing{}, board)
		for i := range 10_000 {
			_, err := clients.Feed(nodeFor("new"))
			if status.Code(err) != codes.FailedPrecondition {
				t.Fatal(err)
			}
			if _, err := clients.Admit(&Peer{}, nodeFor(fmt.Sprint(i))); err == nil {
				t.Fatal("an invented node is admitted")
			}
			if i == 5000 {
				time.Sleep(clientRefusedFor - time.Second)
			}
		}
		all := board.Conditions()
		if len(all) != 1 || !strings.Contains(all[0].Sentence, "8 kinds") || len(events) != 1 {
			t.Errorf("%d events, conditions %v", len(events), all)
		}
		time.Sleep(clientRefusedFor + time.Second)
		synctest.Wait()
		if all := board.Conditions(); len(all) > 0 {
			t.Errorf("conditions later: %v", all)
		}
		if _, err := clients.Admit(&Peer{}, nodeFor("other")); err == nil {
			t.Fatal("an invented node is admitted")
		}
		if all := board.Conditions(); len(all) != 1 {
			t.Errorf("conditions after another refusal: %v", all)
		}
		time.Sleep(2 * clientRefusedFor)
	})
}

type failing struct{}

// Feed implements Source.
func (failing) Feed(*corev3.Node) (*resource.Feed, error) {
	return nil, errors.New("proxies of 8 kinds are served and no more are allowed")
}

// TestClients_WithoutKnownNodes checks that clients of Envoy's user may send any node while the
// nodes of epochs are unknown, and that applications are refused without a bootstrap for them.
func TestClients_WithoutKnownNodes(t *testing.T) {
	clients := newClients(failing{}, condition.NewRegistry())
	clients.EnvoyNodes = func() ([]*corev3.Node, bool) { return nil, false }
	clients.ApplicationNode = func() *corev3.Node { return nil }
	if got, err := clients.Admit(&Peer{}, nodeFor("any")); err != nil ||
		got.GetMetadata().GetFields()["APP"].GetStringValue() != "any" {
		t.Errorf("Envoy: %v, %v", got, err)
	}
	if _, err := clients.Admit(&Peer{UID: 1000}, nodeFor("any")); status.Code(err) !=
		codes.PermissionDenied {
		t.Errorf("another user: %v", err)
	}
}

// TestXDS_ConnectionsOfOthersAreApart checks that users other than Envoy's have a separate limit of
// connections, and that no single one of them can use all of it.
func TestXDS_ConnectionsOfOthersAreApart(t *testing.T) {
	socket := filepath.Join(publicDir(t), "xds.sock")
	bound, err := Listen(ListenOptions{Path: socket, Mode: 0o666})
	if err != nil {
		t.Fatal(err)
	}
	limited := newConnections(isRoot).limit(bound)
	t.Cleanup(func() { _ = limited.Close() })
	admitted := make(chan net.Conn, 200)
	go func() {
		for {
			c, err := limited.Accept()
			if err != nil {
				return
			}
			admitted <- c
		}
	}()
	for range 3 * userConnections {
		dialAs(t, parts.NobodyUID, socket)
	}
	own := dialAs(t, 0, socket)
	_, _ = own.Write([]byte("x"))
	for n := 0; ; n++ {
		var c net.Conn
		select {
		case c = <-admitted:
		case <-time.After(20 * time.Second):
			t.Fatal("Envoy's connection is not admitted")
		}
		defer func() { _ = c.Close() }()
		if PeerOfAddress(c.RemoteAddr()).UID == 0 {
			if n != userConnections {
				t.Errorf("%d connections of a user", n)
			}
			return
		}
	}
}

func dialAs(t *testing.T, uid int, socket string) (c net.Conn) {
	t.Helper()
	var err error
	parts.RunAs(t, uid, func() { c, err = net.Dial("unix", socket) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// publicDir returns a folder in which every user can connect to sockets.
func publicDir(t *testing.T) string {
	t.Helper()
	folder := parts.ShortDir(t)
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	return folder
}
