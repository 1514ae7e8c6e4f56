package xds

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"outrider.org/outrider/agent/resource"
)

const (
	soakNames   = 12
	soakClients = 24
)

// soakTime returns for how long TestStreams_Soak changes resources.
func soakTime() time.Duration {
	if os.Getenv("OUTRIDER_TEST_FULL") != "" {
		return 3 * time.Minute
	}
	return 2 * time.Second
}

// soakResource returns a resource. A strict client refuses versions that begin with "bad".
func soakResource(typeURL string, i int, version string) *resource.Resource {
	name := fmt.Sprintf("r%d", i)
	return resource.FromEncoded(typeURL, name, []byte(name+"="+version+"|"+
		strings.Repeat("x", i*i*100)))
}

// TestStreams_Soak changes, removes and adds resources, while clients subscribe, unsubscribe,
// refuse, read slowly, disconnect and reconnect, and while Status and ResendResources are called.
// At the end each client must have the last version of all resources to which it subscribes.
func TestStreams_Soak(t *testing.T) {
	t.Parallel()
	feed, socket := resource.NewFeed(), socketPath(t)
	publish := func(version func() string, remove bool) {
		change := resource.Change{}
		for _, typeURL := range []string{cds, eds} {
			for i := range soakNames {
				switch {
				case !remove || rand.N(4) == 0:
					change.Set = append(change.Set, soakResource(typeURL, i, version()))
				case rand.N(12) == 0:
					change.Remove = append(change.Remove, resource.Key{Type: typeURL,
						Name: fmt.Sprintf("r%d", i)})
				}
			}
		}
		feed.Publish(change)
	}
	publish(func() string { return "first" }, false)
	server, _ := serve(t, socket, Options{Source: oneFeed{feed}, MaxConcurrentResponseBuilds: 2,
		SendTimeout: 100 * time.Millisecond, AckTimeout: 50 * time.Millisecond})
	ctx, cancel := context.WithTimeout(t.Context(), soakTime()+time.Minute)
	defer cancel()
	settled := make(chan struct{})
	var clients, others sync.WaitGroup
	for i := range soakClients {
		c := &soakClient{socket: socket, delta: i%2 == 0, strict: i%3 == 0, slow: i%4 == 1,
			settled: settled}
		clients.Go(func() {
			if err := c.run(ctx); err != nil {
				t.Errorf("client %d (delta: %v): %v; has %v", i, c.delta, err, c.has)
			}
		})
	}
	others.Go(func() {
		for !ended(settled) {
			for _, status := range server.Status(ctx) {
				server.ResendResources(ctx, status.ID, eds, []string{"r1", "r2"})
			}
			time.Sleep(5 * time.Millisecond) //house:sleep the rate of requests
		}
	})
	generation := 0
	for begun := time.Now(); time.Since(begun) < soakTime(); generation++ {
		time.Sleep(rand.N(4 * time.Millisecond)) //house:sleep the rate of changes
		publish(func() string {
			if rand.N(8) == 0 {
				return fmt.Sprint("bad-", generation)
			}
			return fmt.Sprint("good-", generation)
		}, true)
	}
	publish(func() string { return "last" }, false)
	close(settled)
	others.Wait()
	clients.Wait()
	eventually(t, "all streams end", func() bool { return server.Stats().Streams == 0 })
	stats := server.Stats()
	if stats.Panics > 0 {
		t.Errorf("%d panics", stats.Panics)
	}
	t.Logf("%d changes, %d streams, %d slow clients, %d unanswered, %d refusals", generation,
		stats.StreamsTotal, stats.StuckClients, stats.UnansweredResponses,
		stats.Types[cds].Refusals+stats.Types[eds].Refusals)
}

func ended(channel <-chan struct{}) bool {
	select {
	case <-channel:
		return true
	default:
		return false
	}
}

// soakClient is a client that sends random requests.
type soakClient struct {
	socket              string
	delta, strict, slow bool
	settled             <-chan struct{} // closed after the last change was published
	stream              grpc.ClientStream
	// names of endpoints to which the client subscribes
	wanted []string
	// versions that the client has, by type and name
	has map[string]map[string]string
}

// soakAnswer has the fields of a response that the client uses.
type soakAnswer struct {
	typeURL, nonce string
	values         [][]byte
	removed        []string
}

// run opens one stream after the other, until one has received the last version of all resources.
func (c *soakClient) run(ctx context.Context) error {
	for {
		err := c.runOnce(ctx)
		if err == nil && ended(c.settled) || ctx.Err() != nil {
			return err
		}
	}
}

func (c *soakClient) runOnce(ctx context.Context) error {
	connection, err := grpc.NewClient("unix://"+c.socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(1<<16), grpc.WithInitialConnWindowSize(1<<16))
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }()
	method := "StreamAggregatedResources"
	if c.delta {
		method = "DeltaAggregatedResources"
	}
	c.stream, err = connection.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true,
		ClientStreams: true}, "/envoy.service.discovery.v3.AggregatedDiscoveryService/"+method)
	if err != nil {
		return err
	}
	c.has = map[string]map[string]string{cds: {}, eds: {}}
	c.wanted = []string{"r0"}
	if err := c.ask(cds, nil, nil, "", nil); err != nil {
		return err
	}
	if err := c.ask(eds, c.wanted, nil, "", nil); err != nil {
		return err
	}
	for responses := 0; !ended(c.settled) || !c.complete(); responses++ {
		if !ended(c.settled) && rand.N(200) == 0 {
			return nil // disconnect; run reconnects
		}
		if c.slow && !ended(c.settled) && rand.N(20) == 0 {
			time.Sleep(rand.N(300 * time.Millisecond)) //house:sleep a client that is slow
		}
		answer, err := c.receive()
		if err != nil {
			return err
		}
		if err := c.handle(answer); err != nil {
			return err
		}
	}
	return nil
}

// complete reports whether the client has the last version of all resources to which it subscribes.
func (c *soakClient) complete() bool {
	for i := range soakNames {
		name := fmt.Sprintf("r%d", i)
		if c.has[cds][name] != "last" ||
			slices.Contains(c.wanted, name) && c.has[eds][name] != "last" {
			return false
		}
	}
	return true
}

func (c *soakClient) handle(r soakAnswer) error {
	if !ended(c.settled) && rand.N(30) == 0 {
		return nil // the client skips this response, and answers a later one
	}
	received, refused := map[string]string{}, ""
	for _, value := range r.values {
		name, rest, _ := strings.Cut(string(value), "=")
		received[name], _, _ = strings.Cut(rest, "|")
		if c.strict && strings.HasPrefix(received[name], "bad") {
			refused = name
		}
	}
	var subscribe, unsubscribe []string
	if r.typeURL == eds && !ended(c.settled) {
		name := fmt.Sprintf("r%d", rand.N(soakNames))
		if i := slices.Index(c.wanted, name); i < 0 {
			c.wanted, subscribe = append(c.wanted, name), []string{name}
		} else if len(c.wanted) > 1 {
			c.wanted, unsubscribe = slices.Delete(c.wanted, i, i+1), []string{name}
			delete(c.has[eds], name)
		}
	}
	if refused != "" {
		message := "no"
		if rand.N(2) == 0 {
			message = fmt.Sprintf("resource %q is bad", refused)
		}
		return c.ask(r.typeURL, subscribe, unsubscribe, r.nonce,
			&rpcstatus.Status{Message: message})
	}
	if !c.delta && r.typeURL == cds {
		clear(c.has[cds])
	}
	for name, version := range received {
		c.has[r.typeURL][name] = version
	}
	for _, name := range r.removed {
		delete(c.has[r.typeURL], name)
	}
	return c.ask(r.typeURL, subscribe, unsubscribe, r.nonce, nil)
}

func (c *soakClient) ask(typeURL string, subscribe, unsubscribe []string, nonce string,
	refusal *rpcstatus.Status) error {
	if c.delta {
		return c.stream.SendMsg(&discoveryv3.DeltaDiscoveryRequest{Node: aNode, TypeUrl: typeURL,
			ResourceNamesSubscribe: subscribe, ResourceNamesUnsubscribe: unsubscribe,
			ResponseNonce: nonce, ErrorDetail: refusal})
	}
	names := c.wanted
	if typeURL == cds {
		names = nil
	}
	return c.stream.SendMsg(&discoveryv3.DiscoveryRequest{Node: aNode, TypeUrl: typeURL,
		ResourceNames: names, ResponseNonce: nonce, ErrorDetail: refusal})
}

func (c *soakClient) receive() (a soakAnswer, err error) {
	if c.delta {
		var r discoveryv3.DeltaDiscoveryResponse
		err = c.stream.RecvMsg(&r)
		for _, one := range r.Resources {
			a.values = append(a.values, one.Resource.Value)
		}
		a.typeURL, a.nonce, a.removed = r.TypeUrl, r.Nonce, r.RemovedResources
		return a, err
	}
	var r discoveryv3.DiscoveryResponse
	err = c.stream.RecvMsg(&r)
	for _, one := range r.Resources {
		a.values = append(a.values, one.Value)
	}
	a.typeURL, a.nonce = r.TypeUrl, r.Nonce
	return a, err
}
