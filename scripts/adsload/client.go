package adsload

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/backoff"
)

// client is one xDS client that sends the requests of an Envoy.
type client struct {
	load   *Load
	index  int
	stream grpc.ClientStream
	node   *corev3.Node // node for the next request; nil after the first one

	begun   time.Time
	wanted  map[string][]string // requested names by type
	missing map[string]int      // number of requested names without a response, by type
	full    bool

	versions *versions
	resumed  bool // the stream replaces a lost one and has not received a response yet
}

var streamDescription = grpc.StreamDesc{StreamName: "ads", ServerStreams: true, ClientStreams: true}

// runEach runs the client at one target after the other: after a lost connection, it continues at
// the next target. The first target is the one with the client's index, or the first of all with
// Options.AllAtFirstTarget.
func (c *client) runEach(ctx context.Context) error {
	targets := c.load.options.Targets
	begin := c.index
	if c.load.options.AllAtFirstTarget {
		begin = 0
	}
	pause := backoff.Backoff{Min: firstPause, Max: longestPause, Jitter: 1}
	for attempt := begin; ; attempt++ {
		err := c.runAt(ctx, targets[attempt%len(targets)])
		switch {
		case ctx.Err() == nil && status.Code(err) == codes.ResourceExhausted:
			attempt-- // the server limits the number of connecting clients: retry the same target
		case ctx.Err() != nil || len(targets) == 1 || !c.full:
			return err
		default:
			pause.Reset()
		}
		if err := pause.Wait(ctx); err != nil {
			return err
		}
	}
}

// Bounds of the pause before the next attempt, as in an agent. The jitter at most doubles a pause.
const (
	firstPause   = 25 * time.Millisecond
	longestPause = 600 * time.Millisecond
)

func (c *client) runAt(ctx context.Context, target string) error {
	connected := c.load.connecting()
	defer connected()
	secure := insecure.NewCredentials()
	if c.load.options.TLS != nil {
		secure = credentials.NewTLS(c.load.options.TLS(c.index))
	}
	connection, err := grpc.NewClient(target, grpc.WithTransportCredentials(secure),
		// The flow control windows are those of an agent.
		grpc.WithInitialWindowSize(1<<20), grpc.WithInitialConnWindowSize(2<<20),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{encoding.GetCodecV2("proto")}),
			grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return fmt.Errorf("client %d: %w", c.index, err)
	}
	defer func() { _ = connection.Close() }()
	return c.run(ctx, connection, connected)
}

// run runs the client on a connection until the connection is lost. It calls connected after each
// response.
func (c *client) run(ctx context.Context, connection *grpc.ClientConn, connected func()) error {
	method := "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
	if c.load.options.Delta {
		method = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
	}
	c.begun = time.Now()
	stream, err := connection.NewStream(ctx, &streamDescription, method)
	if err != nil {
		return fmt.Errorf("client %d: open the stream: %w", c.index, err)
	}
	c.stream, c.node = stream, c.load.options.Node(c.index)
	if c.full {
		err = c.resume()
	} else {
		err = c.request(ClusterType, nil)
	}
	if err != nil {
		return err
	}
	for {
		var m message
		if err := stream.RecvMsg(&m); err != nil {
			return fmt.Errorf("client %d: receive: %w", c.index, err)
		}
		connected()
		r, err := scan(m.buffer.ReadOnlyData(), c.load.options.Delta)
		if err == nil {
			err = c.handle(r)
		}
		m.buffer.Free()
		if err != nil {
			return err
		}
	}
}

// request subscribes to resources by name, or to all resources of a type if names is empty.
func (c *client) request(typeURL string, names []string) error {
	c.wanted[typeURL] = append(c.wanted[typeURL], names...)
	// a wildcard subscription expects at least one response
	c.missing[typeURL] += max(1, len(names))
	if c.load.options.Delta {
		return c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL,
			ResourceNamesSubscribe: names})
	}
	return c.send(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: c.wanted[typeURL]})
}

// resume subscribes on a new stream with the versions of the client's resources, as an agent's
// relay does.
func (c *client) resume() error {
	c.resumed = true
	for _, typeURL := range []string{ClusterType, EndpointType, ListenerType, RouteType} {
		if !c.requested(typeURL) {
			continue
		}
		versions, err := c.versions.encode(typeURL)
		if err != nil {
			return err
		}
		if err := c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL,
			ResourceNamesSubscribe: c.wanted[typeURL]}, versions); err != nil {
			return err
		}
	}
	return nil
}

func (c *client) acknowledge(r Response) error {
	if c.load.options.Delta {
		return c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeURL,
			ResponseNonce: r.Nonce})
	}
	return c.send(&discoveryv3.DiscoveryRequest{TypeUrl: r.TypeURL, ResponseNonce: r.Nonce,
		VersionInfo: r.Version, ResourceNames: c.wanted[r.TypeURL]})
}

// send sends a request, followed by encoded fields.
func (c *client) send(request proto.Message, more ...[]byte) error {
	if c.node != nil {
		switch r := request.(type) {
		case *discoveryv3.DeltaDiscoveryRequest:
			r.Node = c.node
		case *discoveryv3.DiscoveryRequest:
			r.Node = c.node
		}
		c.node = nil
	}
	if err := c.stream.SendMsg(outgoing{request, more}); err != nil {
		return fmt.Errorf("client %d: send: %w", c.index, err)
	}
	return nil
}

// handle accepts a response. It then requests the resources to which the response refers: endpoints
// for clusters, route configurations for listeners.
func (c *client) handle(r Response) error {
	c.load.count(c.index, r, c.resumed)
	c.resumed = false
	if c.load.options.Delta {
		c.versions.learn(r)
	}
	if err := c.acknowledge(r); err != nil {
		return err
	}
	if c.full {
		return c.requestReferenced(r)
	}
	if r.TypeURL == ClusterType || r.TypeURL == ListenerType {
		c.missing[r.TypeURL] = 0
	} else {
		c.missing[r.TypeURL] -= r.Resources + r.Removed
	}
	switch {
	case c.missing[r.TypeURL] > 0:
		return nil
	case r.TypeURL == ClusterType && len(c.wanted[EndpointType]) == 0:
		names, err := c.load.nameCache.names(r, endpointNames)
		if err != nil || len(names) > 0 {
			return c.requestOr(err, EndpointType, names)
		}
		return c.request(ListenerType, nil)
	case r.TypeURL == EndpointType && c.missing[ListenerType] == 0 && !c.requested(ListenerType):
		return c.request(ListenerType, nil)
	case r.TypeURL == ListenerType && len(c.wanted[RouteType]) == 0:
		names, err := c.load.nameCache.names(r, routeNames)
		if err != nil || len(names) > 0 {
			return c.requestOr(err, RouteType, names)
		}
	}
	if c.requested(ListenerType) && c.missing[ListenerType] <= 0 && c.missing[RouteType] <= 0 {
		c.full = true
		c.load.isFull(c.index, time.Since(c.begun))
	}
	return nil
}

func (c *client) requested(typeURL string) bool {
	_, ok := c.missing[typeURL]
	return ok
}

func (c *client) requestOr(err error, typeURL string, names []string) error {
	if err != nil {
		return fmt.Errorf("client %d: %w", c.index, err)
	}
	return c.request(typeURL, names)
}

// requestReferenced requests those resources to which the response refers and that were not
// requested yet.
func (c *client) requestReferenced(r Response) error {
	var names []string
	var err error
	needed := ""
	switch r.TypeURL {
	case ClusterType:
		needed = EndpointType
		names, err = endpointNames(r)
	case ListenerType:
		needed = RouteType
		names, err = routeNames(r)
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		_, known := slices.BinarySearch(c.wanted[needed], name)
		return known
	})
	if err != nil || len(names) == 0 {
		return err
	}
	err = c.request(needed, names)
	slices.Sort(c.wanted[needed])
	return err
}
