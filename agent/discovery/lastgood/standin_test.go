package lastgood_test

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/discovery/lastgood"
	"outrider.org/outrider/agent/resource"
)

// standIns are a cluster, of two kinds of proxies, and the endpoints of another.
func standIns(t *testing.T) []lastgood.StandIn {
	t.Helper()
	encode := func(name string, message proto.Message) *resource.Resource {
		r, err := resource.New(name, message, resource.Origin{File: "web.yaml", Line: 3, Kind: "ServiceEntry", Namespace: "shop", Name: "web"})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	cluster := resource.StandIn{Resource: encode("outbound|80||web.test", &clusterv3.Cluster{Name: "outbound|80||web.test"}), Refused: "0123"}
	endpoints := resource.StandIn{Resource: encode("other", &endpointv3.ClusterLoadAssignment{ClusterName: "other"}), Refused: "4567"}
	return []lastgood.StandIn{{StandIn: cluster, View: "router"}, {StandIn: cluster, View: "sidecar\n\"a\"=\"b\""}, {StandIn: endpoints, View: "router"}}
}

// TestAResourceThatIsDamagedIsLeftOut damages one of those that a file holds; most of it could be sent all the same.
func TestAResourceThatIsDamagedIsLeftOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "last-good.json")
	all := standIns(t)[1:]
	if err := lastgood.Write(path, lastgood.State{StandIns: all}); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	cluster := all[0].Resource
	value := base64.StdEncoding.EncodeToString(cluster.Value())
	other := base64.StdEncoding.EncodeToString(bytes.Replace(cluster.Value(), []byte("web"), []byte("wob"), 1))
	for before, after := range map[string]string{
		value: other, cluster.Type: resource.EndpointType, cluster.Name: "outbound|80||wob.test", "0123": "0124", "sidecar": "router", `"sum":`: `"some":`,
	} {
		want := "it is damaged"
		if before == `"sum":` {
			want = "it has no checksum"
		}
		damaged := bytes.Replace(whole, []byte(before), []byte(after), 1)
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if state, wrong := lastgood.Read(path, "default", nothing); len(state.StandIns) != 1 || state.StandIns[0].Name != "other" || len(wrong) != 1 || !strings.Contains(wrong[0].Error(), want) {
			t.Errorf("%s instead of %s: %v, %v", after, before, state.StandIns, wrong)
		}
	}
}

// TestAResourceThatCannotBeSentIsLeftOut has another version of the program write what this one does not take.
func TestAResourceThatCannotBeSentIsLeftOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "last-good.json")
	good := standIns(t)[2]
	secret, err := resource.New("s", &tlsv3.Secret{Name: "s"})
	if err != nil {
		t.Fatal(err)
	}
	for want, r := range map[string]*resource.Resource{
		"its type is not known":          resource.FromEncoded("type.googleapis.com/outrider.test.Unknown", "a", nil),
		"cannot be decoded":              resource.FromEncoded(resource.ClusterType, "a", []byte{10, 1, 0xff}),
		`its name is "other"`:            resource.FromEncoded(resource.EndpointType, "another", good.Value()),
		`its name is ""`:                 resource.FromEncoded(resource.ListenerType, "a", nil),
		"nothing stands in for a secret": secret,
	} {
		bad := lastgood.StandIn{StandIn: resource.StandIn{Resource: r, Refused: "0123"}, View: "router"}
		if err := lastgood.Write(path, lastgood.State{StandIns: []lastgood.StandIn{bad, good}}); err != nil {
			t.Fatal(err)
		}
		state, wrong := lastgood.Read(path, "default", nothing)
		if len(state.StandIns) != 1 || state.StandIns[0].Name != "other" || len(wrong) != 1 || !strings.Contains(wrong[0].Error(), want) {
			t.Errorf("%s: %v, %v", want, state.StandIns, wrong)
		}
	}
}
