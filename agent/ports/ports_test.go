package ports

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/hostconflict"
	"outrider.org/outrider/agent/resource"
)

// sourceOf is an xds.Source with one feed of resources for all nodes.
type sourceOf struct{ feed *resource.Feed }

func (s sourceOf) Feed(*corev3.Node) (*resource.Feed, error) { return s.feed, nil }

func listenerOf(t *testing.T, name, host string, port uint32) *resource.Resource {
	t.Helper()
	r, err := resource.New(name, &listenerv3.Listener{Name: name,
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{
			SocketAddress: &corev3.SocketAddress{Address: host,
				PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port}}}}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The condition for a shared port is active until one of the two agents releases the port.
func TestTracker_SharedPort(t *testing.T) {
	feed, directory := resource.NewFeed(), t.TempDir()
	if err := os.WriteFile(filepath.Join(directory, "a.toml"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var theirs atomic.Int32
		theirs.Store(80)
		m := &PortTracker{
			host: hostconflict.Host{ConfigDir: directory, EnvoyLives: func(string) bool {
				return true
			}, Query: func(context.Context, string) (hostconflict.OtherAgent, bool) {
				return hostconflict.OtherAgent{Claims: []config.HostClaim{{Key: "listener x",
					Host: "0.0.0.0",
					Port: int(theirs.Load())}}}, true
			}},
			source: sourceOf{feed}, folder: "/run/outrider",
			board: condition.NewRegistry(), notify: func() {}, accepted: make(chan struct{}, 1),
		}
		if claims := m.Claims(); len(claims) != 0 {
			t.Errorf("before Envoy took anything: %v", claims)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- m.Run(ctx) }()
		look := func(typeURL, want string) {
			t.Helper()
			m.OnAck(nil, typeURL)
			m.OnAck(&corev3.Node{Id: "x"}, typeURL)
			synctest.Wait()
			standing := ""
			for _, c := range m.board.Conditions() {
				standing += c.Sentence
			}
			if (want == "") != (standing == "") || !strings.Contains(standing, want) {
				t.Errorf("%q stands, want %q", standing, want)
			}
		}
		feed.Publish(resource.Change{Set: []*resource.Resource{listenerOf(t, "web", "127.0.0.1",
			80), listenerOf(t, "other", "::", 81),
			of(t, "captured", "0.0.0.0", 80, func(l *listenerv3.Listener) {
				// as with interception, where most listeners do not bind their address
				l.BindToPort = wrapperspb.Bool(false)
			})}})
		look(resource.ClusterType, "")
		look(resource.ListenerType,
			`listener web: port 80 of 127.0.0.1 is taken by listener x (port 80 of 0.0.0.0) of instance "a"`)
		want := []config.HostClaim{{Key: "listener other", Host: "::", Port: 81, Envoy: true},
			{Key: "listener web", Host: "127.0.0.1", Port: 80, Envoy: true}}
		if diff := cmp.Diff(want, m.Claims()); diff != "" {
			t.Error(diff)
		}
		feed.Publish(resource.Change{Remove: []resource.Key{{Type: resource.ListenerType,
			Name: "web"}}})
		look(resource.ListenerType, "")
		theirs.Store(81)
		look(resource.ListenerType, "listener other")
		theirs.Store(82)
		time.Sleep(sharedAgain)
		look(resource.ClusterType, "")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
