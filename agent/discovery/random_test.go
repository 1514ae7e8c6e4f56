package discovery_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

// configurations returns the number of random configurations: OUTRIDER_RANDOM, or 300.
func configurations(t *testing.T) int {
	text := os.Getenv("OUTRIDER_RANDOM")
	if text == "" {
		return 300
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("OUTRIDER_RANDOM=%s: a number of configurations", text)
	}
	return n
}

// randomKinds lists the kinds of objects, with the largest number of each in a configuration.
var randomKinds = []struct {
	kind string
	make func() proto.Message
	most int
}{
	{"ServiceEntry", func() proto.Message { return &networking.ServiceEntry{} }, 4},
	{"VirtualService", func() proto.Message { return &networking.VirtualService{} }, 3},
	{"DestinationRule", func() proto.Message { return &networking.DestinationRule{} }, 3},
	{"Gateway", func() proto.Message { return &networking.Gateway{} }, 2},
	{"Sidecar", func() proto.Message { return &networking.Sidecar{} }, 1},
	{"WorkloadEntry", func() proto.Message { return &networking.WorkloadEntry{} }, 2},
}

// TestRandom configures one Envoy of each kind with random configurations, one after the other.
// Envoy must accept everything that validation accepts.
func TestRandom(t *testing.T) {
	seed := randomSeed(t)
	t.Logf("OUTRIDER_SEED=%d repeats this run", seed)
	for _, kind := range []string{"sidecar", "router"} {
		t.Run(kind, func(t *testing.T) { randomConfigurations(t, kind, seed) })
	}
}

// randomSeed returns OUTRIDER_SEED, or a random number.
func randomSeed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("OUTRIDER_SEED")
	if text == "" {
		return rand.Uint64()
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("OUTRIDER_SEED=%s: a number that a run reported", text)
	}
	return seed
}

func randomConfigurations(t *testing.T, kind string, seed uint64) {
	r := &randomizer{Rand: rand.New(rand.NewPCG(seed, 0)), hosts: []string{"a.test", "b.test",
		"c.test", "d.other"}, gateways: []string{"mesh", "mesh", "shop/one", "two"}}
	r.certificate, r.key = certificate(t)
	for range 4 {
		r.ports = append(r.ports, parts.FreePort(t))
	}
	directory := t.TempDir()
	server, changes := start(t, discovery.Options{Files: []string{directory}, Namespace: "shop"})
	e := startEnvoy(t, kind, server)
	// the test waits for snapshots of Envoy's own feed, because the server may publish other feeds
	// later
	feed, err := server.Feed(nodeOf(t, kind))
	if err != nil {
		t.Fatal(err)
	}
	given, taken := map[string]int{}, map[string]int{}
	for i := range configurations(t) / 2 {
		r.share = 0.05 + 0.35*r.Float64()
		var objects []string
		// A cluster with a unique name shows when Envoy has received the configuration.
		marker := fmt.Sprintf("m%d.marker.test", i)
		for _, k := range randomKinds {
			for n := range r.IntN(k.most + 1) {
				spec := k.make()
				r.portNames = 0
				r.fill(spec.ProtoReflect(), 0)
				if sidecar, ok := spec.(*networking.Sidecar); ok {
					for _, e := range sidecar.Egress {
						// If the Sidecar of the next configuration is invalid, this one stays in
						// force, and must import the next configuration's marker.
						e.Hosts = append(e.Hosts, "shop/*.marker.test")
					}
				}
				objects = append(objects, objectText(t, k.kind, []string{"one", "two", "three",
					"four"}[n], r.pick("shop", "shop", "bank"), spec))
				given[k.kind]++
				taken[k.kind]++
			}
		}
		objects = append(objects, objectText(t, "ServiceEntry", "marker", "shop",
			&networking.ServiceEntry{Hosts: []string{marker},
				Resolution: networking.ServiceEntry_STATIC,
				Ports:      []*networking.ServicePort{{Number: 1, Name: "tcp", Protocol: "TCP"}},
				Endpoints:  []*networking.WorkloadEntry{{Address: "127.0.0.1"}}}))
		path := filepath.Join(directory, "random.yaml")
		write(t, path, strings.Join(objects, "\n---\n"))
		changes <- []string{path}
		eventually(t, "Envoy has "+marker, func() (bool, string) {
			snapshot, _ := feed.Current()
			if snapshot.Get(resource.Key{Type: resource.ClusterType, Name: "outbound|1||" +
				marker}) == nil {
				return false, "not published"
			}
			return e.settled(t, snapshot)
		})
		refused := map[string]bool{}
		for _, p := range server.Problems() {
			if p.Severity == condition.Error {
				refused[p.Object] = true
			}
		}
		for object := range refused {
			name, _, _ := strings.Cut(object, " ")
			taken[name]--
		}
		if refusals := e.refusals(); len(refusals) > 0 {
			t.Fatalf("Envoy refuses %s\nconfiguration %d:\n%s", strings.Join(refusals, "\n"), i,
				strings.Join(objects, "\n---\n"))
		}
	}
	for _, k := range randomKinds {
		t.Logf("%s: %d of %d were valid", k.kind, taken[k.kind], given[k.kind])
		if taken[k.kind]*10 < given[k.kind] {
			t.Errorf("fewer than a tenth of the %ss were valid: the test says little of them",
				k.kind)
		}
	}
}

// objectText returns an object as JSON, which is valid YAML.
func objectText(t *testing.T, kind, name, namespace string, spec proto.Message) string {
	t.Helper()
	encoded, err := protojson.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]any{"apiVersion": "networking.istio.io/v1alpha3",
		"kind": kind, "metadata": map[string]any{"name": name, "namespace": namespace},
		"spec": json.RawMessage(encoded)})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// settled reports whether Envoy has accepted or refused the clusters of a snapshot, and has
// answered every response.
func (e *envoy) settled(t *testing.T, snapshot *resource.Snapshot) (bool, string) {
	streams := e.ads.Status(t.Context())
	if len(streams) == 0 {
		return false, "no stream"
	}
	for _, typ := range streams[0].Types {
		if typ.Type == resource.ClusterType && len(typ.Refused) == 0 &&
			typ.AcceptedAt.Before(snapshot.Published) || typ.Pending > 0 {
			return false, fmt.Sprintf("%+v", typ)
		}
	}
	return true, ""
}

// refusals returns the texts of Envoy's refusals so far.
func (e *envoy) refusals() []string {
	e.nacks.mu.Lock()
	defer e.nacks.mu.Unlock()
	return slices.Clone(e.nacks.all)
}
