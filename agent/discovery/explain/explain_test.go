package explain

import (
	"net/netip"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"outrider.org/outrider/agent/resource"
)

func TestVirtualHostsByPrecedence(t *testing.T) {
	routes := &routev3.RouteConfiguration{IgnorePortInHostMatching: true}
	for _, domain := range []string{"*", "a.*", "a.test", "*.test", "*.b.test", "a.b.*", "[::1]"} {
		routes.VirtualHosts = append(routes.VirtualHosts, &routev3.VirtualHost{Name: domain,
			Domains: []string{domain}})
	}
	for authority, want := range map[string]string{
		"a.test": "a.test", "A.Test:8080": "a.test", "x.test": "*.test", "x.b.test": "*.b.test",
		"b.test": "*.test", ".b.test": "*.test",
		"a.b.c": "a.b.*", "a.other": "a.*", "other": "*", "[::1]:80": "[::1]", "[::1]": "[::1]",
	} {
		if _, got := findHost(routes, authority); got != want {
			t.Errorf("%s: %s, want %s", authority, got, want)
		}
	}
	if host, _ := findHost(&routev3.RouteConfiguration{VirtualHosts: routes.VirtualHosts[2:3]},
		"a.test:80"); host != nil {
		t.Error("a port counts where it is not ignored")
	}
}

func TestRouteMatches(t *testing.T) {
	asked := Request{Method: "GET", Host: "a.test", Port: 80,
		Path: "/v1/items?debug=1&debug=2&empty=", Headers: []Header{{Name: "X-User", Value: "jason"},
			{Name: "x-many", Value: "a"}, {Name: "x-many", Value: "b"},
			{Name: "x-number", Value: "7"}}}
	for _, test := range []struct {
		match string
		want  bool
	}{
		{`{"path": "/v1/items"}`, true},
		{`{"path": "/V1/items"}`, false},
		{`{"path": "/V1/items", "case_sensitive": false}`, true},
		{`{"prefix": "/v1/it"}`, true},
		{`{"path_separated_prefix": "/v1/it"}`, false},
		{`{"path_separated_prefix": "/v1"}`, true},
		{`{"path_separated_prefix": "/v1/items"}`, true},
		{`{"safe_regex": {"regex": "/v[0-9]/items"}}`, true},
		{`{"safe_regex": {"regex": "/v[0-9]"}}`, false},
		{`{"connect_matcher": {}}`, false},
		{`{"prefix": "/", "headers": [{"name": "x-user", "string_match": {"exact": "jason"}}]}`,
			true},
		{`{"prefix": "/", "headers": [{"name": "x-user", "string_match": {"exact": "JASON"}}]}`,
			false},
		{
			`{"prefix": "/", "headers": [{"name": "x-user", "string_match": {"exact": "JASON", "ignore_case": true}}]}`,
			true},
		{
			`{"prefix": "/", "headers": [{"name": "x-user", "string_match": {"suffix": "son"}, "invert_match": true}]}`,
			false},
		{
			`{"prefix": "/", "headers": [{"name": "x-none", "string_match": {"exact": "a"}, "invert_match": true}]}`,
			false},
		{
			`{"prefix": "/", "headers": [{"name": "x-none", "string_match": {"exact": "a"}, "invert_match": true, "treat_missing_header_as_empty": true}]}`,
			true},
		{
			`{"prefix": "/", "headers": [{"name": "x-none", "present_match": true, "invert_match": true}]}`,
			true},
		{`{"prefix": "/", "headers": [{"name": "x-user", "present_match": false}]}`, false},
		{`{"prefix": "/", "headers": [{"name": "x-many", "string_match": {"exact": "a,b"}}]}`,
			true},
		{
			`{"prefix": "/", "headers": [{"name": "x-number", "range_match": {"start": 5, "end": 7}}]}`,
			false},
		{
			`{"prefix": "/", "headers": [{"name": "x-number", "range_match": {"start": 7, "end": 8}}]}`,
			true},
		{
			`{"prefix": "/", "headers": [{"name": ":authority", "string_match": {"contains": "a.te"}}]}`,
			true},
		{`{"prefix": "/", "headers": [{"name": ":scheme", "string_match": {"exact": "https"}}]}`,
			false},
		{`{"prefix": "/", "query_parameters": [{"name": "debug", "string_match": {"exact": "1"}}]}`,
			true},
		{`{"prefix": "/", "query_parameters": [{"name": "debug", "string_match": {"exact": "2"}}]}`,
			false},
		{`{"prefix": "/", "query_parameters": [{"name": "empty", "present_match": true}]}`, true},
		{`{"prefix": "/", "query_parameters": [{"name": "none"}]}`, false},
		{`{"prefix": "/", "grpc": {}}`, false},
		{`{"prefix": "/", "runtime_fraction": {"default_value": {"numerator": 0}}}`, false},
		{`{"prefix": "/", "runtime_fraction": {"default_value": {"numerator": 100}}}`, true},
	} {
		match := &routev3.RouteMatch{}
		if err := protojson.Unmarshal([]byte(test.match), match); err != nil {
			t.Fatalf("%s: %v", test.match, err)
		}
		e := &explanation{request: asked}
		if got := e.match(match); got.certain() != test.want || len(got.open) > 0 {
			t.Errorf("%s: %v", test.match, got)
		}
	}
	half := &routev3.RouteMatch{}
	if err := protojson.Unmarshal(
		[]byte(`{"prefix": "/", "runtime_fraction": {"default_value": {"numerator": 50}}}`),
		half); err != nil {
		t.Fatal(err)
	}
	if got := (&explanation{request: asked}).match(half); got.certain() || !got.holds ||
		len(got.open) != 1 {
		t.Errorf("a share of the requests: %v", got)
	}
}

func TestFilterChainsByPrecedence(t *testing.T) {
	var chains []*listenerv3.FilterChain
	add := func(name string, match *listenerv3.FilterChainMatch) {
		chains = append(chains, &listenerv3.FilterChain{Name: name, FilterChainMatch: match})
	}
	add("all", nil)
	add("port", &listenerv3.FilterChainMatch{DestinationPort: wrapperspb.UInt32(15006)})
	add("block", &listenerv3.FilterChainMatch{PrefixRanges: []*corev3.CidrRange{
		{AddressPrefix: "10.0.0.0", PrefixLen: wrapperspb.UInt32(8)}}})
	add("smaller block", &listenerv3.FilterChainMatch{PrefixRanges: []*corev3.CidrRange{
		{AddressPrefix: "10.1.0.0", PrefixLen: wrapperspb.UInt32(16)}}})
	add("name", &listenerv3.FilterChainMatch{ServerNames: []string{"a.b.test"}})
	add("wildcard", &listenerv3.FilterChainMatch{ServerNames: []string{"*.test"}})
	add("longer wildcard", &listenerv3.FilterChainMatch{ServerNames: []string{"*.b.test"}})
	add("tls", &listenerv3.FilterChainMatch{TransportProtocol: "tls"})
	add("http", &listenerv3.FilterChainMatch{ApplicationProtocols: []string{"http/1.1"}})
	for want, c := range map[string]connection{
		"all": {transport: "raw_buffer"},
		"port": {transport: "raw_buffer", port: 15006,
			address: netip.MustParseAddr("10.1.0.1")},
		"block":           {transport: "raw_buffer", address: netip.MustParseAddr("10.2.0.1")},
		"smaller block":   {transport: "raw_buffer", address: netip.MustParseAddr("10.1.0.1")},
		"name":            {transport: "tls", name: "a.b.test"},
		"longer wildcard": {transport: "tls", name: "x.b.test"},
		"wildcard":        {transport: "tls", name: "b.test"},
		"tls":             {transport: "tls", name: "other", protocols: []string{"h2", "http/1.1"}},
		"http":            {transport: "raw_buffer", protocols: []string{"http/1.1"}},
	} {
		if got := chooseChain(chains, c); got.GetName() != want {
			t.Errorf("%+v: %s, want %s", c, got.GetName(), want)
		}
	}
	if got := chooseChain(chains[4:5], connection{transport: "raw_buffer"}); got != nil {
		t.Errorf("%s takes a connection without a server name", got.Name)
	}
}

func TestNormalizedPaths(t *testing.T) {
	for _, test := range []struct{ path, plain, merged string }{
		{"/a/../b?x=/../", "/b?x=/../", "/b?x=/../"},
		{"/a//b", "/a//b", "/a/b"},
		{"/a/%2e%2E/b/.", "/b/", "/b/"},
		{"/../a", "/a", "/a"},
		{"/.hidden", "/.hidden", "/.hidden"},
		{`/a\b%2Fc`, "/a/b%2Fc", "/a/b%2Fc"},
	} {
		m := &hcmv3.HttpConnectionManager{}
		if got := normalized(m, test.path); got != test.path {
			t.Errorf("%s without normalization: %s", test.path, got)
		}
		m.NormalizePath = wrapperspb.Bool(true)
		if got := normalized(m, test.path); got != test.plain {
			t.Errorf("%s: %s", test.path, got)
		}
		m.MergeSlashes = true
		if got := normalized(m, test.path); got != test.merged {
			t.Errorf("%s merged: %s", test.path, got)
		}
	}
}

func TestRedirects(t *testing.T) {
	match := &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/old"}}
	request := Request{Path: "/old/x?q=1"}
	for want, redirect := range map[string]*routev3.RedirectAction{
		"http://b.test/old/x?q=1":      {HostRedirect: "b.test"},
		"http://a.test:8443/old/x?q=1": {PortRedirect: 8443},
		"http://a.test:8080/new?q=1": {PathRewriteSpecifier: &routev3.RedirectAction_PathRedirect{
			PathRedirect: "/new"}},
		"http://a.test:8080/new?z=2": {PathRewriteSpecifier: &routev3.RedirectAction_PathRedirect{
			PathRedirect: "/new?z=2"}},
		"http://a.test:8080/new/x?q=1": {PathRewriteSpecifier: &routev3.RedirectAction_PrefixRewrite{PrefixRewrite: "/new"}},
		"https://a.test:8080/old/x": {StripQuery: true,
			SchemeRewriteSpecifier: &routev3.RedirectAction_HttpsRedirect{HttpsRedirect: true}},
		"http://a.test:8080/x-old?q=1": {PathRewriteSpecifier: &routev3.RedirectAction_RegexRewrite{
			RegexRewrite: &matcherv3.RegexMatchAndSubstitute{Pattern: &matcherv3.RegexMatcher{
				Regex: "^/(old)/(x)"}, Substitution: `/\2-\1`}}},
		"ftp://a.test:8080/old/x?q=1": {SchemeRewriteSpecifier: &routev3.RedirectAction_SchemeRedirect{SchemeRedirect: "ftp"}},
		"https://b.test:444/old/x?q=1": {HostRedirect: "b.test", PortRedirect: 444,
			SchemeRewriteSpecifier: &routev3.RedirectAction_HttpsRedirect{HttpsRedirect: true}},
	} {
		if got := location(redirect, match, request, "a.test:8080"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestSteps explains one request, and checks the steps and their origins.
func TestSteps(t *testing.T) {
	from := func(name string) resource.Origin {
		return resource.Origin{File: name + ".yaml", Line: 1, Kind: "ServiceEntry",
			Namespace: "shop", Name: name}
	}
	feed := resource.NewFeed()
	proxy := Proxy{Resources: feed.Publish(resource.Change{})}
	request := Request{Host: "a.test", Port: 80}
	if got := Explain(proxy, request); got.Outcome != OutcomeConnectionRefused || got.Reason == "" ||
		got.Fix == "" {
		t.Errorf("without a listener: %+v", got)
	}
	listener, err := resource.New("127.0.0.1_80", &listenerv3.Listener{Name: "127.0.0.1_80",
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{
			SocketAddress: &corev3.SocketAddress{Address: "127.0.0.1",
				PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 80}}}}}, from("listener"))
	if err != nil {
		t.Fatal(err)
	}
	proxy.Resources = feed.Publish(resource.Change{Set: []*resource.Resource{listener}})
	proxy.RefusalReason = func(key resource.Key) string {
		if key.Name == "127.0.0.1_80" {
			return "no such filter"
		}
		return ""
	}
	got := Explain(proxy, request)
	want := []Step{{Kind: "listener", Name: "127.0.0.1_80",
		Origins: []resource.Origin{from("listener")},
		Facts:   []string{"listens on 127.0.0.1:80", "Envoy refused this: no such filter"}}}
	if diff := cmp.Diff(want, got.Steps); diff != "" || got.Outcome != OutcomeConnectionClosed ||
		len(got.UnknownFacts) != 1 {
		t.Errorf("%s: %s", got.Outcome, diff)
	}
}
