package relay

import (
	"bytes"
	"fmt"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	xdsresource "outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

// TestSession_StreamsDoNotDisturbEachOther checks that a stream whose Envoy does not read makes the
// relay buffer only a few megabytes from the upstream server, and does not delay other streams.
func TestSession_StreamsDoNotDisturbEachOther(t *testing.T) {
	for _, typeURL := range []string{clusterType, xdsresource.ExtensionType} {
		t.Run(typeURL, func(t *testing.T) { testSlowStream(t, typeURL) })
	}
}

func testSlowStream(t *testing.T, typeURL string) {
	up := startUpstream(t, "127.0.0.1:0")
	r := startRelay(t, serverAt(up.address), "")
	request := &discoveryv3.DeltaDiscoveryRequest{Node: testNode(t), TypeUrl: clusterType}
	slow := r.connect(t, true, true) // the client of this stream never reads
	slow.send(request)
	flooded := up.accept()
	flooded.next()
	sent := make(chan int)
	go func() {
		big := deltaResponse("1", "a")
		big.TypeUrl = typeURL
		big.Resources[0].Resource = &anypb.Any{Value: make([]byte, 1<<20)}
		text, err := proto.Marshal(big)
		if err != nil {
			t.Error(err)
		}
		for n := 0; ; n++ {
			if flooded.stream.SendMsg(&text) != nil {
				sent <- n
				return
			}
		}
	}()
	other := r.connect(t, true, false)
	other.send(request)
	above := up.accept()
	above.next()
	for i := range 100 {
		above.send(deltaResponse(fmt.Sprint(i), "a"))
		other.next()
	}
	flooded.end(nil)
	// less than 20 MB fit into the flow control windows of both connections and into the relay
	if n := <-sent; n > 20 {
		t.Errorf("%d MB were buffered for an Envoy that does not read", n)
	}
	above.send(deltaResponse("last", "a"))
	if got := decode(other, &discoveryv3.DeltaDiscoveryResponse{}); got.Nonce != "last" {
		t.Errorf("response %v", got)
	}
}

// endsExhausted waits until the stream ends with ResourceExhausted.
func (s *testStream) endsExhausted() {
	s.t.Helper()
	select {
	case err := <-s.ended:
		if status.Code(err) != codes.ResourceExhausted {
			s.t.Errorf("the stream ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		s.t.Error("the stream did not end")
	}
}

// TestSession_BoundsNamesAndInitialVersions checks that a stream ends when the names in its
// requests, or the versions in the first request of a type, exceed the bound.
func TestSession_BoundsNamesAndInitialVersions(t *testing.T) {
	long := strings.Repeat("x", maxRequestBytes/4)
	for name, request := range map[string]func(i int) *discoveryv3.DeltaDiscoveryRequest{
		"names": func(i int) *discoveryv3.DeltaDiscoveryRequest {
			return &discoveryv3.DeltaDiscoveryRequest{Node: testNode(t), TypeUrl: clusterType,
				ResourceNamesSubscribe: []string{fmt.Sprint(i, long)}}
		},
		"initial versions": func(i int) *discoveryv3.DeltaDiscoveryRequest {
			return &discoveryv3.DeltaDiscoveryRequest{Node: testNode(t),
				TypeUrl:                 envoyTypes[i],
				InitialResourceVersions: map[string]string{long: "1"}}
		},
		"node": func(int) *discoveryv3.DeltaDiscoveryRequest {
			node := testNode(t)
			node.Cluster = strings.Repeat("x", maxNodeBytes)
			return &discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: clusterType}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := startRelay(t, serverAt(startUpstream(t, "127.0.0.1:0").address), "")
			envoy := r.connect(t, true, false)
			if name != "names" {
				r.envoys.nameBytes = 2*len(long) - 1
			}
			for i := range 1 + r.envoys.nameBytes/len(long) {
				text, err := proto.Marshal(request(i))
				if err != nil {
					t.Fatal(err)
				}
				// sending fails if the stream has already ended because of the bound
				_ = envoy.stream.SendMsg(&text)
			}
			envoy.endsExhausted()
			parts.Eventually(t, time.Minute, "the names are given back", func() bool {
				return r.envoys.names.used.Load() == 0 && r.envoys.streams.used.Load() == 0
			})
		})
	}
}

// TestSession_BoundsUnansweredResponses checks that the unanswered responses of a client that reads
// use bounded memory, and that the resources of a response that is still retained are stored once
// it is answered.
func TestSession_BoundsUnansweredResponses(t *testing.T) {
	up := startUpstream(t, "127.0.0.1:0")
	r := startRelay(t, serverAt(up.address), filepath.Join(t.TempDir(), "cache"))
	r.envoys.pending.most = 4 << 20
	envoy := r.connect(t, true, false)
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{Node: testNode(t), TypeUrl: clusterType})
	above := up.accept()
	above.next()
	for i := range 20 {
		big := deltaResponse(fmt.Sprint(i), "a", fmt.Sprint(i))
		big.Resources[0].Resource = &anypb.Any{TypeUrl: clusterType, Value: make([]byte, 1<<20)}
		big.Resources[1].Resource = &anypb.Any{TypeUrl: clusterType}
		above.send(big)
		envoy.next()
	}
	answer := func(nonce string) {
		envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResponseNonce: nonce})
		above.next() // the answer to a dropped response is forwarded, too
	}
	answer("10")
	if used := r.envoys.pending.used.Load(); used < 2<<20 || used > 4<<20 {
		t.Errorf("%d bytes are held of 20 MB", used)
	}
	answer("19")
	known, _ := r.options.Cache.get(identityOf(testNode(t), up.address), clusterType)
	if len(known) != 2 || known["19"].name == "" {
		t.Errorf("the cache has %d resources", len(known))
	}
	envoy.end(nil)
	parts.Eventually(t, time.Minute, "all is given back", func() bool {
		return r.envoys.pending.used.Load() == 0 && r.envoys.held.used.Load() == 0
	})
}

// TestSession_BoundsAcceptedResources checks that only names and versions are stored of accepted
// resources that exceed the bound.
func TestSession_BoundsAcceptedResources(t *testing.T) {
	up := startUpstream(t, "127.0.0.1:0")
	r := startRelay(t, serverAt(up.address), filepath.Join(t.TempDir(), "cache"))
	r.envoys.held.most = 1 << 20
	envoy := r.connect(t, true, false)
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{Node: testNode(t), TypeUrl: clusterType})
	above := up.accept()
	above.next()
	big := deltaResponse("1", "a")
	big.Resources[0].Resource = &anypb.Any{TypeUrl: clusterType, Value: make([]byte, 1<<20)}
	above.send(big)
	envoy.next()
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResponseNonce: "1"})
	above.next()
	if used := r.envoys.held.used.Load(); used > 1<<10 {
		t.Errorf("%d bytes are held", used)
	}
	if said := r.condition(conditionUnwritten); !strings.Contains(said, "more than 1 MB") {
		t.Errorf("condition %q", said)
	}
	above.end(status.Error(codes.Unavailable, "gone"))
	again := decode(up.accept(), &discoveryv3.DeltaDiscoveryRequest{})
	if again.InitialResourceVersions["a"] != "v-a" {
		t.Errorf("the next stream begins with %v", again.InitialResourceVersions)
	}
}

// TestServer_OtherClientsTakeNothingFromEnvoy checks that Envoy can open streams while other
// clients have exhausted their share.
func TestServer_OtherClientsTakeNothingFromEnvoy(t *testing.T) {
	var isEnvoy atomic.Bool
	r := startRelayWith(t, Options{Upstream: serverAt(startUpstream(t,
		"127.0.0.1:0").address), IsEnvoy: func(net.Addr) bool { return isEnvoy.Load() }})
	r.others.streams.most = 3
	request := &discoveryv3.DeltaDiscoveryRequest{Node: testNode(t), TypeUrl: clusterType}
	for range 3 {
		r.connect(t, true, false).send(request)
	}
	parts.Eventually(t, time.Minute, "three streams are open", func() bool {
		return r.others.streams.used.Load() == 3
	})
	refused := r.connect(t, true, false)
	text, err := proto.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = refused.stream.SendMsg(&text)
	refused.endsExhausted()
	isEnvoy.Store(true)
	r.connect(t, true, false).send(request)
	parts.Eventually(t, time.Minute, "Envoy's stream is open", func() bool {
		return r.envoys.streams.used.Load() == 1
	})
}

func TestParseResponse_BoundsResources(t *testing.T) {
	for _, delta := range []bool{true, false} {
		_, err := parseResponse(bytes.Repeat([]byte{responseResources<<3 | 2, 0}, maxResources+1),
			delta, false)
		if err == nil || !strings.Contains(err.Error(), "more than") {
			t.Errorf("delta %t: %v", delta, err)
		}
	}
}

// TestModules_BoundsAllModulesOfAResponse checks that the bound applies to the total size of the
// extension configurations of one response with their Wasm modules, even if several contain the
// same module.
func TestModules_BoundsAllModulesOfAResponse(t *testing.T) {
	body := make([]byte, 64<<20)
	r := &response{typeURL: xdsresource.ExtensionType}
	for range 4 {
		r.resources = append(r.resources, resource{name: "x", body: body})
	}
	if _, _, err := (&modules{}).inline(t.Context(), r); err == nil ||
		!strings.Contains(err.Error(), "more than 240 MB") {
		t.Errorf("%v", err)
	}
}

func TestCache_IsReadWithoutACopy(t *testing.T) {
	before, _ := written(t)
	const size = 32 << 20
	before.put("node", clusterType, "v", map[string]resource{
		"a": {name: "a", body: make([]byte, size)}})
	_ = before.write()
	var start, end runtime.MemStats
	runtime.ReadMemStats(&start)
	nodes, err := readFile(before.path)
	runtime.ReadMemStats(&end)
	if err != nil || len(nodes) == 0 {
		t.Fatalf("%d nodes, %v", len(nodes), err)
	}
	if used := end.TotalAlloc - start.TotalAlloc; used > size*5/4 {
		t.Errorf("%d MB for a file of %d MB", used>>20, size>>20)
	}
}
