// Package explain determines how an Envoy with given resources handles a request, and which
// configuration objects cause that. It selects listener, filter chain, virtual host, route and
// cluster as Envoy does.
package explain

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"outrider.org/outrider/agent/discovery/explain/answer"
	"outrider.org/outrider/agent/resource"
)

type (
	// Request is the request to be explained.
	Request = answer.Request
	// Header is a header of the request.
	Header = answer.Header
	// Answer says what happens to a request, and why.
	Answer = answer.Answer
	// Outcome says what happens to a request.
	Outcome = answer.Outcome
	// WeightedCluster is a cluster that receives requests.
	WeightedCluster = answer.WeightedCluster
	// Step is one decision in the handling of a request.
	Step = answer.Step
)

// Possible outcomes of a request.
const (
	OutcomeForwarded         = answer.OutcomeForwarded
	OutcomeRedirect          = answer.OutcomeRedirect
	OutcomeLocalReply        = answer.OutcomeLocalReply
	OutcomeConnectionRefused = answer.OutcomeConnectionRefused
	OutcomeConnectionClosed  = answer.OutcomeConnectionClosed
)

// Proxy holds the resources of an Envoy and the properties of its host.
type Proxy struct {
	Resources *resource.Snapshot
	// IsGateway means that the proxy is a gateway. Its listeners are neither inbound nor outbound.
	IsGateway    bool
	Captured     bool         // connections of the host are captured
	OwnAddresses []netip.Addr // addresses of the host; captured connections to them are inbound

	// VirtualHostOrigins returns the origins of a virtual host, the most important one first; nil
	// if they are the same as those of the route configuration. The function may be nil.
	VirtualHostOrigins func(routes, domain string) []resource.Origin
	// FilterOrigins returns the EnvoyFilters that added or changed a filter of a listener. The
	// function may be nil.
	FilterOrigins func(listener, filter string) []resource.Origin
	// RefusalReason returns why Envoy refused a resource, "" if it did not. The function may be
	// nil.
	RefusalReason func(resource.Key) string
	// ClusterStats has statistics of the running Envoy, by cluster; nil if unknown.
	ClusterStats map[string]ClusterStats
	// SPIFFEID is the SPIFFE ID of the proxy's certificate; "" if unknown.
	SPIFFEID string
	// PeerMutualTLS returns the mode of mutual TLS of an endpoint of a cluster. The function may be
	// nil.
	PeerMutualTLS func(cluster, endpoint string) PeerMutualTLS
	// NonSelectingGateway describes a Gateway with a server on the request's port that does not
	// select this proxy; "" if there is none. NonSelectingGatewayFix is the fix.
	NonSelectingGateway, NonSelectingGatewayFix string
}

// EnvoyState holds the facts about a proxy that only a running agent knows.
type EnvoyState struct {
	ClusterStats map[string]ClusterStats // statistics of the running Envoy; see Proxy.ClusterStats
	SPIFFEID     string
}

// explanation holds the state of one call of Explain.
type explanation struct {
	proxy   Proxy
	request Request
	answer  Answer

	hcm        *hcmv3.HttpConnectionManager // HTTP connection manager; nil before it is reached
	terminated bool                         // the filter chain terminates TLS
	// the routes match hosts with their ports, as in an HTTP proxy
	withPorts bool
	// destination address of the connection; zero if unknown
	destination netip.Addr
	metadata    map[string]map[string]any // metadata that filters have set, by the filter's name
	foreign     bool                      // the request passes a filter with unknown effect
	missing     map[string]bool           // facts on which the last evaluated policies depend
	// policy that decides whether an external authorizer is called
	custom effective
}

// Explain returns how a proxy handles a request.
func Explain(proxy Proxy, request Request) Answer {
	if request.Method == "" {
		request.Method = http.MethodGet
	}
	if request.Path == "" {
		request.Path = "/"
	}
	request.TLS = request.TLS || request.ClientSPIFFEID != ""
	e := &explanation{proxy: proxy, request: request, answer: Answer{Steps: []Step{}}}
	e.connect()
	return e.answer
}

func (e *explanation) step(what, name string, origins []resource.Origin, facts ...string) {
	e.answer.Steps = append(e.answer.Steps, Step{Kind: what, Name: name, Facts: facts,
		Origins: origins})
}

// unknown records a fact that could change the answer, unless it is recorded already.
func (e *explanation) unknown(format string, arguments ...any) {
	text := fmt.Sprintf(format, arguments...)
	for _, known := range e.answer.UnknownFacts {
		if known == text {
			return
		}
	}
	e.answer.UnknownFacts = append(e.answer.UnknownFacts, text)
}

func (e *explanation) end(outcome Outcome, status int, reason, fix string) {
	e.answer.Outcome, e.answer.Status, e.answer.Reason, e.answer.Fix =
		outcome, status, reason, fix
}

// refusal returns a sentence for a step of the explanation if Envoy refused the resource. The step
// describes the refused version, which Envoy does not use.
func (e *explanation) refusal(key resource.Key) []string {
	if e.proxy.RefusalReason == nil {
		return nil
	}
	if why := e.proxy.RefusalReason(key); why != "" {
		e.unknown("what Envoy has in place of %s, which it refused: what was before, or nothing",
			key.Name)
		return []string{"Envoy refused this: " + why}
	}
	return nil
}

// authority returns the value of the request's :authority.
func (e *explanation) authority() string {
	if e.request.Authority != "" {
		return e.request.Authority
	}
	for _, h := range e.request.Headers {
		if strings.EqualFold(h.Name, "host") || h.Name == ":authority" {
			return h.Value
		}
	}
	usual := uint32(80)
	if e.request.TLS {
		usual = 443
	}
	if e.request.Port != usual {
		return net.JoinHostPort(e.request.Host, fmt.Sprint(e.request.Port))
	}
	if strings.Contains(e.request.Host, ":") {
		return "[" + e.request.Host + "]"
	}
	return e.request.Host
}

func percentOf(weight, total uint32) float64 {
	return 100 * float64(weight) / float64(max(total, 1))
}

func list(texts []string) string { return strings.Join(texts, ", ") }
