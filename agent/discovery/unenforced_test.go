package discovery

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

func TestAdmitsWithoutMutualTLS(t *testing.T) {
	type chain struct {
		port      uint32
		transport string // transport of the listener: "plain", "mutual" or "closed"
	}
	listener := func(chains []chain) *resource.Resource {
		l := &listenerv3.Listener{Name: "a"}
		for _, c := range chains {
			proxy := &tcpv3.TcpProxy{StatPrefix: "a",
				ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: "a"}}
			out := &listenerv3.FilterChain{FilterChainMatch: &listenerv3.FilterChainMatch{}}
			if c.port > 0 {
				out.FilterChainMatch.DestinationPort = wrapperspb.UInt32(c.port)
			}
			switch c.transport {
			case "mutual":
				out.TransportSocket = &corev3.TransportSocket{Name: "tls",
					ConfigType: &corev3.TransportSocket_TypedConfig{
						TypedConfig: &anypb.Any{TypeUrl: "type", Value: []byte("tls")}}}
			case "closed":
				proxy.ClusterSpecifier = &tcpv3.TcpProxy_Cluster{Cluster: translate.BlackHoleCluster}
			}
			config, err := anypb.New(proxy)
			if err != nil {
				t.Fatal(err)
			}
			out.Filters = []*listenerv3.Filter{{Name: "tcp",
				ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: config}}}
			l.FilterChains = append(l.FilterChains, out)
		}
		r, err := resource.New("a", l)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	permissive := []chain{{8080, "plain"}, {8080, "mutual"}, {0, "plain"}}
	for name, test := range map[string]struct {
		before, after []chain
		want          bool
	}{
		"the same":                       {permissive, permissive, false},
		"STRICT":                         {permissive, []chain{{8080, "mutual"}, {0, "plain"}}, true},
		"STRICT without an identity":     {permissive, []chain{{8080, "closed"}, {0, "plain"}}, true},
		"closed before":                  {[]chain{{8080, "closed"}}, []chain{{8080, "mutual"}}, false},
		"STRICT of other ports":          {permissive, append(permissive[:2:2], chain{0, "mutual"}), true},
		"STRICT of a port without chain": {permissive, append(permissive, chain{9090, "mutual"}), true},
		"closed port without chain":      {permissive, append(permissive, chain{9090, "closed"}), true},
		"another port, permissive":       {permissive, append(permissive, chain{9090, "plain"}), false},
		"PERMISSIVE":                     {[]chain{{8080, "mutual"}}, permissive[:2], false},
		"a port leaves":                  {permissive, []chain{{0, "plain"}}, false},
	} {
		if got := admitsWithoutMutualTLS(listener(test.before), listener(test.after)); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
