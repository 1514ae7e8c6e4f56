package adsload

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"

	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/scripts/parts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type source struct{ feed *resource.Feed }

func (s source) Feed(*corev3.Node) (*resource.Feed, error) { return s.feed, nil }

// nested encodes a value as a field of nested messages. path contains the field numbers, those of
// the outermost message first.
func nested(value string, path ...protowire.Number) []byte {
	b := []byte(value)
	for i := len(path) - 1; i >= 0; i-- {
		b = protowire.AppendBytes(protowire.AppendTag(nil, path[i], protowire.BytesType), b)
	}
	return b
}

func TestLoad_RequestsLikeEnvoy(t *testing.T) {
	for _, delta := range []bool{true, false} {
		t.Run(fmt.Sprint("delta ", delta), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			const manager = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
			listener := append(nested("l", 1),
				nested(string(append(nested(manager, 1), nested("r", 2, 3, 2)...)), 3, 3, 4)...)
			feed := resource.NewFeed()
			feed.Publish(resource.Change{Set: []*resource.Resource{
				resource.FromEncoded(ClusterType, "static", nested("static", 1)),
				resource.FromEncoded(ClusterType, "c",
					append(nested("c", 1), nested("e", 3, 2)...)),
				resource.FromEncoded(EndpointType, "e", nested("e", 1)),
				resource.FromEncoded(EndpointType, "unused", nested("unused", 1)),
				resource.FromEncoded(ListenerType, "l", listener),
				resource.FromEncoded(RouteType, "r", nested("r", 1)),
			}})
			server, err := xds.NewServer(xds.Options{Source: source{feed}})
			if err != nil {
				t.Fatal(err)
			}
			socket := filepath.Join(parts.ShortDir(t), "xds.sock")
			unixListener, err := xds.Listen(xds.ListenOptions{Path: socket})
			if err != nil {
				t.Fatal(err)
			}
			serving, stop := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- server.Serve(serving, unixListener) }()

			load, err := Start(ctx, Options{Targets: []string{"unix://" + socket}, Clients: 5, Delta: delta,
				SameNodeID: true})
			if err != nil {
				t.Fatal(err)
			}
			full, err := load.WaitInitialResources(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for i, took := range full {
				if took <= 0 {
					t.Errorf("client %d took %v", i, took)
				}
			}
			for typeURL, want := range map[string]int{ClusterType: 10, EndpointType: 5,
				ListenerType: 5, RouteType: 5} {
				if got := load.Received()[typeURL]; got.Resources != want {
					t.Errorf("%s: %+v, want %d resources", typeURL, got, want)
				}
			}
			mark := load.WatchContent(EndpointType, []byte("generation 2"))
			feed.Publish(
				resource.Change{Set: []*resource.Resource{resource.FromEncoded(EndpointType, "e",
					append(nested("e", 1), nested("generation 2", 2)...))}})
			at, err := mark.Wait(ctx)
			if err != nil || len(at) != 5 || at[4].IsZero() {
				t.Errorf("the change came at %v, %v", at, err)
			}

			// After a cluster is added, the clients must request its endpoints.
			mark = load.WatchContent(EndpointType, []byte("generation 3"))
			feed.Publish(resource.Change{Set: []*resource.Resource{
				resource.FromEncoded(ClusterType, "new",
					append(nested("new", 1), nested("new", 3, 2)...)),
				resource.FromEncoded(EndpointType, "new",
					append(nested("new", 1), nested("generation 3", 2)...)),
			}})
			if _, err := mark.Wait(ctx); err != nil {
				t.Error(err)
			}
			if err := load.Stop(); err != nil {
				t.Error(err)
			}
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestStart_ReportsMissingServer(t *testing.T) {
	load, err := Start(t.Context(), Options{Clients: 2,
		Targets: []string{"unix://" + filepath.Join(parts.ShortDir(t), "none")}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := load.WaitInitialResources(t.Context()); err == nil {
		t.Error("it is full")
	}
	if err := load.Stop(); err == nil {
		t.Error("no error at the end")
	}
}
