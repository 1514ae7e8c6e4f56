package render

import (
	"slices"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/bootstrap"
)

// fromServer renders a bootstrap (JSON) that an upstream server sends.
func fromServer(t *testing.T, sent string, override *bootstrap.File) *bootstrapv3.Bootstrap {
	t.Helper()
	message := &bootstrapv3.Bootstrap{}
	if err := protojson.Unmarshal([]byte(sent), message); err != nil {
		t.Fatal(err)
	}
	content, err := proto.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	rendered, err := FromRequest(bootstrap.Request{Input: defaults(), Upstream: content,
		Override: override})
	if err != nil {
		t.Fatal(err)
	}
	got := &bootstrapv3.Bootstrap{}
	if err := protojson.Unmarshal(rendered.Text, got); err != nil {
		t.Fatal(err)
	}
	if rendered.AdminAddress != "" {
		t.Errorf("all epochs share the admin interface %s", rendered.AdminAddress)
	}
	return got
}

func TestUpstream_OwnPartsReplaceThoseOfTheServer(t *testing.T) {
	got := fromServer(t, `{
		"admin": {"address": {"socket_address": {"address": "0.0.0.0", "port_value": 15000}}},
		"node": {"id": "theirs"}, "layered_runtime": {"layers": [{"name": "theirs", "admin_layer": {}}]},
		"static_resources": {
			"secrets": [{"name": "theirs"}],
			"clusters": [{"name": "xds-grpc", "connect_timeout": "77s"}, {"name": "theirs"}],
			"listeners": [
				{"address": {"socket_address": {"address": "0.0.0.0", "port_value": 15021}}},
				{"name": "outrider_prometheus"}, {"address": {"pipe": {"path": "/theirs"}}}]}}`,
		&bootstrap.File{Path: "o.yaml", Content: []byte("static_resources: {clusters: [{name: mine}]}")})
	own, err := buildBootstrap(func() bootstrap.Input {
		in := defaults()
		in.AdminSocket = bootstrap.AdminSocketPlaceholder
		return in
	}())
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got.Node, own.Node) || !proto.Equal(got.Admin, own.Admin) ||
		!proto.Equal(got.DynamicResources, own.DynamicResources) {
		t.Errorf("got %v", got)
	}
	if len(got.LayeredRuntime.Layers) != 1 || got.LayeredRuntime.Layers[0].Name != "theirs" {
		t.Errorf("got %v", got)
	}
	var names []string
	for _, c := range got.StaticResources.Clusters {
		names = append(names, c.Name)
		if c.ConnectTimeout.AsDuration().Seconds() == 77 {
			t.Errorf("the server's cluster %s is in use", c.Name)
		}
	}
	for _, want := range []string{"xds-grpc", "sds-grpc", "theirs", "mine"} {
		if !slices.Contains(names, want) {
			t.Errorf("clusters %q", names)
		}
	}
	if n := len(got.StaticResources.Listeners); n != len(own.StaticResources.Listeners)+1 ||
		len(got.StaticResources.Secrets) != 1 {
		t.Errorf("%d listeners: %v", n, got.StaticResources)
	}
}

func TestUpstream_UnknownFieldsAreRefused(t *testing.T) {
	for what, content := range map[string][]byte{
		"unknown field": {0xfa, 0x3f, 1, 'x'}, "cannot parse": []byte("not a message")} {
		_, err := FromRequest(bootstrap.Request{Input: defaults(), Upstream: content})
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
