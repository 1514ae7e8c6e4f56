package discovery_test

import (
	"fmt"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/resource"
)

// luaFilter returns an EnvoyFilter that adds a Lua filter to the listener of port 8081.
func luaFilter(code string) string {
	return fmt.Sprintf(`---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: lua, namespace: shop}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    match:
      context: SIDECAR_INBOUND
      listener:
        portNumber: 8081
        filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}
    patch:
      operation: INSERT_FIRST
      value:
        name: lua
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
          default_source_code: {inline_string: %s}
`, code)
}

// plain reports whether a listener accepts plain text.
func plain(t *testing.T, r *resource.Resource) bool {
	t.Helper()
	var listener listenerv3.Listener
	if err := proto.Unmarshal(r.EncodedMessage(), &listener); err != nil {
		t.Fatal(err)
	}
	for _, chain := range listener.FilterChains {
		if chain.TransportSocket == nil {
			return true
		}
	}
	return false
}

// identityNode returns the node of a sidecar with an identity.
func identityNode(minor uint32) *corev3.Node {
	n := node("sidecar", "shop", map[string]any{"app": "edge"})
	n.Metadata.Fields["OUTRIDER_IDENTITY"] = textValue("true")
	return withVersion(n, minor)
}

const inboundListener = "127.0.0.1_8081"

// TestRefusal_BadFilterHoldsBackNoPolicy: Envoy refuses a new or changed EnvoyFilter, and in the
// same or a later edit, a PeerAuthentication makes the listener STRICT. Nevertheless mutual TLS is
// in force for the running proxy, for a new epoch, after a reload, and after a restart of the
// agent.
func TestRefusal_BadFilterHoldsBackNoPolicy(t *testing.T) {
	good, bad := luaFilter("good"), luaFilter("bad")
	for name, test := range map[string]struct {
		first, second, third string
		code                 string // code of the Lua filter that is applied; "": no filter
	}{
		"a new one, in one edit":      {"", bad + strict, "", ""},
		"a new one, in two edits":     {"", bad, bad + strict, ""},
		"a changed one, in one edit":  {good, bad + strict, "", "good"},
		"a changed one, in two edits": {good, bad, bad + strict, "good"},
		"another bad one with STRICT": {good, luaFilter("bad first"), bad + strict, "good"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newRuns(t)
			ports := fmt.Sprintf(twoPorts, "HTTP")
			l.put("", "")
			l.put("mesh.yaml", ports+test.first)
			l.next()
			refuses := func(r *resource.Resource) bool {
				return r.Type == resource.ListenerType && strings.Contains(string(r.EncodedMessage()), "bad")
			}
			f := serveFleet(t, l.server)
			p := f.connect(identityNode(40), refuses)
			eventually(t, "the first listener", func() (bool, string) {
				r := p.get(resource.ListenerType, inboundListener)
				return r != nil && plain(t, r), ""
			})
			l.put("mesh.yaml", ports+test.second)
			if test.third != "" {
				l.reported("the bad filter", "EnvoyFilter shop/lua: Envoy refused the Listener")
				l.put("mesh.yaml", ports+test.third)
			}
			strictly := func(what string, p *proxy) {
				t.Helper()
				eventually(t, what, func() (bool, string) {
					r := p.get(resource.ListenerType, inboundListener)
					if r == nil || plain(t, r) {
						return false, fmt.Sprint("plain text; ", l.server.Problems())
					}
					return strings.Contains(string(r.EncodedMessage()), "lua") == (test.code != "") &&
						strings.Contains(string(r.EncodedMessage()), test.code), "another EnvoyFilter"
				})
				l.reported(what, "EnvoyFilter shop/lua: Envoy refused the Listener")
				if why := l.server.ResourcesWithheldReason(); why != "" {
					t.Errorf("%s: not ready: %s", what, why)
				}
			}
			strictly("the running proxy", p)
			before := p.refused()
			fresh := f.connect(identityNode(40), refuses)
			strictly("a new epoch", fresh)
			strictly("a new version of Envoy", f.connect(identityNode(41), refuses))
			if fresh.refused() > 0 {
				t.Errorf("a new epoch gets what was refused")
			}
			must(t, l.server.Reload(l.settings()))
			eventually(t, "it is tried again", func() (bool, string) {
				return p.refused()+fresh.refused() > before, ""
			})
			strictly("after a reload", p)
			l.persists()
			l.next()
			f = serveFleet(t, l.server)
			again := f.connect(identityNode(40), refuses)
			strictly("the next agent", again)
			if again.refused() > 0 {
				t.Error("the next agent sends what was refused")
			}
			l.put("mesh.yaml", ports+luaFilter("corrected")+strict)
			l.reported("corrected")
			eventually(t, "corrected", func() (bool, string) {
				r := again.get(resource.ListenerType, inboundListener)
				return strings.Contains(string(r.EncodedMessage()), "corrected"), ""
			})
		})
	}
}

// TestRefusal_OfAResourceThatIsGone removes a port while no agent runs. Envoy had refused the
// port's listener because of an EnvoyFilter; the next agent must not report that refusal.
func TestRefusal_OfAResourceThatIsGone(t *testing.T) {
	l := newRuns(t)
	l.put("", "")
	l.put("mesh.yaml", fmt.Sprintf(twoPorts, "HTTP"))
	l.put("filter.yaml", "")
	l.next()
	refuses := func(r *resource.Resource) bool {
		return r.Type == resource.ListenerType && strings.Contains(string(r.EncodedMessage()), "bad")
	}
	p := serveFleet(t, l.server).connect(identityNode(40), refuses)
	eventually(t, "the first listener", func() (bool, string) {
		return p.get(resource.ListenerType, inboundListener) != nil, ""
	})
	l.put("filter.yaml", luaFilter("bad"))
	l.reported("the bad filter", "EnvoyFilter shop/lua: Envoy refused the Listener")
	l.persists()
	l.end()
	l.end, l.server = func() {}, nil
	l.put("mesh.yaml", fmt.Sprintf(webEntry, "a", "10.0.0.1"))
	l.put("filter.yaml", "")
	l.next()
	p = serveFleet(t, l.server).connect(identityNode(40), refuses)
	eventually(t, "the cluster", func() (bool, string) {
		return p.get(resource.ClusterType, clusterOfA) != nil, ""
	})
	l.reported("the next agent")
}

// TestRefusal_PolicyNotInForce makes a proxy refuse a listener that becomes STRICT. The server
// reports an error of the policy, and the proxy is not ready.
func TestRefusal_PolicyNotInForce(t *testing.T) {
	l := newRuns(t)
	l.put("", "")
	l.put("mesh.yaml", fmt.Sprintf(twoPorts, "HTTP"))
	l.put("strict.yaml", "# none\n")
	l.next()
	f := serveFleet(t, l.server)
	refuses := func(r *resource.Resource) bool {
		return r.Name == inboundListener && !plain(t, r)
	}
	p := f.connect(identityNode(40), refuses)
	eventually(t, "the first listener", func() (bool, string) {
		return p.get(resource.ListenerType, inboundListener) != nil, ""
	})
	other := f.connect(identityNode(41), func(*resource.Resource) bool { return false })
	eventually(t, "the first listener of the other version", func() (bool, string) {
		return other.get(resource.ListenerType, inboundListener) != nil, ""
	})
	l.put("strict.yaml", strict)
	const problem = "strict.yaml:2: PeerAuthentication shop/default: the policy is not in force: " +
		"Envoy refused the Listener " + inboundListener + " from "
	closed := func(what string) {
		t.Helper()
		eventually(t, what, func() (bool, string) {
			why := l.server.ResourcesWithheldReason()
			return strings.Contains(why, problem) && strings.Contains(why, "mesh.yaml:1 Sidecar"), why
		})
	}
	closed("the policy")
	eventually(t, "the other version is STRICT", func() (bool, string) {
		r := other.get(resource.ListenerType, inboundListener)
		return r != nil && !plain(t, r), ""
	})
	l.persists()
	l.next()
	f = serveFleet(t, l.server)
	p = f.connect(identityNode(40), refuses)
	closed("the next agent")
	if r := p.get(resource.ListenerType, "127.0.0.1_8082"); r != nil && plain(t, r) {
		t.Error("the other listener accepts plain text")
	}
	l.put("strict.yaml", "# none\n")
	eventually(t, "without the policy", func() (bool, string) {
		return l.server.ResourcesWithheldReason() == "", l.server.ResourcesWithheldReason()
	})
}

// TestRefusal_ClosedPortDoesNotStayOpen: an edit makes a port STRICT, which a sidecar without an
// identity can only close, and adds another port, whose listener Envoy refuses. In spite of the
// refusal, the first port is closed.
func TestRefusal_ClosedPortDoesNotStayOpen(t *testing.T) {
	l := newRuns(t)
	l.put("", "")
	one, two, _ := strings.Cut(fmt.Sprintf(twoPorts, "HTTP"), "  - {port: {number: 8082")
	l.put("mesh.yaml", one)
	l.next()
	n := node("sidecar", "shop", map[string]any{"app": "edge"})
	refuses := func(r *resource.Resource) bool { return r.Name == "127.0.0.1_8082" }
	f := serveFleet(t, l.server)
	p := f.connect(n, refuses)
	eventually(t, "the first listener", func() (bool, string) {
		return p.get(resource.ListenerType, inboundListener) != nil, ""
	})
	l.put("mesh.yaml", one+"  - {port: {number: 8082"+two+`---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: closes, namespace: shop}
spec: {selector: {matchLabels: {app: edge}}, mtls: {mode: STRICT}, portLevelMtls: {8082: {mode: DISABLE}}}
`)
	closed := func(what string, p *proxy) {
		t.Helper()
		eventually(t, what, func() (bool, string) {
			return p.get(resource.ClusterType, "inbound|8082||") != nil &&
				p.get(resource.ListenerType, inboundListener) == nil, fmt.Sprint(p.versions())
		})
	}
	l.reported("the refusal", "mesh.yaml:1: Sidecar shop/default: Envoy refused the Listener",
		"port 8081 accepts no connections")
	closed("the running proxy", p)
	closed("a new epoch", f.connect(n, refuses))
}

// TestRefusal_PolicyNotInForceOnMovedPort changes the port of a sidecar in the same edit that makes
// it STRICT. Envoy refuses the listener on the new port, and the listener on the old port still
// accepts plain text. The server, and the next agent's server, report an error of the policy.
func TestRefusal_PolicyNotInForceOnMovedPort(t *testing.T) {
	l := newRuns(t)
	l.put("", "")
	one, _, _ := strings.Cut(fmt.Sprintf(twoPorts, "HTTP"), "  - {port: {number: 8082")
	l.put("mesh.yaml", one)
	l.next()
	const moved = "127.0.0.1_8083"
	refuses := func(r *resource.Resource) bool { return r.Name == moved }
	p := serveFleet(t, l.server).connect(identityNode(40), refuses)
	eventually(t, "the first listener", func() (bool, string) {
		return p.get(resource.ListenerType, inboundListener) != nil, ""
	})
	l.put("mesh.yaml", strings.Replace(one, "8081", "8083", 1)+strict)
	closed := func(what string) {
		t.Helper()
		eventually(t, what, func() (bool, string) {
			why := l.server.ResourcesWithheldReason()
			return strings.Contains(why, "PeerAuthentication shop/default: the policy is not in force: "+
				"Envoy refused the Listener "+moved), why
		})
	}
	closed("the policy")
	l.persists()
	l.next()
	p = serveFleet(t, l.server).connect(identityNode(40), refuses)
	closed("the next agent")
	l.put("mesh.yaml", one+strict)
	eventually(t, "moved back", func() (bool, string) {
		r := p.get(resource.ListenerType, inboundListener)
		return l.server.ResourcesWithheldReason() == "" && r != nil && !plain(t,
			r), l.server.ResourcesWithheldReason()
	})
}
