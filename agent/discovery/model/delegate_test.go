package model

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"
	networking "istio.io/api/networking/v1alpha3"
)

// TestMergeMatches merges a root's matches with a delegate's. merged is "" if they contradict each
// other.
func TestMergeMatches(t *testing.T) {
	for _, test := range []struct{ root, delegate, merged string }{
		{``, `{"port":1}`, `{"port":1}`},
		{`{"port":1}`, ``, `{"port":1}`},
		{`{"uri":{"prefix":"/a"}}`, `{"uri":{"exact":"/a/b"}}`, `{"uri":{"exact":"/a/b"}}`},
		{`{"uri":{"prefix":"/a"}}`, `{"uri":{"prefix":"/b"}}`, ``},
		{`{"uri":{"exact":"/a"}}`, `{"uri":{"exact":"/a"}}`, `{"uri":{"exact":"/a"}}`},
		{`{"uri":{"exact":"/a"}}`, `{"uri":{"prefix":"/a"}}`, ``},
		{`{"uri":{"regex":"/a.*"}}`, `{"uri":{"prefix":"/a"}}`, ``},
		{`{"uri":{"regex":"/a.*"}}`, `{"port":1}`, `{"uri":{"regex":"/a.*"},"port":1}`},
		{`{"uri":{"prefix":"/a"}} {"uri":{"prefix":"/b"}}`, `{"uri":{"prefix":"/b/c"}}`,
			`{"uri":{"prefix":"/b/c"}}`},
		{`{"port":1} {"port":2}`, `{"method":{"exact":"GET"}}`,
			`{"method":{"exact":"GET"},"port":1} {"method":{"exact":"GET"},"port":2}`},
		{`{"port":1}`, `{"port":1} {"port":2}`, ``},
		{`{"headers":{"a":{"exact":"1"}}}`, `{"headers":{"b":{"exact":"2"}}}`,
			`{"headers":{"a":{"exact":"1"},"b":{"exact":"2"}}}`},
		{`{"headers":{"a":{"prefix":"1"}}}`, `{"headers":{"a":{"exact":"12"}}}`,
			`{"headers":{"a":{"exact":"12"}}}`},
		{`{"headers":{"a":{"exact":"1"}}}`, `{"headers":{"a":{"exact":"2"}}}`, ``},
		{`{"sourceLabels":{"a":"1"}}`, `{"sourceLabels":{"a":"2"}}`, ``},
		{`{"sourceNamespace":"x"}`, `{"port":1}`, ``},
		{`{"ignoreUriCase":true}`, `{"port":1}`, ``},
		{`{"gateways":["gw","mesh"]}`, `{"gateways":["mesh"]}`, `{"gateways":["mesh"]}`},
		{`{"gateways":["gw"]}`, `{"gateways":["root/gw"]}`, `{"gateways":["root/gw"]}`},
		{`{"gateways":["gw"]}`, `{"gateways":["gw"]}`, ``},
		{`{"name":"a","statPrefix":"s"}`, `{"name":"b"}`, `{"name":"a-b","statPrefix":"s"}`},
	} {
		got, ok := mergeMatches(withGateways(parseMatches(t, test.root), "root"),
			parseMatches(t, test.delegate), "other", mostMerged)
		if diff := cmp.Diff(parseMatches(t, test.merged), got, protocmp.Transform()); diff != "" ||
			ok != (test.merged != "") {
			t.Errorf("%s with %s: %v (-want +got):\n%s", test.root, test.delegate, ok, diff)
		}
	}
}

func parseMatches(t *testing.T, text string) []*networking.HTTPMatchRequest {
	t.Helper()
	var out []*networking.HTTPMatchRequest
	for _, one := range strings.Fields(text) {
		m := &networking.HTTPMatchRequest{}
		if err := protojson.Unmarshal([]byte(one), m); err != nil {
			t.Fatal(err)
		}
		out = append(out, m)
	}
	return out
}
