package discovery

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// restrictions groups, by mechanism, the kinds of objects that restrict access, the most likely
// kind first. admits reports whether the accepted version of a resource admits something that the
// newest version denies because of objects of these kinds.
var restrictions = []struct {
	kinds  []object.Kind
	admits func(accepted, newest *resource.Resource) bool
}{
	{[]object.Kind{object.PeerAuthentication}, admitsWithoutMutualTLS},
	{[]object.Kind{object.RequestAuthentication}, admitsWithoutTokens},
	// an invalid object of any of these kinds is replaced by an AuthorizationPolicy that denies
	// access
	{[]object.Kind{object.AuthorizationPolicy, object.RequestAuthentication,
		object.PeerAuthentication}, admitsWithoutGuards},
	{[]object.Kind{object.WasmPlugin, object.TrafficExtension}, admitsWithoutExtensions},
}

// notEnforced is the prefix of messages about policies that are not in force.
const notEnforced = "the policy is not in force: "

// unenforced returns the problem that a policy is not in force because a client refused a resource;
// ok is false if there is none. The refusal is in snapshot.
func (s *Server) unenforced(snapshot *resource.Snapshot,
	of *resource.RefusedVersion) (p Problem, ok bool) {
	newest := of.Resource
	var inUse []*resource.Resource
	if of.InUse() != nil {
		inUse = append(inUse, of.InUse())
	}
	for _, key := range of.RetainedListeners {
		if snapshot.IsRetained(key) {
			inUse = append(inUse, snapshot.Get(key))
		}
	}
	if of.LastAccepted == nil && len(inUse) == 0 || newest.Type != resource.ListenerType {
		return Problem{}, false
	}
	for _, restriction := range restrictions {
		at := s.likeliestPolicy(of, restriction.kinds)
		// if the client received the resource from the previous server, only its version may be
		// known: inUse is empty
		admits := slices.ContainsFunc(inUse, func(r *resource.Resource) bool {
			return restriction.admits(r, newest)
		})
		if at == nil && (len(inUse) == 0 || !s.mutualChanged) || len(inUse) > 0 && !admits {
			continue
		}
		message := fmt.Sprintf("%sEnvoy refused the %s", notEnforced, described(newest))
		for _, o := range newest.Origins {
			if !object.Kind(o.Kind).CanRestrictAccess() {
				message += " from " + o.String()
				break
			}
		}
		message += ", and continues with its former version: " + of.Reason
		fix := "correct what Envoy refused"
		if at == nil { // the cause is a setting of MeshConfig
			return Problem{File: s.settings.MeshConfigFile, Line: 1, Severity: condition.Error,
				Message: message, Fix: fix}, true
		}
		return object.ProblemAt(*at, condition.Error, message, fix), true
	}
	return Problem{}, false
}

// likeliestPolicy returns the policy, of the given kinds, that is most likely not in force: one
// that changed since the last accepted version, else the first one of the first kind. It returns
// nil if no such policy is an origin of the refused resource. Callers hold mu.
func (s *Server) likeliestPolicy(of *resource.RefusedVersion, kinds []object.Kind) (at *resource.Origin) {
	for _, kind := range kinds {
		for i := range of.Resource.Origins {
			o := &of.Resource.Origins[i]
			if o.Kind != string(kind) || !s.restricts(*o) {
				continue
			}
			if changed, _ := s.changedSince(*o, of); changed {
				return o
			}
			if at == nil {
				at = o
			}
		}
	}
	return at
}

// restricts reports whether the object of an origin restricts access. Extensions do in some phases
// only. Callers hold mu.
func (s *Server) restricts(o resource.Origin) bool {
	of := s.config.world.Extension(object.Key{Kind: object.Kind(o.Kind), Namespace: o.Namespace,
		Name: o.Name})
	return of == nil || of.RestrictsAccess()
}

// admitsWithoutExtensions reports whether the accepted version of a listener lacks an extension
// that the newest version has.
func admitsWithoutExtensions(accepted, newest *resource.Resource) bool {
	before := extensionNames(accepted)
	return slices.ContainsFunc(extensionNames(newest), func(name string) bool {
		return !slices.Contains(before, name)
	})
}

// extensionNames returns the names of the extensions in all filter chains of a listener.
func extensionNames(r *resource.Resource) (names []string) {
	for _, chain := range filterChains(r) {
		eachFilter(chain, func(name string, _ *anypb.Any) {
			if strings.HasPrefix(name, model.ExtensionNamePrefix) {
				names = append(names, name)
			}
		})
	}
	return names
}

// notInForce returns a reason for not being ready: a policy is not in force. It returns nil if all
// are.
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

// admitsWithoutMutualTLS reports whether the accepted version of a listener admits connections to a
// port that the newest version refuses: in plain text, or with another transport socket.
func admitsWithoutMutualTLS(accepted, newest *resource.Resource) bool {
	before, after := transports(accepted), transports(newest)
	for port, now := range after {
		sockets, own := before[port]
		if !own { // the filter chains for all other ports apply
			sockets = before[0]
		}
		for socket := range sockets {
			if !now[socket] && (own || socket == "") {
				return true
			}
		}
	}
	return false
}

// transports returns, by destination port (0: any), the encoded transport sockets of a listener's
// filter chains ("": plain text). A closed port has none.
func transports(r *resource.Resource) map[uint32]map[string]bool {
	all := map[uint32]map[string]bool{}
	for _, chain := range filterChains(r) {
		port := chain.GetFilterChainMatch().GetDestinationPort().GetValue()
		if all[port] == nil {
			all[port] = map[string]bool{}
		}
		if !closes(chain) {
			all[port][string(chain.GetTransportSocket().GetTypedConfig().GetValue())] = true
		}
	}
	return all
}

// filterChains returns all filter chains of a listener.
func filterChains(r *resource.Resource) []*listenerv3.FilterChain {
	var listener listenerv3.Listener
	if proto.Unmarshal(r.EncodedMessage(), &listener) != nil {
		return nil
	}
	chains := listener.GetFilterChains()
	if listener.GetDefaultFilterChain() != nil {
		chains = append(chains, listener.GetDefaultFilterChain())
	}
	return chains
}

// closes reports whether a filter chain closes every connection.
func closes(chain *listenerv3.FilterChain) bool {
	return slices.ContainsFunc(chain.GetFilters(), func(f *listenerv3.Filter) bool {
		return bytes.Contains(f.GetTypedConfig().GetValue(), []byte(translate.BlackHoleCluster))
	})
}
