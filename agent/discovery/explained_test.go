package discovery_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/explain"
)

// explainer compares explanations of requests with the responses of a real Envoy.
type explainer struct {
	server *discovery.Server
	node   *corev3.Node
	ports  map[string]string // ports of backends by name, in capitals
}

// newExplainer returns an explainer for an Envoy of a kind (see bootstrapOf).
func newExplainer(t *testing.T, server *discovery.Server, kind string,
	variables map[string]string) explainer {
	t.Helper()
	return explainer{server, nodeOf(t, kind), variables}
}

// nodeOf returns the node of an Envoy of a kind.
func nodeOf(t *testing.T, kind string) *corev3.Node {
	t.Helper()
	var started bootstrapv3.Bootstrap
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(bootstrapOf(kind,
		"admin", `{"pipe": {"path": "xds"}}`)), &started); err != nil {
		t.Fatal(err)
	}
	return started.Node
}

// compare explains a request that was sent, and compares the response with the explanation. port is
// the port of the case.
func (e explainer) compare(t *testing.T, x *exchange, port int) {
	t.Helper()
	request, ok := asked(x, port)
	if !ok {
		return
	}
	said, err := e.server.Explain(e.node, request, explain.EnvoyState{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range x.replies {
		if problem := e.differs(said, r); problem != "" {
			t.Errorf("%s: %s\n explained as %s\n but %s", x.where, strings.Join(x.ask, " | "),
				described(said), problem)
			return
		}
	}
}

// asked returns the request of an exchange. It returns false for connections without HTTP and for
// CONNECT, which are not explained.
func asked(x *exchange, port int) (explain.Request, bool) {
	method, target, _ := strings.Cut(x.ask[0], " ")
	if method == "TCP" {
		return explain.Request{}, false
	}
	request := explain.Request{Method: method, Port: uint32(port),
		DestinationAddress: netip.MustParseAddr("127.0.0.1")}
	scheme, rest, ok := strings.Cut(target, "://")
	if !ok {
		scheme, rest = "http", target
	}
	host, path, _ := strings.Cut(rest, "/")
	request.TLS, request.Path, request.Authority, request.Host = scheme == "https", "/"+path, host,
		host
	if name, _, err := net.SplitHostPort(host); err == nil {
		request.Host = name
	}
	for _, line := range x.ask[1:] {
		name, value, _ := strings.Cut(line, ": ")
		switch {
		case name == "alpn":
			request.ClientSPIFFEID = "spiffe://cluster.local/ns/shop/sa/client"
		case name == "proxy" && request.TLS:
			return explain.Request{}, false // CONNECT
		case name == "to" || name == "proxy":
			to := netip.MustParseAddrPort(value)
			request.DestinationAddress, request.Port = to.Addr(), uint32(to.Port())
		case !slices.Contains(options, name):
			request.Headers = append(request.Headers, explain.Header{Name: name, Value: value})
		}
	}
	return request, true
}

// differs returns the difference between a response and its explanation, or "".
func (e explainer) differs(said discovery.Explanation, r reply) string {
	answered := r.seen.Backend != ""
	switch {
	case len(said.UnknownFacts) > 0 && said.Outcome != explain.OutcomeForwarded:
		return "" // the reason may be a fact that the explanation does not know
	case answered && said.Outcome != explain.OutcomeForwarded:
		return "backend " + r.seen.Backend + " answered"
	case answered:
		return e.elsewhere(said, r)
	case said.Outcome == explain.OutcomeConnectionClosed || said.Outcome == explain.OutcomeConnectionRefused:
		if r.err == nil {
			return fmt.Sprintf("there was an answer of status %d", r.status)
		}
	case said.Outcome == explain.OutcomeForwarded:
		// The explanation does not predict the response of a backend. If no backend has responded,
		// the explanation must have a reason for the proxy's own response.
		if r.err == nil && r.status < 500 && r.status != 0 && len(said.UnknownFacts) == 0 &&
			!slices.ContainsFunc(said.Steps,
				func(s explain.Step) bool { return s.Kind == "fault" }) {
			return fmt.Sprintf("the proxy answered with status %d", r.status)
		}
	case r.err != nil:
		return fmt.Sprintf("there was no answer: %v", r.err)
	case r.status != said.Status:
		return fmt.Sprintf("the status was %d", r.status)
	case said.Outcome == explain.OutcomeRedirect && r.header.Get("location") != said.Location:
		return "it was redirected to " + r.header.Get("location")
	case said.Body != "" && r.body != said.Body:
		return fmt.Sprintf("the body was %q", r.body)
	}
	return ""
}

// elsewhere compares an explanation with the backend that responded and the path that the backend
// received. It returns the difference, or "".
func (e explainer) elsewhere(said discovery.Explanation, r reply) string {
	if r.seen.Backend == "socket" || r.seen.Backend == "unknown" {
		return "" // the explanation does not contain the addresses of these backends
	}
	var endpoints []string
	for _, s := range said.Steps {
		if s.Kind == "endpoints" && slices.ContainsFunc(said.Clusters,
			func(c explain.WeightedCluster) bool { return c.Cluster == s.Name }) {
			endpoints = append(endpoints, s.Facts...)
		}
	}
	port := e.ports[strings.ToUpper(r.seen.Backend)]
	if _, err := strconv.Atoi(port); err == nil && !slices.ContainsFunc(endpoints,
		func(fact string) bool {
			return strings.Contains(fact, ":"+port) || strings.Contains(fact, "was addressed to") ||
				strings.Contains(fact, "DNS")
		}) {
		return fmt.Sprintf("backend %s at port %s answered, endpoints %q", r.seen.Backend, port,
			endpoints)
	}
	for _, s := range said.Steps {
		for _, fact := range s.Facts {
			if to, ok := strings.CutPrefix(fact, "rewrites the path to "); ok {
				if path, _, _ := strings.Cut(to, "?"); path != r.seen.Path {
					return "the path was " + r.seen.Path
				}
			}
		}
	}
	return ""
}

func described(said discovery.Explanation) string {
	text := fmt.Sprintf("%s %d %s %v (%s)", said.Outcome, said.Status, said.Location, said.Clusters,
		said.Reason)
	for _, s := range said.Steps {
		text += fmt.Sprintf("\n   %s %s: %s", s.Kind, s.Name, strings.Join(s.Facts, "; "))
	}
	return text + fmt.Sprintf("\n   unknown: %q", said.UnknownFacts)
}
