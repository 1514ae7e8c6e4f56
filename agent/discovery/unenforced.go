package discovery

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// restrictions has the kinds of objects that restrict access, and reports of each whether a version
// of a resource admits what a newer one would not, because of such objects.
var restrictions = []struct {
	kind   object.Kind
	admits func(accepted, newest *resource.Resource) bool
}{
	{object.PeerAuthentication, admitsWithoutMutualTLS},
}

// notEnforced begins the messages of policies that are not in force.
const notEnforced = "the policy is not in force: "

// unenforced returns the problem of a policy that is not in force because a client refused a
// resource; ok is false if there is none.
func (s *Server) unenforced(of *resource.Refused) (p Problem, ok bool) {
	newest := of.Resource
	if of.Accepted == nil && !of.Held || newest.Type != resource.ListenerType {
		return Problem{}, false
	}
	for _, restriction := range restrictions {
		isPolicy := func(o resource.Origin) bool { return o.Kind == string(restriction.kind) }
		at := slices.IndexFunc(newest.Origins, isPolicy)
		// of what a client has from before the server's start only the version may be known
		if at < 0 && (of.Accepted == nil || !s.mutualChanged) ||
			of.Accepted != nil && !restriction.admits(of.Accepted, newest) {
			continue
		}
		message := fmt.Sprintf("%sEnvoy refused the %s", notEnforced, described(newest))
		for _, o := range newest.Origins {
			if !isPolicy(o) {
				message += " from " + o.String()
				break
			}
		}
		message += ", and continues with its former version: " + of.Reason
		fix := "correct what Envoy refused"
		if at < 0 { // a setting of MeshConfig
			return Problem{File: s.settings.MeshConfigFile, Line: 1, Severity: condition.Error,
				Message: message, Fix: fix}, true
		}
		return object.ProblemAt(newest.Origins[at], condition.Error, message, fix), true
	}
	return Problem{}, false
}

// notInForce returns why the proxies are not ready: a policy is not in force; nil if all are.
func notInForce(refused []Problem) *string {
	slices.SortFunc(refused, Problem.Compare)
	for _, p := range refused {
		if strings.HasPrefix(p.Message, notEnforced) {
			why := p.String()
			return &why
		}
	}
	return nil
}

// admitsWithoutMutualTLS reports whether a listener has a filter chain with a transport socket, or
// without one, that a newer version has not for the same destination port.
func admitsWithoutMutualTLS(accepted, newest *resource.Resource) bool {
	before, after := transports(accepted), transports(newest)
	return slices.ContainsFunc(before, func(t transport) bool {
		return !slices.ContainsFunc(after, func(u transport) bool {
			return u.port == t.port && bytes.Equal(u.socket, t.socket)
		}) && slices.ContainsFunc(after, func(u transport) bool { return u.port == t.port })
	})
}

// transport is how a filter chain receives connections.
type transport struct {
	port   uint32 // destination; 0: any
	socket []byte // encoded transport socket; nil: plain text
}

func transports(r *resource.Resource) (all []transport) {
	var listener listenerv3.Listener
	if proto.Unmarshal(r.Value(), &listener) != nil {
		return nil
	}
	chains := listener.GetFilterChains()
	if listener.GetDefaultFilterChain() != nil {
		chains = append(chains, listener.GetDefaultFilterChain())
	}
	for _, chain := range chains {
		t := transport{port: chain.GetFilterChainMatch().GetDestinationPort().GetValue()}
		if socket := chain.GetTransportSocket(); socket != nil {
			t.socket = append([]byte{1}, socket.GetTypedConfig().GetValue()...)
		}
		all = append(all, t)
	}
	return all
}
