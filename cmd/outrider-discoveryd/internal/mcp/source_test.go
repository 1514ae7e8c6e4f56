package mcp

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"

	"outrider.org/outrider/scripts/parts"
)

const mesh = unguarded + `---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: closed, namespace: shop}
spec: {}
`

// unguarded contains the objects of the constant mesh, without the policy.
const unguarded = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata:
  {name: api, namespace: shop, labels: {app: api}, creationTimestamp: "2026-01-02T03:04:05Z"}
spec:
  hosts: [api.example.com]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 10.0.0.1}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: api, namespace: shop}
spec: {host: api.example.com, trafficPolicy: {connectionPool: {tcp: {connectTimeout: 2s}}}}
`

const gateway = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {app: edge}
  servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]
`

// Input paths of the objects in the constants mesh and gateway.
const (
	policyPath  = "mcp:AuthorizationPolicy/shop/closed"
	rulePath    = "mcp:DestinationRule/shop/api"
	gatewayPath = "mcp:Gateway/shop/edge"
	entryPath   = "mcp:ServiceEntry/shop/api"
)

func folder(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mesh.yaml"), []byte(mesh), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// service returns an input with a service as a registry delivers it.
func service(path string, addresses ...string) store.SourceInput {
	spec := &networking.ServiceEntry{Hosts: []string{"db.service.consul"},
		Resolution: networking.ServiceEntry_STATIC,
		Ports:      []*networking.ServicePort{{Number: 5432, Name: "tcp", Protocol: "TCP"}}}
	for _, address := range addresses {
		spec.Endpoints = append(spec.Endpoints, &networking.WorkloadEntry{Address: address})
	}
	return store.SourceInput{Path: path, Objects: []*object.Object{{
		Key:        object.Key{Kind: object.ServiceEntry, Namespace: "consul", Name: "service:db"},
		APIVersion: "networking.istio.io/v1", File: path, Spec: spec}}}
}

// TestSource_FromDiscoveryd reads objects and services, and later changes, from another
// outrider-discoveryd. While that server is down, the source retains the objects and services. If
// some are missing after the server's restart, the source retains them until a reload.
func TestSource_FromDiscoveryd(t *testing.T) {
	t.Parallel()
	own, end := serve(t, "", folder(t))
	own.AcceptUpdate(discovery.SourceUpdate{Source: "memory", Complete: true,
		Inputs: []store.SourceInput{service("memory:db", "10.0.0.9")}})
	config := start(t, Options{Address: own.address})
	services := start(t, Options{Address: own.address, ServicesOnly: true})

	config.awaitPaths(strings.Join([]string{policyPath, rulePath, entryPath}, " "))
	services.awaitPaths("mcp:ServiceEntry/consul/service:db")
	want := `{"apiVersion":"networking.istio.io/v1","kind":"ServiceEntry","metadata":{` +
		`"creationTimestamp":"2026-01-02T03:04:05Z","labels":{"app":"api"},"name":"api",` +
		`"namespace":"shop"},"spec":{"hosts":["api.example.com"],"ports":[{"number":80,` +
		`"protocol":"HTTP","name":"http"}],"resolution":"STATIC","endpoints":[{` +
		`"address":"10.0.0.1"}]}}`
	if diff := cmp.Diff(want, config.Text(entryPath)); diff != "" {
		t.Error(diff)
	}

	own.write(t, "gateway.yaml", gateway)
	config.awaitPaths(strings.Join([]string{policyPath, rulePath, gatewayPath, entryPath}, " "))
	own.write(t, "gateway.yaml", "")
	config.awaitPaths(strings.Join([]string{policyPath, rulePath, entryPath}, " "))
	next := service("memory:db", "10.0.0.9", "10.0.0.10")
	own.AcceptUpdate(discovery.SourceUpdate{Source: "memory", Inputs: []store.SourceInput{next}})
	parts.Eventually(t, limit, "the new endpoint", func() bool {
		in, _ := services.Input("mcp:ServiceEntry/consul/service:db")
		return len(in.Objects) == 1 && cmp.Diff(in.Objects[0].Spec, next.Objects[0].Spec,
			protocmp.Transform()) == ""
	})

	end()
	parts.Eventually(t, limit, "the loss is reported", func() bool {
		return config.source.Status().Err != nil
	})
	if config.paths() != strings.Join([]string{policyPath, rulePath, entryPath}, " ") {
		t.Errorf("without the server: %s", config.paths())
	}
	// The server restarts without policies and services, and with a changed DestinationRule. The
	// source retains the objects of kinds whose list is now empty.
	if err := os.WriteFile(filepath.Join(own.folder, "mesh.yaml"), []byte(strings.ReplaceAll(
		unguarded, "2s", "3s")), 0o600); err != nil {
		t.Fatal(err)
	}
	again, _ := serve(t, own.address, own.folder)
	parts.Eventually(t, limit, "the changed rule", func() bool {
		return strings.Contains(config.Text(rulePath), "3s")
	})
	config.awaitPaths(strings.Join([]string{policyPath, rulePath, entryPath}, " "))
	now := config.source.Status()
	if now.Err != nil || now.Problem != "the list of security.istio.io/v1/AuthorizationPolicy is "+
		"empty: the 1 objects of before stay until there is one again; a reload removes them" {
		t.Errorf("status %+v", now)
	}
	config.source.RemoveRetainedInputs()
	config.awaitPaths(rulePath + " " + entryPath)
	again.write(t, "gateway.yaml", gateway)
	config.awaitPaths(strings.Join([]string{rulePath, gatewayPath, entryPath}, " "))
}

// TestSource_WithoutDelta reads objects from a server without incremental xDS.
func TestSource_WithoutDelta(t *testing.T) {
	t.Parallel()
	own, _ := serve(t, "", folder(t), true)
	config := start(t, Options{Address: own.address})
	config.awaitPaths(strings.Join([]string{policyPath, rulePath, entryPath}, " "))
	own.write(t, "gateway.yaml", gateway)
	config.awaitPaths(strings.Join([]string{policyPath, rulePath, gatewayPath, entryPath}, " "))
	own.write(t, "gateway.yaml", "") // removes the only object of its kind
	config.awaitPaths(strings.Join([]string{policyPath, rulePath, entryPath}, " "))
}

// TestServer_RefusesObjects: a discovery server without EncodeObject, as in an agent, refuses
// clients that request objects.
func TestServer_RefusesObjects(t *testing.T) {
	server, err := discovery.New(discovery.Options{})
	if err != nil {
		t.Fatal(err)
	}
	who, err := node(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.Feed(who); status.Code(err) != codes.PermissionDenied {
		t.Errorf("%v", err)
	}
}

// TestSource_FromIstiod reads objects and their changes from a real istiod.
func TestSource_FromIstiod(t *testing.T) {
	dir := folder(t)
	ports := [3]int{parts.FreePort(t), parts.FreePort(t), parts.FreePort(t)}
	parts.StartIstiod(t, dir, "", ports, "ENABLE_XDS_API_GENERATOR_AUTH=false")
	config := start(t, Options{Address: fmt.Sprintf("127.0.0.1:%d", ports[0])})
	config.awaitPaths(strings.Join([]string{policyPath, rulePath, entryPath}, " "))
	if err := os.WriteFile(filepath.Join(dir, "gateway.yaml"), []byte(gateway), 0o600); err != nil {
		t.Fatal(err)
	}
	config.awaitPaths(strings.Join([]string{policyPath, rulePath, gatewayPath, entryPath}, " "))
	if err := os.Remove(filepath.Join(dir, "gateway.yaml")); err != nil {
		t.Fatal(err)
	}
	config.awaitPaths(strings.Join([]string{policyPath, rulePath, entryPath}, " "))
}

// TestServer_FeedsIstiod: a real istiod reads its configuration from this program's server. The
// test reads the objects from istiod.
func TestServer_FeedsIstiod(t *testing.T) {
	own, _ := serve(t, "", folder(t))
	ports := [3]int{parts.FreePort(t), parts.FreePort(t), parts.FreePort(t)}
	parts.StartIstiod(t, t.TempDir(), "configSources: [{address: 'xds://"+own.address+"'}]", ports,
		"ENABLE_XDS_API_GENERATOR_AUTH=false")
	read := start(t, Options{Address: fmt.Sprintf("127.0.0.1:%d", ports[0])})
	read.awaitPaths(strings.Join([]string{policyPath, rulePath, entryPath}, " "))
	own.write(t, "gateway.yaml", gateway)
	read.awaitPaths(strings.Join([]string{policyPath, rulePath, gatewayPath, entryPath}, " "))
	own.write(t, "gateway.yaml", "")
	read.awaitPaths(strings.Join([]string{policyPath, rulePath, entryPath}, " "))
}

// TestDecode_RefusesWhatItDoesNotKnow: an object with an unknown field, as in a newer API, becomes
// an object with an invalid spec, which the store refuses.
func TestDecode_RefusesWhatItDoesNotKnow(t *testing.T) {
	o := service("memory:db").Objects[0]
	newer := proto.Clone(o.Spec).(*networking.ServiceEntry)
	// field 127 with the value 1
	newer.Ports[0].ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 1})
	r, err := Encode(&object.Object{Key: object.Key{Kind: object.ServiceEntry, Namespace: "a",
		Name: "b"}, APIVersion: o.APIVersion, Spec: newer})
	if err != nil {
		t.Fatal(err)
	}
	l := newObjects(Options{Name: "mcp"}).begin()
	name, input, ok := l.input(r.Type, anyOf(t, r.EncodedAny()))
	if !ok || name != "a/b" || !strings.Contains(string(input.Text),
		`"spec":{"unreadable":"the object has fields`) {
		t.Errorf("%s %v %s", name, ok, input.Text)
	}
}

func anyOf(t testing.TB, encoded []byte) *anypb.Any {
	t.Helper()
	var found anypb.Any
	if err := proto.Unmarshal(encoded, &found); err != nil {
		t.Fatal(err)
	}
	return &found
}
